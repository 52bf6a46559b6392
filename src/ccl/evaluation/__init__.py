"""What a representation is worth: features of a frozen encoder, linear and nearest-neighbour probes on them, the
accuracy matrix of a stream with the row of the random encoder, Forgetting, plasticity and Forward Transfer; without
labels, health and drift.

Two linear protocols exist and every number names its own: "cached" (`fit`, solved to the optimum on features read once)
and "paper" (`fit_paper`, the paper's SGD over augmented images).
"""

from ccl.encoders import evaluating, extract
from ccl.evaluation.accuracy_matrix import (
    AccuracyMatrix,
    ProbeResult,
    forgetting,
    forward_transfer,
    plasticity,
)
from ccl.evaluation.baseline_features import hog_with_colours, pixel_features, thumbnails
from ccl.evaluation.drift import Drift, Reading, centroid_drift, group_agreement, neighbour_overlap, recognition
from ccl.evaluation.health import Health, alignment, effective_rank, mean_cosine, uniformity
from ccl.evaluation.paper_probe import fit_paper
from ccl.evaluation.probe_stream import ProbePart, StreamSample, embed_evenly, probe_stream
from ccl.evaluation.probes import (
    LinearClassifier,
    ProbeScore,
    confusion_matrix,
    fair_voters,
    fit,
    knn_accuracy,
    knn_predict,
    score_features,
    standard_error,
)

__all__ = [
    "AccuracyMatrix",
    "Drift",
    "Health",
    "LinearClassifier",
    "ProbePart",
    "ProbeResult",
    "ProbeScore",
    "Reading",
    "StreamSample",
    "alignment",
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
