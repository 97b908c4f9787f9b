"""Many rows of an encoder whose layers several GPUs share: each product writes to the GPUs that add its parts up.

Rows of a batch are shared out. For each rank's rows a product of its own writes to that rank's memory, the others'
first; then each rank normalises its rows, and writes them to all. It is what Megatron-LM calls sequence parallelism
(Korthikanti et al. 2022), with its reduce-scatter in the products and its all-gather in the normalisation.
"""

from __future__ import annotations

from numba import cuda

from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.gpu.collectives import Group
from charcnn.gpu.collectives.regions import array_at
from charcnn.ops.common.conv import PreparedConv
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.encoder.scattered_rows import launch_scattered_add

FROM = 2048
"""Rows of a batch. Fewer are added up by every rank: a product of few rows takes as long as one of a part of them."""

WHOLE = 128
"""Rows that are shared out together."""


class Exchange:
    """Memory of a room that all ranks write to, and what is started on it.

    Args:
        group: the ranks, which all make one.
        rows: of a batch at most.
        width: features of a row.
        of: fp16 or bf16.
    """

    def __init__(self, group: Group, rows: int, width: int, of: NumberFormat) -> None:
        self._group, self._width, self._of, self._row = group, width, of, width * of.itemsize
        self._part_bytes = len(self._share(0, rows)) * self._row
        self._parts = group.share(group.ranks * self._part_bytes)
        self._features = group.share(2 * rows * self._row)
        untimed = {} if device.SIMULATED else {"timing": False}
        self._beside, self._begun, self._ended = cuda.stream(), cuda.event(**untimed), cuda.event(**untimed)

    def features(self, number: int, rows: int) -> Array:
        """Room for so many rows of features, 0 or 1: bytes."""
        at = self._features[self._group.rank] + number * rows * self._row
        return array_at(at, (rows * self._row,), "uint8")

    def _share(self, rank: int, rows: int) -> range:
        """A rank's rows."""
        each = -(-rows // (self._group.ranks * WHOLE)) * WHOLE
        return range(min(rank * each, rows), min((rank + 1) * each, rows))

    def product(self, made: PreparedConv, x: Array, stream: Stream) -> None:
        """Start this rank's part of a sum, of rows x (T, C), each to the rank that adds it up.

        Products for others run beside that for this rank, which computes while their results are on their way.
        """
        group = self._group
        self._begun.record(stream)
        self._begun.wait(self._beside)
        for away in range(1, group.ranks):
            self._part(made, x, (group.rank + away) % group.ranks, self._beside)
        self._part(made, x, group.rank, stream)
        self._ended.record(self._beside)
        self._ended.wait(stream)

    def _part(self, made: PreparedConv, x: Array, rank: int, stream: Stream) -> None:
        """Start the product for a rank's rows."""
        if mine := self._share(rank, len(x)):
            at = self._parts[rank] + self._group.rank * self._part_bytes
            of_rank = x[mine.start : mine.stop].reshape((len(mine), 1, x.shape[1]))
            made.apply(of_rank, out=array_at(at, made.out_shape(of_rank.shape), self._of.dtype), stream=stream)

    def add_norm(self, kept: Array, norm: tuple[Array, Array], out: Array, eps: float, stream: Stream) -> None:
        """Start rownorm(the sum + kept), to `out` on all ranks, which is one of `features`."""
        group, mine = self._group, self._share(self._group.rank, len(out))
        first, here = mine.start * self._row, self._features[group.rank]
        to = device.address(out) - here + first
        ys = [self._features[(group.rank + away) % group.ranks] + to for away in range(group.ranks)]
        gamma, beta = map(device.address, norm)
        launch_scattered_add(
            group, self._parts[group.rank], self._part_bytes, device.address(kept) + first, gamma, beta, ys, len(mine),
            self._width, eps, self._of, stream,
        )  # fmt: skip
