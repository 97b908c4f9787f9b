"""What ranks that share a training send each other's GPU: gradients beside backward, then weights beside AdamW.

All of it lies in one region of memory a rank, which the others write to and read. DMA engines move it, so that the
step's kernels keep all multiprocessors, and its CUDA graph holds the copies, too. `charcnn.ops.pushed_sums` adds up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numba import cuda

from charcnn.aliases import Array, DType, Stream
from charcnn.gpu import device, graph
from charcnn.gpu.collectives import Group
from charcnn.gpu.collectives.regions import array_at
from charcnn.gpu.launch import start
from charcnn.ops import pushed_sums
from charcnn.ops.adamw import AdamW, round_to
from charcnn.ops.loss_scale import GradientFactor
from charcnn.ops.pushed_sums import FLAG, QUAD, THREADS
from charcnn.runtime.exchange import RankExchange
from charcnn.runtime.mixed_plan import ALIGNED, FlatParams
from charcnn.runtime.mixed_step import Around, Start
from charcnn.runtime.sharding import FLOAT, Bucket

BLOCKS = 256
"""That add up a rank's part of a bucket, at most, so that a thread has several quads."""

HALF = np.dtype(np.uint16)
"""What products read, as words."""

AT_ONCE = 1 << 20
"""Weights that AdamW moves before they leave, while it moves the next ones."""


class OwnPiece(NamedTuple):
    """Neighbouring weights of a rank's part of a bucket."""

    bucket: Bucket
    begin: int
    """In the part."""
    at: slice
    """In all of the rank's parts."""

    @property
    def size(self) -> int:
        """Weights that it has."""
        return int(self.at.stop - self.at.start)


