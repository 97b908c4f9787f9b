"""Block 1 from token ids, each warp by itself: weights on a GPU, and the operators that they make.

Features of 16 or 8 bits come from a table, sums and LayerNorm in fp16: the table's rows are half as long, and two
channels are added by one instruction. Such sums are of few terms, and rounded once a pair of taps. They begin with
bias - mean, a difference taken in float32. Values past 65504 become infinite; a mean 2^11 deviations from zero leaves
nothing of them. Features of 32 bits come from float32, `wide` ones of 16, too. The kernel is that of `warp_gather`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers.layer import Shape
from charcnn.ops.common import cast, shapes
from charcnn.ops.common.cast import narrow, widen
from charcnn.ops.common.mma_layout import OCTET
from charcnn.ops.common.precision import HALF_PRECISIONS, NumberFormat, choose
from charcnn.ops.token_conv1d.warp_gather.launch import launch


class TokenConvWeights:
    """Block 1's parameters on the current GPU, made once: operators on token ids as methods.

    Args:
        weight: float32 (K, depth, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; both NumPy
            arrays, or both device arrays.
        gamma, beta: float32 (L_out, C_out), C-contiguous, on the same side; None for a network without LayerNorm.
        precision: of the features that are written. With fp16, bf16 and fp8 table and sums are fp16, with tf32 and
            fp16x3 float32.
        wide: of fp16, whether table, sums and LayerNorm are float32, too, and features alone fp16.
        octets: of fp16x3, whether its terms lie as `mma_layout` has them; C_out is then a multiple of 8.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or in another precision than fp16 one of compute capability below 8.0.
    """

    def __init__(
        self,
        weight: Array,
        bias: Array,
        gamma: Array = None,
        beta: Array = None,
        *,
        precision: str = "fp16",
        wide: bool = False,
        octets: bool = False,
        stream: Stream = None,
    ) -> None:
        self.precision = of = choose(precision)
        self.wide = sums_in_float32(of, wide)
        self._form = of.ptx_type if of.terms == 1 else "octets" if octets else "halves"
        kernel_size, depth, channels = shapes.ranked("weight", weight, "K, depth, C_out")
        self.shape = kernel_size, depth, channels
        if octets and channels % OCTET:
            raise ValueError(f"weight has C_out={channels}: need a multiple of {OCTET}")
        # An input of the least length stands for all: it checks what can be checked of weight and bias.
        shapes.one_hot_conv1d_nlc(np.empty((0, max(1, kernel_size))), weight, bias)
        if gamma is not None:
            shapes.expect("beta", beta, shapes.ranked("gamma", gamma, "L_out, C_out"))
        more = {} if gamma is None else {"gamma": gamma, "beta": beta}
        call = Call(None, stream, (0,), weight=weight, bias=bias, **more)
        device.require_capability(min(of.capability, device.AMPERE), f"warp_gather in {precision}", "use gather")
        self.table, self.bias, *affine = call.inputs
        # An early launch reads table and bias before the kernel before has ended: none that a caller may still write,
        # and none before a launch has waited for what made them.
        self._kept, self._waited = not device.on_device(weight), False
        self._affine_shape = affine[0].shape if affine else None
        if not self.wide:
            padded, half = -(-channels // OCTET) * OCTET, HALF_PRECISIONS["fp16"]
            self.table = narrow(call, self.table, depth + 1, padded, half).view(np.uint32)
            affine = [
                narrow(call, array.reshape((1, *array.shape)), array.shape[0], padded, half).view(np.uint16)
                for array in affine
            ]
        self.affine = tuple(affine)
        self.nbytes: int = sum(array.nbytes for array in (self.table, self.bias, *self.affine))

    def relu_maxpool1d(self, ids: Array, pool_size: int, *, out: Array = None, stream: Stream = None) -> Array:
        """`reference.one_hot_conv1d_relu_maxpool1d_nlc`.

        Args:
            ids: uint8 (N, L), C-contiguous: a NumPy array, or a device array; an id >= depth is blank.
            pool_size: positions that a maximum is taken of.
            out: where to write, (N, L_out // pool_size, C_out), for fp16x3 2 C_out, on the same side; made where None.
            stream: a CUDA stream; the default stream where None.

        Returns:
            (N, L_out // pool_size, C_out), for fp16x3 2 C_out, in the precision's dtype, where ids lies; device results
            are not waited for.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit, or shared memory does not hold the
                table of one vector of channels, or a window's characters.
        """
        shape = shapes.one_hot_conv1d_relu_maxpool1d_nlc(ids, _like(self.shape), self.bias, pool_size)
        call = self._call(out, stream, shape, ids=ids)
        self.launch(call, call.inputs[0], None, call.out, pool_size)
        return call.result()

    def layernorm_relu_maxpool1d(
        self, ids: Array, stat: Array, pool_size: int, *, eps: float = 1e-5, out: Array = None, stream: Stream = None
    ) -> Array:
        """`reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc`: the whole of block 1 in one pass.

        Args:
            ids, pool_size, out, stream: as for `relu_maxpool1d`.
            stat: float64 (N, 2): each input's mean and biased variance, as `PairTables` gives them.
            eps: added to the variance.

        Returns, raises:
            As there.
        """
        if self._affine_shape is None:
            raise ValueError("gamma is None: need LayerNorm's parameters when the object is made")
        gamma = beta = _like(self._affine_shape)
        shape = shapes.one_hot_conv1d_layernorm_relu_maxpool1d_nlc(
            ids, stat, _like(self.shape), self.bias, gamma, beta, pool_size, eps
        )
        call = self._call(out, stream, shape, ids=ids, stat=stat)
        ids, stat = call.inputs
        self.launch(call, ids, stat, call.out, pool_size, eps)
        return call.result()

    def launch(
        self, call: Call, ids: Array, stat: Array, y: Array, pool_size: int, eps: float = 1e-5, **tiles: int
    ) -> None:
        """Start the kernel, with LayerNorm where there is a stat, to write y."""
        normalisation = None if stat is None else (stat, *self.affine)
        y = y.view(cast.WORDS[y.dtype.itemsize]) if self._form != "tf32" else y
        launch(
            call, ids, self.table, self.bias, normalisation, y, pool_size, eps, self.shape, self._form,
            wide=self.wide, early=self._kept and self._waited, **tiles,
        )  # fmt: skip
        self._waited = self._waited or y.size > 0

    def _call(self, out: Array, stream: Stream, shape: Shape, **inputs: Any) -> Call:
        return Call(out, stream, (*shape[:-1], self.precision.terms * shape[-1]), self.precision.dtype, **inputs)


def sums_in_float32(of: NumberFormat, wide: bool) -> bool:
    """Whether block 1's table and sums are float32 where its features are of this format.

    Raises:
        ValueError: they are asked for, and there are none.
    """
    if wide and of.name not in ("fp16", "tf32", "fp16x3"):
        raise ValueError(f"{wide=}: need precision fp16, not {of.name}")
    return wide or of.size == 4


def _like(shape: Shape) -> Any:
    """For `shapes`: an array of this shape."""
    return np.broadcast_to(np.float32(0), shape)


def launch_pooled(call: Call, ids: Array, weight: Array, bias: Array, pool_size: int, *, precision: str) -> None:
    """Rounds the weights first, and widens the result last; `TokenConvWeights` keeps the one, and leaves that out."""
    _once(call, ids, weight, bias, pool_size, precision)


def launch_normalised(
    call: Call,
    ids: Array,
    stat: Array,
    weight: Array,
    bias: Array,
    gamma: Array,
    beta: Array,
    pool_size: int,
    eps: float,
    *,
    precision: str,
) -> None:
    """Rounds the weights first, and widens the result last; `TokenConvWeights` keeps the one, and leaves that out."""
    _once(call, ids, weight, bias, pool_size, precision, (gamma, beta), stat, eps)


def _once(call, ids, weight, bias, pool_size, precision, affine=(), stat=None, eps=1e-5):
    choose(precision, HALF_PRECISIONS)
    made = TokenConvWeights(weight, bias, *affine, precision=precision, stream=call.stream)
    y = call.scratch(call.out.shape, made.precision.dtype)
    made.launch(call, ids, stat, y, pool_size, eps)
    widen(call, y, call.out, made.precision)
