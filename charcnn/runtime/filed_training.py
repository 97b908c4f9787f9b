"""ZeRO-Infinity on Hopper GPUs: masters and moments lie in files, and AdamW moves a window of them at a time.

As ZeRO-Offload, but a rank's memory on the host holds no more than the window, and two pieces of gradients and of
weights on their way. A piece's values are asked for from the disk while the GPU computes, or AdamW moves the piece
before. Weights in bf16 and gradients stay on the GPUs, each rank's part of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numba import cuda

from charcnn.aliases import Argument, Array, Comm, Record
from charcnn.gpu import device
from charcnn.layers import Node
from charcnn.ops import adamw_cpu
from charcnn.ops.adamw import AdamW, ParameterGroup
from charcnn.ops.adamw_options import MOMENTS
from charcnn.runtime.mixed_step import Held
from charcnn.runtime.offloaded_training import OffloadedTraining
from charcnn.runtime.pushed_exchange import OwnPiece, PushedExchange
from charcnn.runtime.sharded_training import STATES
from charcnn.runtime.sharding import Sharding, StatesInFiles

TURNS = 2
"""Pieces on their way at once."""


class FiledTraining(OffloadedTraining):
    """A rank's side, at stage 3.

    Args:
        nodes, params, rows, comm, **more: as of `OffloadedTraining`.
        directory: where the files lie.
        memory: bytes of them that are mapped at once, at most.

    Raises:
        ValueError: as of `OffloadedTraining`, or the memory is too little.
        OSError: there is no such directory, or no room in it.
    """

    def __init__(
        self, nodes: Sequence[Node], params: Mapping[str, np.ndarray], rows: int, comm: Comm | None = None, *,
        directory: str, memory: int, **more: Argument,
    ) -> None:  # fmt: skip
        Sharding(3, directory=directory, memory=memory)  # which checks them
        self._directory, self._allowed = directory, memory
        super().__init__(nodes, params, rows, comm, stage=3, **more)

    def _hold(self, group: ParameterGroup, clip: float) -> Held:
        assert self._group is not None  # stages above 0 need one
        self._pushed = pushed = PushedExchange(self._group, self._layout, self._stage, self._ptx_type)
        self.gradients, self._pieces = pushed.gradients, pushed.pieces
        self._states = StatesInFiles(STATES, pushed.total.size, self._directory, self._allowed)
        self.weights = np.empty(0, np.float32)  # those of AdamW lie in the files
        self.optimiser = AdamW(self.weights, [replace(group, size=0)])
        most, untimed = max(piece.size for piece in self._pieces), {} if device.SIMULATED else {"timing": False}
        self._up, down = ([cuda.pinned_array((most,), np.float32) for _ in range(TURNS)] for _ in range(2))
        self._down = [(slopes, cuda.event(**untimed)) for slopes in down]
        self._hold_limits()
        self._write(self._begun)
        return Held(pushed.plain, pushed.slopes, pushed.halves)

    @property
    def files(self) -> int:  # type: ignore[override]
        """Bytes that this rank holds in files."""
        return self._states.files

    def _own(self, kind: str) -> np.ndarray:
        values = np.empty(self._states.size, np.float32)
        self._states.read(kind, slice(0, values.size), values)
        return values

    def _take(self, state: Record) -> None:
        for kind in MOMENTS:
            self._states.write(kind, slice(0, self._states.size), state[kind])
        self.optimiser.made[0] = state["steps"]
        self._factor.restore(state["loss_scale"])

    def _write_masters(self, own: np.ndarray) -> None:
        self._states.write("weights", slice(0, own.size), own)

    def _windows(self, piece: OwnPiece) -> list[slice]:
        """The parts of a piece that are mapped one after another."""
        ends = range(piece.at.start, piece.at.stop, self._states.most)
        return [slice(begin, min(begin + self._states.most, piece.at.stop)) for begin in ends]

    def _ahead(self) -> None:
        self._states.ahead(self._windows(self._pieces[0])[0])

    def _move_pieces(self, total: Array, rate: float) -> None:
        pushed, stream, pieces = self._pushed, self._stream, self._pieces
        assert pushed is not None

        def send(number: int) -> None:
            if number < len(pieces):
                slopes, come = self._down[number % TURNS]
                total[pieces[number].at].copy_to_host(slopes[: pieces[number].size], stream=stream)
                come.record(stream)

        for number in range(TURNS):
            send(number)
        windows = [(number, at) for number, piece in enumerate(pieces) for at in self._windows(piece)]
        for (number, at), following in zip(windows, [*windows[1:], None], strict=True):
            piece, (slopes, come), moved = pieces[number], self._down[number % TURNS], self._up[number % TURNS]
            here = slice(at.start - piece.at.start, at.stop - piece.at.start)
            come.synchronize()  # and so the weights before, which lay in `moved`, are gone: the stream sent them first
            if following is not None:
                self._states.ahead(following[1])
            with self._states.window(at) as (weights, first, second):
                group, limit = self.optimiser.groups[0], float(self._limits[1])
                adamw_cpu.move(weights, slopes[here], first, second, group, self.steps, limit, rate)
                moved[here] = weights
                del weights, first, second  # else this window stays mapped while the next one is
            if at.stop == piece.at.stop:
                total[piece.at].copy_to_device(moved[: piece.size], stream=stream)
                pushed.take(piece, total[piece.at], stream)
                send(number + TURNS)
