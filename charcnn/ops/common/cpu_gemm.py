"""A float32 matrix product on the CPU whose left rows may overlap, which is what a convolution lowers to.

With features channels-last, (L, C), output position t of a convolution reads the K * C values from row t on: a GEMM
whose rows start C apart and are K * C long. BLAS refuses such a matrix; lowering usually stores it (im2col), K times
the features. Here nothing is stored: the micro-kernel takes any distance between rows.

The micro-kernel keeps a tile of the result in vector registers: for each term it broadcasts one value of each row and
multiplies it by a few vectors of weights. LLVM does not find that form in loops, so its IR is built by hand. Weights
are packed once in the order in which they are read: panels as wide as a tile, zeros in what the last one lacks.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache

import numpy as np
from llvmlite import ir
from numba import config, njit, prange, types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from charcnn.ops.common import threads

PART = 512
"""Terms summed apart: the rounding error grows with a part's length, and a part of a panel should stay in cache L2."""

TASK_TILES = 10
"""Tiles of rows that a task takes at most: its result stays in cache L1, and a batch has tasks for many threads."""


@dataclass(frozen=True)
class Tile:
    """What the micro-kernel keeps in registers: `rows` times `vectors` sums of `width` floats."""

    rows: int
    vectors: int
    width: int
    needs: tuple[str, ...] | None
    """The processor's features, or None: ordinary Numba, for any processor."""

    @property
    def panel(self) -> int:
        """Columns of a tile."""
        return self.vectors * self.width


TILES = {
    "avx512": Tile(6, 4, 16, needs=("avx512f",)),  # 24 sums, 4 weights and a broadcast value, of 32 registers
    "avx2": Tile(6, 2, 8, needs=("avx2", "fma")),  # 12, 2 and 1 of 16
    "plain": Tile(4, 4, 4, needs=None),
}


def choose_tile(name: str | None = None) -> Tile:
    """The tile of this name; else of the environment's CHARCNN_CPU_TILE; else the first that this processor can run.

    Raises:
        ValueError: no tile has this name, or the processor lacks what it needs.
    """
    # What Numba compiles for, which NUMBA_CPU_FEATURES can make less than the processor has.
    text = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    features = {part[1:] for part in text.split(",") if part.startswith("+")}
    name = name or os.environ.get("CHARCNN_CPU_TILE") or None
    if name is None:
        return next(tile for tile in TILES.values() if features.issuperset(tile.needs or ()))
    if name not in TILES:
        raise ValueError(f"CHARCNN_CPU_TILE={name}: need one of {', '.join(TILES)}")
    if missing := set(TILES[name].needs or ()) - features:
        raise ValueError(f"CHARCNN_CPU_TILE={name}: this processor lacks {', '.join(sorted(missing))}")
    return TILES[name]


