"""What a finished run leaves beside its rows: weights, remembered images, embeddings to draw."""

from pathlib import Path

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from ccl import ranks
from ccl.evaluation import embed_evenly
from ccl.run_files import EMBEDDINGS, ENCODER, MEMORY
from ccl.runs.build import Stream
from ccl.training import Learner
from ccl.views import Viewer

_FACTS = frozenset({"bytes", "lengths", "ids", "steps", "clusters", "scores"})  # of the memory: images, and about them
_MOST_EMBEDDINGS = 800  # what a picture can show, 200 kB


def stored(learner: Learner) -> dict[str, int]:
    """Bytes that must be kept beside the encoder to learn the next step: of images, vectors and other networks."""
    images = sum(map(len, learner.memory.files))
    beside = {name: value for name, value in learner.memory.state_dict().items() if name not in _FACTS}
    vectors, networks = sum(map(_num_bytes, beside.values())), 0
    for part in learner.modules():
        own = sum(map(_num_bytes, part.parameters(recurse=False)))
        buffers = sum(map(_num_bytes, part.buffers(recurse=False)))
        # What lies beside weights, such as batch norm's statistics, is of the network; a module of buffers is a store.
        networks += own + buffers if own else 0
        vectors += 0 if own else buffers
    of_encoder = sum(map(_num_bytes, learner.encoder.state_dict().values()))
    return {"images": images, "vectors": vectors, "networks": networks - of_encoder}


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


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
