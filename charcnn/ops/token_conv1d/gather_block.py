"""Block 1's parameters on a GPU in float32, made once, for levels whose other features are TF32 or two halves."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.gpu.launch import Call
from charcnn.ops.common import formats, shapes
from charcnn.ops.common.mma_layout import OCTET
from charcnn.ops.token_conv1d.gather_warps import launch


class GatherBlock:
    """What `HalfBlock` is, with table, sums and LayerNorm in float32, as the operators of technique `gather` have them.

    Args:
        weight: float32 (K, depth, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; both NumPy
            arrays, or both device arrays.
        gamma, beta: float32 (L_out, C_out), C-contiguous, on the same side; None for a network without LayerNorm.
        precision: of the features that are written: tf32, or fp16x3, two halves a number.
        octets: whether those halves lie as `features` has them, for `Mma`; C_out is then a multiple of 8.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """

    def __init__(
        self,
        weight: Any,
        bias: Any,
        gamma: Any = None,
        beta: Any = None,
        *,
        precision: str = "fp16x3",
        octets: bool = False,
        stream: Any = None,
    ) -> None:
        self.format = formats.choose(precision, {name: formats.FORMATS[name] for name in ("tf32", "fp16x3")})
        self._form = "tf32" if self.format.parts == 1 else "octets" if octets else "halves"
        kernel_size, _, channels = shapes.ranked("weight", weight, "K, depth, C_out")
        if octets and channels % OCTET:
            raise ValueError(f"weight has C_out={channels}: need a multiple of {OCTET}")
        shapes.one_hot_conv1d_nlc(np.empty((0, max(1, kernel_size))), weight, bias)  # checks what can be of both
        if gamma is not None:
            shapes.expect("beta", beta, shapes.ranked("gamma", gamma, "L_out, C_out"))
        more = {} if gamma is None else {"gamma": gamma, "beta": beta}
        call = Call(None, stream, (0,), weight=weight, bias=bias, **more)
        self.weight, self.bias, *self.affine = call.inputs
        self.nbytes: int = sum(array.nbytes for array in call.inputs)

    def relu_maxpool1d(self, ids: Any, pool_size: int, *, out: Any = None, stream: Any = None) -> Any:
        """`reference.one_hot_conv1d_relu_maxpool1d_nlc`.

        Args:
            ids: uint8 (N, L), C-contiguous; an id >= depth is blank.
            pool_size: positions that a maximum is taken of.
            out: where to write, (N, L_out // pool_size, C_out), for fp16x3 2 C_out; made where None.
            stream: a CUDA stream; the default stream where None.

        Returns:
            float32 (N, L_out // pool_size, C_out), or float16 (N, L_out // pool_size, 2 C_out), where ids lies; device
            results are not waited for.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit, or shared memory does not hold the
                table of four channels, or a window's ids.
        """
        shape = shapes.one_hot_conv1d_relu_maxpool1d_nlc(ids, self.weight, self.bias, pool_size)
        return self._apply(shape, out, stream, None, pool_size, 1e-5, ids=ids)

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
        if not self.affine:
            raise ValueError("gamma is None: need LayerNorm's parameters when the object is made")
        gamma, beta = self.affine
        shape = shapes.one_hot_conv1d_layernorm_relu_maxpool1d_nlc(
            ids, stat, self.weight, self.bias, gamma, beta, pool_size, eps
        )
        return self._apply(shape, out, stream, (stat, gamma, beta), pool_size, eps, ids=ids, stat=stat)

    def _apply(self, shape, out, stream, normalisation, pool_size, eps, **inputs):
        *others, channels = shape
        call = Call(out, stream, (*others, self.format.parts * channels), self.format.dtype, **inputs)
        y = call.out.view(np.uint16) if self.format.parts == 2 else call.out
        arrays = call.inputs[0], self.weight, self.bias, normalisation, y
        launch(call, *arrays, pool_size, eps, self.weight.shape, self._form, wide=True)
        return call.result()
