"""The catalogue: every row is a part that can be made, and its facts refuse what makes no sense."""

import subprocess
import sys
from dataclasses import replace

import pytest

from ccl.catalogue import (
    BACKBONES,
    COMPOSITIONS,
    MEMORY,
    NEGATIVES,
    OBJECTIVES,
    OLD_IMAGES,
    PATCHES,
    RETENTION,
    WEIGHT_RULES,
    title_of,
)
from ccl.errors import UserError
from ccl.loading import load_settings
from ccl.settings import Settings
from ccl.strategies import STRATEGIES, matters


def test_it_does_not_need_torch() -> None:
    code = "import sys, ccl.catalogue, ccl.strategies, ccl.section; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("name", [*BACKBONES, *OBJECTIVES, *RETENTION, *COMPOSITIONS, *WEIGHT_RULES])
def test_names_are_distinct_titles_are_there_and_options_have_a_section(name: str) -> None:
    tables = (BACKBONES, OBJECTIVES, RETENTION, COMPOSITIONS, WEIGHT_RULES)
    (row,) = [table[name] for table in tables if name in table]
    assert row.title
    assert row.needs | row.gives <= {MEMORY, NEGATIVES, OLD_IMAGES, PATCHES}
    assert title_of(name) == row.title


def test_weights_of_parts_come_from_their_rows() -> None:
    weights = Settings().weights.model_dump()
    assert weights == {"contrast": 0.9, "distillation": 0.1, "extra_sample_queue": 0.1} | {
        name: row.weight for name, row in RETENTION.items()
    }


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_names_parts_that_exist(strategy: str) -> None:
    row = STRATEGIES[strategy]
    assert set(row.retention) <= RETENTION.keys()
    assert row.composition in COMPOSITIONS


