"""The products of training: forward, by features and by weights, from arrays as they lie; what all techniques share.

Both operands are plain arrays of 16 bits, so that an optimiser writes weights once, and nothing is packed. Features are
(rows, channels), of all inputs one behind another, and weights (taps, inputs, outputs). A product's taps are as many
rows apart. `Kind` says which operand is read as its transpose.

A row behind an input's last result holds what means nothing, forward; gradients are 0 there. So no product needs to
know where an input ends: rows that a window takes from the next input meet zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array, Function, Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.arrays import expect
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.ops.common.precision import NumberFormat

STEP_US, TILE_US, SECOND_US, BYTES_A_US = 0.69, 3.0, 4.0, 4e6
"""What a step, a tile's beginning and end, a second kernel and a byte of parts take on an H200 by wgmma. By mma.sync a
step of half the depth is taken to last as long: an estimate."""

MOST_PARTS = 64

WIDTH = 8
"""Channels that begin at a multiple of 16 bytes, as tensor maps and copies need it."""


@dataclass(frozen=True)
class Kind:
    """What is multiplied with what."""

    name: str
    transposed: tuple[bool, bool]
    """Whether A, and B, have a row for each number in depth."""
    step: int
    """Rows of A from a tap to the next."""
    by_tap: bool = False
    """Whether each tap has results of its own; else they are added up."""


FORWARD = Kind("forward", (False, True), 1)
"""Features (rows, inputs) by weights: y[r] = sum of x[r + tap] weight[tap]."""

BY_FEATURES = Kind("by_features", (False, False), -1)
"""Gradients (rows, outputs) by transposed weights: dx[r] = sum of dy[r - tap] weight[tap]^T."""

BY_WEIGHTS = Kind("by_weights", (True, True), 1, by_tap=True)
"""Transposed features by gradients: dweight[tap] = sum of x[r + tap]^T dy[r]."""


@dataclass(frozen=True)
class After:
    """What becomes of sums."""

    biased: bool = False
    rectified: bool = False
    """Whether leaky ReLU is taken: below 0, its slope times the value."""
    masked: bool = False
    """Whether another array chooses what they are multiplied by: one factor where it is above 0, a second where it is
    below, and 0 where it is 0. It is what leaky ReLU and dropout gave, whose gradient this is then."""
    partial: bool = False
    """Whether they are stored in float32, as parts of sums; else in 16 bits."""


@cache
def make_ending(after: After) -> tuple[Function, Function]:
    """Device functions leaky(value, slope) and chosen(value, mask, above, below), of what comes after sums.

    Where there is no such thing, they give the value as it is.
    """
    rectified, masked = after.rectified, after.masked

    @cuda.jit(device=True, forceinline=True)
    def leaky(value, slope):
        return value if value > float32(0) or not rectified else value * slope

    @cuda.jit(device=True, forceinline=True)
    def chosen(value, mask, above, below):
        if masked:
            factor = above if mask > float32(0) else below
            value = float32(0) if mask == float32(0) else value * factor
        return value

    return leaky, chosen


class PartialSums(NamedTuple):
    """Sums that lie in parts, and where their sum goes; both float32."""

    parts: Array
    """(parts, size)"""
    out: Array
    """(size,)"""


class Made(NamedTuple):
    """A kernel of a product, and what it is told beside what all are."""

    kernel: Kernel
    """Its arguments: addresses of `operands`; of a float32 bias, or of where float32 sums go; of two float32, a factor
    of what is above 0 and the slope of leaky ReLU, or a factor of what is below; then tiles in all, a cluster's as one,
    tiles of rows and of columns; taps, k blocks of one, steps of a product and how many of them are added up at a time;
    rows and columns of results; `numbers`."""
    shared: int
    """Bytes of a block's shared memory."""
    operands: tuple[Array, ...]
    """Of a, b, results and the mask what the kernel reads: arrays or tensor maps."""
    numbers: tuple[int, ...]


def block_n_of(columns: int) -> int:
    """Columns of a block, of so many in all."""
    return min((n for n in (64, 128) if n >= columns), default=256)


