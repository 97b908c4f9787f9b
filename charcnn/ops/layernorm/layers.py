"""LayerNorm, ReLU and max-pooling behind a convolution, as levels list them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from charcnn import ops
from charcnn.aliases import Array, Record
from charcnn.gpu import device
from charcnn.layers.layer import Shape
from charcnn.ops.common.conv import PreparedConv
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.layer import ArraySpec, PreparedLayer, Space
from charcnn.ops.common.mma_layout import OCTET, WIDE
from charcnn.ops.common.precision import FP32, choose
from charcnn.ops.conv1d.layers import Cast
from charcnn.ops.conv1d.mma.layer import MmaConv
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.wgmma_sparse.layer import SparseConv
from charcnn.ops.layernorm.relu_maxpool1d_nlc_precisions import encoded_maxima, normalised_maxima
from charcnn.ops.layernorm.small_batch import affine, between, normalised

FEW = 64
"""Inputs up to which each block merges the moments of parts itself: that took 0 to 5 microseconds less than a kernel
before it in every precision, as timed on an H200; in bf16 1 to 2 less up to 256 inputs, too."""

Affine = tuple[np.ndarray, np.ndarray]
"""gamma and beta, float32 (L, C)."""


class ConvNormReluPool:
    """A convolution that gives the moments of its result, too, and one pass of LayerNorm, ReLU and max-pooling.

    Of the convolution's (N, L, C) it writes (N, L // pool_size, C). Behind `WgmmaConv` that is one row (N, 1, ...),
    as a linear layer takes it, with `wide`, in TF32 and in fp16x3, there of high terms, then low ones.

    Args:
        conv: `WgmmaConv`, `SparseConv` or `MmaConv` of a `Conv1d` alone, made with `moments=True`.
        norm: gamma and beta, float32 (L, C), NumPy arrays. Up to FEW inputs of 16 bits take them in fp16.
        pool_size: int: positions that a maximum is taken of.
        precision: of the features that are written, one of `precision.TENSOR_PRECISIONS`.
        eps: float, default 1e-5: added to the variance, greater than 0.
        wide: bool, default False: whether conv's result, gamma and beta are float32, though features have fewer bits.

    Raises:
        ValueError: there is no such precision.
    """

    def __init__(
        self, conv: PreparedConv, norm: Affine, pool_size: int, precision: str, eps: float = 1e-5, *, wide: bool = False
    ) -> None:
        self._conv, self._pool_size, self._eps = conv, pool_size, eps
        self._norm = [device.to_device(array) for array in norm]
        self._of = choose(precision)
        self._wide = wide or precision in WIDE
        wgmma = isinstance(conv, WgmmaConv)
        self._rows = self._wide and wgmma  # what a linear layer takes
        self._few = FEW if wgmma and self._of.itemsize > 1 and norm[0].shape[-1] % OCTET == 0 else 0
        self._affine = affine(*norm, wide=self._wide) if self._few else ()
        self.nbytes = conv.nbytes + sum(array.nbytes for array in (*self._norm, *self._affine))

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The convolution's result, and that of pooling."""
        y = self._conv.writes(x)[-1]
        n, length, channels = y.shape
        pooled, numbers = length // self._pool_size, self._of.terms if self._wide else 1
        shape = (n, 1, numbers * pooled * channels) if self._rows else (n, pooled, numbers * channels)
        return [y, ArraySpec(shape, self._of.dtype)]

    def scratch(self, x: Shape) -> Mapping[str, ArraySpec]:
        """Moments, and those of parts of the result."""
        partial = self._conv.partial_moments_shape(x[0], x[1])
        return {"moments": ArraySpec((x[0], 2), np.float64), "partial_moments": ArraySpec(partial)}

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on features (N, L, C_in)."""
        n, scratch, (between, result) = len(x), space.scratch(self), self.writes(x.shape)
        out = space.device(*between), scratch["moments"][:n]
        partial_moments = scratch["partial_moments"][:n]
        if 0 < n <= self._few:
            given: Record = {"out": out[0], "stream": space.stream}
            y, (gamma, beta) = self._conv.with_partial_moments(x, partial_moments, **given), self._affine
            return normalised(
                y, partial_moments, gamma, beta, self._pool_size, precision=self._of.name, rows=self._rows,
                wide=self._wide, part=self._conv.part, eps=self._eps, out=space.device(*result),
                stream=space.stream,
            )  # fmt: skip
        y, stat = self._conv.with_moments(x, out=out, partial_moments=partial_moments, stream=space.stream)
        precision: Record = {"precision": self._of.name}
        if self._rows:
            precision = {"precision": FP32.name, "results": self._of.name}
        maxima: Any = encoded_maxima if self._wide and not self._rows else normalised_maxima
        given = {"eps": self._eps, "out": space.device(*result), "stream": space.stream}
        return maxima(y, stat, *self._norm, self._pool_size, **precision, **given)


class SmallBatchConvNormReluPool:
    """Convolution, LayerNorm, ReLU and max-pooling of a few inputs, spread over the whole GPU, for a linear layer.

    Args:
        weight: float32 (K, C_in, C), as `arrays.pack` gives it; bias: float32 (C,); NumPy arrays.
        norm: gamma and beta, float32 (L, C) of the convolution's positions and channels, NumPy arrays.
        pool_size: int: positions that a maximum is taken of.
        precision: of weights and features, one of `precision.TENSOR_PRECISIONS`.
        eps: float, default 1e-5: added to the variance, greater than 0.
        wide: bool, default False: whether LayerNorm reads float32, though features have fewer bits.

    Raises:
        ValueError: an argument's shape does not fit, there is no such precision, or the GPU does not multiply it:
            compute capability 7.5 has fp16 alone.
        DeviceError: no usable GPU.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, norm: Affine, pool_size: int, precision: str, eps: float = 1e-5, *,
        wide: bool = False,
    ) -> None:  # fmt: skip
        self._of, self._pool_size, self._eps = choose(precision), pool_size, eps
        self._wide = wide or precision in WIDE
        given = pattern_of(weight), {"weight": weight, "bias": bias}
        results = between(self._of, self._wide).name
        self._conv = SmallBatchConv(*given, precision=precision, results=results, moments=True)
        self._norm, self.nbytes = affine(*norm, wide=self._wide), self._conv.nbytes

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The convolution's result, and that of pooling."""
        y = self._conv.writes(x)[-1]
        n, length, channels = y.shape
        pooled = length // self._pool_size
        shape = (n, 1, self._of.terms * pooled * channels) if self._wide else (n, pooled, channels)
        return [y, ArraySpec(shape, self._of.dtype)]

    def scratch(self, x: Shape) -> Mapping[str, ArraySpec]:
        """Moments of parts of the result."""
        return {"partial_moments": ArraySpec(self._conv.partial_moments_shape(x[0], x[1]))}

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on features (N, L, C_in)."""
        partial_moments, (between, result) = space.scratch(self)["partial_moments"][: len(x)], self.writes(x.shape)
        y = self._conv.with_partial_moments(x, partial_moments, out=space.device(*between), stream=space.stream)
        gamma, beta = self._norm
        return normalised(
            y, partial_moments, gamma, beta, self._pool_size, precision=self._of.name, rows=self._wide,
            wide=self._wide, eps=self._eps, out=space.device(*result), stream=space.stream,
        )  # fmt: skip


class CoalescedConvNormReluPool:
    """A convolution in float32 that gives the moments of its result, too; then LayerNorm, ReLU and max-pooling.

    Args:
        conv: `WinogradConv` or `DoubleBufferedConv` of a `Conv1d` alone, made with `moments=True`.
        norm: gamma and beta, float32 (L, C) of its positions and channels, NumPy arrays.
        pool_size: int: positions that a maximum is taken of.

    Raises:
        DeviceError: no usable GPU.
    """

    def __init__(self, conv: Any, norm: Affine, pool_size: int) -> None:
        self._conv, self._pool_size = conv, pool_size
        self._norm = [device.to_device(array) for array in norm]
        self.nbytes = conv.nbytes + sum(array.nbytes for array in self._norm)

    def writes(self, x: Shape) -> list[ArraySpec]:
        """What the convolution writes, and the result of pooling."""
        *between, y = self._conv.writes(x)
        n, length, channels = y.shape
        return [*between, y, ArraySpec((n, length // self._pool_size, channels))]

    def scratch(self, x: Shape) -> Mapping[str, ArraySpec]:
        """Moments."""
        return {"moments": ArraySpec((x[0], 2), np.float64)}

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on features (N, L, C_in)."""
        y, stat = self._conv.stat(x, space.scratch(self)["moments"][: len(x)], space)
        gamma, beta = self._norm
        out = space.device(*self.writes(x.shape)[-1])
        given: Record = {"out": out, "stream": space.stream}
        return ops.layernorm_relu_maxpool1d_nlc_coalesced(y, stat, gamma, beta, self._pool_size, **given)


