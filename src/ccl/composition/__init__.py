"""Composition: how batches mix new and old images; one file per kind."""

from ccl.composition.composition import Composition as Composition
from ccl.composition.composition import EpochBatch as EpochBatch
from ccl.composition.composition import Pooled as Pooled
from ccl.composition.lump import Lump as Lump
from ccl.composition.share import Share as Share
