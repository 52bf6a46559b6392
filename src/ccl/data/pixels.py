"""Arrays, tensors and pictures as their users hold them, brought to uint8 RGB, and to one square size."""

import hashlib

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ccl.data.decoding import BadImageError, errors_as_bad_image, upright_rgb
from ccl.data.image_sources import ImageSource
from ccl.data.picture_modes import SLACK
from ccl.errors import UserError

_CHANNELS = (1, 3)  # grey, RGB
_CHUNK = 2048  # images that are held as floats at one time


def rgb_pixels(image: NDArray[np.generic] | Tensor | Image.Image) -> NDArray[np.uint8]:
    """(H, W, 3) of an array (H, W), (H, W, C) or (C, H, W), uint8 or floats in [0, 1], or of a picture.

    A picture's alpha is laid on white, as in files. Raises UserError, and says why, for anything else.
    """
    if isinstance(image, Image.Image):
        picture = image
    else:
        values = _as_bytes(image)
        may_be_first = values.ndim == 3 and values.shape[0] in _CHANNELS
        if may_be_first and (values.shape[2] not in _CHANNELS or isinstance(image, Tensor)):
            values = values.transpose(1, 2, 0)  # where it could be either, as is the custom of tensors
        if values.ndim == 3 and values.shape[2] == 1:
            values = values[:, :, 0]
        if values.ndim == 3 and values.shape[2] == 3:
            return np.ascontiguousarray(values)
        picture = Image.fromarray(np.ascontiguousarray(values))  # grey
    try:
        with errors_as_bad_image():
            return np.array(upright_rgb(picture), dtype=np.uint8)
    except BadImageError as error:  # Pillow reads a file only now
        raise UserError(f"can't be used: {error.reason}") from error


def _as_bytes(image: NDArray[np.generic] | Tensor) -> NDArray[np.uint8]:
    """uint8 of the same shape, which is one that images have."""
    shape = tuple(image.shape)
    has_channels = len(shape) == 3 and (shape[0] in _CHANNELS or shape[2] in _CHANNELS)
    if 0 in shape or not (len(shape) == 2 or has_channels):
        hint = "; give the colours alone, or RGB with alpha as a PIL picture of mode RGBA" if 4 in shape else ""
        raise UserError(f"has the shape {shape}; images are (H, W), (H, W, C) or (C, H, W) with 1 or 3 channels{hint}")
    values = _as_array(image)
    if values.dtype == np.uint8:
        return values.astype(np.uint8, copy=False)
    if not np.issubdtype(values.dtype, np.floating):
        raise UserError(f"is of type {values.dtype}; give uint8, or floats in [0, 1]")
    return _from_shares(values.astype(np.float32, copy=False))


def _as_array(image: NDArray[np.generic] | Tensor) -> NDArray[np.generic]:
    if not isinstance(image, Tensor):
        return image
    try:
        plain = image.detach().cpu()
        # NumPy has no bfloat16.
        return np.asarray((plain.to(torch.float32) if plain.is_floating_point() else plain).numpy())
    except (TypeError, RuntimeError) as error:  # a sparse, quantized or meta tensor
        raise UserError(f"is not a plain tensor ({' '.join(str(error).split())})") from error


def _from_shares(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Floats beyond [0, 1] are refused, as in files: their range could only be guessed."""
    if not np.isfinite(values).all():
        raise UserError("holds NaN or infinity")
    low, high = float(values.min()), float(values.max())
    if low < -SLACK or high > 1 + SLACK:
        raise UserError(
            f"has floats from {low:g} to {high:g}, and they must lie in [0, 1]; "
            "divide bytes by 255, or undo the normalisation"
        )
    shares: NDArray[np.float32] = values.clip(0, 1)
    return np.rint(shares * 255).astype(np.uint8)


def square_arrays(source: ImageSource, side: int) -> Tensor:
    """The centre squares of images of one size, anti-aliased, uint8 (N, 3, side, side)."""
    images = torch.empty(len(source), 3, side, side, dtype=torch.uint8)
    for chunk in torch.split(torch.arange(len(source)), _CHUNK):
        pixels = source.read(chunk).float()  # (n, 3, H, W)
        height, width = pixels.shape[2:]
        square = min(height, width)
        top, left = (height - square) // 2, (width - square) // 2
        pixels = pixels[:, :, top : top + square, left : left + square]
        small = F.interpolate(pixels, size=(side, side), mode="bilinear", antialias=True)
        images[chunk] = small.round().clamp(0, 255).to(torch.uint8)
    return images


def content_digest(*parts: bytes | memoryview) -> bytes:
    """Sixteen bytes, equal for equal content: a file's bytes, or an array's shape and values."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.digest()