def wgmma_block(
    weight: np.ndarray, bias: np.ndarray, norm: Affine | None, pool_size: int, *, length: int, precision: str,
    eps: float = 1e-5, promoted: bool = False, wide: bool = False,
) -> list[PreparedLayer]:  # fmt: skip
    """Convolution, LayerNorm where there is one, ReLU and max-pooling on Hopper's tensor cores; for a linear layer.

    Args:
        weight, bias, precision, promoted: as of `WgmmaConv`.
        norm: gamma and beta; None for a network without.
        pool_size: 3.
        length: positions of x that count, where there are more.
        eps: added to the variance.
        wide: as of `ConvNormReluPool`; nothing without LayerNorm.
    """
    given: Record = {"precision": precision, "promoted": promoted}
    cast, weights = precision in WIDE, {"weight": weight, "bias": bias}
    if norm is not None:
        results = FP32.name if wide or cast else None
        conv = WgmmaConv(pattern_of(weight), weights, results=results, moments=True, **given)
        return [ConvNormReluPool(conv, norm, pool_size, precision, eps, wide=wide)]
    pattern, results = pattern_of(weight, "relu", pool_size), FP32.name if cast else None
    return [WgmmaConv(pattern, weights, length=length, results=results, **given), *([Cast(precision)] if cast else [])]


