"""What only shows after a long time."""

import os
from pathlib import Path

import pytest
import torch
from networks import make_encoder

from ccl.data import ArraySource
from ccl.objectives import MoCoV2
from ccl.retention import ExtraSampleQueue, TeacherDistillation
from ccl.training import Learner, Observer, OptimizerOptions, Plan, learn_stream
from ccl.views import RECIPES, Viewer


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_l1_two_thousand_iterations_leak_nothing() -> None:
    encoder = make_encoder("convnet", width=8, dim=32)
    objective = MoCoV2(encoder, MoCoV2.Options(queue_size=256, key_momentum=0.99), temperature=0.1)
    past = {
        "distillation": TeacherDistillation(encoder, TeacherDistillation.Options(momentum=0.996), temperature=0.1),
        "extra_sample_queue": ExtraSampleQueue(32, ExtraSampleQueue.Options(size=32), temperature=0.1),
    }
    learner = Learner(encoder, objective, past, {"contrast": 0.9, "distillation": 0.1, "extra_sample_queue": 0.1})
    images = torch.randint(256, (1280, 3, 32, 32), dtype=torch.uint8)
    new = ArraySource(images)
    learner.memory.add(new, torch.arange(40), 0, torch.zeros(40), torch.zeros(40))
    measured: list[tuple[int, int]] = []

    class Meter(Observer):
        count = 0

        def updated(self, *_: object) -> None:
            self.count += 1
            if self.count in (1600, 3600):  # after the allocator has found its level
                measured.append((resident_bytes(), len(os.listdir("/proc/self/fd"))))

    # The second step of a stream, so that every part acts.
    learn_stream(
        learner,
        [new.subset(torch.arange(32)), new],
        Viewer(RECIPES["moco_cifar"], seed=0),
        Plan(epochs=180, batch_size=64, optimizer=OptimizerOptions(learning_rate=0.01, weight_decay=0.0)),
        observer=Meter(),
    )
    (before, open_before), (after, open_after) = measured
    assert after < 1.02 * before
    assert open_after == open_before
