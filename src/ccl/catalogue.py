"""All parts, one row each, without torch: where each is defined, its title and what it needs.

Builders, settings, titles, progress lines, help texts, refusals and the tests' lists read these rows. Adding a part is
its file, which has its options, and its row here (docs/extending.md).
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Final

from ccl.errors import UserError, did_you_mean

# What a part may need, and what a backbone, an objective or a strategy gives.
PATCHES: Final = "patches"  # the backbone reads an image patch by patch, and some of them alone if asked to
NEGATIVES: Final = "negatives"  # the objective pushes embeddings apart, so that more of them can be pushed from
MEMORY: Final = "a memory"  # the strategy keeps images of earlier steps
OLD_IMAGES: Final = "old images of their own"  # the composition shows some unmixed

# What a selection reads of a step's images beside their ids, and what it may give.
EMBEDDINGS: Final = "embeddings"
CLUSTERS: Final = "clusters"  # of these embeddings
VIEWS: Final = "views"  # how the embeddings of an image's views vary
ONE_POOL: Final = "one pool"  # it weighs all images of the stream alike: a budget has no shares for steps


@dataclass(frozen=True)
class PartRow:
    """One part, named as in settings, checkpoints and logs by its key in the tables below."""

    home: str  # module:class
    title: str
    about: str = ""  # one line
    source: str = ""  # where it was published
    weight: float = 1.0  # of a retention part's loss, by default
    needs: frozenset[str] = frozenset()
    gives: frozenset[str] = frozenset()
    fixed: Mapping[str, Any] = field(default_factory=dict)  # arguments of its class
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of settings, by sections, for this objective
    has_norms: bool = False  # of a part that keeps the past: it has batch norms of its own, which not every rank uses
    distance: str = ""  # of an objective: how far an embedding is from an earlier one, in its own kind of loss
    distance_weight: str = ""  # of an objective: which of its options is its weight of that distance, if there is one

    def load(self) -> Any:
        """Import the class or function."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(module), name)  # imports torch

    def make(self, offered: Mapping[str, Any]) -> Any:
        """Build the part: its constructor gets by name those of the offered arguments that it takes."""
        factory = self.load()
        asked = inspect.signature(factory).parameters
        return factory(**{key: value for key, value in offered.items() if key in asked}, **self.fixed)


BACKBONES: dict[str, PartRow] = {
    "resnet18": PartRow(home="ccl.encoders.resnet:ResNet", title="ResNet-18", fixed={"depth": 18}),
    "resnet34": PartRow(home="ccl.encoders.resnet:ResNet", title="ResNet-34", fixed={"depth": 34}),
    "resnet50": PartRow(home="ccl.encoders.resnet:ResNet", title="ResNet-50", fixed={"depth": 50}),
    "convnet": PartRow(home="ccl.encoders.convnet:ConvNet", title="ConvNet", about="four convolutions, for laptops"),
    "vit_tiny": PartRow(home="ccl.encoders.vit:vit_tiny", title="ViT-Ti", gives=frozenset({PATCHES})),
    "vit_small": PartRow(home="ccl.encoders.vit:vit_small", title="ViT-S", gives=frozenset({PATCHES})),
}

# Where backbones of others come from: "timm:NAME", "torchvision:NAME", or the path of a class, "package.module:Name".
TIMM: Final = "timm"
TORCHVISION: Final = "torchvision"
CLASS_PATH: Final = "class"


def foreign_kind(backbone: str) -> str | None:
    """The source of a backbone without a row; None for one of ours, and for what can't be a name."""
    where, sign, name = backbone.partition(":")
    if sign and where in (TIMM, TORCHVISION):
        return where if name else None
    words = (f"{where}.{name}" if sign else backbone).split(".")
    return CLASS_PATH if len(words) > 1 and all(word.isidentifier() for word in words) else None


