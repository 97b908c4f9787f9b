"""Rows of bytes of pixels, and how pixels of any size and colour become such."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from charcnn.host.install import pip_install

MAX_PIXELS = 1 << 26
"""Of a picture, as it is stored or before its centre is cropped: a small file can claim, and unpack to, far more."""

_GREY = np.array([19595, 38470, 7471], np.uint32)
"""Red, green and blue in grey by ITU-R BT.601: 0.299, 0.587, 0.114 in 65536ths, as Pillow has them."""


@dataclass(frozen=True, eq=False)
class Images:
    """N images of one shape.

    Args:
        rows: uint8 (N, C * H * W), channels first within an image: what `charcnn.layers.Pixels` reads.
        source: where they are from, as errors call it.
        labels: int64 (N,), classes counted from 0; None where nobody says.
        names: of the files, or None.
    """

    rows: np.ndarray
    source: str
    labels: np.ndarray | None = None
    names: tuple[str, ...] | None = None

    def inverted(self) -> Images:
        """These images with bright and dark exchanged."""
        return dataclasses.replace(self, rows=255 - self.rows)

    def on_light(self, shape: tuple[int, int, int]) -> int:
        """How many of them, of this (C, H, W), are lighter than half of white at most pixels of their border."""
        pixels = self.rows.reshape(-1, *shape)
        sides = [pixels[..., [0, -1], :].reshape(len(pixels), -1), pixels[..., 1:-1, [0, -1]].reshape(len(pixels), -1)]
        return int((np.median(np.concatenate(sides, 1), axis=1) > 127).sum())

    def check_labels(self, classes: int) -> None:
        """Hold the labels, if there are any, against a network's number of classes.

        Raises:
            ValueError: one is no class; names the first.
        """
        labels = np.empty(0, np.int64) if self.labels is None else self.labels
        wrong = np.flatnonzero((labels < 0) | (labels >= classes))
        if wrong.size:
            n = wrong[0]
            raise ValueError(f"{self.source}: label {labels[n]} of image {n}: need 0 to {classes - 1}")


@dataclass(frozen=True)
class Fit:
    """What shape images get, and how: arguments as of `charcnn.images.read`."""

    shape: tuple[int, int, int]
    resize: bool | int = False

    def __post_init__(self) -> None:
        shape, resize = tuple(self.shape), self.resize
        if len(shape) != 3 or shape[0] not in (1, 3) or not all(isinstance(n, int) and n > 0 for n in shape):
            raise ValueError(f"shape={self.shape}: need (C, H, W), C 1 or 3")
        if not isinstance(resize, int) or (resize is not False and resize is not True and resize < max(shape[1:])):
            raise ValueError(f"resize={resize}: need True, False, or the shorter side, at least {max(shape[1:])}")

    def rows(self, pixels: np.ndarray, source: str) -> np.ndarray:
        """Pixels uint8 (N, height, width, 1 or 3) as uint8 (N, C * H * W).

        Raises:
            ValueError: they are of another size, and are not to be resized, or cannot be; names the source.
        """
        channels, *size = self.shape
        fits = [*pixels.shape[1:3]] == size
        if self.resize is False and not fits:
            height, width = pixels.shape[1:3]
            raise ValueError(f"{source}: has {height} x {width} pixels: need {size[0]} x {size[1]}, or resizing")
        if channels < pixels.shape[3]:
            pixels = ((pixels @ _GREY + (1 << 15)) >> 16).astype(np.uint8)[..., None]
        if not fits or self.resize > 1:  # what has the size already is scaled and cropped, too, as torchvision does
            pixels = np.stack([self._resized(one, source) for one in pixels])
        pixels = np.broadcast_to(pixels, (*pixels.shape[:3], channels)).transpose(0, 3, 1, 2)
        return np.ascontiguousarray(pixels).reshape(len(pixels), -1)

    def _resized(self, picture: np.ndarray, source: str) -> np.ndarray:
        Image = require_pillow(f"{source}: resizing").Image
        _, height, width = self.shape
        image = Image.fromarray(picture if picture.shape[2] == 3 else picture[..., 0])
        if self.resize is True:
            return _pixels(image.resize((width, height), Image.Resampling.BILINEAR))
        whole = [int(self.resize * side / min(image.size)) for side in image.size]
        if math.prod(whole) > MAX_PIXELS:
            raise ValueError(f"{source}: is {whole[1]} x {whole[0]} resized: need at most {MAX_PIXELS:,} pixels")
        left, top = (round((side - kept) / 2) for side, kept in zip(whole, (width, height), strict=True))
        return _pixels(image.resize(whole, Image.Resampling.BILINEAR).crop((left, top, left + width, top + height)))


def _pixels(image: Any) -> np.ndarray:
    pixels = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], -1)


def require_pillow(purpose: str) -> Any:
    """The package PIL with its modules Image and ImageOps; ValueError where it is not installed."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError as error:
        raise ValueError(f"{purpose}: needs Pillow: {pip_install('images')}") from error
    return PIL
