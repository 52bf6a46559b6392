"""What a representation is worth: probes of a frozen encoder, the accuracy matrix of a stream, health and drift.

Two linear protocols exist and every number names its own: "cached" (`fit`, solved to the optimum on features read once)
and "paper" (`fit_paper`, the paper's SGD over augmented images).
"""

from ccl.encoders import extract as extract
from ccl.evaluation.accuracy_matrix import AccuracyMatrix as AccuracyMatrix
from ccl.evaluation.accuracy_matrix import ProbeResult as ProbeResult
from ccl.evaluation.accuracy_matrix import forgetting as forgetting
from ccl.evaluation.accuracy_matrix import forward_transfer as forward_transfer
from ccl.evaluation.accuracy_matrix import plasticity as plasticity
from ccl.evaluation.baseline_features import pixel_features as pixel_features
from ccl.evaluation.drift import Drift as Drift
from ccl.evaluation.drift import Reading as Reading
from ccl.evaluation.drift import recognition as recognition
from ccl.evaluation.paper_probe import fit_paper as fit_paper
from ccl.evaluation.probe_stream import ProbePart as ProbePart
from ccl.evaluation.probe_stream import embed_evenly as embed_evenly
from ccl.evaluation.probe_stream import probe_stream as probe_stream
from ccl.evaluation.probes import LinearClassifier as LinearClassifier
from ccl.evaluation.probes import ProbeScore as ProbeScore
from ccl.evaluation.probes import confusion_matrix as confusion_matrix
from ccl.evaluation.probes import fair_voters as fair_voters
from ccl.evaluation.probes import fit as fit
from ccl.evaluation.probes import knn_accuracy as knn_accuracy
from ccl.evaluation.probes import knn_predict as knn_predict
from ccl.evaluation.probes import score_features as score_features
from ccl.evaluation.probes import standard_error as standard_error
