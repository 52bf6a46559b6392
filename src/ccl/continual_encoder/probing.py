"""What features are worth on labelled images, beside what needs no learning: the start, raw pixels, HOG."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ccl.continual_encoder.classifiers import Classifier, fitted
from ccl.continual_encoder.frozen_encoder import FrozenEncoder
from ccl.continual_encoder.gains import labelled_advice
from ccl.data import Dataset
from ccl.errors import UserError
from ccl.evaluation import ProbeScore, confusion_matrix, pixel_features, score_features

TITLES = {
    "features": "learned features",
    "start": "the start, before the first drop",
    "pixels": "raw pixels (16 px)",
    "hog": "HOG with colours",
}
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ProbeReport:
    """A classifier, and what it and simpler ones are worth on images that took no part in the fitting."""

    classifier: Classifier
    scores: Mapping[str, ProbeScore]  # by "features", "start", "pixels" and "hog"; empty where nothing was held out
    class_names: tuple[str, ...]
    confusion: Tensor | None  # (C, C): test images of class i that the classifier took for class j
    from_weights: bool = False  # whether the start is weights that somebody trained

    @property
    def warnings(self) -> list[str]:
        """What to know before one relies on these features, a line each."""
        found = warnings(self.scores)
        if self.from_weights and "start" in self.scores:
            found += labelled_advice(self.scores["features"].linear, self.scores["start"].linear)
        return found

    @property
    def per_class(self) -> dict[str, float]:
        """Accuracy of each class that has test images, in percent."""
        return {} if self.confusion is None else class_accuracies(self.class_names, self.confusion)


def class_accuracies(class_names: tuple[str, ...], confusion: Tensor) -> dict[str, float]:
    """The share of each class's test images that were recognised, in percent; classes without any are left out."""
    shares = 100 * confusion.diagonal() / confusion.sum(dim=1)  # (C,), nan for a class without test images
    return {name: share for name, share in zip(class_names, shares.tolist(), strict=True) if share == share}


def warnings(scores: Mapping[str, ProbeScore]) -> list[str]:
    """A line for each baseline that the learned features do not clearly beat."""
    if "features" not in scores:
        return []
    found, own = [], scores["features"]
    for name in ("pixels", "hog", "start"):
        if name in scores and not own.is_clearly_above(scores[name]):
            how = "do not beat" if own.linear <= scores[name].linear else "are not clearly better than"
            numbers = f"{_shown(own)} against {_shown(scores[name])}"
            found.append(f"the learned features {how} {TITLES[name]}: {numbers}, linear")
    return found


def _shown(score: ProbeScore) -> str:
    return f"{score.linear:.1f} ± {score.linear_error:.1f} %"


def probe(
    frozen: FrozenEncoder, dataset: Dataset, start: FrozenEncoder | None = None, progress: Progress | None = None
) -> ProbeReport:
    """Fit a classifier on the training part and measure it on the test part; with a start, the baselines too.

    >>> symbols = ccl.load_dataset("symbols", images_per_class=3, classes=2)
    >>> report = ccl.probe(ccl.frozen("my-encoder"), symbols)
    >>> report.classifier.about.num_images, 0 <= report.scores["features"].linear <= 100
    (6, True)
    """
    if dataset.train_labels is None:
        raise UserError(f"{dataset.name} has no labels: put the images of each class in a folder of the class's name")
    if len(torch.unique(dataset.train_labels)) < 2:
        raise UserError(f"{dataset.name} has one class only; a classifier needs two")
    total = len(dataset.train) + (0 if dataset.test is None else len(dataset.test))
    shown = progress or (lambda done, _: None)
    train = frozen.features(dataset.train, lambda done, _: shown(done, total))
    if dataset.test is None or dataset.test_labels is None:
        return ProbeReport(fitted(frozen, dataset, train), {}, dataset.class_names, None)
    test = frozen.features(dataset.test, lambda done, _: shown(len(train) + done, total))
    score, linear = score_features(train, dataset.train_labels, test, dataset.test_labels)
    scores = {"features": score}
    if start is not None:
        scores |= baselines(dataset, start)
        if frozen.version == start.version:  # the start has no other beside it
            del scores["start"]
    matrix = confusion_matrix(dataset.test_labels, linear.predict(test), len(dataset.class_names))
    classifier = fitted(frozen, dataset, train, linear, score)
    from_weights = start is not None and start.architecture.weights is not None
    return ProbeReport(classifier, scores, dataset.class_names, matrix, from_weights)


def baselines(dataset: Dataset, start: FrozenEncoder) -> dict[str, ProbeScore]:
    """The scores of what needs no learning, on a dataset with both parts."""
    assert dataset.test is not None
    assert dataset.train_labels is not None
    assert dataset.test_labels is not None
    rows = {"start": (start.features(dataset.train), start.features(dataset.test))}
    train, test = (pixel_features(start.sized(source)) for source in (dataset.train, dataset.test))
    rows |= {name: (train[name], test[name]) for name in train}
    labels = (dataset.train_labels, dataset.test_labels)
    return {name: score_features(a, labels[0], b, labels[1])[0] for name, (a, b) in rows.items()}
