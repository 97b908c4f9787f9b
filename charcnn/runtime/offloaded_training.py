"""ZeRO-Offload on Hopper GPUs: masters and moments lie on the host, whose cores do AdamW.

A step's graph ends with the sums of gradients. They go to pinned memory a piece at a time, and AdamW moves each piece's
weights as it comes. These go back, to be rounded, while the next piece is moved. The step waits for all of that: a
later one computes with the weights of this one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numba import cuda

from charcnn.aliases import Array, Comm, Record, Stream
from charcnn.gpu import device
from charcnn.gpu.collectives import Group
from charcnn.ops import adamw_cpu
from charcnn.ops.adamw import AdamW, ParameterGroup
from charcnn.ops.loss_scale import GradientFactor
from charcnn.runtime.exchange import Alone
from charcnn.runtime.mixed_step import Held
from charcnn.runtime.pushed_exchange import PushedExchange
from charcnn.runtime.shared_mixed_training import SharedMixedTraining, group_of


class OffloadedTraining(SharedMixedTraining):
    """A rank's side: as `SharedMixedTraining` at stage 2, and of one rank, too.

    Args:
        nodes, params, rows, comm, **more: as of `SharedMixedTraining`, less the stage.
    """

    def _reached(self, comm: Comm | None) -> Group | None:
        return group_of(Alone() if comm is None else comm)

    def _hold(self, group: ParameterGroup, clip: float) -> Held:
        assert self._group is not None  # stages above 0 need one
        self._pushed = pushed = PushedExchange(self._group, self._layout, self._stage, self._ptx_type)
        size, self.gradients = pushed.total.size, pushed.gradients
        self.weights, self._slopes = (cuda.pinned_array((size,), np.float32) for _ in range(2))
        self.optimiser = AdamW(self.weights, [replace(group, size=size)])
        self._come = [(piece, cuda.event(**({} if device.SIMULATED else {"timing": False}))) for piece in pushed.pieces]
        self._hold_limits()
        self._write(self._begun)
        return Held(pushed.plain, pushed.slopes, pushed.halves)

    def _hold_limits(self) -> None:
        """The norm of gradients and by what AdamW multiplies them, on the GPU and on the host."""
        self._factor = GradientFactor(self._scale, self._stream)
        self._limits = cuda.pinned_array((2,), np.float32)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that are held on the GPU, by KINDS."""
        return super().memory | {"masters": 0, "moments": 0}

    @property
    def counted(self) -> dict[str, int]:
        """Bytes that the layers say it needs there, by KINDS."""
        return super().counted | {"masters": 0, "moments": 0}

    def step(
        self, x: Array, targets: Array, rate: float = 1.0, *, leak: float = 0.0, weights: np.ndarray | None = None
    ) -> Array:
        """See `MixedTraining.step`; returns when the weights are on their way back."""
        self._ahead()
        losses, pushed = super().step(x, targets, rate, leak=leak, weights=weights), self._pushed
        assert pushed is not None
        self._factor.found.copy_to_host(self._limits, stream=self._stream)
        if self._is_made():
            self.optimiser.made += 1
            self._move_pieces(pushed.total, rate)
        pushed.moved(self._stream)
        return losses

    def _is_made(self) -> bool:
        """Whether the step is not left out: with a loss scale the host waits for what the GPU found."""
        if self._scale is None:
            return True
        self._stream.synchronize()
        return bool(self._limits[1] >= 0)

    def _take(self, state: Record) -> None:
        super()._take(state)
        self._factor.restore(state["loss_scale"])

    def _ahead(self) -> None:
        """Ask for what the host reads next, while the GPU computes; here nothing."""

    def _move_pieces(self, total: Array, rate: float) -> None:
        """Have the host move all weights of this rank's parts, by the sums of gradients, and send them back."""
        pushed, stream, group = self._pushed, self._stream, self.optimiser.groups[0]
        assert pushed is not None
        for piece, come in self._come:
            total[piece.at].copy_to_host(self._slopes[piece.at], stream=stream)
            come.record(stream)
        for piece, come in self._come:
            come.synchronize()
            parts = self.weights, self._slopes, self.optimiser.first, self.optimiser.second
            mine, slopes, first, second = (array[piece.at] for array in parts)
            adamw_cpu.move(mine, slopes, first, second, group, self.steps, float(self._limits[1]), rate)
            total[piece.at].copy_to_device(mine, stream=stream)
            pushed.take(piece, total[piece.at], stream)

    def _write(self, flat: np.ndarray) -> None:
        assert self._pushed is not None
        self._write_masters(self._part(flat))
        self._pushed.write(flat, self._stream)
        self._exchange.total(0)  # all ranks have done so

    def _write_masters(self, own: np.ndarray) -> None:
        """Replace the masters of this rank's parts."""
        self.weights[:] = own

    def _whole(self, stream: Stream) -> None:
        assert self._pushed is not None
        self._backward(stream)
        self._settle(stream)
        self._pushed.join(stream)  # a graph ends with all that it began