@intrinsic(prefer_literal=True)
def add_product(typingctx, rows, vectors, width, a, row_stride, last, b, depth, c):
    """C += A @ B for one tile. a, b, c are addresses; strides count floats.

    A has `depth` columns and its row r starts at a + min(r, last) * row_stride: what a tile has past the last row
    computes that row again. B is (depth, vectors * width) and C (rows, vectors * width), both contiguous.
    """
    if not all(isinstance(size, types.IntegerLiteral) for size in (rows, vectors, width)):
        return None
    rows_, vectors_, width_ = (size.literal_value for size in (rows, vectors, width))

    def codegen(ctx, builder, signature, args):
        f32, i32, i64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
        vector = ir.VectorType(f32, width_)
        *_, a, row_stride, last, b, depth, c = args
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{width_}f32"
        )

        def at(base, index, kind):  # `index` floats behind the address
            address = builder.add(base, builder.shl(index, i64(2)))
            return builder.inttoptr(address, kind.as_pointer())

        def load(base, index, kind):
            return builder.load(at(base, index, kind), align=4)

        row_at = []
        for r in range(rows_):
            row = builder.select(builder.icmp_signed("<", i64(r), last), i64(r), last)
            row_at.append(builder.add(a, builder.shl(builder.mul(row, row_stride), i64(2))))

        before = builder.block
        loop, after = builder.append_basic_block("terms"), builder.append_basic_block("terms.end")
        builder.cbranch(builder.icmp_signed(">", depth, i64(0)), loop, after)
        builder.position_at_end(loop)
        term = builder.phi(i64)
        term.add_incoming(i64(0), before)
        tile = [(r, v) for r in range(rows_) for v in range(vectors_)]
        zero = ir.Constant(vector, [0.0] * width_)
        sums = {place: builder.phi(vector) for place in tile}
        first = builder.mul(term, i64(vectors_ * width_))
        weights = [load(b, builder.add(first, i64(v * width_)), vector) for v in range(vectors_)]
        updated = {}
        everywhere = ir.Constant(ir.VectorType(i32, width_), [0] * width_)
        undefined = ir.Constant(vector, ir.Undefined)
        for r in range(rows_):
            one = builder.insert_element(undefined, load(row_at[r], term, f32), i32(0))
            value = builder.shuffle_vector(one, undefined, everywhere)
            for v in range(vectors_):
                updated[r, v] = builder.call(fma, [value, weights[v], sums[r, v]])
        following = builder.add(term, i64(1))
        term.add_incoming(following, loop)
        for place in tile:
            sums[place].add_incoming(zero, before)
            sums[place].add_incoming(updated[place], loop)
        builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)

        builder.position_at_end(after)
        for r, v in tile:
            total = builder.phi(vector)
            total.add_incoming(zero, before)
            total.add_incoming(updated[r, v], loop)
            updated[r, v] = total
        for r, v in tile:
            place = at(c, i64((r * vectors_ + v) * width_), vector)
            builder.store(builder.fadd(builder.load(place, align=4), updated[r, v]), place, align=4)
        return ctx.get_dummy_value()

    return types.void(rows, vectors, width, *[types.int64] * 6), codegen


@njit(cache=True, nogil=True)
def add_product_plain(rows, a, start, row_stride, b, first, last, c, c_row):
    """As `add_product` with rows first to last of b, in loops over contiguous weights, which compilers vectorise."""
    for r in range(rows):
        sums = c[c_row + r]
        j, at = first, start + r * row_stride
        while j + 4 <= last:  # four terms at once: sums are read and written a quarter as often
            a0, a1, a2, a3 = a[at], a[at + 1], a[at + 2], a[at + 3]
            b0, b1, b2, b3 = b[j], b[j + 1], b[j + 2], b[j + 3]
            for i in range(sums.size):
                sums[i] += (a0 * b0[i] + a1 * b1[i]) + (a2 * b2[i] + a3 * b3[i])
            j, at = j + 4, at + 4
        while j < last:
            value, weights = a[at], b[j]
            for i in range(sums.size):
                sums[i] += value * weights[i]
            j, at = j + 1, at + 1


@njit(cache=True, nogil=True)
def finish(sums, pool, relu, y):
    """Rows of sums, `pool` of them a row of y: their maximum, then ReLU. y may have fewer columns."""
    columns = y.shape[1]
    floor = np.float32(0) if relu else np.float32(-np.inf)
    for t in range(y.shape[0]):
        row = sums[t * pool]
        for p in range(1, pool):
            other = sums[t * pool + p]
            for c in range(row.size):
                if other[c] > row[c] or other[c] != other[c]:  # NaN wins, and nothing is greater
                    row[c] = other[c]
        for c in range(columns):
            y[t, c] = floor if row[c] < floor else row[c]


