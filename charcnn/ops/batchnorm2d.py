"""batchnorm2d at inference: each channel scaled and shifted by statistics that are given."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, njit

from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import arrays, shapes2d
from charcnn.ops.common.epilogues import epilogue


@njit(cache=True, nogil=True)
def _batchnorm2d_loops_kernel(x, gamma, beta, mean, variance, y, eps):
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            scale = gamma[c] / math.sqrt(variance[c] + eps)
            for row in range(y.shape[2]):
                for column in range(y.shape[3]):
                    y[n, c, row, column] = (x[n, c, row, column] - mean[c]) * scale + beta[c]


def batchnorm2d_loops(
    x: Any, gamma: Any, beta: Any, mean: Any, variance: Any, *, eps: float = 1e-5, out: Any = None
) -> Any:
    """`reference.batchnorm2d` as compiled plain loops on one CPU core.

    Args:
        x: float32 (N, C, H, W), C-contiguous, NumPy; gamma, beta, mean and variance (C,) likewise.
        eps: added to the variance.
        out: where to write, of x's shape (x itself will do); made where None.

    Returns:
        float32 (N, C, H, W).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    shape = shapes2d.batchnorm2d(x, gamma, beta, mean, variance, eps)
    out = arrays.host(out, shape, in_place="x", x=x, gamma=gamma, beta=beta, mean=mean, variance=variance)
    _batchnorm2d_loops_kernel(x, gamma, beta, mean, variance, out, np.float32(eps))
    return out


@cache
def _batchnorm2d_naive_kernel(name):
    finished = epilogue(name)

    @jit()
    def kernel(x, gamma, beta, mean, variance, y, eps):
        i = cuda.grid(1)
        if i < y.size:
            pixel = i % y.shape[2]
            image = i // y.shape[2]
            n, c = image // y.shape[1], image % y.shape[1]
            scale = gamma[c] * (float32(1) / math.sqrt(variance[c] + eps))
            y[n, c, pixel] = finished((x[n, c, pixel] - mean[c]) * scale + beta[c])

    return kernel


def batchnorm2d_naive(
    x: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    variance: Any,
    *,
    eps: float = 1e-5,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.batchnorm2d` on a GPU, one thread an output.

    Args:
        x: float32 (N, C, H, W), C-contiguous; gamma, beta, mean and variance (C,) likewise. All NumPy arrays, or all
            device arrays (Numba's, or any with __cuda_array_interface__).
        eps: added to the variance.
        out: where to write, of x's shape (x itself will do), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, C, H, W) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    return _launch_naive("", x, gamma, beta, mean, variance, eps, out, stream)


def batchnorm2d_relu_naive(
    x: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    variance: Any,
    *,
    eps: float = 1e-5,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`batchnorm2d_naive` with ReLU in the same kernel. Arguments as there."""
    return _launch_naive("relu", x, gamma, beta, mean, variance, eps, out, stream)


def _launch_naive(name, x, gamma, beta, mean, variance, eps, out, stream):
    n, c, height, width = shapes2d.batchnorm2d(x, gamma, beta, mean, variance, eps)
    parameters = {"gamma": gamma, "beta": beta, "mean": mean, "variance": variance}
    call = Call(out, stream, (n, c, height, width), in_place="x", x=x, **parameters)
    rows = (n, c, height * width)
    x, *parameters = call.inputs
    kernel = _batchnorm2d_naive_kernel(name)
    call.launch_each(kernel, x.reshape(rows), *parameters, call.out.reshape(rows), np.float32(eps))
    return call.result()
