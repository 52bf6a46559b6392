"""A version of a state, opened to be used."""

from pathlib import Path

from ccl.running.build import build_device, build_encoder, build_viewer
from ccl.running.saving import by_part
from ccl.settings import Settings
from ccl.state.folder import StateFolder
from ccl.state.frozen import FrozenEncoder
from ccl.training.checkpoint import Checkpoint

_STUDENT = "encoder."  # the learner's tensors that are the student's


def frozen(state: Path, version: int | None = None) -> FrozenEncoder:
    """The encoder of this version; by default of the pinned one, else of the current one."""
    folder = StateFolder(state)
    checkpoint = folder.version(version)
    settings = folder.settings()
    assert settings is not None, "a state with a version has settings"
    return thawed(settings, checkpoint)


def thawed(settings: Settings, checkpoint: Checkpoint) -> FrozenEncoder:
    """The encoder that a version holds."""
    device = build_device(settings)
    encoder = build_encoder(settings, device)
    tensors = by_part(checkpoint.tensors)["learner"]
    encoder.load_state_dict(
        {name.removeprefix(_STUDENT): value for name, value in tensors.items() if name.startswith(_STUDENT)}
    )
    encoder.eval()
    viewer = build_viewer(settings, device)
    return FrozenEncoder(encoder, viewer, settings.encoder, checkpoint.number, settings.data.resize, checkpoint.about)