def mma_block(
    weight: np.ndarray, bias: np.ndarray, norm: Affine | None, pool_size: int, *, precision: str, eps: float = 1e-5,
    made: type[MmaConv | SparseConv] = MmaConv,
) -> list[PreparedLayer]:  # fmt: skip
    """`wgmma_block` by mma.sync, or by another class, such as `SparseConv`, which takes 2:4 sparse weights alone."""
    weights = {"weight": weight, "bias": bias}
    if norm is None:
        return [made(pattern_of(weight, "relu", pool_size), weights, precision=precision)]
    results = FP32.name if precision in WIDE else None
    conv = made(pattern_of(weight), weights, results=results, moments=True, precision=precision)
    return [ConvNormReluPool(conv, norm, pool_size, precision, eps)]


def small_batch_block(
    weight: np.ndarray, bias: np.ndarray, norm: Affine | None, pool_size: int, *, precision: str, eps: float = 1e-5,
    wide: bool = False,
) -> Sequence[PreparedLayer]:  # fmt: skip
    """`wgmma_block` for a few inputs."""
    if norm is None:
        given, cast = (pattern_of(weight, "relu", pool_size), {"weight": weight, "bias": bias}), precision in WIDE
        conv = SmallBatchConv(*given, precision=precision, results=FP32.name if cast else None)
        return [conv, Cast(precision)] if cast else [conv]
    return [SmallBatchConvNormReluPool(weight, bias, norm, pool_size, precision, eps, wide=wide)]
