"""Block 1 from token ids, as levels list it: convolution, LayerNorm where there is one, ReLU and max-pooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from charcnn import ops
from charcnn.aliases import Array, Record
from charcnn.gpu import device
from charcnn.layers.layer import Shape
from charcnn.ops.common.layer import ArraySpec, Space
from charcnn.ops.token_conv1d.in_parts import sums_shape
from charcnn.ops.token_conv1d.lag_sums import SharedPairTables
from charcnn.ops.token_conv1d.lags import PairTables
from charcnn.ops.token_conv1d.plane_gather.weights import PlaneGatherWeights
from charcnn.ops.token_conv1d.small_batch import conv_block_1
from charcnn.ops.token_conv1d.weights import TokenConvWeights


class TokenConvNormReluPool:
    """Block 1 in one kernel: token ids (N, L) uint8 -> features (N, (L - K + 1) // pool_size, C_out).

    The moments that LayerNorm needs come from the ids and tables of the weights' products. In fp16x3 a position has
    2 C_out numbers: high terms, then low ones.

    Args:
        weight: float32 (K, depth, C_out), as `arrays.pack` gives it; bias: float32 (C_out,); NumPy arrays.
        norm: gamma and beta, float32 (L_out, C_out), NumPy arrays; None for a network without LayerNorm.
        pool_size: int: positions that a maximum is taken of.
        precision: of the features that are written, one of `precision.TENSOR_PRECISIONS`.
        wide: bool, default False: of fp16, whether they are computed in float32, as those of tf32 are.
        octets: bool, default False: of fp16x3, whether they lie as `MmaConv` takes them, not as `WgmmaConv` does.

    Raises:
        ValueError: an argument's shape does not fit, or there is no such precision.
        DeviceError: no usable GPU, or in another precision than fp16 one of compute capability below 8.0.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, norm: tuple[np.ndarray, np.ndarray] | None, pool_size: int, *,
        precision: str, wide: bool = False, octets: bool = False,
    ) -> None:  # fmt: skip
        self.weights = TokenConvWeights(weight, bias, *(norm or ()), precision=precision, wide=wide, octets=octets)
        self._moments = SharedPairTables(weight, bias) if norm else None
        self._taps, _, self._channels = weight.shape
        self._pool_size, self.nbytes = pool_size, self.weights.nbytes

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        of, pooled = self.weights.precision, (x[1] - self._taps + 1) // self._pool_size
        return [ArraySpec((x[0], pooled, of.terms * self._channels), of.dtype)]

    def scratch(self, x: Shape) -> Mapping[str, ArraySpec]:
        """Moments, where LayerNorm needs them."""
        return {"moments": ArraySpec((x[0], 2), np.float64)} if self._moments else {}

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on token ids (N, L) uint8."""
        (y,) = self.writes(x.shape)
        if self._moments is None:
            return self.weights.relu_maxpool1d(x, self._pool_size, out=space.device(*y), stream=space.stream)
        stat = self._moments(x, out=space.scratch(self)["moments"][: len(x)], stream=space.stream)
        out = space.device(*y)
        return self.weights.layernorm_relu_maxpool1d(x, stat, self._pool_size, out=out, stream=space.stream)


class TokenConvNormReluPoolPlanes:
    """Block 1 in one kernel that writes the planes of Toom-Cook's products, pooled by three, for `ToomCookConv`.

    Args:
        weight: float32 (K, depth, C_out), as `arrays.pack` gives it; bias: float32 (C_out,); NumPy arrays.
        norm: gamma and beta, float32 (L_out, C_out), NumPy arrays; None for a network without LayerNorm.
        precision: of the planes that are written, one of those of `ToomCookConv`.
        wide: bool, default False: of fp16, whether they are computed in float32, as those of tf32 are.

    Raises:
        ValueError: an argument's shape does not fit, there is no such precision, or shared memory does not hold the
            table.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, norm: tuple[np.ndarray, np.ndarray] | None, *, precision: str,
        wide: bool = False,
    ) -> None:  # fmt: skip
        self.weights = PlaneGatherWeights(weight, bias, *(norm or ()), precision=precision, wide=wide)
        self._moments = SharedPairTables(weight, bias) if norm else None
        self.nbytes = self.weights.nbytes

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The planes."""
        return [ArraySpec(self.weights.planes_shape(*x), self.weights.precision.dtype)]

    def scratch(self, x: Shape) -> Mapping[str, ArraySpec]:
        """Moments, where LayerNorm needs them."""
        return {"moments": ArraySpec((x[0], 2), np.float64)} if self._moments else {}

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on token ids (N, L) uint8."""
        stat, (y,) = None, self.writes(x.shape)
        if self._moments is not None:
            stat = self._moments(x, out=space.scratch(self)["moments"][: len(x)], stream=space.stream)
        return self.weights(x, stat, out=space.device(*y), stream=space.stream)


