"""Composition: how batches mix new and old images; one file per kind."""

from ccl.composition.composition import Composition, EpochBatch, Pooled
from ccl.composition.lump import Lump
from ccl.composition.share import Share

__all__ = ["Composition", "EpochBatch", "Lump", "Pooled", "Share"]
