"""Attention on Hopper's tensor cores, as levels and networks call it: of heads apart, or of a projection's rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, tensor_map
from charcnn.gpu.launch import Call
from charcnn.gpu.replay import Replay
from charcnn.layers.layer import Shape
from charcnn.ops.attention import wgmma_tile
from charcnn.ops.attention.wgmma import make_kernel
from charcnn.ops.attention.wgmma_tile import TILES, Visible
from charcnn.ops.common import shapes
from charcnn.ops.common.cast import narrow, widen
from charcnn.ops.common.layer import ArraySpec, NoScratch, Space
from charcnn.ops.common.precision import HALF_PRECISIONS, choose


class Rows(NamedTuple):
    """Where rows of heads lie, in numbers: of queries, keys and values alike."""

    slabs: tuple[int, int]
    """How many, and how far apart: a slab has the rows of a head, of one input or of all."""
    rows: tuple[int, int]
    """Of a slab, and how far apart."""
    steps: tuple[int, int]
    """Rows and slabs from an input to the next."""
    out: tuple[int, int, int]
    """Of results, numbers from a row and a head to the next, and from an input, beside its rows."""


class WgmmaAttention(NoScratch):
    """softmax(q k^T / sqrt(d)) v of each input and head, on Hopper's tensor cores, on the current GPU.

    Weights of keys are rounded to the precision, sums are float32. If causal, values that are not finite reach the
    results of all queries of their tile, not only of those that see them.

    Args:
        heads: of an input.
        depth: features d of a head: 32, 64 or 128.
        causal: whether a query sees no key behind its own position.
        precision: of q, k, v and results, "fp16" or "bf16".
        results: of results, where they are to be "fp8", of fp16; `precision` where None.

    Raises:
        ValueError: the depth or the precision is none of these.
        DeviceError: no usable GPU, or none with these tensor cores (compute capability 9.0).
    """

    nbytes = 0

    def __init__(
        self, heads: int, depth: int, *, causal: bool = False, precision: str = "fp16", results: str | None = None
    ) -> None:
        device.require_hopper("wgmma")
        if depth not in TILES:
            raise ValueError(f"{depth=}: need one of {', '.join(map(str, TILES))}")
        self.heads, self.depth, self.causal = heads, depth, causal
        self.precision = choose(precision, HALF_PRECISIONS)
        if results not in (None, precision, "fp8") or (results == "fp8" and precision != "fp16"):
            raise ValueError(f"{results=}: need {precision}" + (" or fp8" if precision == "fp16" else ""))
        self.results = choose(results or precision)
        self._scale = np.float32(math.log2(math.e) / math.sqrt(depth))  # for powers of 2
        self._maps: dict[tuple[object, ...], Array] = {}
        self._replay, self._rows_replay = Replay(own=True, by_address=3), Replay(own=True, by_address=1)

    def apply(
        self, q: Array, k: Array, v: Array, lengths: Array = None, *, out: Array = None, stream: Stream = None
    ) -> Array:
        """Of heads apart: q, k, v (N, heads, S, d) -> (N, heads, S, d), uint16 where bf16.

        Args:
            q, k, v: arrays of the precision, on the GPU or all on the host.
            lengths: int32 (N,), how many positions of each input count, all where one is not 0 to S; all where None.
            out: where to write; a new array where None.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype or side does not fit.
        """
        given = {"q": q, "k": k, "v": v} | ({} if lengths is None else {"lengths": lengths})
        arrays = tuple(given.values())
        done = self._replay.started(arrays, (), out, stream)
        if done is not None:
            return done
        shape, of = shapes.attention(q, k, v, lengths), self.precision.dtype
        if (shape[1], shape[3]) != (self.heads, self.depth):
            raise ValueError(f"q has shape {shape}: need {self.heads} heads of {self.depth} features")
        call = Call(
            out, stream, shape, self.results.dtype, dtypes=dict.fromkeys("qkv", of) | {"lengths": np.int32}, **given
        )
        q, k, v, counts, *_ = (*call.inputs, None)
        self.start(call, q, k, v, call.out, counts)
        self._replay.keep(call, arrays, (), out)
        return call.result()

    def start(self, call: Call, q: Array, k: Array, v: Array, out: Array, lengths: Array | None) -> None:
        """Start `apply` of arrays on the GPU, as part of a call."""
        n, heads, positions, depth = q.shape
        apart = Rows(
            (n * heads, positions * depth), (positions, depth), (0, heads),
            (depth, positions * depth, heads * positions * depth),
        )  # fmt: skip
        seen = Visible("" if lengths is None else "lengths", self.causal, lengths is not None)
        self._start(call, (q, k, v), (0, 0, 0), out, apart, seen, lengths, n, positions)

    def of_rows(
        self, qkv: Array, *, lengths: Array = None, offsets: Array = None, most: int | None = None,
        out: Array = None, stream: Stream = None,
    ) -> Array:  # fmt: skip
        """Of a projection: q, k and v of all heads one behind the other in a row; results likewise, nothing turned.

        Args:
            qkv: of the precision, on the GPU or, as what follows, on the host. (N, S, 3 * heads * d) -> (N, S,
                heads * d). Packed inputs lie one behind the other: (rows, 3 * heads * d) -> (rows, heads * d).
            lengths: as of `apply`, for inputs of S rows each.
            offsets: int32 (N + 1,), for packed inputs: in which row each begins; the last one is the number of rows.
            most: for packed inputs, how many rows one has at most; as many as all where None.
            out, stream: as of `apply`.

        Raises:
            ValueError: an argument's shape, dtype or side does not fit; packed inputs have no offsets, or others do.
        """
        packed = offsets is not None
        bounds = {} if lengths is None else {"lengths": lengths}
        bounds |= {"offsets": offsets} if packed else {}
        arrays, options = (qkv, *bounds.values()), (packed, most)
        done = self._rows_replay.started(arrays, options, out, stream)
        if done is not None:
            return done
        shape, width, of = tuple(qkv.shape), self.heads * self.depth, self.precision.dtype
        if shape[-1] != 3 * width or len(shape) != 3 - packed or (packed and lengths is not None):
            raise ValueError(
                f"qkv has shape {shape}: need (N, S, {3 * width}), or with offsets and no lengths (rows, {3 * width})"
            )
        if lengths is not None and lengths.shape != shape[:1]:
            raise ValueError(f"lengths has shape {lengths.shape}: need {shape[:1]}")
        dtypes = {"qkv": of, "lengths": np.int32, "offsets": np.int32}
        call = Call(out, stream, (*shape[:-1], width), self.results.dtype, dtypes=dtypes, qkv=qkv, **bounds)
        n = offsets.shape[0] - 1 if packed else shape[0]
        positions = (most or shape[0]) if packed else shape[1]
        rows, step = math.prod(shape[:-1]), 0 if packed else positions
        together = Rows((self.heads, self.depth), (rows, 3 * width), (step, 0), (width, self.depth, 0))
        tile = wgmma_tile.choose(self.depth, positions)
        cleaned = bool(bounds) or positions % tile.keys > 0
        seen = Visible("offsets" if packed else "lengths" if bounds else "", self.causal, cleaned)
        held, given, *_ = (*call.inputs, None)
        self._start(call, (held,) * 3, (0, width, 2 * width), call.out, together, seen, given, n, positions)
        self._rows_replay.keep(call, arrays, options, out)
        return call.result()

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result of a projection's rows."""
        return [ArraySpec((*x[:-1], x[-1] // 3), self.results.dtype)]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on a projection's rows (N, S, 3 * heads * d), all of which count."""
        (y,) = self.writes(x.shape)
        return self.of_rows(x, out=space.device(*y), stream=space.stream)

    def _start(self, call, arrays, begins, out, rows, seen, bounds, n, positions):
        if out.size == 0:
            return
        tile, size = wgmma_tile.choose(self.depth, positions), self.results.itemsize
        known = len(self._maps)
        maps = [
            self._map(array, begin, rows, tile, height)
            for array, begin, height in zip(arrays, begins, (tile.block_m, tile.keys, tile.keys), strict=True)
        ]
        q_tiles = -(-positions // tile.block_m)
        tasks = n * self.heads * q_tiles
        addresses = *maps, out, maps[0] if bounds is None else bounds
        kernel = make_kernel(self.precision.ptx_type, tile, seen, self.results.itemsize == 1)
        blocks = min(tasks, device.multiprocessors())
        arguments = (
            *(np.uint64(device.address(array)) for array in addresses), self._scale,
            *map(np.uint32, (self.heads, tasks, q_tiles, positions, *rows.steps)),
            *(np.uint64(size * step) for step in rows.out),
        )  # fmt: skip
        early = known == len(self._maps)
        if not early:  # maps are read while the kernel before may still run
            call.once()
        call.launch(kernel, blocks, tile.threads, *arguments, shared=tile.smem_bytes, early=early)

    def _map(self, array, begin, rows, tile, height):
        """A tensor map (slabs, rows, d) from a number on, kept: a network's arrays lie where they lay before."""
        key = device.address(array), begin, rows, height
        if key not in self._maps:
            size = self.precision.itemsize
            box = tile.row_bytes // size, height, 1
            (slabs, slab), (count, row) = rows.slabs, rows.rows
            from_there = array.reshape((array.size,))[begin:]
            self._maps[key] = tensor_map.encode(
                from_there, (self.depth, count, slabs), (size * row, size * slab), box
            )  # fmt: skip
        return self._maps[key]


def launch(call: Call, q: Array, k: Array, v: Array, lengths: Array | None, causal: bool, precision: str) -> None:
    """Each call casts q, k, v and the results; `WgmmaAttention` leaves that out.

    If causal, values that are not finite reach the results of all queries of their tile.

    Raises:
        ValueError: d is not 32, 64 or 128.
    """
    n, heads, positions, depth = q.shape
    layer = WgmmaAttention(heads, depth, causal=bool(causal), precision=precision)
    if call.out.size:
        rows = n * heads, positions, depth
        q, k, v = (narrow(call, x.reshape(rows), *rows[1:], layer.precision).reshape(q.shape) for x in (q, k, v))
        out = call.scratch(q.shape, layer.precision.dtype)
        layer.start(call, q, k, v, out, lengths)
        widen(call, out, call.out, layer.precision)