class GatherTokenConvNormReluPool:
    """Block 1 in float32 by the operators of technique `gather`: (N, L) uint8 -> (N, (L - K + 1) // pool_size, C_out).

    LayerNorm's moments come from tables in global memory.

    Args:
        weight: float32 (K, depth, C_out), as `arrays.pack` gives it; bias: float32 (C_out,); NumPy arrays.
        norm: gamma and beta, float32 (L_out, C_out), NumPy arrays; None for a network without LayerNorm.
        pool_size: int: positions that a maximum is taken of.

    Raises:
        ValueError: an argument's shape does not fit.
        DeviceError: no usable GPU.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, norm: tuple[np.ndarray, np.ndarray] | None, pool_size: int
    ) -> None:
        self._arrays = [device.to_device(array) for array in (weight, bias, *(norm or ()))]
        self._moments = PairTables(*self._arrays[:2]) if norm else None
        self._taps, _, self._channels = weight.shape
        self._pool_size, self.nbytes = pool_size, sum(array.nbytes for array in self._arrays)

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        return [ArraySpec((x[0], (x[1] - self._taps + 1) // self._pool_size, self._channels))]

    def scratch(self, x: Shape) -> Mapping[str, ArraySpec]:
        """Moments, where LayerNorm needs them."""
        return {"moments": ArraySpec((x[0], 2), np.float64)} if self._moments else {}

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on token ids (N, L) uint8."""
        given: Record = {"out": space.device(*self.writes(x.shape)[0]), "stream": space.stream}
        if self._moments is None:
            launcher: Any = ops.one_hot_conv1d_relu_maxpool1d_nlc_gather
            return launcher(x, *self._arrays, self._pool_size, **given)
        stat = self._moments(x, out=space.scratch(self)["moments"][: len(x)], stream=space.stream)
        launcher = ops.one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather
        return launcher(x, stat, *self._arrays, self._pool_size, **given)


IN_PARTS = 2
"""The most inputs of which block 1 takes less time in two kernels without clusters: on an H200 one input took 10 µs,
and four 17, where eight took 15 in the kernels for larger batches."""

ALONE = 1
"""The most inputs of which block 1 takes less time in one kernel, as timed on an H200 in every precision; of 32 bits a
value two would take a microsecond less, too."""


class SmallBatchTokenConvNormReluPool:
    """Block 1 of an input or a few, with LayerNorm, spread over the whole GPU: one kernel with clusters, else two.

    It reads and writes what `TokenConvNormReluPool` does, and takes its weights and tables from there.

    Args:
        whole: a `TokenConvNormReluPool` that has LayerNorm, without octets.
        clusters: bool, default True: whether blocks share their look-ups, which needs Hopper.

    Raises:
        ValueError: it has none.
    """

    nbytes = 0

    def __init__(self, whole: TokenConvNormReluPool, *, clusters: bool = True) -> None:
        self._clusters = clusters
        if whole._moments is None:
            raise ValueError("whole has norm=None: need gamma and beta")
        self._weights, self._tables, self._pool_size = whole.weights, whole._moments, whole._pool_size
        self.writes = whole.writes

    def scratch(self, x: Shape) -> Mapping[str, ArraySpec]:
        """Sums of parts of the positions, where clusters do not share them."""
        return {} if self._clusters else {"sums": ArraySpec(sums_shape(*x), np.float64)}

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on token ids (N, L) uint8."""
        sums = None if self._clusters else space.scratch(self)["sums"][: len(x)]
        given: Record = {"sums": sums, "out": space.device(*self.writes(x.shape)[0]), "stream": space.stream}
        return conv_block_1(x, self._weights, self._tables, self._pool_size, **given)
