"""A pipeline of GPUs of one host: a stage of layers a rank, whose features go to the next GPU by themselves.

A rank has two places for what comes and two for what leaves. It copies a micro-batch to the next GPU while it computes
the next one, and then writes a count there. The next rank writes how many it has read. All of that is on streams: the
host starts work ahead, and waits only at the ends. Neighbours may share layers: the first rank computes them for some
inputs, and sends what these layers read of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numba import cuda

from charcnn.aliases import Array, Comm, Event, Record, Stream
from charcnn.gpu import device
from charcnn.gpu import graph as recording
from charcnn.gpu.collectives import Group
from charcnn.gpu.collectives.regions import array_at
from charcnn.gpu.collectives.signals import APART, signal, wait
from charcnn.offload.scheduler import finish
from charcnn.ops.common.layer import ArraySpec, flat
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.sequence import LayerSequence, Stage, into
from charcnn.runtime.staging import copy_up
from charcnn.runtime.stream import StreamBuffers
from charcnn.runtime.timeline import OFF, Timeline

SLOTS = 2
"""Micro-batches that lie between two stages at once."""

ALIGNED = 256
"""Bytes at whose multiples a place begins: kernels read vectors of 16."""

TOGETHER = 8
"""Inputs of which neighbours share a multiple: so many lie at a multiple of 16 bytes, which kernels and TMA need."""

RUNS = 5
"""How often a stage that is timed runs, by one graph."""


def timed(layers: Sequence[Sequence[Stage]], batch: int, length: int) -> list[tuple[float, ArraySpec]]:
    """Time parts of a network: of each, seconds of a batch on the current GPU, and an input's result.

    Args:
        layers: by part.
        batch, length: inputs, and bytes of one.
    """
    whole = LayerSequence([stage for part in layers for stage in part])
    largest, scratch = whole.room(batch, length)
    buffers = StreamBuffers(device.current(), 0, Monitor(), pinned=1, features=largest, scratch=scratch)
    x, found = device.empty((batch, length), np.uint8), list[tuple[float, ArraySpec]]()
    for part in layers:
        sequence = LayerSequence(part)

        def start(stream: Stream, x: Array = x, sequence: LayerSequence = sequence) -> Array:
            buffers.rewind()
            with buffers.on(stream):
                for layer in flat(sequence.layers, batch):
                    x = layer(x, buffers)
            return x

        if not recording.AVAILABLE:
            start(buffers.stream)
            begun = time.perf_counter()
            x = start(buffers.stream)
            seconds = time.perf_counter() - begun
        else:
            graph = recording.Graph(start, buffers.stream)
            begin, end = cuda.event(), cuda.event()
            begin.record(buffers.stream)
            for _ in range(RUNS):
                graph.launch()
            end.record(buffers.stream)
            end.synchronize()
            x, seconds = graph.result, begin.elapsed_time(end) / 1e3 / RUNS
        found.append((seconds, ArraySpec(tuple(x.shape[1:]), x.dtype)))
        result, x = x, device.empty(tuple(x.shape), x.dtype)  # of its own: layers write both places by turns
        recording.copy(x, result, buffers.stream)
    return found


class Border(NamedTuple):
    """Where a stage begins, or the last one ends."""

    reads: ArraySpec
    """An input of the stage; bytes of the first."""
    before: ArraySpec
    """What the layers read that both stages compute, if they share some."""
    share: float
    """The share of inputs for which the stage before computes the shared layers; 0 where no layer is shared."""

    def first(self, n: int) -> int:
        """How many of n inputs the stage before has computed."""
        return min(n, round(n * self.share / TOGETHER) * TOGETHER) if self.share else n

    def sent(self, n: int) -> int:
        """Bytes of n inputs."""
        first = self.first(n)
        return first * self.reads.nbytes + (n - first) * self.before.nbytes

    def room(self, n: int) -> tuple[int, int]:
        """Bytes that a place takes, of n inputs at most: of the stage's inputs, and all."""
        reads, before = (-(-n * spec.nbytes // ALIGNED) * ALIGNED for spec in (self.reads, self.before))
        return reads, reads + before * bool(self.share)


class Relay:
    """A rank's stage of a network, on the current GPU.

    All ranks make theirs together, and then run the same number of micro-batches of the same sizes.

    Args:
        group: the ranks.
        layers: this rank's: those that it shares with the rank before, its own, and those that it shares with the next.
        borders: by rank, where its stage begins, and where the last one ends.
        batch: inputs of a micro-batch at most.
        gpu: the current one.
        monitor: is told of memory.
        seconds: of a whole batch, as `timed` has it.
        begins: the name of the first layer.
    """

    byte_values = 256
    chunk = 0
    """Inputs of a micro-batch, of the last run."""
    busy = elapsed = 0.0
    """Seconds of the last run: of computing, and of all."""

    def __init__(
        self, group: Group, layers: Sequence[Sequence[Stage]], borders: Sequence[Border], batch: int, gpu: int,
        monitor: Monitor, seconds: float, begins: str,
    ) -> None:  # fmt: skip
        self.group, self.batch = group, batch
        self._seconds, self.begins = seconds, begins
        self._first, self._last = group.rank == 0, group.rank == group.ranks - 1
        self._border, self._next_border = borders[group.rank : group.rank + 2]
        gives, between = (
            self._next_border.reads,
            self._next_border.before if self._next_border.share else self._next_border.reads,
        )
        self.length, self.width = self._border.reads.nbytes, int(np.prod(gives.shape))
        self._entering, self._own, self._leaving = sequences = [LayerSequence(of) for of in layers]
        monitor.hold(gpu, sum(of.nbytes for of in sequences) + group.nbytes)
        inputs = self._border.before, self._border.reads, between
        rooms = [of.room(batch, *spec.shape) for of, spec in zip(sequences, inputs, strict=True)]
        scratch = {layer: arrays for _, found in rooms for layer, arrays in found.items()}
        pinned = max(self.length if self._first else 1, 4 * self.width if self._last else 1)
        largest = max(nbytes for nbytes, _ in rooms)
        self._buffers = StreamBuffers(gpu, 0, monitor, pinned=1, features=largest, scratch=scratch)
        self._pinned = [cuda.pinned_array(batch * pinned, np.uint8) for _ in range(SLOTS)]
        self._each = [border.room(batch) for border in borders]
        self._places = group.share(SLOTS * max(whole for _, whole in self._each))
        self._counts = group.share(3 * APART)  # what came, what the next rank has read, and one for nobody
        self._out = [self._buffers.array((batch, *gives.shape), gives.dtype) for _ in range(SLOTS)]
        self._between = [
            self._buffers.array((batch, *between.shape), between.dtype) if self._next_border.share else out
            for out in self._out
        ]
        """What the shared layers read, or the results."""
        self._aside, self._up = cuda.stream(), cuda.stream()
        untimed = {} if device.SIMULATED else {"timing": False}
        self._came, self._computed, self._left = ([cuda.event(**untimed) for _ in range(SLOTS)] for _ in range(3))
        self._graphs: dict[tuple[int, int], recording.Graph] = {}
        self._step, self._started = 0, 0.0
        self._times: list[tuple[Event, Event]] = []

    # On this rank

    def place(self, slot: int, away: int = 0, *, shared: bool = False) -> int:
        """The address here of the inputs in a slot of this rank, or of one so far behind it.

        Args:
            slot: of SLOTS.
            away: ranks behind this one.
            shared: those of the layers that the rank shares with the one before.
        """
        rank = self.group.rank + away
        reads, whole = self._each[rank]
        return self._places[rank] + slot * whole + (reads if shared else 0)

    def _forward(self, slot: int, n: int, stream: Stream) -> None:
        """Start this stage's layers, from one place to another."""
        entry, spec, before = self._border, self._border.reads, self._border.before
        x, first, between = (
            array_at(self.place(slot), (n, *spec.shape), spec.dtype),
            entry.first(n),
            self._between[slot],
        )
        with self._buffers.on(stream):
            if first < n:
                rest = array_at(self.place(slot, shared=True), (n - first, *before.shape), before.dtype)
                self._through(self._entering, rest, x[first:])
            self._through(self._own, x, between[:n])
            if self._next_border.share and (first := self._next_border.first(n)):
                self._through(self._leaving, between[:first], self._out[slot][:first])

    def _through(self, sequence: LayerSequence, x: Array, out: Array) -> None:
        """Start layers whose result goes to `out`."""
        buffers, y = self._buffers, x
        buffers.rewind()
        if layers := flat(sequence.layers, len(x)):
            for layer in layers[:-1]:
                x = layer(x, buffers)
            y = into(layers[-1], x, out, buffers)
        if device.address(y) != device.address(out):
            _copy(device.address(out), y, buffers.stream)

    def prepare(self, n: int) -> None:
        """Compile and record what so many inputs take, while nothing runs here; nothing is sent."""
        for slot in range(SLOTS):
            if (slot, n) not in self._graphs and recording.AVAILABLE:
                start = lambda stream, slot=slot: self._forward(slot, n, stream)  # noqa: E731
                self._graphs[slot, n] = recording.Graph(start, self._buffers.stream)

    def alone(self, n: int, times: int = RUNS) -> float:
        """Seconds in which this GPU computes the stage of n inputs, so many times in a row, and sends nothing."""
        self.prepare(n)
        stream, begin, end = self._buffers.stream, cuda.event(), cuda.event()
        begin.record(stream)
        for _ in range(times):
            self._graphs[0, n].launch()
        end.record(stream)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / times

    def step(self, n: int, rows: Array = None) -> int:
        """Start on a micro-batch of n inputs; all ranks call it. Nothing is waited for.

        Args:
            n: inputs, as `prepare` was told.
            rows: on the first rank, bytes (n, length) on the host or the GPU; not read where None: what lies there.

        Returns:
            The slot in which this rank's result will lie.
        """
        group, stream, aside = self.group, self._buffers.stream, self._aside
        self._step += 1
        step, slot = self._step, self._step % SLOTS
        if not self._first:
            wait(group, self._counts[group.rank], step, group.rank - 1, stream)
        elif rows is not None:
            self.bring(rows, slot)
        self._left[slot].wait(stream)
        begin = self._mark()
        if recording.AVAILABLE:
            self._graphs[slot, n].launch()
        else:
            self._forward(slot, n, stream)
        self._times.append((begin, self._mark()))
        if not self._first:
            signal(self._counts[group.rank - 1] + APART, step, stream)
        self._computed[slot].record(stream)
        if not self._last:
            self._computed[slot].wait(aside)
            if step > SLOTS:
                wait(group, self._counts[group.rank] + APART, step - SLOTS, group.rank + 1, aside)
            first = self._next_border.first(n)
            if first:
                _copy(self.place(slot, 1), self._out[slot][:first], aside)
            if first < n:
                _copy(self.place(slot, 1, shared=True), self._between[slot][first:n], aside)
            signal(self._counts[group.rank + 1], step, aside)
            self._left[slot].record(aside)
        return slot

    def bring(self, rows: Array, slot: int) -> None:
        """On the first rank, start to copy inputs to a slot, where its stage reads them."""
        stream, n = self._buffers.stream, len(rows)
        to = array_at(self.place(slot), (n, self.length), np.uint8)
        if device.on_device(rows):
            _copy(device.address(to), rows, stream)
            return
        self._came[slot].synchronize()
        staged = self._pinned[slot][: n * self.length].reshape(n, self.length)
        self._computed[slot].wait(self._up)
        copy_up(rows, lambda *_: staged, to, self._up)
        self._came[slot].record(self._up)
        self._came[slot].wait(stream)

    def _mark(self) -> Event:
        if device.SIMULATED:
            return time.perf_counter()
        event = cuda.event()
        event.record(self._buffers.stream)
        return event

    def landed(self, slot: int, results: np.ndarray) -> None:
        """On the last rank, wait for a slot's results and copy them to the host."""
        self._computed[slot].wait(self._aside)
        staged = self._pinned[slot][: results.nbytes].view(np.float32).reshape(results.shape)
        self._out[slot][: len(results)].reshape(results.shape).copy_to_host(staged, stream=self._aside)
        self._left[slot].record(self._aside)
        self._aside.synchronize()
        np.copyto(results, staged)

    def begin(self) -> None:
        """A run begins."""
        self.busy, self._started = 0.0, time.perf_counter()

    def done(self) -> None:
        """Wait until all that was started here is done, and count the time of computing.

        Raises:
            DeviceError: another rank did not come.
        """
        self._buffers.stream.synchronize()
        self._aside.synchronize()
        self.group.check()
        for begin, end in self._times:
            self.busy += end - begin if device.SIMULATED else begin.elapsed_time(end) / 1e3
        self._times.clear()
        self.elapsed = time.perf_counter() - self._started

    # Of a run

    def close(self) -> None:
        """Let go of the other ranks' memory; all ranks call it, once none computes any more."""
        self.group.close()

    def __call__(self, rows: np.ndarray) -> None:
        """Compile what a micro-batch of as many inputs takes; nothing is sent."""
        if len(rows):
            own, stream = self._counts[self.group.rank] + 2 * APART, self._buffers.stream
            with cuda.gpus[self._buffers.gpu]:
                signal(own, 0, stream)
                wait(self.group, own, 0, self.group.rank, stream)
                self.prepare(min(len(rows), self.batch))
                stream.synchronize()

    def sent(self, n: int) -> int:
        """Bytes of n inputs that go to the next rank, or are the results."""
        return self._next_border.sent(n)

    def did(self) -> Record:
        """For the report."""
        return {
            "busy": self.busy, "elapsed": self.elapsed, "chunk": self.chunk, "width": self.width,
            "bytes": self.sent(self.batch) // self.batch, "link": self.group.link, "seconds": self._seconds,
            "begins": self.begins,
        }  # fmt: skip

    def run(
        self, comm: Comm, source: Array, total: int, classes: int, timeline: Timeline = OFF,
        progress: Callable[[int], object] | None = None,
    ) -> np.ndarray | None:  # fmt: skip
        """Results of all inputs on the root, None on the others, by micro-batches of `chunk`.

        Arguments are as of `charcnn.offload.pipeline`, but for `total`, of inputs.
        """
        group = self.group
        parts = [slice(start, min(start + self.chunk, total)) for start in range(0, total, self.chunk)]
        ends = self._first or self._last
        results = np.empty((total if ends else 0, classes), np.float32)
        coming = [comm.Irecv(results[part], group.ranks - 1) for part in parts] if self._first else []
        leaving, slots = list[object](), list[tuple[int, slice]]()
        with cuda.gpus[self._buffers.gpu]:
            for n in {part.stop - part.start for part in parts}:
                self.prepare(n)
            self._buffers.stream.synchronize()
            self.begin()
            for part in parts:
                slot = self.step(part.stop - part.start, None if source is None else source[part])
                slots.append((slot, part))
                if self._last and len(slots) == SLOTS:
                    leaving.append(self._leave(comm, *slots.pop(0), results))
                if progress is not None and self._first:
                    progress(part.stop - part.start)
            if self._last:
                leaving += [self._leave(comm, *one, results) for one in slots]
            self.done()
        finish(coming + leaving, timeline, "results")
        self.elapsed = time.perf_counter() - self._started
        return results if self._first else None

    def _leave(self, comm: Comm, slot: int, part: slice, results: Array) -> object:
        self.landed(slot, results[part])
        return comm.Isend(results[part], 0)


def _copy(to: int, source: Array, stream: Stream) -> None:
    """Start to copy an array on this GPU to an address that it reaches."""
    if device.SIMULATED:
        array_at(to, tuple(source.shape), source.dtype).copy_to_device(source)
    else:
        recording.copy_across(to, source, stream)
