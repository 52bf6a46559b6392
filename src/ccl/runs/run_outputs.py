"""What a finished run leaves beside its rows: weights, remembered images, embeddings to draw."""

from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from ccl import ranks
from ccl.evaluation import embed_evenly
from ccl.folder import EMBEDDINGS, ENCODER, MEMORY
from ccl.runs.build import Stream
from ccl.training import Learner
from ccl.views import Viewer

_MOST_EMBEDDINGS = 800  # what a picture can show, 200 kB


def keep(learner: Learner, stream: Stream, viewer: Viewer, folder: Path) -> None:
    """The encoder's weights, the remembered images, some test images' embeddings; the first rank writes them."""
    some = embed_evenly(learner.product, stream.probe_parts, viewer, _MOST_EMBEDDINGS) if stream.probe_parts else None
    if not ranks.is_first():
        return
    weights = {name: tensor.contiguous().cpu() for name, tensor in learner.product.state_dict().items()}
    save_file(weights, folder / ENCODER)
    if len(learner.memory):
        learner.memory.write(folder / MEMORY)
    if some is not None:
        rows, steps = some.rows.half().numpy(), some.steps.numpy() + 1
        np.savez_compressed(folder / EMBEDDINGS, embeddings=rows, step=steps, label=some.labels.numpy())
