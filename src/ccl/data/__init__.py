"""Data: datasets by name, images from any input, the steps of a stream, the batches of an epoch.

Images are uint8 RGB, held in one tensor or decoded from files when asked for (`ImageSource`); each has an id that stays
its own over the whole stream, and labels serve only to cut streams and to evaluate. Nothing is downloaded unless asked
for: the embedded sets are drawn from a seed, the others are found below a data root.
"""

from ccl.data.dataset import MAX_BAD, BadImage, Dataset, write_bad_images
from ccl.data.dataset_loader import EMBEDDED_DOMAINS, data_root, load_dataset
from ccl.data.decoding import BadImageError
from ccl.data.ingest import (
    Gathered,
    TooManyBadError,
    collected,
    gather,
    median_side,
    squared,
)
from ccl.data.inputs import Found, Images, find_held, find_images
from ccl.data.sources import ArraySource, EncodedSource, FileSource, ImageSource, JoinedSource, SquaredSource, chain
from ccl.data.streams import (
    Step,
    arrival_order,
    blurred_incremental,
    chunked,
    class_incremental,
    cut_alike,
    data_incremental,
    describe,
    domain_incremental,
    epoch_batches,
    evenly_spaced,
    of_classes,
    task_free,
)

__all__ = [
    "EMBEDDED_DOMAINS",
    "MAX_BAD",
    "ArraySource",
    "BadImage",
    "BadImageError",
    "Dataset",
    "EncodedSource",
    "FileSource",
    "Found",
    "Gathered",
    "ImageSource",
    "Images",
    "JoinedSource",
    "SquaredSource",
    "Step",
    "TooManyBadError",
    "arrival_order",
    "blurred_incremental",
    "chain",
    "chunked",
    "class_incremental",
    "collected",
    "cut_alike",
    "data_incremental",
    "data_root",
    "describe",
    "domain_incremental",
    "epoch_batches",
    "evenly_spaced",
    "find_held",
    "find_images",
    "gather",
    "load_dataset",
    "median_side",
    "of_classes",
    "squared",
    "task_free",
    "write_bad_images",
]
