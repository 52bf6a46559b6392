"""Settings: every mistake gets a clear line with the nearest valid name, all at once, before any work."""

import string
from pathlib import Path

import pytest
import yaml

from ccl.errors import UserError
from ccl.loading import dump_settings, load_settings, parsed, preset_names, read_settings, setting_names, validated
from ccl.training import MemoryOptions


@pytest.mark.parametrize("preset", preset_names())
def test_presets_load_open_with_their_command_and_read_back(preset: str) -> None:
    settings = load_settings(preset)
    assert validated(yaml.safe_load(dump_settings(settings))) == settings
    text = (Path(__file__).parents[3] / "src" / "ccl" / "presets" / f"{preset}.yaml").read_text()
    assert f"#   ccl run {preset} " in text


def test_an_objective_asked_for_brings_its_defaults_above_those_of_a_preset_for_another() -> None:
    own = load_settings("cifar100-simsiam").encoder
    assert (own.head, own.head_layers) == ("simsiam", 2)
    other = load_settings("cifar100-simsiam", ["objective=vicreg"]).encoder
    assert (other.head, other.head_layers, other.head_width) == ("mlp_bn", 3, own.head_width)
    asked = load_settings("cifar100-simsiam", ["objective=vicreg", "encoder.head=linear"]).encoder
    assert (asked.head, asked.head_layers) == ("linear", 3)
    assert load_settings("cifar100-simsiam", ["objective=simsiam"]).encoder == own


def test_a_folder_from_before_a_setting_has_its_plain_default_and_not_the_strategy_s(tmp_path: Path) -> None:
    """Such as a run of Multi-view Rehearsal that showed further views of all old images: it still does."""
    values = yaml.safe_load(dump_settings(load_settings("demo", ["strategy=multi_view_rehearsal"])))
    assert values["further_views"].pop("share") < 1
    written = tmp_path / "settings.yaml"
    written.write_text(yaml.safe_dump(values))
    assert read_settings(written).further_views.share == 1
    assert load_settings(str(written)).further_views.share < 1
    written.write_text("epochs: [")
    with pytest.raises(UserError, match="not valid YAML"):
        read_settings(written)


def test_the_paper_s_values_are_the_preset_s() -> None:
    cifar = load_settings("cifar100")
    assert (cifar.epochs, cifar.batch_size, cifar.optimizer.learning_rate, cifar.optimizer.weight_decay) == (
        200,
        512,
        0.06,
        5e-4,
    )
    assert (cifar.moco_v2.queue_size, cifar.moco_v2.key_momentum, cifar.temperature) == (4096, 0.99, 0.1)
    assert cifar.encoder.batch_norm_groups == 8
    weights = cifar.weights
    assert (weights.contrast, weights.extra_sample_queue, weights.distillation) == (0.9, 0.1, 0.1)
    assert (cifar.extra_sample_queue.size, cifar.memory.per_cluster, cifar.memory.num_views) == (128, 20, 6)
    assert cifar.distillation.momentum == 0.996
    imagenet = load_settings("imagenet-full")
    assert (imagenet.batch_size, imagenet.optimizer.learning_rate, imagenet.optimizer.weight_decay) == (256, 0.03, 1e-4)
    assert (imagenet.moco_v2.queue_size, imagenet.moco_v2.key_momentum, imagenet.temperature) == (65536, 0.999, 0.2)
    assert imagenet.steps == 10


def test_a_setting_that_went_out_is_read_where_it_changed_nothing(tmp_path: Path) -> None:
    written, settings = tmp_path / "settings.yaml", load_settings("demo")
    values = yaml.safe_load(dump_settings(settings))
    values["memory"] |= {"top_up": True, "replacement": False}
    values["insdisc"] = {"num_noise": None, "bank_momentum": 0.5, "proximal": 0.0}
    values["probe"]["network"] = "product"
    written.write_text(yaml.safe_dump(values))
    assert read_settings(written) == load_settings(str(written)) == settings
    values["memory"]["top_up"] = False
    written.write_text(yaml.safe_dump(values))
    for read in (read_settings, lambda path: load_settings(str(path))):
        with pytest.raises(
            UserError, match=r"^memory\.top_up is False: that setting went out, and only True can be read$"
        ):
            read(written)
    with pytest.raises(UserError, match=r"unknown setting 'memory\.top_up'"):
        load_settings("demo", ["memory.top_up=true"])


def typos(word: str) -> set[str]:
    """Every word one deletion, one swap or one of a few insertions away, in the last part of a dotted name."""
    head, _, last = word.rpartition(".")
    found = {last[:i] + last[i + 1 :] for i in range(len(last))}
    found |= {last[:i] + last[i + 1] + last[i] + last[i + 2 :] for i in range(len(last) - 1)}
    found |= {last[:i] + letter + last[i:] for i in range(len(last) + 1) for letter in string.ascii_lowercase[::9]}
    return {f"{head}.{typo}" if head else typo for typo in found if typo and typo != last}


