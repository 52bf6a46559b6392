"""What a row of the catalogue says of a part, and the words for what parts need and give. Without torch."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

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

    home: str  # module:class below ccl
    title: str
    short: str = ""  # where there is little room; else the title
    about: str = ""  # one line
    source: str = ""  # where it was published
    weight: float = 1.0  # of a retention part's loss, by default
    needs: frozenset[str] = frozenset()
    gives: frozenset[str] = frozenset()
    options: Mapping[str, Any] = field(default_factory=dict)  # fixed arguments of its class
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of settings, by sections, for this objective
    has_norms: bool = False  # of a part that keeps the past: it has batch norms of its own, which not every rank uses
    distance: str = ""  # of an objective: how far an embedding is from an earlier one, in its own kind of loss
    distance_weight: str = ""  # of an objective: which of its options is its weight of that distance, if there is one

    def make(self, offered: Mapping[str, Any], **options: Any) -> Any:
        """The part itself, with these options and, of what is offered, what its class asks for by name."""
        module, _, name = self.home.partition(":")
        factory: Callable[..., Any] = getattr(import_module(f"ccl.{module}"), name)  # imports torch
        asked = inspect.signature(factory).parameters
        return factory(**{key: value for key, value in offered.items() if key in asked}, **self.options, **options)