# Differs: heads of objectives without negatives are as wide as the features and have encoder.dim outputs; published
# ones are 2048 to 4096 wide with 256 to 2048 outputs, as in the presets cifar100-byol, cifar100-simsiam and so on.
OBJECTIVES: dict[str, PartRow] = {
    "moco_v2": PartRow(
        home="ccl.objectives.moco_v2:MoCoV2",
        title="MoCoV2",
        about="a query against its key and a queue of past keys",
        source="Chen et al., 2020",
        gives=frozenset({NEGATIVES}),
        distance="info_nce",
    ),
    "simclr": PartRow(
        home="ccl.objectives.simclr:SimCLR",
        title="SimCLR",
        about="two views against all other views of the batch",
        source="Chen et al., ICML 2020",
        gives=frozenset({NEGATIVES}),
        distance="info_nce",
    ),
    "insdisc": PartRow(
        home="ccl.objectives.insdisc:InsDisc",
        title="InsDisc",
        about="every image a class of its own, against a bank of all",
        source="Wu et al., CVPR 2018",
        gives=frozenset({NEGATIVES}),
        distance="info_nce",
    ),
    "byol": PartRow(
        home="ccl.objectives.byol:BYOL",
        title="BYOL",
        about="a predictor turns each view into what a slow copy makes of the other",
        source="Grill et al., NeurIPS 2020",
        defaults={"encoder": {"head": "mlp_bn"}},
        distance="cosine",
    ),
    "simsiam": PartRow(
        home="ccl.objectives.simsiam:SimSiam",
        title="SimSiam",
        about="a predictor turns each view into the other, which stands still",
        source="Chen and He, CVPR 2021",
        defaults={"encoder": {"head": "simsiam"}},
        distance="cosine",
    ),
    "barlow_twins": PartRow(
        home="ccl.objectives.barlow_twins:BarlowTwins",
        title="Barlow Twins",
        about="dimensions agree over the views and are uncorrelated with each other",
        source="Zbontar et al., ICML 2021",
        defaults={"encoder": {"head": "mlp_bn", "head_layers": 3}},
        distance="barlow",
        distance_weight="scale",
    ),
    "vicreg": PartRow(
        home="ccl.objectives.vicreg:VICReg",
        title="VICReg",
        about="views agree, dimensions vary over the batch and not together",
        source="Bardes et al., ICLR 2022",
        defaults={"encoder": {"head": "mlp_bn", "head_layers": 3}},
        distance="mse",
        distance_weight="invariance",
    ),
    "mae": PartRow(
        home="ccl.objectives.mae:MAE",
        title="MAE",
        about="most patches of an image are hidden, and a decoder predicts them from the others",
        source="He et al., CVPR 2022",
        needs=frozenset({PATCHES}),
        defaults={
            # Nothing of it trains the head, which others read: one layer keeps what the features have.
            "encoder": {"backbone": "vit_tiny", "width": None, "head": "linear"},
            "optimizer": {"name": "adamw", "learning_rate": 1e-3, "beta2": 0.95, "weight_decay": 0.05},
            "views": {"jitter_probability": 0.0, "grey_probability": 0.0, "blur_probability": 0.0},
        },
        distance="cosine",
    ),
}

RETENTION: dict[str, PartRow] = {
    "distillation": PartRow(
        home="ccl.retention.teacher_distillation:TeacherDistillation",
        title="distillation",
        about="similarities between old images follow a momentum teacher's",
        source="CCL, ICME 2022",
        weight=0.1,
        needs=frozenset({MEMORY, OLD_IMAGES}),
    ),
    "extra_sample_queue": PartRow(
        home="ccl.retention.extra_sample_queue:ExtraSampleQueue",
        title="extra sample queue",
        about="every query is pushed from the keys of old images",
        source="CCL, ICME 2022",
        weight=0.1,
        needs=frozenset({MEMORY, NEGATIVES, OLD_IMAGES}),
    ),
    "predictive_distillation": PartRow(
        home="ccl.retention.predictive_distillation:PredictiveDistillation",
        title="predictive distillation",
        about="a predictor finds what a frozen copy of the previous step made of every view",
        source="CaSSLe, CVPR 2022; of features: PFR, CVPRW 2022",
        has_norms=True,
    ),
    "pnr": PartRow(
        home="ccl.retention.past_negatives:PastNegatives",
        title="past negatives",
        about="embeddings of a frozen copy are negatives of the contrast and of a distillation",
        source="PNR, ICML 2024",
        has_norms=True,
    ),
    "cross_task": PartRow(
        home="ccl.retention.cross_task:CrossTask",
        title="cross-task contrast",
        about="new and old images are pushed apart, and old ones kept, on a second head",
        source="Osiris, CoLLAs 2024",
        weight=0.5,
        needs=frozenset({MEMORY, OLD_IMAGES}),
    ),
    "further_views": PartRow(
        home="ccl.retention.further_views:FurtherViews",
        title="further views",
        about="further views of old images are queries too: more is learned from each of the few",
        source="this library",
        weight=0.5,
        needs=frozenset({MEMORY, NEGATIVES, OLD_IMAGES}),
    ),
    "alignment": PartRow(
        home="ccl.retention.alignment:Alignment",
        title="alignment",
        about="a predictor finds what a slow average of the encoder makes of old images",
        source="CLA, CoLLAs 2025",
        weight=1.0,  # Differs: 0.1 in the authors' code; 1 and 2 in CLIMB, for ImageNet-100 and CIFAR-100
        has_norms=True,
    ),
    "der": PartRow(
        home="ccl.retention.stored_features:StoredFeatures",
        title="stored features",
        about="features of old images stay where they were when the images were kept",
        source="DER, NeurIPS 2020; without labels: ICLR 2022",
        weight=0.1,
        needs=frozenset({MEMORY, OLD_IMAGES}),
    ),
}

