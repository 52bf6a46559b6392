"""An encoder folder whose weights follow a rule: what is read with is what the rule makes, not the student."""

from pathlib import Path
from typing import Any

import torch
from drops import TINY, Deliver
from torch import Tensor

from ccl import ContinualEncoder
from ccl.continual_encoder.folder import EncoderFolder
from ccl.runs.session import by_part

QUIET: dict[str, Any] = {"progress": False}
AVERAGE, STUDENT = "registered_parts.average.average.copy.", "encoder."


def saved(folder: Path, version: int, prefix: str) -> dict[str, Tensor]:
    tensors = by_part(EncoderFolder(folder).versions.load(version).tensors)["learner"]
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def test_a_version_is_read_with_its_average(tmp_path: Path, deliver: Deliver) -> None:
    encoder = ContinualEncoder.create(tmp_path / "state", **{**TINY, "weight_rule": "average"})
    for name, domain in (("week-1", "symbols"), ("week-2", "textures")):
        (outcome,) = encoder.learn(deliver(name, domain), **QUIET)
        assert outcome.kind == "learned"
    for version in (1, 2):
        frozen = encoder.frozen(version)
        used, average = frozen.encoder.state_dict(), saved(encoder.folder, version, AVERAGE)
        assert used.keys() == average.keys()
        assert all(torch.equal(used[name], average[name]) for name in used)
        student = saved(encoder.folder, version, STUDENT)
        assert not any(torch.equal(used[name], student[name]) for name in used if name.endswith(".weight"))
        assert not frozen.encoder.training
    exported = encoder.export(tmp_path / "encoder.safetensors")
    assert exported.format