class TrainingProduct(ABC):
    """One product of a training step, on the current GPU: arrays stay where they are, and each start computes anew.

    Args:
        kind: `FORWARD`, `BY_FEATURES` or `BY_WEIGHTS`.
        a: features, or their gradients by features: (rows, channels), in the format's dtype.
        b: weights (taps * inputs, outputs), by weights gradients (rows, outputs); likewise.
        out: results (rows, channels), likewise; by weights float32 (taps, inputs, outputs).
        of: fp16 or bf16.
        taps: rows of a window.
        bias: float32 (outputs,), forward.
        rectified: whether leaky ReLU is taken, forward.
        mask: as `out`; by features, what leaky ReLU and dropout gave.
        factors: float32 (2,) that each start reads: the factor of results where the mask is above 0, and below; forward
            the second is leaky ReLU's slope. Where the mask is 0, results are.

    Raises:
        ValueError: channels are no multiple of 8, or shapes do not fit each other.
        DeviceError: the GPU has no such tensor cores.
    """

    block_m: ClassVar[int]
    """Rows of a block."""
    k_block: ClassVar[int]
    """Numbers in depth of a step."""
    threads: ClassVar[int]
    """Of a block."""
    cluster: ClassVar[int] = 1
    """Blocks of neighbouring rows that work together."""

    def __init__(
        self, kind: Kind, a: Array, b: Array, out: Array, of: NumberFormat, *, taps: int = 1, bias: Array = None,
        rectified: bool = False, mask: Array = None, factors: Array = None,
    ) -> None:  # fmt: skip
        self.require()
        if factors is None and (rectified or mask is not None):
            raise ValueError("factors is None: need two float32 with ReLU or a mask")
        m, n = tuple(out.shape)[-2:]
        depth = a.shape[0] if kind.by_tap else a.shape[1]
        for name, array in (("a", a), ("b", b), ("out", out)):
            if tuple(array.shape)[-1] % WIDTH:
                raise ValueError(f"{name} has {tuple(array.shape)[-1]} channels: need a multiple of {WIDTH}")
            if device.address(array) % (2 * WIDTH):
                raise ValueError(f"{name} begins at {device.address(array):#x}: need a multiple of {2 * WIDTH}")
        expect("a", a, (depth, m) if kind.by_tap else (a.shape[0], depth))
        rows = depth if kind.by_tap else taps * depth
        expect("b", b, (rows, n) if kind.transposed[1] else (taps * n, depth))
        if mask is not None:
            expect("mask", mask, out.shape)
        k_blocks, block_n = -(-depth // self.k_block), block_n_of(n)
        steps, outer = (k_blocks, taps) if kind.by_tap else (taps * k_blocks, 1)
        after = After(bias is not None, rectified, mask is not None, kind.by_tap)
        m_tiles, n_tiles = -(-m // (self.cluster * self.block_m)), -(-n // block_n)
        clusters = max(1, device.multiprocessors() * self.resident(block_n) // self.cluster)
        tiles = m_tiles * n_tiles * outer
        steps_of_part = _depth(tiles, steps, clusters, 4 * outer * m * n, kind.by_tap)
        parts = -(-steps // steps_of_part)
        self.partial: PartialSums | None = None
        """Sums of parts that somebody is to add up, by weights."""
        self._finish: tuple[Kernel, int, tuple[object, ...]] | None = None
        sums = out
        if parts > 1:
            sums = device.empty((parts, outer * m * n), np.float32)
            if kind.by_tap:
                self.partial = PartialSums(sums, out.reshape(out.size))
            else:
                given = (out if array is None else array for array in (sums, bias, mask, factors, out))
                arguments = [np.uint64(device.address(array)) for array in given]
                sizes = map(np.uint32, (parts, n, m * n))
                blocks = min(-(-m * n // (2 * 256)), 8 * device.multiprocessors())
                self._finish = make_finish_kernel(after, of.ptx_type), blocks, (*arguments, *sizes)
                after = After(partial=True)
        made = self.made(kind, after, of.ptx_type, a, b, out, mask if after.masked else None, taps)
        last = sums if after.partial else out if bias is None else bias
        factors = out if factors is None else factors
        self._held = a, b, out, bias, mask, sums, factors, made.operands
        numbers = parts * tiles, m_tiles, n_tiles, taps, k_blocks, steps, steps_of_part, m, n, *made.numbers
        addresses = (np.uint64(device.address(array)) for array in (*made.operands, last, factors))
        self._arguments = (*addresses, *map(np.uint32, numbers))
        self._kernel, self._shared, self._blocks = made.kernel, made.shared, min(parts * tiles, clusters)
        self.nbytes = sums.nbytes if parts > 1 else 0
        """Of memory that it has of its own."""

    @staticmethod
    @abstractmethod
    def require() -> None:
        """Raise DeviceError where the current GPU lacks the tensor cores."""

    def resident(self, block_n: int) -> int:
        """Blocks of so many columns that a multiprocessor is to hold."""
        return 1

    @abstractmethod
    def made(
        self, kind: Kind, after: After, ptx_type: str, a: Array, b: Array, out: Array, mask: Array | None, taps: int
    ) -> Made:
        """The kernel for these arrays; where `after` has no mask there is none."""

    def start(self, stream: Stream) -> None:
        """Compute; nothing is waited for."""
        start(
            self._kernel, self._blocks, self.threads, stream, *self._arguments, shared=self._shared,
            cluster=self.cluster,
        )  # fmt: skip
        if self._finish is not None:
            kernel, blocks, arguments = self._finish
            start(kernel, blocks, 256, stream, *arguments)


def _depth(tiles: int, steps: int, clusters: int, nbytes: int, by_tap: bool) -> int:
    """Steps that are added up at a time, so that all are soon done: more parts fill more blocks, and are added up."""

    def took(parts: int) -> float:
        rounds = -(-tiles * parts // clusters)
        more = parts * 2 * nbytes / BYTES_A_US + (0 if by_tap else SECOND_US) if parts > 1 else 0
        return rounds * (-(-steps // parts) * STEP_US + TILE_US) + more

    return -(-steps // min(range(1, min(MOST_PARTS, steps) + 1), key=took))


@cache
def make_finish_kernel(after: After, ptx_type: str) -> Kernel:
    """The kernel (sums, bias, mask, factors, out, parts, columns, size): adds up parts, two values a thread.

    Its arguments: addresses, of float32 (parts, size), of a bias, of the mask, of factors and of results in 16 bits;
    then numbers.
    """
    pack, unpack = ptx.cvt_f16x2(ptx_type), ptx.cvt_f32x2(ptx_type)
    biased, rectified, masked = after.biased, after.rectified, after.masked
    leaky, chosen = make_ending(after)

    @cuda.jit(device=True, forceinline=True)
    def pair(address):
        low, high = ptx.ld_global_v2_b32(address)
        return ptx.bitcast_f32(low), ptx.bitcast_f32(high)

    @jit()
    def kernel(sums, bias, mask, factors, out, parts, columns, size):
        above, below = pair(factors) if rectified or masked else (float32(1), float32(0))
        i, stride = 2 * (block_idx_x() * block_dim_x() + thread_idx_x()), 2 * grid_dim_x() * block_dim_x()
        while i < size:
            low, high = float32(0), float32(0)
            at = sums + uint64(i) * uint64(4)
            for _ in range(parts):
                one, other = pair(at)
                low, high = low + one, high + other
                at += uint64(size) * uint64(4)
            if biased:
                one, other = pair(bias + uint64(i % columns) * uint64(4))
                low, high = low + one, high + other
            if masked:
                one, other = unpack(ptx.ld_global_b32(mask + uint64(i) * uint64(2)))
                low, high = chosen(low, one, above, below), chosen(high, other, above, below)
            ptx.st_global_b32(out + uint64(i) * uint64(2), pack(leaky(low, below), leaky(high, below)))
            i += stride

    return kernel