COMPOSITIONS: dict[str, PartRow] = {
    "pooled": PartRow(
        home="ccl.composition.composition:Pooled",
        title="pooled",
        about="every image of the step and of the memory once an epoch",
        source="CCL, ICME 2022",
        gives=frozenset({OLD_IMAGES}),
    ),
    "share": PartRow(
        home="ccl.composition.share:Share",
        title="a share of old images in every batch",
        about="a given share of every batch are old images",
        source="common practice",
        needs=frozenset({MEMORY}),
        gives=frozenset({OLD_IMAGES}),
    ),
    "lump": PartRow(
        home="ccl.composition.lump:Lump",
        title="new images mixed with old ones",
        about="each new image is mixed with an old one before it is seen",
        source="LUMP, ICLR 2022",
        needs=frozenset({MEMORY}),
    ),
}

WEIGHT_RULES: dict[str, PartRow] = {
    "merge": PartRow(
        home="ccl.weight_rules.merge:Merge",
        title="weight merging",
        about="after each step its weights meet those from before it",
        source="CoMA: Marouf et al., ECCV 2024",
    ),
    "average": PartRow(
        home="ccl.weight_rules.average:Average",
        title="weight averaging",
        about="a moving average of the weights over updates is what is used",
        source="Soutif-Cormerais et al., CoLLAs 2023",
    ),
}

# Functions that give positions in the order of choice, so that the first of them are what fits into a smaller memory.
SELECTIONS: dict[str, PartRow] = {
    "random": PartRow(
        home="ccl.memory.selection:random_order",
        title="random draw",
        about="each image of a step is equally likely to be kept",
        source="common practice",
    ),
    "view_variance": PartRow(
        home="ccl.memory.budget:lowest_in_turns",
        title="lowest view variance",
        about="of each cluster the images whose views vary least",
        source="CCL, ICME 2022",
        needs=frozenset({EMBEDDINGS, CLUSTERS, VIEWS}),
    ),
    "minred": PartRow(
        home="ccl.memory.diverse_selections:minred",
        title="minimum redundancy",
        about="what has the most similar neighbour is dropped, again and again",
        source="MinRed: Purushwalkam et al., ECCV 2022",
        needs=frozenset({EMBEDDINGS}),
    ),
    "k_center": PartRow(
        home="ccl.memory.diverse_selections:k_center",
        title="farthest first",
        about="each time the image farthest from all that are kept",
        source="Gonzalez 1985; Sener and Savarese, ICLR 2018",
        needs=frozenset({EMBEDDINGS}),
    ),
    "herding": PartRow(
        home="ccl.memory.diverse_selections:herding",
        title="herding",
        about="of each cluster the images whose mean follows its mean",
        source="iCaRL: Rebuffi et al., CVPR 2017",
        needs=frozenset({EMBEDDINGS, CLUSTERS}),
    ),
    "reservoir": PartRow(
        home="ccl.memory.selection:reservoir",
        title="reservoir",
        about="under a budget, each image of the stream so far is equally likely to be held",
        source="Vitter 1985",
        gives=frozenset({ONE_POOL}),
    ),
    "principal_components": PartRow(
        home="ccl.memory.diverse_selections:principal_components",
        title="principal components",
        about="the images nearest to the principal directions in turn",
        source="EDSR: Liu et al., ICDE 2024",
        needs=frozenset({EMBEDDINGS}),
    ),
}

_ALL = {**BACKBONES, **OBJECTIVES, **RETENTION, **COMPOSITIONS, **WEIGHT_RULES, **SELECTIONS}

# By the setting that takes a name of it, or the path of a class of one's own: the rows, and what that class must be.
_KINDS: Final[Mapping[str, tuple[Mapping[str, PartRow], str]]] = {
    "objective": (OBJECTIVES, "ccl.part:Objective"),
    "retention": (RETENTION, "ccl.part:Retention"),
    "composition": (COMPOSITIONS, "ccl.composition:Composition"),
    "weight_rule": (WEIGHT_RULES, "ccl.part:WeightRule"),
    "memory.selection": (SELECTIONS, ""),
}
# What a selection's function may ask for by name, and what must be computed for it.
_OFFERED: Final[Mapping[str, frozenset[str]]] = {
    "embeddings": frozenset({EMBEDDINGS}),
    "clusters": frozenset({EMBEDDINGS, CLUSTERS}),
    "scores": frozenset({EMBEDDINGS, VIEWS}),
} | dict.fromkeys(("ids", "count", "seed", "step"), frozenset[str]())
# What a class of one's own may say of itself, as the rows above do.
_FACTS = ("needs", "gives", "weight", "defaults", "has_norms", "distance", "distance_weight")


