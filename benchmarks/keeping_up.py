"""Five drops into an encoder folder: what is each strategy worth at the end, on labelled images of all drops?

python -m benchmarks.keeping_up RUNS/drops [--seeds 0,1,2] [--strategies NAMES]

Drops are PNG folders of the embedded pictures, one kind a week, each deleted when it is learned; ConvNet at 16 px, one
thread, one to two minutes a folder. A row of RUNS/drops/results.csv for each strategy and seed; stopped, the same line
resumes. `make results RUNS=RUNS` writes the table of docs/keeping_up.md from it.
"""

import argparse
import shutil
from pathlib import Path

import torch

from benchmarks.result_rows import RESULTS, add_row, is_there, seeds_of
from ccl import ContinualEncoder
from ccl.continual_encoder.folder import EncoderFolder
from ccl.data import EMBEDDED_DOMAINS, Dataset, load_dataset
from ccl.evaluation import fit
from ccl.report.seed_statistics import estimate
from ccl.report.tables import Cell, Table
from ccl.strategies import STRATEGIES, strategy_title

ALL = "all classes"
SETTINGS = {
    "threads": 1,
    "epochs": 20,
    "batch_size": 64,
    "data": {"resize": 16},
    "views": {"size": 16, "min_scale": 0.4, "flip": 0.0},
    "encoder": {"backbone": "convnet", "width": 32, "dim": 64},
    "moco_v2": {"queue_size": 512},
    "memory": {"budget": 250},
}


def deliver(domain: Dataset, folder: Path) -> Path:
    """A week's folder, without labels."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(len(domain.train)):
        (folder / f"{number * 7919 % 100_003:06d}.png").write_bytes(domain.train.encoded(number))
    return folder


def accuracies(encoder: ContinualEncoder, domains: list[Dataset]) -> list[float]:
    """A linear probe of all classes of all drops: in all, then on each drop's test images, in percent."""
    train, test, train_labels, test_labels, first = [], [], [], [], 0
    for domain in domains:
        assert domain.train_labels is not None
        assert domain.test is not None
        assert domain.test_labels is not None
        train.append(encoder.frozen().features(domain.train))
        test.append(encoder.frozen().features(domain.test))
        train_labels.append(domain.train_labels + first)
        test_labels.append(domain.test_labels + first)
        first += len(domain.class_names)
    probe = fit(torch.cat(train), torch.cat(train_labels))
    each = [probe.accuracy(rows, labels) for rows, labels in zip(test, test_labels, strict=True)]
    return [probe.accuracy(torch.cat(test), torch.cat(test_labels)), *each]


def table(rows: list[dict[str, str]]) -> Table:
    """Mean and spread over seeds, strategy by strategy: of all classes, then of each drop's."""
    lines: list[tuple[Cell, ...]] = []
    for name in (name for name in STRATEGIES if any(row["arm"] == name for row in rows)):
        of_arm = [row for row in rows if row["arm"] == name]
        cells = [estimate([float(row[column]) for row in of_arm]) for column in (ALL, *EMBEDDED_DOMAINS)]
        lines.append((strategy_title(name), *cells))
    note = (
        f"Accuracy in percent of a linear probe of all classes of all drops, mean ± standard deviation over seeds "
        f"{seeds_of(rows)}; in all, and on the test images of each drop in the order in which they came."
    )
    return Table("Five drops, each deleted when it is learned", ("", ALL, *EMBEDDED_DOMAINS), tuple(lines), note)


def main() -> None:
    """One row for each strategy and seed that has none yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--strategies", default="finetuning,simple_rehearsal,ccl,multi_view_rehearsal")
    options = parser.parse_args()
    domains, path = [load_dataset(name, resize=16) for name in EMBEDDED_DOMAINS], options.out / RESULTS
    for seed in map(int, options.seeds.split(",")):
        for strategy in options.strategies.split(","):
            if is_there(path, strategy, seed):
                continue
            folder = options.out / f"{strategy}-{seed}"
            asked = {**SETTINGS, "seed": seed, "strategy": strategy}
            is_begun = EncoderFolder(folder).exists()
            encoder = ContinualEncoder.open(folder) if is_begun else ContinualEncoder.create(folder, **asked)
            for week in range(encoder.num_steps, len(domains)):
                drop = deliver(domains[week], options.out / f"drop-{strategy}-{seed}-{week}")
                encoder.learn(drop, name=EMBEDDED_DOMAINS[week], progress=False)
                shutil.rmtree(drop)
            found = dict(zip((ALL, *EMBEDDED_DOMAINS), accuracies(encoder, domains), strict=True))
            add_row(path, {"arm": strategy, "seed": seed, **{name: round(value, 3) for name, value in found.items()}})
            print(strategy, seed, found, flush=True)


if __name__ == "__main__":
    main()
