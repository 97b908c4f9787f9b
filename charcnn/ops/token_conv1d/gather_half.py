"""Block 1 from token ids in half precision: the gather with a table, sums and LayerNorm in fp16.

In 16 bits the table's rows are half as long, and two channels are added by one instruction. Sums are in fp16: of few
terms, and rounded once a pair of taps. They begin with bias - mean, a difference taken in float32. Values past 65504
become infinite; a mean 2^11 deviations from zero leaves nothing of them. The kernel is that of `gather_warps`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.ops.common import cast, shapes
from charcnn.ops.common.cast import narrow, widen
from charcnn.ops.common.formats import FORMATS, HALVES, choose
from charcnn.ops.token_conv1d.gather_warps import launch

OCTET = 8
"""Channels of a thread: the table, gamma and beta have whole ones."""

FEATURES = {name: FORMATS[name] for name in (*HALVES, "fp8")}
"""What can be written."""


def _launch(
    call: Call,
    ids: Any,
    block: HalfBlock,
    normalisation: tuple[Any, Any, Any] | None,
    y: Any,
    pool_size: int,
    eps: float = 1e-5,
    **tiles: int,
) -> None:
    """Start the kernel, with (stat, gamma, beta) or None, to write y, the bits of (N, L_out // pool_size, C_out)."""
    launch(
        call, ids, block.table, block.bias, normalisation, y, pool_size, eps, block.shape, block.format.kind,
        wide=False, **tiles,
    )  # fmt: skip


def _bits(y: Any) -> Any:
    """As unsigned integers."""
    return y.view(cast.WORDS[y.dtype.itemsize])


class HalfBlock:
    """Block 1's parameters on the current GPU in half precision, made once: operators on token ids as methods.

    Args:
        weight: float32 (K, depth, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; both NumPy
            arrays, or both device arrays.
        gamma, beta: float32 (L_out, C_out), C-contiguous, on the same side; None for a network without LayerNorm.
        precision: of the features that are written, fp16, bf16 or fp8; table and sums are fp16.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

    def __init__(
        self,
        weight: Any,
        bias: Any,
        gamma: Any = None,
        beta: Any = None,
        *,
        precision: str = "fp16",
        stream: Any = None,
    ) -> None:
        self.format = choose(precision, FEATURES)
        kernel_size, depth, channels = shapes.ranked("weight", weight, "K, depth, C_out")
        # An input of the least length stands for all: it checks what can be checked of weight and bias.
        shapes.one_hot_conv1d_nlc(np.empty((0, max(1, kernel_size))), weight, bias)
        if gamma is not None:
            shapes.expect("beta", beta, shapes.ranked("gamma", gamma, "L_out, C_out"))
        self.shape = kernel_size, depth, channels
        padded = -(-channels // OCTET) * OCTET
        more = {} if gamma is None else {"gamma": gamma, "beta": beta}
        call = Call(None, stream, (0,), weight=weight, bias=bias, **more)
        device.require_capability((8, 0), "half precision", "use float32")
        weight, self.bias, *affine = call.inputs
        self.table = narrow(call, weight, depth + 1, padded, HALVES["fp16"]).view(np.uint32)
        self.affine = tuple(
            narrow(call, array.reshape((1, *array.shape)), array.shape[0], padded, HALVES["fp16"]).view(np.uint16)
            for array in affine
        )
        self.nbytes: int = sum(array.nbytes for array in (self.table, self.bias, *self.affine))

    def relu_maxpool1d(self, ids: Any, pool_size: int, *, out: Any = None, stream: Any = None) -> Any:
        """`reference.one_hot_conv1d_relu_maxpool1d_nlc`.

        Args:
            ids: uint8 (N, L), C-contiguous: a NumPy array, or a device array; an id >= depth is blank.
            pool_size: positions that a maximum is taken of.
            out: where to write, (N, L_out // pool_size, C_out), on the same side; made where None.
            stream: a CUDA stream; the default stream where None.

        Returns:
            float16 (N, L_out // pool_size, C_out), for bf16 and fp8 its bits in uint16 or uint8, where ids lies; device
            results are not waited for.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit, or shared memory does not hold the
                table of eight channels, or a window's characters.
        """
        shape = shapes.one_hot_conv1d_relu_maxpool1d_nlc(ids, self._weight(), self.bias, pool_size)
        call = Call(out, stream, shape, self.format.dtype, ids=ids)
        _launch(call, call.inputs[0], self, None, _bits(call.out), pool_size)
        return call.result()

    def layernorm_relu_maxpool1d(
        self, ids: Any, stat: Any, pool_size: int, *, eps: float = 1e-5, out: Any = None, stream: Any = None
    ) -> Any:
        """`reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc`: the whole of block 1 in one pass.

        Args:
            ids, pool_size, out, stream: as for `relu_maxpool1d`.
            stat: float64 (N, 2): each input's mean and biased variance, as `LagTables` gives them.
            eps: added to the variance.

        Returns, raises:
            As there.
        """
        shape = shapes.one_hot_conv1d_layernorm_relu_maxpool1d_nlc(
            ids, stat, self._weight(), self.bias, *self._like_affine(), pool_size, eps
        )
        call = Call(out, stream, shape, self.format.dtype, ids=ids, stat=stat)
        ids, stat = call.inputs
        _launch(call, ids, self, (stat, *self.affine), _bits(call.out), pool_size, eps)
        return call.result()

    def _weight(self) -> Any:
        """For `shapes`: an array of the weights' shape."""
        return np.broadcast_to(np.float32(0), self.shape)

    def _like_affine(self) -> tuple[Any, Any]:
        """For `shapes`: arrays of gamma's and beta's shape."""
        if not self.affine:
            raise ValueError("gamma is None: need LayerNorm's parameters when the object is made")
        like = np.broadcast_to(np.float32(0), (self.affine[0].shape[1], self.shape[2]))
        return like, like


def one_hot_conv1d_relu_maxpool1d_nlc_gather_half(
    ids: Any, weight: Any, bias: Any, pool_size: int, *, precision: str = "fp16", out: Any = None, stream: Any = None
) -> Any:
    """`reference.one_hot_conv1d_relu_maxpool1d_nlc` on a GPU in half precision: "fp16" or "bf16".

    It rounds the weights first, and widens the result last; `HalfBlock` keeps the one and leaves out the other.
    Arguments, result and errors as for `one_hot_conv1d_relu_maxpool1d_nlc_gather`, and DeviceError where the GPU has
    compute capability below 8.0.
    """
    return _once(ids, None, weight, bias, (), pool_size, 1e-5, precision, out, stream)


def one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather_half(
    ids: Any,
    stat: Any,
    weight: Any,
    bias: Any,
    gamma: Any,
    beta: Any,
    pool_size: int,
    *,
    eps: float = 1e-5,
    precision: str = "fp16",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc` on a GPU in half precision.

    The rest as for `one_hot_conv1d_relu_maxpool1d_nlc_gather_half`; arguments, result and errors as for
    `one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather`.
    """
    return _once(ids, stat, weight, bias, (gamma, beta), pool_size, eps, precision, out, stream)


def _once(ids, stat, weight, bias, affine, pool_size, eps, precision, out, stream):
    choose(precision, HALVES)
    if affine:
        shape = shapes.one_hot_conv1d_layernorm_relu_maxpool1d_nlc(ids, stat, weight, bias, *affine, pool_size, eps)
        more = {"stat": stat, "gamma": affine[0], "beta": affine[1]}
    else:
        shape, more = shapes.one_hot_conv1d_relu_maxpool1d_nlc(ids, weight, bias, pool_size), {}
    call = Call(out, stream, shape, ids=ids, weight=weight, bias=bias, **more)
    ids, weight, bias, *stat_affine = call.inputs
    block = HalfBlock(weight, bias, *stat_affine[1:], precision=precision, stream=call.stream)
    y = call.scratch(shape, block.format.dtype)
    normalisation = (stat_affine[0], *block.affine) if affine else None
    _launch(call, ids, block, normalisation, _bits(y), pool_size, eps)
    widen(call, y, call.out, block.format)
    return call.result()
