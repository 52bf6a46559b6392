"""A frozen version as a scikit-learn transformer: images in, features out, in any pipeline."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ccl.continual_encoder.continual_encoder import ContinualEncoder


class EncoderTransformer(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Turns images (paths, arrays, tensors, pictures) into features (N, F); nothing is learned by `fit`.

    `fit` settles which version is used, so that a fitted pipeline gives the same features whatever the encoder folder
    learns later.

    >>> transformer = ccl.EncoderTransformer("my-encoder").fit()  # or in make_pipeline(…, LogisticRegression())
    >>> images = ccl.load_dataset("symbols", images_per_class=2).train.images
    >>> transformer.transform(images).shape == (20, transformer.n_features_out_)
    True
    """

    def __init__(self, folder: str | Path, version: int | None = None) -> None:
        self.folder = folder
        self.version = version

    def fit(self, images: Any = None, labels: Any = None) -> "EncoderTransformer":
        """Settle the version: the one asked for, else the pinned one, else the current one."""
        with closing(ContinualEncoder.open(self.folder).frozen(self.version)) as encoder:
            self.version_ = encoder.version
            self.fingerprint_ = encoder.fingerprint
            self.n_features_out_ = encoder.encoder.num_features
        return self

    def transform(self, images: Any) -> NDArray[np.float32]:
        """Features (N, F) of the images, a row each, in their order."""
        check_is_fitted(self, "version_")
        held = images.tolist() if isinstance(images, np.ndarray) and images.dtype.kind in "OU" else images
        return ContinualEncoder.open(self.folder).encode(held, version=self.version_)

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> NDArray[np.object_]:
        """ "ccl0", "ccl1", …"""
        check_is_fitted(self, "n_features_out_")
        return np.array([f"ccl{number}" for number in range(self.n_features_out_)], dtype=object)
