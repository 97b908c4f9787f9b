"""linear and its gradients on a CPU, by NumPy's BLAS."""

from __future__ import annotations

import numpy as np


def launch(out: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> None:
    """A product. Bits may depend on the number of threads."""
    np.matmul(x, weight.T, out=out)
    out += bias


def launch_backward(out: tuple[np.ndarray, ...], dy: np.ndarray, x: np.ndarray, weight: np.ndarray) -> None:
    """Two products, by features and by weights. Bits may depend on the number of threads."""
    dx, dweight, dbias = out
    dy, x, dx = (array.reshape(-1, array.shape[-1]) for array in (dy, x, dx))
    np.matmul(dy, weight, out=dx)
    np.matmul(dy.T, x, out=dweight)
    dbias[:] = dy.sum(0, np.float64)
