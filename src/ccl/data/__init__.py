"""Data: datasets by name, images from any input, the steps of a stream, the batches of an epoch.

Images are uint8 RGB, held in one tensor or decoded from files when asked for (`ImageSource`); each has an id that stays
its own over the whole stream, and labels serve only to cut streams and to evaluate. Nothing is downloaded unless asked
for: the embedded sets are drawn from a seed, the others are found below a data root.
"""

from ccl.data.dataset import MAX_BAD as MAX_BAD
from ccl.data.dataset import BadImage as BadImage
from ccl.data.dataset import Dataset as Dataset
from ccl.data.dataset import write_bad_images as write_bad_images
from ccl.data.dataset_loader import EMBEDDED_DOMAINS as EMBEDDED_DOMAINS
from ccl.data.dataset_loader import data_root as data_root
from ccl.data.dataset_loader import load_dataset as load_dataset
from ccl.data.decoding import BadImageError as BadImageError
from ccl.data.finding_images import Found as Found
from ccl.data.finding_images import Images as Images
from ccl.data.finding_images import find_held as find_held
from ccl.data.finding_images import find_images as find_images
from ccl.data.image_sources import ArraySource as ArraySource
from ccl.data.image_sources import EncodedSource as EncodedSource
from ccl.data.image_sources import FileSource as FileSource
from ccl.data.image_sources import ImageSource as ImageSource
from ccl.data.image_sources import JoinedSource as JoinedSource
from ccl.data.image_sources import SquaredSource as SquaredSource
from ccl.data.image_sources import chain as chain
from ccl.data.ingest import Gathered as Gathered
from ccl.data.ingest import TooManyBadError as TooManyBadError
from ccl.data.ingest import collected as collected
from ccl.data.ingest import gather as gather
from ccl.data.ingest import median_side as median_side
from ccl.data.ingest import squared as squared
from ccl.data.streams import Step as Step
from ccl.data.streams import arrival_order as arrival_order
from ccl.data.streams import blurred_incremental as blurred_incremental
from ccl.data.streams import chunked as chunked
from ccl.data.streams import class_incremental as class_incremental
from ccl.data.streams import cut_alike as cut_alike
from ccl.data.streams import data_incremental as data_incremental
from ccl.data.streams import describe as describe
from ccl.data.streams import domain_incremental as domain_incremental
from ccl.data.streams import epoch_batches as epoch_batches
from ccl.data.streams import evenly_spaced as evenly_spaced
from ccl.data.streams import of_classes as of_classes
from ccl.data.streams import task_free as task_free
