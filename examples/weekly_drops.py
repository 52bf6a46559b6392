"""Five weeks of unlabelled images: each week's folder is learned and deleted; at the end one searches in all of them.

python examples/weekly_drops.py DATA OUT [EPOCHS] [STRATEGY]   (DATA holds cifar-100-python; an hour at 60 epochs)

Leaves OUT/encoder (with its page, report.html), OUT/labelled and OUT/search.html. Stopped, the same line resumes.
"""

import shutil
import sys
from pathlib import Path

from ccl import ContinualEncoder
from ccl.data import class_incremental, load_dataset

DATA, OUT = Path(sys.argv[1]), Path(sys.argv[2])
EPOCHS = int(sys.argv[3]) if len(sys.argv) > 3 else 60
STRATEGY = sys.argv[4] if len(sys.argv) > 4 else "ccl"
PER_CLASS = 200  # images of each class that arrive

cifar = load_dataset("cifar100", DATA, classes=20)
weeks = class_incremental(cifar.train_labels, num_steps=5, seed=0)


def labelled_folder() -> Path:
    """The test images by class, of which each fifth is held out to measure accuracy; never learned from."""
    folder = OUT / "labelled"
    for label, name in enumerate(cifar.class_names):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in (cifar.test_labels == label).nonzero().flatten().tolist():
            (folder / name / f"{number:05d}.png").write_bytes(cifar.test.encoded(number))
    return folder


def deliver(week: int) -> Path:
    """The folder of a week, as a camera or a crawler would leave it: images without labels, in no order."""
    folder = OUT / f"week-{week + 1}"
    folder.mkdir(parents=True, exist_ok=True)
    step = weeks[week]
    for label in step.classes:
        for number in (cifar.train_labels == label).nonzero().flatten()[:PER_CLASS].tolist():
            (folder / f"{number * 7919 % 100_003:06d}.png").write_bytes(cifar.train.encoded(number))
    return folder


probe = labelled_folder()
own = OUT / "encoder"
settings = {"epochs": EPOCHS, "strategy": STRATEGY, "memory": {"budget": 400}, "threads": 1}
is_there = (own / "state.json").exists()
encoder = ContinualEncoder.open(own) if is_there else ContinualEncoder.create(own, **settings)

for week in range(encoder.num_steps, len(weeks)):
    folder = deliver(week)
    (outcome,) = encoder.learn(folder, probe=probe)
    print(f"{folder.name}: {outcome.message}", flush=True)
    shutil.rmtree(folder)  # gone for good: the encoder remembers 400 images of all weeks together

queries = [min((probe / name).iterdir()) for name in cifar.class_names[::4]]
encoder.search(queries, probe, OUT / "search.html", k=10)
print(f"its page: {own / 'report.html'}; a search: {OUT / 'search.html'}")
