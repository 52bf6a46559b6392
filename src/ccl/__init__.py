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
F features, K negatives or queue rows, C classes or channels, L patches or
tokens of an image, P values of a patch, S the side of a view, H and W of an image, T steps.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ccl import (
        composition,
        continual_encoder,
        data,
        encoders,
        evaluation,
        losses,
        memory,
        objectives,
        part,
        report,
        retention,
        runs,
        training,
        views,
        weight_rules,
    )
    from ccl.continual_encoder.classifiers import load as load_classifier
    from ccl.continual_encoder.classifiers import predict
    from ccl.continual_encoder.classifiers import save as save_classifier
    from ccl.continual_encoder.continual_encoder import ContinualEncoder
    from ccl.continual_encoder.exporting import export, load_backbone, write_card
    from ccl.continual_encoder.features import read_features, write_features
    from ccl.continual_encoder.frozen import FrozenEncoder, frozen
    from ccl.continual_encoder.frozen import start as frozen_start
    from ccl.continual_encoder.judge import probe
    from ccl.continual_encoder.searching import Collection, stored_collection, write_sheet
    from ccl.continual_encoder.searching import find as find_similar
    from ccl.continual_encoder.transformer import EncoderTransformer
    from ccl.data.dataset_loader import load_dataset
    from ccl.data.ingest import gather
    from ccl.errors import UserError
    from ccl.loading import load_settings
    from ccl.runs.run import run
    from ccl.runs.run_folder import RunRecord, read_run
    from ccl.settings import Settings

    __version__: str

# The promise: names that keep their meaning. A test holds this list, and that each has its home below.
__all__ = [
    "Collection",
    "ContinualEncoder",
    "EncoderTransformer",
    "FrozenEncoder",
    "RunRecord",
    "Settings",
    "UserError",
    "__version__",
    "composition",
    "continual_encoder",
    "data",
    "encoders",
    "evaluation",
    "export",
    "find_similar",
    "frozen",
    "frozen_start",
    "gather",
    "load_backbone",
    "load_classifier",
    "load_dataset",
    "load_settings",
    "losses",
    "memory",
    "objectives",
    "part",
    "predict",
    "probe",
    "read_features",
    "read_run",
    "report",
    "retention",
    "run",
    "runs",
    "save_classifier",
    "stored_collection",
    "training",
    "views",
    "weight_rules",
    "write_card",
    "write_features",
    "write_sheet",
]

# Where each name that is not a subpackage lives; a name of its own where the home's says too little out here.
_HOMES = {
    "Collection": "continual_encoder.searching:Collection",
    "ContinualEncoder": "continual_encoder.continual_encoder:ContinualEncoder",
    "EncoderTransformer": "continual_encoder.transformer:EncoderTransformer",
    "FrozenEncoder": "continual_encoder.frozen:FrozenEncoder",
    "RunRecord": "runs.run_folder:RunRecord",
    "Settings": "settings:Settings",
    "UserError": "errors:UserError",
    "export": "continual_encoder.exporting:export",
    "find_similar": "continual_encoder.searching:find",
    "frozen": "continual_encoder.frozen:frozen",
    "frozen_start": "continual_encoder.frozen:start",
    "gather": "data.ingest:gather",
    "load_backbone": "continual_encoder.exporting:load_backbone",
    "load_classifier": "continual_encoder.classifiers:load",
    "load_dataset": "data.dataset_loader:load_dataset",
    "load_settings": "loading:load_settings",
    "predict": "continual_encoder.classifiers:predict",
    "read_features": "continual_encoder.features:read_features",
    "read_run": "runs.run_folder:read_run",
    "run": "runs.run:run",
    "save_classifier": "continual_encoder.classifiers:save",
    "stored_collection": "continual_encoder.searching:stored_collection",
    "probe": "continual_encoder.judge:probe",
    "write_card": "continual_encoder.exporting:write_card",
    "write_features": "continual_encoder.features:write_features",
    "write_sheet": "continual_encoder.searching:write_sheet",
}


def __getattr__(name: str) -> Any:
    """Everything on first use, so that `import ccl` and `ccl --help` need not import torch."""
    if name == "__version__":
        from importlib.metadata import version

        return version("ccl")
    if name in _HOMES:
        module, _, attribute = _HOMES[name].partition(":")
        return getattr(import_module(f"ccl.{module}"), attribute)
    if name in __all__:
        return import_module(f"ccl.{name}")
    raise AttributeError(f"module 'ccl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
