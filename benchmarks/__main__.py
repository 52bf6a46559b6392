"""`make bench`: every row of docs/performance.md, or those named: `python -m benchmarks views files`."""

import sys
from collections.abc import Callable, Iterator

import torch

from benchmarks import clusters, evaluating, opening, predicting, program, seeing, training
from benchmarks.timing import Row

GROUPS: dict[str, Callable[[], Iterator[Row]]] = {
    "efficiency": training.efficiency,
    "demo": training.demo_time,
    "price": training.price_of_ccl,
    "recipe-price": training.price_of_recipe,
    "views": seeing.views,
    "files": seeing.files,
    "opening": opening.opening,
    "probe": evaluating.probe,
    "selection": evaluating.selection,
    "large-selection": evaluating.large_selection,
    "clusters": clusters.clusters,
    "late-steps": training.late_steps,
    "ranks": training.several_ranks,
    "saving": training.saving,
    "cost-model": predicting.cost_model,
    "start-up": program.start_up,
    "memory": program.memory,
    "folder-scan": program.folder_scan,
}


def main() -> None:
    """Measure the wanted rows on one thread and print the table."""
    wanted = sys.argv[1:] or list(GROUPS)
    unknown = [name for name in wanted if name not in GROUPS]
    if unknown:
        sys.exit(f"no rows called {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread\n{'what':<62} {'value':>9}   goal")
    for name in wanted:
        for row in GROUPS[name]():
            print(row, flush=True)


main()