class PushedExchange(Around):
    """A rank's side.

    Attributes:
        gradients: float32, whole up to stage 1, from stage 2 on this rank's parts.
        total: what this rank's AdamW reads, where `sums` writes it. At stage 1 the next round writes it anew.
        slopes, halves: by name, where a step writes gradients and reads weights in 16 bits.
        plain: by name, float32 weights that no product reads; from stage 1 on.

    Args:
        group: the ranks, on one host.
        layout: where parameters lie, in groups.
        stage: of ZeRO, 0 to 3.
        ptx_type: of halves, bf16 or f16.
    """

    def __init__(self, group: Group, layout: FlatParams, stage: int, ptx_type: str = "bf16") -> None:
        self._ptx_type = ptx_type
        self._group, self._layout, self._stage, self._rank = group, layout, stage, group.rank
        self._plain, *self._buckets = layout.buckets
        self._own, ranks = layout.size // group.ranks, group.ranks
        self._each = self._own if stage else layout.size
        copied = sum(bucket.part for bucket in self._buckets) * (1 if stage == 3 else ranks) if stage else 0
        sizes = {
            "flags": FLAG * ranks * (len(layout.buckets) + 2),
            "norms": QUAD * ranks,
            "inbox": FLOAT * (ranks - 1) * self._each,
            "halves": HALF.itemsize * copied,
            "plain": FLOAT * ranks * self._plain.part if stage else 0,
        }
        ends = [*accumulate((-(-size // 256) * 256 for size in sizes.values()), initial=0)]
        self._begins, self._addresses = dict(zip(sizes, ends, strict=False)), group.share(ends[-1])
        self.kinds = {"weights": sizes["halves"] + sizes["plain"], "workspace": ends[-1]}
        self.kinds["workspace"] -= self.kinds["weights"]
        untimed = {} if device.SIMULATED else {"timing": False}
        self._beside, self._begun, self._ended = graph.branch(), cuda.event(**untimed), cuda.event(**untimed)
        self._number = device.to_device(np.zeros(1, np.uint32))
        self._sent = {bucket: cuda.event(**untimed) for bucket in layout.buckets}
        self._hold_gradients()
        self._hold_weights(copied)
        self._table, rows = self._sums_table()
        quads = max(bucket.part for bucket in layout.buckets) * FLOAT // QUAD
        self._partial = device.empty((rows, min(BLOCKS, -(-quads // (THREADS * QUAD)))), np.float32)
        norms = [self._addresses[rank] + self._begins["norms"] for rank in range(ranks)]
        self._norms = device.to_device(np.array(norms, np.uint64))
        names = [name for bucket in self._buckets for name in bucket.names]
        self._uses, self._used = [*names, *reversed(names)], 0
        self._got = [cuda.event(**untimed) for _ in self._uses]

    def _at(self, kind: str, rank: int, begin: int, size: int, dtype: DType = np.float32) -> Array:
        """Values of a rank's region, so many values behind the kind's begin."""
        at = self._addresses[rank] + self._begins[kind] + begin * np.dtype(dtype).itemsize
        return array_at(at, (size,), dtype)

    def _hold_gradients(self) -> None:
        layout, ranks, stage = self._layout, self._group.ranks, self._stage
        self.gradients = device.to_device(np.zeros(layout.size if stage < 2 else self._own, np.float32))
        self.total = self._at("inbox", self._rank, 0, self._own) if stage == 1 else self.gradients
        self._sources = {bucket: self.gradients[layout.whole(bucket)] for bucket in layout.buckets if stage < 2}
        if stage >= 2:
            self._zeros = device.to_device(np.zeros(ranks * ALIGNED, np.float32))
            turns = [self._buckets[::-1][turn::2] for turn in range(2)]
            for buckets in ([self._plain], *turns):
                size = max((ranks * bucket.part for bucket in buckets), default=0)
                room = device.to_device(np.zeros(size, np.float32))
                self.kinds["workspace"] += room.nbytes
                self._sources |= {bucket: room[: ranks * bucket.part] for bucket in buckets}
        self.slopes = dict[str, Array]()
        for bucket, source in self._sources.items():
            self.slopes |= layout.parts(source, bucket.names, bucket.begin)

    def _hold_weights(self, copied: int) -> None:
        layout, stage, ranks = self._layout, self._stage, self._group.ranks
        names = [name for bucket in self._buckets for name in bucket.names]
        behind = layout.whole(self._plain).stop
        self.plain = dict[str, Array]()
        if stage:
            self._copies = self._at("halves", self._rank, 0, copied, HALF)
            self._all_plain = self._at("plain", self._rank, 0, ranks * self._plain.part)
            self.plain = layout.parts(self._all_plain, self._plain.names)
        else:
            self._copies, behind = device.empty((layout.size,), HALF), 0
            self.kinds["weights"] = self._copies.nbytes
        if stage < 3:
            self.halves = layout.parts(self._copies, names, behind)
            return
        self.halves, sizes = {}, [math.prod(layout.shapes[name]) for name in names]
        for turn in range(2):
            room = device.empty((max(sizes[turn::2], default=0),), HALF)
            self.kinds["workspace"] += room.nbytes
            for name in names[turn::2]:
                self.halves |= layout.parts(room, [name], layout.place(name).start)
        self._rooms = {name: self.halves[name].reshape(size) for name, size in zip(names, sizes, strict=True)}

    def _sums_table(self) -> tuple[Array, int]:
        rows, layout = list[tuple[int, ...]](), self._layout
        inbox = self._addresses[self._rank] + self._begins["inbox"]
        for rank in range(self._group.ranks) if self._stage == 0 else [self._rank]:
            for number, bucket in enumerate(layout.buckets):
                part, whole = layout.part(bucket), layout.whole(bucket)
                in_row = part.start if self._stage else whole.start + rank * bucket.part
                own = self.gradients[part] if self._stage >= 2 else self._sources[bucket][bucket.of(rank)]
                out = self.total[part] if self._stage else own
                places = device.address(own), inbox + FLOAT * in_row, device.address(out)
                rows.append((*places, bucket.part * FLOAT // QUAD, number))
        return device.to_device(np.array(rows, np.uint64)), len(rows)

    # Copies beside what the step computes.

    def _fork(self, stream: Stream) -> None:
        """Copies that come now wait for what the stream was given so far."""
        self._begun.record(stream)
        self._begun.wait(self._beside)

    def join(self, stream: Stream) -> None:
        """The stream waits for all copies."""
        self._ended.record(self._beside)
        self._ended.wait(stream)

    def _others(self) -> list[int]:
        return [(self._rank + away) % self._group.ranks for away in range(1, self._group.ranks)]

    def _flag(self, number: int, rank: int) -> None:
        """Tell a rank, behind all copies so far, by the flag of this number."""
        at = (number * self._group.ranks + self._rank) * FLAG // FLOAT
        graph.copy(self._at("flags", rank, at, 1, np.uint32), self._number, self._beside)

    def _flags(self, number: int) -> np.uint64:
        at = self._addresses[self._rank] + self._begins["flags"] + number * self._group.ranks * FLAG
        return np.uint64(at)

    def _push(self, bucket: Bucket, stream: Stream) -> None:
        """Send a bucket's gradients to the ranks that add them up: all of it, or their parts."""
        source, layout, number = self._sources[bucket], self._layout, self._layout.buckets.index(bucket)
        if (behind := source.size - bucket.length) and self._stage >= 2:  # where another bucket left its gradients
            graph.copy(source[bucket.length :], self._zeros[:behind], stream)
        self._fork(stream)
        for rank in self._others():
            row = (self._rank - rank - 1) % self._group.ranks * self._each
            values = source[bucket.of(rank)] if self._stage else source
            at = layout.part(bucket).start if self._stage else layout.whole(bucket).start
            graph.copy(self._at("inbox", rank, row + at, values.size), values, self._beside)
            self._flag(number, rank)
        if self._stage >= 2:
            graph.copy(self.gradients[layout.part(bucket)], source[bucket.of(self._rank)], self._beside)
            self._sent[bucket].record(self._beside)
            if number and number + 1 < len(layout.buckets):  # whose memory the bucket that follows takes
                self._sent[layout.buckets[number + 1]].wait(stream)

    # As a step's `Around`.

    def _ended_by(self, name: str) -> list[Bucket]:
        """The bucket whose first weights these are: all of its gradients are there behind theirs."""
        return [bucket for bucket in self._buckets if name == bucket.names[0]]

    def taken(self, name: str) -> Sequence[str]:
        """See `Around.taken`."""
        return [other for bucket in self._ended_by(name) for other in bucket.names]

    def after(self, name: str) -> Sequence[Start]:
        """See `Around.after`: a bucket leaves."""
        return [partial(self._push, bucket) for bucket in self._ended_by(name)]

    def before(self, name: str) -> Sequence[Start]:
        """See `Around.before`: weights are here, and those of the next product on their way, from stage 3 on."""
        if self._stage < 3:
            return ()
        self._used += 1
        return [partial(self._ready, self._used - 1)]

    def _ready(self, use: int, stream: Stream) -> None:
        if use == 0:
            self._fork(stream)
            self._gather(0)
        if use + 1 < len(self._uses) and self._gathered(use + 1):
            self._fork(stream)  # behind the last product that read what lies there
            self._gather(use + 1)
        if self._gathered(use):
            self._got[use].wait(stream)

    def _gathered(self, use: int) -> bool:
        """Whether weights must come: those of the last two products are still here on the way back."""
        return not len(self._uses) // 2 <= use <= len(self._uses) // 2 + 1

    def _gather(self, use: int) -> None:
        """Copy weights from the ranks' parts."""
        name, layout = self._uses[use], self._layout
        room, place = self._rooms[name], layout.place(name)
        bucket = next(one for one in self._buckets if name in one.names)
        for rank in range(self._group.ranks):
            first = bucket.begin + rank * bucket.part
            begin, end = max(place.start, first), min(place.stop, first + bucket.part)
            if begin < end:
                at = layout.part(bucket).start - self._plain.part + begin - first
                source = self._at("halves", rank, at, end - begin, HALF)
                graph.copy(room[begin - place.start : end - place.start], source, self._beside)
        self._got[use].record(self._beside)

    # Rounds: of gradients, and of weights.

    def begin(self, stream: Stream) -> None:
        """Begin a round, in which others may write to this rank: it has read what came in the last one."""
        self._start(pushed_sums.begin_kernel, len(self._layout.buckets), stream)

    def _start(self, kernel: Array, number: int, stream: Stream) -> None:
        ranks = map(np.uint32, (self._group.ranks, self._rank))
        start(kernel, 1, THREADS, stream, self._number, self._flags(number), *ranks, *self._group.waiting)

    def sums(self, stream: Stream) -> None:
        """Send the last bucket, and add up what all ranks sent, in their order."""
        self._push(self._plain, stream)
        self.join(stream)
        kernel, grid = pushed_sums.make_sum_kernel(self._group.ranks), tuple(self._partial.shape[::-1])
        far, rank = np.uint64(FLOAT * self._each), np.uint32(self._rank)
        given = self._table, self._number, self._flags(0), far, self._partial, rank
        start(kernel, grid, THREADS, stream, *given, *self._group.waiting)
        self._fork(stream)
        for other in self._others():
            self._flag(len(self._layout.buckets), other)

    def norm(self, factor: GradientFactor, clip: float, stream: Stream) -> None:
        """The norm of all ranks' sums, and by what AdamW multiplies them, to `factor`."""
        alone = self._stage == 0
        rows = self._group.ranks if alone else 1
        kernel, squares = pushed_sums.make_norm_kernel(self._group.ranks, alone), self._partial.reshape((rows, -1))
        given = squares, self._number, self._norms, np.uint32(self._rank), np.float32(clip), *factor.given
        start(kernel, 1, THREADS, stream, *given, *self._group.waiting)

    def move(self, optimiser: AdamW, stream: Stream) -> None:
        """AdamW of this rank's weights, which then go to all ranks that read them."""
        if self._stage == 0:
            optimiser.move_part(slice(0, self._layout.size), self.gradients, self._copies, stream)
            self.join(stream)
            return
        for piece in sorted(self.pieces, key=lambda one: -one.bucket.part):
            shadow = None if piece.bucket == self._plain else self._shadow(piece)
            optimiser.move_part(piece.at, self.total[piece.at], shadow, stream)
            self._spread(piece, optimiser.weights[piece.at] if shadow is None else shadow, stream)
        self.moved(stream)

    @property
    def pieces(self) -> list[OwnPiece]:
        """The pieces of this rank's parts, in the order in which a forward pass reads them."""
        return [
            OwnPiece(bucket, begin, slice(first + begin, first + min(begin + AT_ONCE, bucket.part)))
            for bucket in self._layout.buckets
            for first in (self._layout.part(bucket).start,)
            for begin in range(0, bucket.part, AT_ONCE)
        ]

    def take(self, piece: OwnPiece, weights: Array, stream: Stream) -> None:
        """Weights of a piece, float32, that were moved elsewhere, to all ranks that read them."""
        if piece.bucket != self._plain:
            round_to(weights, shadow := self._shadow(piece), stream, self._ptx_type)
            weights = shadow
        self._spread(piece, weights, stream)

    def moved(self, stream: Stream) -> None:
        """All pieces are: tell the other ranks, and wait for theirs."""
        self._fork(stream)  # at stage 3 the last piece may be one that nothing was sent behind
        for rank in self._others():
            self._flag(len(self._layout.buckets) + 1, rank)
        self.join(stream)
        self._start(pushed_sums.arrived_kernel, len(self._layout.buckets) + 1, stream)

    def _shadow(self, piece: OwnPiece) -> Array:
        """Where a piece lies in bf16."""
        layout, bucket = self._layout, piece.bucket
        at = (layout.part(bucket).start if self._stage == 3 else layout.whole(bucket).start) + piece.begin
        at -= self._plain.part if self._stage == 3 else layout.whole(self._plain).stop - bucket.of(self._rank).start
        return self._copies[at : at + piece.size]

    def _spread(self, piece: OwnPiece, values: Array, stream: Stream) -> None:
        """Send weights of a piece to where all ranks read them; at stage 3, but for the first bucket, these come."""
        layout, bucket, plain = self._layout, piece.bucket, piece.bucket == self._plain
        if self._stage == 3 and not plain:
            return
        self._fork(stream)
        at = layout.whole(bucket).start + bucket.of(self._rank).start + piece.begin
        at -= 0 if plain else layout.whole(self._plain).stop
        for rank in [*self._others(), *([self._rank] if plain else [])]:
            place = ("plain", rank, at, values.size) if plain else ("halves", rank, at, values.size, HALF)
            graph.copy(self._at(*place), values, self._beside)

    def write(self, flat: np.ndarray, stream: Stream) -> None:
        """Other weights: what products read, and what they do not; all ranks call it with the same."""
        if self._stage == 0:
            round_to(device.to_device(flat, stream), self._copies, stream, self._ptx_type)
            stream.synchronize()
            return
        self._all_plain.copy_to_device(flat[self._layout.whole(self._plain)], stream=stream)
        if self._stage == 3:
            flat = self._layout.own(flat, self._rank)[self._plain.part :]
        else:
            flat = flat[self._layout.whole(self._plain).stop :]
        round_to(device.to_device(flat, stream), self._copies, stream, self._ptx_type)
        stream.synchronize()

    def reads(self, exchange: RankExchange, stream: Stream) -> tuple[np.ndarray, np.ndarray]:
        """What steps read, on the host: weights in bf16 of all buckets but the first, and the first in float32."""
        halves = device.to_host(self._copies, stream)
        if self._stage == 0:
            return halves[self._layout.whole(self._plain).stop :], np.empty(0, np.float32)
        if self._stage == 3:
            parts, behind = exchange.gathered(halves), self._plain.part
            places = [self._layout.part(bucket) for bucket in self._buckets]
            halves = np.concatenate([parts[:, at.start - behind : at.stop - behind].ravel() for at in places])
        return halves, device.to_host(self._all_plain, stream)
