"""An encoder folder is made: empty, or from weights as version 0."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ccl.continual_encoder.default_settings import refuse_mistakes
from ccl.continual_encoder.encoder_folder import STATE, EncoderFolder, Ledger
from ccl.continual_encoder.output_checks import bad_images_beside, listing_bad_images
from ccl.continual_encoder.pretrained_start import begin_from
from ccl.errors import UserError
from ccl.runs.folder_lock import locked


def make_folder(
    state: EncoderFolder, settings: Mapping[str, Any], weights: str | Path | None, keep: Sequence[str | Path]
) -> None:
    """Make it, with the settings that were asked for; a mistake in them, or a folder that exists, is refused first."""
    refuse_mistakes(settings)
    if weights is not None:
        _refuse_existing(state)
        with listing_bad_images(bad_images_beside(state.path)):
            begin_from(state, str(weights), settings, keep)
        return
    if keep:
        raise UserError("keep is for an encoder that starts from weights; name them too")
    with locked(state.path, STATE):
        _refuse_existing(state)
        state.write(Ledger(asked=dict(settings)))


def _refuse_existing(state: EncoderFolder) -> None:
    if state.exists():
        path = str(state.path)
        raise UserError(f"{path} is an encoder folder already; ContinualEncoder.open({path!r}) opens it")
