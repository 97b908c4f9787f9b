"""Workers of packed texts: batches that are computed with as many rows as they have tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from charcnn.aliases import Array, Function, Stream
from charcnn.gpu import graph as recording
from charcnn.gpu import launch
from charcnn.model.sequences import lengths
from charcnn.runtime.graph_order import Compute, GraphOrder
from charcnn.runtime.stream import StreamBuffers, StreamWorker

LEAST_ROWS = 64
"""Rows that a batch is computed with at least."""

FINENESS = 6
"""Of the numbers of rows that graphs are made for, there are 2^5 in an octave: a batch has 3 % of rows too many."""

GRAPHS = 64
"""Graphs that are kept at once."""


class PackedSizes(NamedTuple):
    """Of a batch, as it is computed."""

    inputs: int
    rows: int
    most: int
    """Rows of an input at most."""


def sizes_of(ids: np.ndarray) -> PackedSizes:
    """Those with which token ids int32 (n, S) are computed.

    Raises:
        ValueError: as of `lengths`.
    """
    (n, tokens), counts = ids.shape, lengths(ids)
    total, most = max(int(counts.sum()), 1), int(counts.max(initial=1))
    step = max(LEAST_ROWS, 1 << total.bit_length() >> FINENESS)
    return PackedSizes(n, min(-(-total // step) * step, n * tokens), min(-(-most // LEAST_ROWS) * LEAST_ROWS, tokens))


class PackedWorker(StreamWorker):
    """A worker whose batches are computed with as many rows as they have tokens, about.

    Args:
        buffers: as of `StreamWorker`.
        forward: called with token ids (n, 4 S) uint8 on the GPU, their sizes, and whether steps are `timed` apart,
            which no graph can be; gives results there.
        tokens: S, of an input at most.
    """

    def __init__(self, buffers: StreamBuffers, forward: Function, tokens: int) -> None:
        super().__init__(buffers, self._started)
        self._packed, self._tokens = forward, tokens
        self._sizes: PackedSizes | None = None

    def _copied(self, ids: np.ndarray) -> Array:
        self._sizes = sizes_of(ids.view(np.int32))
        return super()._copied(ids)

    def _taken(self, ids: Array) -> PackedSizes:
        """The sizes of a batch that was just copied; of one that lies on the GPU, what it may have."""
        sizes, self._sizes = self._sizes, None
        return sizes or PackedSizes(len(ids), len(ids) * self._tokens, self._tokens)

    def _started(self, ids: Array) -> Array:
        return self._packed(ids, self._taken(ids), timed=True)


class PackedGraphWorker(PackedWorker):
    """A `PackedWorker` that starts all work on a batch at once, as a CUDA graph for each of its sizes.

    Args:
        buffers, forward, tokens: as of `PackedWorker`.
        batch: inputs at most.
        compute: of all workers on this GPU: its stream is that of all graphs, as of `GraphWorker`.
    """

    def __init__(self, buffers: StreamBuffers, forward: Function, tokens: int, batch: int, compute: Compute) -> None:
        super().__init__(buffers, forward, tokens)
        self._order = GraphOrder(buffers, compute)
        self._ids = buffers.array((batch, 4 * tokens), np.uint8)  # where graphs read them
        self._graphs: dict[PackedSizes, recording.Graph] = {}

    def _started(self, ids: Array) -> Array:
        buffers, graphs = self.buffers, self._graphs
        if launch.profiler is not None:  # kernels are timed one by one
            return super()._started(ids)
        sizes = self._taken(ids)
        recording.copy(self._ids, ids, buffers.stream)
        with self._order.computing(sizes.inputs):
            if sizes not in graphs:
                if len(graphs) == GRAPHS:
                    buffers.stream.synchronize()
                    graphs.clear()
                place = self._ids[: sizes.inputs]

                def start(stream: Stream) -> Array:
                    buffers.rewind()
                    with buffers.on(stream):
                        return self._packed(place, sizes, timed=False)

                graphs[sizes] = recording.Graph(start, buffers.stream)
            with buffers.stage("network"):
                graphs[sizes].launch()
        return graphs[sizes].result
