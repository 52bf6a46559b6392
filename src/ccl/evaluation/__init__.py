"""What a representation is worth: features of a frozen encoder, linear and nearest-neighbour probes on them, the
accuracy matrix of a stream with the row of the random encoder, Forgetting, plasticity and Forward Transfer; without
labels, health and drift.

Two linear protocols exist and every number names its own: "cached" (`fit`, solved to the optimum on features read once)
and "paper" (`fit_paper`, the paper's SGD over augmented images).
"""

from ccl.encoders.feature_extraction import evaluating, extract
from ccl.evaluation.accuracy_matrix import AccuracyMatrix, ProbeResult
from ccl.evaluation.baseline_features import hog_with_colours, pixel_features, thumbnails
from ccl.evaluation.continual_metrics import average_accuracy, forgetting, forward_transfer, plasticity
from ccl.evaluation.drift import Drift, Reading, centroid_drift, group_agreement, neighbour_overlap
from ccl.evaluation.health import Health, alignment, effective_rank, is_collapsed, mean_cosine, uniformity
from ccl.evaluation.knn_probe import fair_voters, knn_accuracy, knn_predict
from ccl.evaluation.linear_probe import LinearClassifier, fit, standard_error
from ccl.evaluation.paper_probe import fit_paper
from ccl.evaluation.probe_score import ProbeScore, confusion_matrix, score_features
from ccl.evaluation.probe_stream import NUM_HEALTH_IMAGES, Embedded, ProbePart, embed_evenly, probe_stream
from ccl.evaluation.recognition import recognition

__all__ = [
    "NUM_HEALTH_IMAGES",
    "AccuracyMatrix",
    "Drift",
    "Embedded",
    "Health",
    "LinearClassifier",
    "ProbePart",
    "ProbeResult",
    "ProbeScore",
    "Reading",
    "alignment",
    "average_accuracy",
    "centroid_drift",
    "confusion_matrix",
    "effective_rank",
    "embed_evenly",
    "evaluating",
    "extract",
    "fair_voters",
    "fit",
    "fit_paper",
    "forgetting",
    "forward_transfer",
    "group_agreement",
    "hog_with_colours",
    "is_collapsed",
    "knn_accuracy",
    "knn_predict",
    "mean_cosine",
    "neighbour_overlap",
    "pixel_features",
    "plasticity",
    "probe_stream",
    "recognition",
    "score_features",
    "standard_error",
    "thumbnails",
    "uniformity",
]
