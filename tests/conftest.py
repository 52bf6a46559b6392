"""One thread per test process: with `-n 2` on two cores more only get in each other's way, and bits depend on it."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
