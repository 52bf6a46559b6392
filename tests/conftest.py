"""One thread per test process: with `-n 2` on two cores more only get in each other's way, and bits depend on it.

And a cache of its own for each, that no test can find what an earlier run of the tests has left.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["CCL_CACHE"] = os.environ["CCL_CONFIG"] = tempfile.mkdtemp(prefix="ccl-tests-")

import torch

atexit.register(shutil.rmtree, os.environ["CCL_CACHE"], ignore_errors=True)
torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parent / "support"))  # helper modules, imported by their plain names
sys.path.append(str(Path(__file__).parents[1]))  # benchmarks, some of which are tested
