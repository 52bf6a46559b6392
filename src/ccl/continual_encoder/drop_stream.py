"""Images as drops: what is one drop, and where a stream without boundaries is cut."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ccl.continual_encoder.default_settings import FEWEST_IMAGES
from ccl.continual_encoder.drop_outcome import Gather
from ccl.continual_encoder.encoder_folder import EncoderFolder
from ccl.continual_encoder.image_arguments import Images, gathering
from ccl.data import chunked, gather_arrays


def drops(state: EncoderFolder, images: Images, chunk: int, max_bad: float) -> Iterator[Gather]:
    """What is given as a whole is one drop; of any other iterable every `chunk` images that are new are one."""
    if isinstance(images, str | Path | np.ndarray | Tensor | Sequence):
        yield gathering(images, max_bad)
    else:
        for part in chunked(_unseen(state, images), chunk, minimum=FEWEST_IMAGES):
            yield gathering(part, max_bad)


def _unseen(state: EncoderFolder, images: Iterable[Any]) -> Iterator[Any]:
    """Images not met before: so that a stream that is begun anew is cut where it was cut the first time."""
    known = set()
    if state.exists() and not state.knows_nothing(ledger := state.ledger()):
        known = state.seen(state.load(ledger.current).about["seen"])
    for image in images:
        (digest,) = gather_arrays([image]).digests
        if digest not in known:
            known.add(digest)
            yield image