# Settings that take the path of a class; `retention` takes several.
_TAKE_PATHS = ("objective", "composition", "weight_rule", "memory.selection", "retention", "encoder.backbone")
# Classes named by settings in a folder that nobody trusts, and that folder (`trusted_classes.py`).
UNTRUSTED: dict[str, str] = {}


def is_path(name: str) -> bool:
    """Whether a part is named by its path, "package.module:Name"."""
    return foreign_kind(name) == CLASS_PATH


def own_classes(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The classes that settings name by their paths, each with its setting."""
    found = list[tuple[str, str]]()
    for setting in _TAKE_PATHS:
        value: Any = values
        for key in setting.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, str):
            value = [name.strip() for name in value.split(",")] if setting == "retention" else [value]
        names = value if isinstance(value, list | tuple) else ()
        found += [(setting, name) for name in names if isinstance(name, str) and is_path(name)]
    return found


def spelled(path: str) -> str:
    """A path in the one of its two spellings by which it is known: "package.module:Name"."""
    return ":".join(_split(path))


def refuse_untrusted(setting: str, path: str) -> None:
    """Raise UserError, before anything of it is imported, where only a folder that nobody trusts names this class."""
    if folder := UNTRUSTED.get(spelled(path)):
        raise UserError(
            f"{folder}: its {setting} is {path}, and importing that would run code: if you know that code and trust "
            f"who made the folder, add --trust once, or ccl.trust({folder!r}) in Python"
        )


def part_name(name: str) -> str:
    """What a part is called in settings, states and logs: one named by its path by its class, in snake case."""
    if not is_path(name):
        return name
    own = re.split(r"[.:]", name)[-1]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", own).lower()


def known_part(setting: str, name: str) -> str:
    """The name, if a row or a path has it; whether there is such a part at a path is seen when it is imported."""
    rows = _KINDS[setting][0]
    if name not in rows and not is_path(name):
        raise ValueError(f"unknown {setting.rpartition('.')[2]} {name!r}{did_you_mean(name, rows)}")
    return name


def row_of(setting: str, name: str) -> PartRow:
    """The row of a part that a setting names; of one named by its path, what its class says of itself."""
    return _own_row(setting, name) if is_path(name) else _KINDS[setting][0][name]


@cache
def _own_row(setting: str, path: str) -> PartRow:
    base = _KINDS[setting][1]
    if base:
        module, _, name = base.partition(":")
        found = imported(path, setting, getattr(import_module(module), name))
        facts = {fact: getattr(found, fact) for fact in _FACTS if hasattr(found, fact)}
        facts = {"has_norms": setting == "retention"} | facts  # it may have some
    else:
        found = imported(path, setting)
        asked = inspect.signature(found).parameters
        if "count" not in asked or asked.keys() - _OFFERED.keys():
            raise UserError(f"{setting} {path}: it must take count, and by their names some of {', '.join(_OFFERED)}")
        facts = {"needs": frozenset[str]().union(*(_OFFERED[word] for word in asked))}
    return PartRow(home=spelled(path), title=as_words(part_name(path)), **facts)


def _split(path: str) -> tuple[str, str]:
    """Module and name."""
    where, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    return where, name


def imported(path: str, setting: str, base: type | None = None, advice: str = "") -> Any:
    """A class below `base` that a setting names by its path, or without one a function of the module named.

    Settings may come from a stranger: nothing else is accepted, and a function only of a module that defines it.
    """
    refuse_untrusted(setting, path)
    where, name = _split(path)
    try:
        module = import_module(where)
    except Exception as error:  # other people's code raises anything
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        advice = advice or "it must be installed, or its folder be on PYTHONPATH"
        raise UserError(f"{setting} {path}: can't import {where} ({why}); {advice}") from error

    def is_right(found: object) -> bool:
        if base is not None:
            return isinstance(found, type) and issubclass(found, base)
        return inspect.isfunction(found) and found.__module__ == where

    found = getattr(module, name, None)
    if not is_right(found):
        near = [key for key, value in vars(module).items() if is_right(value) and value is not base]
        what = f"{base.__name__} class" if base else "function"
        raise UserError(f"{setting} {path}: {where} has no {what} {name!r}{did_you_mean(name, near) if near else ''}")
    return found


def title_of(name: str) -> str:
    """A part's title; of a name that no row has, the name as words."""
    return _ALL[name].title if name in _ALL else as_words(part_name(name))


def as_words(name: str) -> str:
    """ "my_method" as "My Method"; what is not an identifier stays as it is."""
    words = name.split("_") if name.isidentifier() else []
    return " ".join(word[:1].upper() + word[1:] for word in words if word) or name