@cache
def _compiled(tile):
    # Only numbers are taken from here: a function would get another name in each process, and never be found on disk.
    ROWS, VECTORS, WIDTH, PANEL, VECTORISED = tile.rows, tile.vectors, tile.width, tile.panel, tile.needs is not None

    @njit(cache=True, nogil=True, parallel=True)
    def multiply(x, input_stride, row_stride, run_stride, packed, runs, bias, pool, each, relu, y):
        # A task computes one panel of `each` rows of one input's y.
        outputs, columns, panels, terms = y.shape[1], y.shape[2], packed.shape[0], packed.shape[1]
        run = terms // runs
        pieces = -(-outputs // each)
        for task in prange(y.shape[0] * panels * pieces):
            n, panel, part = task // (panels * pieces), task // pieces % panels, task % pieces
            start, stop = part * each, min((part + 1) * each, outputs)
            rows = (stop - start) * pool
            sums = np.empty((-(-rows // ROWS) * ROWS, PANEL), np.float32)
            for r in range(sums.shape[0]):
                for c in range(PANEL):
                    sums[r, c] = bias[panel * PANEL + c]
            origin = n * input_stride + start * pool * row_stride
            for k in range(runs):
                for j in range(0, run, PART):
                    term, depth = k * run + j, min(PART, run - j)
                    for r in range(0, rows, ROWS):
                        first = origin + r * row_stride + k * run_stride + j
                        if VECTORISED:
                            add_product(
                                ROWS, VECTORS, WIDTH,
                                x.ctypes.data + 4 * first, row_stride, min(ROWS, rows - r) - 1,
                                packed.ctypes.data + 4 * (panel * terms + term) * PANEL, depth,
                                sums.ctypes.data + 4 * r * PANEL,
                            )  # fmt: skip
                        else:
                            add_product_plain(
                                min(ROWS, rows - r), x, first, row_stride, packed[panel], term, term + depth, sums, r
                            )
            finish(sums, pool, relu, y[n, start:stop, panel * PANEL : min((panel + 1) * PANEL, columns)])

    return multiply


@njit(cache=True, nogil=True, parallel=True)
def _pack(weight, packed):
    _, c_out, taps, c_in = weight.shape
    _, panels, _, panel = packed.shape
    for task in prange(packed.shape[0] * panels):
        n, p = task // panels, task % panels
        for first in range(0, c_in, 16):  # a square of 16 x 16 is read and written in whole lines of the cache
            for k in range(taps):  # which stay there where taps lie side by side
                for i in range(min(panel, c_out - p * panel)):
                    for c in range(first, min(first + 16, c_in)):
                        packed[n, p, k * c_in + c, i] = weight[n, p * panel + i, k, c]


def pack(weights: np.ndarray, tile: Tile) -> np.ndarray:
    """Several matrices in the order in which the micro-kernel reads them.

    Args:
        weights: float32 (N, C_out, K, C_in), any strides.

    Returns:
        float32 (N, panels, K * C_in, tile.panel), C_out in whole panels, with zeros in what the last one lacks.
    """
    n, c_out, taps, c_in = weights.shape
    packed = np.zeros((n, -(-c_out // tile.panel), taps * c_in, tile.panel), np.float32)
    threads.launch(_pack, weights, packed)
    return packed


def pack_bias(bias: np.ndarray, tile: Tile) -> np.ndarray:
    """The bias (C_out,) of whole panels."""
    packed = np.zeros(-(-len(bias) // tile.panel) * tile.panel, np.float32)
    packed[: len(bias)] = bias
    return packed


class Packed:
    """Weights in the order in which the micro-kernel reads them, and the product with them.

    Args:
        weight: float32 (C_out, K, C_in), any strides.
        bias: float32 (C_out,).
        tile: the micro-kernel's; `choose_tile()` where None.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, tile: Tile | None = None) -> None:
        self.tile = tile or choose_tile()
        self.c_out, self.taps, self.c_in = weight.shape
        self.weights, self.bias = pack(weight[None], self.tile)[0], pack_bias(bias, self.tile)

    def multiply(
        self,
        x: np.ndarray,
        out: np.ndarray,
        *,
        row_stride: int,
        tap_stride: int,
        pool_size: int = 1,
        relu: bool = False,
    ) -> None:
        """out[n, t, c] = max over p < pool_size of bias[c] + sum over k, i of weight[c, k, i] * x[n].flat[start + i],
        start = (t * pool_size + p) * row_stride + k * tap_stride; then ReLU. On all of Numba's threads, and the same
        bits for any number of them.

        Args:
            x: float32, C-contiguous, inputs on the leading axis.
            out: float32 (N, positions, C_out), any strides.
        """
        if out.size == 0:
            return
        rows, outputs = self.tile.rows, out.shape[1]
        whole = rows // math.gcd(rows, pool_size)  # outputs that end where a tile does
        tasks = -(-outputs * pool_size // (TASK_TILES * rows))
        each = -(-outputs // tasks // whole) * whole
        runs = 1 if tap_stride == self.c_in else self.taps  # taps that follow one another are one run
        threads.launch(
            _compiled(self.tile),
            x.reshape(x.size), x.size // len(x), row_stride, tap_stride,
            self.weights, runs, self.bias, pool_size, each, relu, out,
        )  # fmt: skip