@pytest.mark.parametrize(
    ("assignments", "line"),
    [
        (
            ["strategy=finetuning", "composition=share"],
            "share needs a memory, and strategy finetuning has none; try strategy=simple_rehearsal",
        ),
        (
            ["strategy=finetuning", "retention=distillation"],
            "distillation needs a memory, and strategy finetuning has none; try strategy=simple_rehearsal",
        ),
        (
            ["strategy=finetuning", "composition=lump"],
            "lump needs a memory, and strategy finetuning has none; try strategy=simple_rehearsal",
        ),
        (
            ["strategy=ccl", "composition=lump"],
            "distillation needs old images of their own, and composition lump has none; try composition=share",
        ),
        (
            ["strategy=der", "composition=lump"],
            "der needs old images of their own, and composition lump has none; try composition=share",
        ),
        (
            ["strategy=finetuning", "retention=cross_task"],
            "cross_task needs a memory, and strategy finetuning has none; try strategy=simple_rehearsal",
        ),
        (
            ["strategy=finetuning", "retention=alignment"],
            "alignment.images=old needs a memory, and strategy finetuning has none; set alignment.images=all",
        ),
        (
            ["strategy=finetuning", "retention=alignment", "alignment.images=all", "alignment.target=stored"],
            "alignment.target=stored needs a memory, and strategy finetuning has none; set alignment.target=average",
        ),
        (
            ["strategy=cassle", "predictive_distillation.images=old"],
            "predictive_distillation.images=old needs a memory, and strategy cassle has none; "
            "set predictive_distillation.images=all",
        ),
        (
            ["strategy=cla", "composition=lump"],
            "alignment.images=old needs old images of their own, and composition lump has none; "
            "set alignment.images=all",
        ),
        (
            ["strategy=finetuning", "objective=mae", "encoder.backbone=convnet"],
            "objective mae needs patches, and encoder.backbone convnet has none; set encoder.backbone=vit_tiny",
        ),
        (
            ["strategy=finetuning", "objective=mae", "encoder.backbone=timm:resnet18"],
            "objective mae needs patches, and encoder.backbone timm:resnet18 has none; set encoder.backbone=vit_tiny",
        ),
        (
            ["strategy=finetuning", "objective=mae", "mae.decoder_heads=3"],
            "mae.decoder_width 128 can't be split in 3 mae.decoder_heads; nearest valid value: 129",
        ),
        (["composition=shared"], "composition: unknown composition 'shared'; did you mean 'share'?"),
        (["retention=destillation"], "retention: unknown retention 'destillation'; did you mean 'distillation'?"),
        (["encoder.backbone=resnet19"], "encoder.backbone: unknown backbone 'resnet19'; did you mean 'resnet18'?"),
        (["share.old=1.0"], "share.old: Input should be less than 1"),
        (["epochs=3", "optimizer.warmup_epochs=3"], "nearest valid value: 2"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(assignments: list[str], line: str) -> None:
    with pytest.raises(UserError) as caught:
        load_settings("demo", assignments)
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


WITHOUT_NEGATIVES = ("byol", "simsiam", "barlow_twins", "vicreg")


@pytest.mark.parametrize("name", [*WITHOUT_NEGATIVES, "mae"])
def test_an_objective_without_negatives_has_no_extra_sample_queue(name: str) -> None:
    with pytest.raises(UserError) as caught:
        load_settings("demo", ["strategy=ccl", f"objective={name}"])
    advice = "set weights.extra_sample_queue=0, or objective=moco_v2"
    assert str(caught.value).endswith(f"extra_sample_queue needs negatives, and objective {name} has none; {advice}")
    load_settings("demo", ["strategy=ccl", f"objective={name}", "weights.extra_sample_queue=0"])


@pytest.mark.parametrize("name", WITHOUT_NEGATIVES)
def test_an_objective_without_negatives_brings_a_head_with_batch_norm(name: str) -> None:
    encoder = load_settings("demo", ["strategy=finetuning", f"objective={name}"]).encoder
    assert encoder.head == ("simsiam" if name == "simsiam" else "mlp_bn")
    assert encoder.head_layers == (3 if name in ("barlow_twins", "vicreg") else 2)
    asked = load_settings("demo", ["strategy=finetuning", f"objective={name}", "encoder.head=linear"]).encoder
    assert asked.head == "linear"
    assert load_settings("demo", ["objective=simclr"]).encoder.head == "mlp"


def test_every_objective_says_how_far_embeddings_are_apart() -> None:
    distances = {name: row.distance for name, row in OBJECTIVES.items()}
    assert distances == {
        **dict.fromkeys(("moco_v2", "simclr", "insdisc"), "info_nce"),
        **dict.fromkeys(("byol", "simsiam", "mae"), "cosine"),
        "barlow_twins": "barlow",
        "vicreg": "mse",
    }


def test_a_method_is_its_strategy_s_row_with_what_the_settings_change() -> None:
    own = load_settings("demo", ["strategy=ccl"]).method
    assert own == STRATEGIES["ccl"]
    changed = load_settings(
        "demo", ["strategy=ccl", "retention=distillation", "composition=share", "memory.selection=random"]
    ).method
    assert (changed.retention, changed.composition, changed.selection) == (("distillation",), "share", "random")
    assert load_settings("demo", ["strategy=ccl", "weights.distillation=0"]).method.retention == ("extra_sample_queue",)
    assert load_settings("demo", ["strategy=finetuning", "memory.selection=random"]).method.selection is None


def test_which_settings_matter() -> None:
    assert matters("moco_v2.queue_size", "ccl", "moco_v2")
    assert not matters("moco_v2.queue_size", "ccl", "simclr")
    assert not matters("weights.distillation", "simple_rehearsal", "simclr")
    assert matters("share.old", "shared_rehearsal", "simclr")
    assert not matters("share.old", "simple_rehearsal", "simclr")
    assert not matters("memory.budget", "finetuning", "simclr")


def test_defaults_of_objective_and_strategy_lie_below_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"encoder": {"dim": 64, "head": "linear"}}
    monkeypatch.setitem(OBJECTIVES, "simclr", replace(OBJECTIVES["simclr"], defaults=wanted))
    row = replace(STRATEGIES["ccl"], defaults={"encoder": {"dim": 32}, "weights": {"contrast": 1.0}})
    monkeypatch.setitem(STRATEGIES, "ccl", row)
    settings = Settings.model_validate({"objective": "simclr", "encoder": {"width": 8}})
    assert (settings.encoder.dim, settings.encoder.head, settings.encoder.width) == (32, "linear", 8)
    assert settings.weights.contrast == 1.0
    assert Settings.model_validate({"objective": "simclr", "encoder": {"dim": 16}}).encoder.dim == 16
    assert Settings.model_validate({"objective": "moco_v2", "strategy": "finetuning"}).encoder.dim == 128


def test_mae_brings_a_backbone_with_patches_and_its_optimizer() -> None:
    own = load_settings("demo")
    asked = load_settings("demo", ["strategy=finetuning", "objective=mae"])
    assert (asked.encoder.backbone, asked.encoder.head, asked.encoder.dim) == ("vit_tiny", "linear", own.encoder.dim)
    assert (asked.optimizer.name, asked.views.jitter_probability, asked.views.flip) == ("adamw", 0.0, own.views.flip)
    assert load_settings("demo", ["strategy=finetuning", "objective=mae", "encoder.backbone=vit_small"])
    paper = load_settings("cifar100-mae")
    assert (paper.encoder.backbone, paper.optimizer.learning_rate) == ("vit_small", 2e-4)
