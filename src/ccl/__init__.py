"""Continual contrastive learning: image features from unlabelled images that arrive step by step.

The pipeline, a folder each; imports point upstream only:

    data        where images come from      uint8 images by id, streams of steps, batches
    views       how an image is seen        crops, colours, blur: batched, on the device
    encoders    what reads it               backbones, heads, momentum copies
    losses      the formulas                pure functions
    memory      what is remembered          queues, banks, the rehearsal images
    part        what a part is              the hooks that the loop calls, what a part gets to see
    composition what a batch holds          pooled, a share of old images
    objectives  learn the present           MoCo v2, SimCLR, InsDisc
    retention   keep the past               extra sample queue, teacher distillation
    weight_rules  what becomes of weights  merged after a step, averaged over updates
    training    when the parts act          the learner and the one loop
    evaluation  what it is worth            probes, the accuracy matrix, health
    report      what came of runs           tables, pictures, a page
    runs        one run, a grid of runs     from settings to a run folder, saved and resumed
    continual_encoder  an encoder that keeps up: fed with drops of images, versioned, used the same day

Letters in shape comments: N images of a batch, M of them old (or any other count), V views, D embedding dimensions,
F features, K negatives or queue rows, C classes or channels, S the side of a view, H and W of an image, T steps.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ccl.continual_encoder import ContinualEncoder as ContinualEncoder

_MODULES = (
    "composition",
    "continual_encoder",
    "data",
    "encoders",
    "evaluation",
    "losses",
    "memory",
    "objectives",
    "report",
    "retention",
    "training",
    "views",
    "weight_rules",
)
__all__ = ["ContinualEncoder", *_MODULES]


def __getattr__(name: str) -> Any:
    """Subpackages and the encoder on first use, so that `ccl --help` need not import torch."""
    if name in _MODULES:
        return import_module(f"ccl.{name}")
    if name == "ContinualEncoder":
        return import_module("ccl.continual_encoder").ContinualEncoder
    raise AttributeError(f"module 'ccl' has no attribute {name!r}")