@pytest.mark.parametrize("one_of", [8, pytest.param(1, marks=pytest.mark.slow)])  # the search is what takes its time
@pytest.mark.parametrize("name", setting_names())
def test_every_typo_of_every_key_is_refused_with_the_right_name(name: str, one_of: int) -> None:
    for typo in sorted(typos(name) - set(setting_names()))[::one_of]:
        section = typo.split(".")[0]
        with pytest.raises(UserError) as caught:
            validated(parsed([f"{typo}=1"]))  # what `load_settings` does, without reading a preset a thousand times
        assert f"did you mean {name!r}?" in str(caught.value), (typo, section)


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("epochs=many", "epochs: Input should be a valid integer, got 'many'"),
        ("epochs=0", "epochs: Input should be greater than or equal to 1, got 0"),
        ("epochs=2.5", "epochs: Input should be a valid integer"),
        ("temperature=0", "temperature: Input should be greater than 0, got 0"),
        ("temperature=.nan", "temperature: Input should be a finite number"),
        ("moco_v2.queue_size=0", "moco_v2.queue_size: Input should be greater than or equal to 1, got 0"),
        ("extra_sample_queue.size=0", "extra_sample_queue.size: Input should be greater than or equal to 1, got 0"),
        ("strategy=cccl", "strategy: unknown strategy 'cccl'; did you mean 'ccl'?"),
        ("objective=moco", "objective: unknown objective 'moco'; did you mean 'moco_v2'?"),
        ("device=gpu", "device: a device is auto, cpu, cuda, cuda:1 or mps"),
        ("encoder.batch_norm_groups=7", "batch_size 64 can't be split in 7 encoder.batch_norm_groups; nearest"),
        ("memory.clusters=estimat", "memory.clusters: Input should be a valid integer"),
        ("memory.clusters=0", "memory.clusters: Input should be greater than or equal to 1"),
        ("memory.budget=0", "memory.budget: Input should be greater than or equal to 1"),
        ("memory.budget=2.5", "memory.budget: Input should be a valid integer"),
        ("memory.budget=50 megabytes", "memory.budget: '50 megabytes' is not a size; write a number and one of B, kB,"),
        ("data=3", "data: Input should be a valid dictionary"),
        ("queue_size=3", "unknown setting 'queue_size'; did you mean 'moco_v2.queue_size'?"),
        ("epochs", "--set takes key=value"),
        ("epochs=[1", "--set epochs=[1, line 1: not valid YAML"),
    ],
)
def test_wrong_values_get_one_line(assignment: str, told: str) -> None:
    with pytest.raises(UserError) as caught:
        load_settings("demo", [assignment])
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(UserError) as caught:
        load_settings("demo", ["epoch=3", "batch_size=x", "memory.per_clusters=3"])
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert {line.split("'")[1] for line in lines if "unknown" in line} == {"epoch", "memory.per_clusters"}


def test_numbers_with_exponents_are_numbers() -> None:
    assert load_settings("demo", ["optimizer.weight_decay=1e-4"]).optimizer.weight_decay == 1e-4
    assert load_settings("demo", ["optimizer.learning_rate=3E-2"]).optimizer.learning_rate == 0.03


def test_files_extend_presets_and_assignments_win(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: demo\nepochs: 7\nmemory: {per_cluster: 3}\n")
    settings = load_settings(str(file), ["epochs=9"])
    assert (settings.epochs, settings.memory.per_cluster, settings.memory.num_views) == (9, 3, 6)
    assert settings.dataset == load_settings("demo").dataset


def test_a_mapping_replaces_that_of_the_preset_and_a_longer_name_changes_one_value(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: demo\ndataset: [symbols, textures]\ndata: {classes: {symbols: 3, textures: 2}}\n")
    for asked, expected in (
        ([], {"symbols": 3, "textures": 2}),
        (["data.classes={}"], {}),
        (["data.classes={symbols: 2}"], {"symbols": 2}),
        (["data.classes.symbols=2"], {"symbols": 2, "textures": 2}),
        (["data.classes={}", "data.classes.textures=4"], {"textures": 4}),
    ):
        settings = load_settings(str(file), asked)
        assert settings.data.classes == expected
        assert yaml.safe_load(dump_settings(settings))["data"]["classes"] == expected
    assert load_settings("demo", ["memory={num_views: 3}"]).memory == MemoryOptions(num_views=3)


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [", "epochs: !!python/object/apply:os.system ['true']", "\x00"])
def test_odd_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=r"odd\.yaml"):
        load_settings(str(file))


BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdef", "bcdefg", strict=True)
)


@pytest.mark.parametrize(
    "text",
    ["seed: " + "9" * 5000, "seed: " + "9" * 30, "seed: 2001-99-99", "seed: " + "[" * 5000, BOMB, "seed: &a [*a]"],
    ids=["digits", "bits", "date", "deep", "many", "itself"],
)
def test_yaml_that_no_setting_is_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "settings.yaml").write_text(text)
    for read in (lambda path: load_settings(str(path)), read_settings):
        with pytest.raises(UserError) as caught:
            read(tmp_path / "settings.yaml")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400
