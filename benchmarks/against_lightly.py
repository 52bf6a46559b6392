"""`python -m benchmarks.against_lightly PYTHON`: MoCo v2 of lightly and of ccl on the same network, images and batches.

PYTHON is the interpreter of an environment with lightly, which brings another torch and so lives in one of its own:

    python3 -m venv lightly-env && lightly-env/bin/pip install lightly==1.6.0

Both sides run in turns, each in a process of its own on one thread: lightly with its MoCo transform, memory bank, loss
and momentum update, as its documentation puts them together, ccl as `ccl run` does it. What is compared are images a
second of training, views included. The network is ours, rebuilt by its weights' shapes from plain torch modules.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.timing import Row

CASES = {"ConvNet, 32 px": ("convnet", 32, 64, 3.0), "ResNet-18 w64, 32 px": ("resnet18", 64, 64, 0.9)}
_ROUNDS = 3


def main() -> None:
    """Print images a second of both, and the ratio."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    theirs = Path(__file__).with_name("lightly_moco.py")
    for name, (backbone, width, batch_size, goal) in CASES.items():
        words = [backbone, str(width), str(batch_size)]
        rates: dict[str, float] = {}
        for _ in range(_ROUNDS):  # in turns, so that a slow moment of the machine hits both
            for side, command in (
                ("lightly", [sys.argv[1], str(theirs), *words]),
                ("ccl", [sys.executable, "-m", "benchmarks.against_lightly_ours", *words]),
            ):
                with tempfile.TemporaryDirectory() as scratch:
                    answer = subprocess.run([*command, scratch], capture_output=True, text=True)
                if answer.returncode:
                    sys.exit(f"{side} failed: {answer.stderr.strip().splitlines()[-1]}")
                rates[side] = max(rates.get(side, 0.0), json.loads(answer.stdout.splitlines()[-1])["images_per_second"])
        print(f"{name}: lightly {rates['lightly']:,.0f}, ccl {rates['ccl']:,.0f} images/s")
        print(Row(f"images/s of ccl ÷ lightly, MoCo v2, {name}", rates["ccl"] / rates["lightly"], goal, at_least=True))


main()
