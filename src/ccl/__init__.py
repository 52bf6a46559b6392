"""Continual contrastive learning: image features from unlabelled images that arrive step by step.

The pipeline, a folder each; imports point upstream only:

    data        where images come from      uint8 images by id, streams of steps, batches
    views       how an image is seen        crops, colours, blur: batched, on the device
    encoders    what reads it               backbones, heads, momentum copies
    losses      the formulas                pure functions
    memory      what is remembered          queues, banks, the rehearsal images
    part        what a part is              the hooks that the loop calls, what a part gets to see
    composition what a batch holds          pooled, a share of old images
    objectives  learn the present           MoCo v2, SimCLR, BYOL and others
    retention   keep the past               extra sample queue, teacher distillation and others
    weight_rules  what becomes of weights  merged after a step, averaged over updates
    training    when the parts act          the learner and the one loop
    evaluation  what it is worth            probes, the accuracy matrix, health
    report      what came of runs           tables, pictures, a page
    runs        one run, a grid of runs     from settings to a run folder, saved and resumed
    continual_encoder  an encoder that keeps up: fed with drops of images, versioned, used the same day

Letters in shape comments: N images of a batch, M of them old (or any other count), V views, D embedding dimensions,
F features, K negatives or queue rows, C classes or channels, L patches or tokens of an image, P values of a patch,
S the side of a view, H and W of an image, T steps.
"""

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # The promise: names that keep their meaning; each is imported on first use
    from ccl import composition as composition
    from ccl import continual_encoder as continual_encoder
    from ccl import data as data
    from ccl import encoders as encoders
    from ccl import evaluation as evaluation
    from ccl import losses as losses
    from ccl import memory as memory
    from ccl import objectives as objectives
    from ccl import part as part
    from ccl import report as report
    from ccl import retention as retention
    from ccl import runs as runs
    from ccl import training as training
    from ccl import views as views
    from ccl import weight_rules as weight_rules
    from ccl.continual_encoder.continual_encoder import ContinualEncoder as ContinualEncoder
    from ccl.continual_encoder.exporting import export as export
    from ccl.continual_encoder.exporting import load_backbone as load_backbone
    from ccl.continual_encoder.exporting import write_card as write_card
    from ccl.continual_encoder.feature_files import read_features as read_features
    from ccl.continual_encoder.feature_files import write_features as write_features
    from ccl.continual_encoder.frozen_encoder import FrozenEncoder as FrozenEncoder
    from ccl.continual_encoder.frozen_encoder import frozen as frozen
    from ccl.continual_encoder.frozen_encoder import frozen_start as frozen_start
    from ccl.continual_encoder.probe_classifiers import load_classifier as load_classifier
    from ccl.continual_encoder.probe_classifiers import predict as predict
    from ccl.continual_encoder.probe_classifiers import probe as probe
    from ccl.continual_encoder.probe_classifiers import save_classifier as save_classifier
    from ccl.continual_encoder.searching import Collection as Collection
    from ccl.continual_encoder.searching import find_similar as find_similar
    from ccl.continual_encoder.searching import stored_collection as stored_collection
    from ccl.continual_encoder.searching import write_sheet as write_sheet
    from ccl.continual_encoder.transformer import EncoderTransformer as EncoderTransformer
    from ccl.data.dataset_loader import load_dataset as load_dataset
    from ccl.data.ingest import gather as gather
    from ccl.errors import UserError as UserError
    from ccl.loading import load_settings as load_settings
    from ccl.runs.one_run import run as run
    from ccl.runs.run_folder import RunRecord as RunRecord
    from ccl.runs.run_folder import read_run as read_run
    from ccl.settings import Settings as Settings
    from ccl.trusted_classes import trust as trust

    __version__: str


@cache
def _homes() -> dict[str, str]:
    """The module of each public name, as the imports above say; of a subpackage "ccl"."""
    [block] = [node for node in ast.parse(Path(__file__).read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `import ccl` and `ccl --help` do not import torch."""
    if name == "__version__":
        from importlib.metadata import version

        return version("ccl")
    if name == "__all__":
        return sorted([*_homes(), "__version__"])
    if name not in _homes():
        raise AttributeError(f"module 'ccl' has no attribute {name!r}")
    home = _homes()[name]
    return import_module(f"ccl.{name}") if home == "ccl" else getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes(), "__version__"})
