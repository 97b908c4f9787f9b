"""Block 1 from token ids to Toom-Cook's planes: weights on a GPU, and how the kernel is started."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers.layer import Shape
from charcnn.ops.common import shapes
from charcnn.ops.common.precision import choose
from charcnn.ops.conv1d.toom_cook import planes
from charcnn.ops.conv1d.toom_cook.layer import PRECISIONS
from charcnn.ops.conv1d.toom_cook.transforms import POINTS, WINDOW, plane_rows
from charcnn.ops.token_conv1d.plane_gather import byte_table, short_table
from charcnn.ops.token_conv1d.plane_gather.group import MOST_TAPS, POOL
from charcnn.ops.token_conv1d.plane_gather.kernel import make_kernel, parts_of, smem_bytes
from charcnn.ops.token_conv1d.warp_gather.config import BELOW, PITCH, WARP, WORDS
from charcnn.ops.token_conv1d.weights import TokenConvWeights, sums_in_float32

HELD = 4
"""Inputs that a warp goes along at a time: they share one read of gamma and beta."""

THREADS = device.block_size(512)
"""Of a block: what registers allow."""


class PlaneGatherWeights:
    """Block 1's parameters on the current GPU, made once: token ids to the planes that `ToomCookConv` takes.

    The features are those of `TokenConvWeights`, pooled by three, before they are rounded to the precision. Of fp16 and
    fp8 planes are sums in float16, of tf32, fp16x3 and `wide` fp16 in float32.

    Args:
        weight: float32 (K, depth, C_out), as `arrays.pack` gives it, NumPy, C-contiguous: K up to 8, depth up to 191
            and what shared memory holds, 127 for K = 7.
        bias: float32 (C_out,), NumPy; C_out in whole 16 bytes of the precision's table.
        gamma, beta: float32 (L_out, C_out), NumPy; None for a network without LayerNorm.
        precision: of planes, one of `toom_cook`'s. With fp16 and fp8 table and sums are fp16, with tf32 and fp16x3
            float32. With fp8 and C_out in whole 16s the table is bytes, of weights below some 500 and gamma below 16:
            a result of the convolution is off by 1 to 2 % of their root mean square. With tf32 and C_out in whole 8s it
            is whole numbers of 16 bits, where no channel has a few weights far beyond the others: they are rounded as
            TF32 does it, or twice as coarsely. Of either kind two warps share a row, which the block has to hold.
        wide: of fp16, whether table and sums are those of tf32.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit, or shared memory does not hold the table.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, gamma: np.ndarray | None = None, beta: np.ndarray | None = None, *,
        precision: str = "fp16", wide: bool = False,
    ) -> None:  # fmt: skip
        self.precision = of = choose(precision, PRECISIONS)
        wide = sums_in_float32(of, wide)
        self.shape = kernel_size, depth, channels = shapes.ranked("weight", weight, "K, depth, C_out")
        vector = 4 if wide else 8
        if not 1 <= kernel_size <= MOST_TAPS or depth + BELOW >= 256 or channels % vector:
            raise device.SizeError(
                f"weight has shape {tuple(weight.shape)}: need K up to {MOST_TAPS}, depth up to {255 - BELOW}, "
                f"C_out in whole {vector}s"
            )
        # What 1 stands for in planes goes into what is added last, so that no kernel knows of it.
        unit = np.float32(planes.unit(of))
        affine: tuple[np.ndarray, ...] = ()
        given = weight / unit, bias / unit
        if gamma is not None and beta is not None:
            given, affine = (weight, bias), (gamma / unit, beta / unit)
        # Of two terms no whole numbers are fine enough.
        whole: Any = byte_table if of.ptx_type == "e4m3" else short_table if wide and of.terms == 1 else None
        parts = parts_of(wide, channels)
        fits = smem_bytes(kernel_size, depth, HELD, WARP * parts) <= device.shared_limit()
        whole = whole if whole and fits and whole.holds(given[0], *affine[:1]) else None
        if whole is byte_table and affine:
            affine = affine[0] * np.float32(byte_table.RAISED), affine[1]
        self._of = TokenConvWeights(*given, *affine, precision=precision, wide=wide)
        self._table, self._steps = self._of.table, self._of.bias
        if whole:
            self._table, self._steps = (device.to_device(array) for array in whole.pack(*given))
        self.nbytes = self._of.nbytes + (self._table.nbytes if self._table is not self._of.table else 0)
        least = smem_bytes(kernel_size, depth, HELD, WARP)
        if least > (limit := device.shared_limit()):
            raise device.SizeError(
                f"weight has {kernel_size=}, {depth=}: need {least:,} bytes of shared memory, a block has {limit:,}"
            )

    def planes_shape(self, n: int, length: int) -> Shape:
        """Of the planes of token ids (n, length): (n, windows + 1, 6, C_out), of two terms with 2 C_out."""
        pooled = (length - self.shape[0] + 1) // POOL
        return n, plane_rows(pooled), POINTS, self.precision.terms * self.shape[2]

    def __call__(self, ids: Any, stat: Any = None, *, eps: float = 1e-5, out: Any = None, stream: Any = None) -> Any:
        """The planes, of the precision's dtype and `planes_shape`.

        Args:
            ids: uint8 (N, L) on the GPU, C-contiguous; an id >= depth is blank.
            stat: float64 (N, 2) on the GPU: each input's mean and biased variance; None without LayerNorm.
            eps: added to the variance.
            out: where to write, on the GPU; made where None.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit.
        """
        (n, length), kernel_size = shapes.ranked("ids", ids, "N, L"), self.shape[0]
        least = kernel_size - 1 + POOL * (POINTS + WINDOW)
        if length < least:
            raise ValueError(f"ids has {length} positions: need at least {least}")
        normalised = bool(self._of.affine)
        if normalised != (stat is not None):
            raise ValueError(f"stat is {'None' if stat is None else 'given'}: need it with LayerNorm alone")
        if normalised:
            shapes.expect("stat", stat, (n, 2))
            positions = self._of.affine[0].shape[-2]
            if positions != length - kernel_size + 1:
                raise ValueError(f"ids has {length} positions: need {positions + kernel_size - 1}, as gamma has")
        inputs = {"ids": ids, "stat": stat} if normalised else {"ids": ids}
        call = Call(out, stream, self.planes_shape(n, length), self.precision.dtype, **inputs)
        if n:
            self.launch(call, call.inputs[0], call.inputs[1] if normalised else None, call.out, eps)
        return call.result()

    def launch(
        self, call: Call, ids: Any, stat: Any, out: Any, eps: float = 1e-5, *, held: int = HELD, threads: int = THREADS
    ) -> None:
        """Start the kernel to write out."""
        kernel_size, depth, channels = self.shape
        while threads > WARP and smem_bytes(kernel_size, depth, held, threads) > device.shared_limit():
            threads -= WARP
        table, bias, affine, wide = self._table, self._of.bias, self._of.affine, self._of.wide
        itemsize = 4 if wide else 2
        in_whole = channels if table is not self._of.table else 0
        parts = parts_of(wide, in_whole)
        threads = max(threads // (WARP * parts), 1) * WARP * parts
        channel_tiles = -(-channels // (PITCH // itemsize * parts))
        blocks, rows = max(1, device.multiprocessors() // channel_tiles), out.shape[1]
        warps = threads // WARP // parts
        units = -(-len(ids) // held)
        cuts = segments(rows, units, blocks * warps)
        pitch = -(-channels // 8) * 8 if itemsize == 2 else channels
        addresses = [np.uint64(device.address(one)) for one in (*affine, out)] if affine else [np.uint64(0)] * 2
        gamma, beta = addresses[:2]
        kernel = make_kernel(kernel_size, depth, held, threads, bool(affine), self.precision, wide, in_whole)
        call.launch(
            kernel, (min(blocks, units * cuts), channel_tiles), threads,
            ids, device.address(ids) % WORDS, np.uint64(device.address(table)), bias, self._steps,
            ids if stat is None else stat, gamma, beta, np.uint64(device.address(out)), np.float32(eps),
            *map(np.uint32, (channels, pitch, rows, cuts, -(-rows // cuts), units * cuts)),
            shared=smem_bytes(kernel_size, depth, held, threads),
        )  # fmt: skip


def segments(rows: int, units: int, warps: int) -> int:
    """Into how many runs the rows of each unit's inputs are cut, so that the last warps end soonest.

    Each run has a group more than rows.
    """

    def groups(cuts: int) -> int:
        return -(-units * cuts // warps) * (-(-rows // cuts) + 1)

    return min(range(1, rows + 1), key=groups)
