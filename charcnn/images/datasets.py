"""Data sets that a user may have; none of them ships."""

from __future__ import annotations

import os

import numpy as np

from charcnn.images.reading import read
from charcnn.images.rows import Fit, Images

FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
"""Fashion-MNIST's classes (Xiao, Rasul and Vollgraf, 2017) in the order of their labels."""

_DEBIAN = "/usr/share/datasets/fashion-mnist"
_SHAPE = 1, 28, 28


def fashion_mnist(split: str = "test", shape: tuple[int, int, int] = _SHAPE, *, resize: bool | int = False) -> Images:
    """Fashion-MNIST: 28 x 28, bright on black; 60,000 to train on, 10,000 to test.

    From the folder that the environment variable CHARCNN_FASHION_MNIST names, else where Debian's package
    dataset-fashion-mnist puts it.

    Args:
        split: "train" or "test".
        shape: as of `charcnn.images.read`.
        resize: likewise.

    Raises:
        ValueError: it is not there, or damaged; says how to get it.
    """
    how = "apt install dataset-fashion-mnist, or name the folder that has it in CHARCNN_FASHION_MNIST"
    return _split(os.environ.get("CHARCNN_FASHION_MNIST") or _DEBIAN, how, split, Fit(shape, resize))


def mnist(split: str = "test", shape: tuple[int, int, int] = _SHAPE, *, resize: bool | int = False) -> Images:
    """MNIST from the folder of its IDX files that CHARCNN_MNIST names; all else as of `fashion_mnist`."""
    how = "name the folder that has MNIST's IDX files in the environment variable CHARCNN_MNIST"
    return _split(os.environ.get("CHARCNN_MNIST", ""), how, split, Fit(shape, resize))


def _split(folder: str, how: str, split: str, fit: Fit) -> Images:
    parts = {"train": "train", "test": "t10k"}
    if split not in parts:
        raise ValueError(f"split={split!r}: need one of {', '.join(parts)}")
    names = [f"{parts[split]}-images{dot}idx3-ubyte{end}" for dot in "-." for end in ("", ".gz")]
    for path in (os.path.join(folder, name) for name in names):
        if folder and os.path.isfile(path):
            images = read(path, fit.shape, resize=fit.resize)
            if images.labels is None:
                raise ValueError(f"{path}: has no file of labels next to it: {how}")
            images.check_labels(10)
            return images
    raise ValueError(f"{names[1]} is {f'not in {folder}' if folder else 'missing'}: need it: {how}")


def digits(shape: tuple[int, int, int] = _SHAPE) -> Images:
    """scikit-learn's 1,797 digits of 8 x 8, bright on black: 0 to 16 as 0 to 255, scaled to the shape as `read` does.

    Raises:
        ValueError: scikit-learn or Pillow is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ValueError("the digits: need scikit-learn: pip install scikit-learn") from error
    held, source = load_digits(), "scikit-learn's digits"
    pixels = np.rint(held.images * (255 / 16)).astype(np.uint8)[..., None]
    return Images(Fit(shape, True).rows(pixels, source), source, held.target.astype(np.int64))
