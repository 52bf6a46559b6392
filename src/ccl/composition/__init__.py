"""What a batch holds: how new and old images come together; one file per way of doing it."""

from ccl.composition.composition import Composition, EpochBatch
from ccl.composition.lump import Lump
from ccl.composition.pooled import Pooled
from ccl.composition.share import Share

__all__ = ["Composition", "EpochBatch", "Lump", "Pooled", "Share"]
