"""Training that ranks share on Hopper's tensor cores, a GPU a rank: data parallel, and ZeRO's stages.

On one host GPUs copy gradients into each other's memory beside backward, and weights behind AdamW, in the CUDA graph of
a step: see `pushed_exchange`. Between hosts gradients pass through pinned memory and MPI, and each rank holds all.
Either way sums are of the order of ranks: all ranks have the same bits, at every stage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
from numba import cuda

from charcnn.aliases import Array, Comm, Record, Stream
from charcnn.files import Path
from charcnn.gpu import device
from charcnn.gpu.collectives import Group
from charcnn.gpu.collectives.group import RANKS
from charcnn.host.shared_memory import hosts
from charcnn.layers import Node
from charcnn.ops.adamw import AdamW, ParameterGroup
from charcnn.ops.adamw_options import check_scale
from charcnn.runtime import training_checkpoint
from charcnn.runtime.exchange import RankExchange
from charcnn.runtime.mixed_plan import FlatParams, counted
from charcnn.runtime.mixed_step import Around, Held
from charcnn.runtime.mixed_training import MixedTraining
from charcnn.runtime.pushed_exchange import PushedExchange
from charcnn.runtime.sharded_training import STATES

DEADLINE = 300.0
"""Seconds that a GPU waits for another rank's: at the first step, that may compile kernels."""


def computes_here(comm: Comm | None = None) -> bool:
    """Whether each of these ranks sees a GPU with such tensor cores; the emulator does not count.

    Raises:
        ValueError: some do, and others do not.
    """
    answers = [device.sees_hopper()] if comm is None else comm.allgather(device.sees_hopper())
    if any(answers) and not all(answers):
        raise ValueError(f"{sum(answers)} of {len(answers)} ranks see a Hopper GPU: need all, or none")
    return all(answers)


class SharedMixedTraining(MixedTraining):
    """A rank's side, on the current GPU. All ranks call the same methods, in the same order.

    Args:
        nodes, params, group, clip, recorded, stream, precision: as of `MixedTraining`, the same on all ranks. Between
            hosts no step is recorded.
        rows: inputs of a rank's share of a step, at most.
        comm: an mpi4py communicator of the ranks, each with a GPU of its own; None: there is one.
        stage: 0: all ranks hold everything. ZeRO-1, 2, 3: each has its part of masters and moments; also of gradients;
            also of weights in bf16.

    Raises:
        ValueError, DeviceError: as of `MixedTraining` and `Group`; or a stage above 0 on ranks whose GPUs do not reach
            each other's memory.
    """

    files = 0
    """Bytes in files."""

    def __init__(
        self, nodes: Sequence[Node], params: Mapping[str, np.ndarray], rows: int, comm: Comm | None = None, *,
        stage: int = 0, group: ParameterGroup = ParameterGroup(0), clip: float = 1.0, recorded: bool = False,  # noqa: B008 - frozen
        stream: Stream = None, precision: str = "bf16",
    ) -> None:  # fmt: skip
        self._exchange, self._stage, self._clip = RankExchange(comm), stage, clip
        self._group = self._reached(comm)
        self._pushed: PushedExchange | None = None
        hosted = self._exchange.ranks > 1 and self._group is None
        if hosted and stage:
            raise ValueError(f"{stage=}: needs ranks of one host, up to {RANKS}, whose GPUs reach each other's memory")
        super().__init__(
            nodes, params, rows, group=group, clip=clip, recorded=recorded and not hosted, stream=stream,
            precision=precision,
        )  # fmt: skip
        if hosted:
            size = -(-self.gradients.size // self._exchange.ranks) * self._exchange.ranks
            self._staged = cuda.pinned_array((size,), np.float32)
            self._staged[:] = 0

    def _reached(self, comm: Comm | None) -> Group | None:
        """The ranks' group, where there are several on one host whose GPUs reach each other's memory."""
        return None if comm is None or comm.size == 1 else group_of(comm)

    def _laid_out(self) -> FlatParams:
        return FlatParams(self._nodes, self._exchange.ranks, grouped=self._group is not None)

    def _around(self) -> Around:
        return super()._around() if self._pushed is None else self._pushed

    def _hold(self, group: ParameterGroup, clip: float) -> Held:
        if self._group is None:
            return super()._hold(group, clip)
        self._pushed = pushed = PushedExchange(self._group, self._layout, self._stage, self._ptx_type)
        self.weights, self.gradients = device.to_device(self._part(self._begun)), pushed.gradients
        more = {"stream": self._stream, "ptx_type": self._ptx_type, "loss_scale": self._scale}
        self.optimiser = AdamW(self.weights, [replace(group, size=self.weights.size)], **more)
        self._factor = self.optimiser.factor
        self._write(self._begun)
        return Held(pushed.plain or self._layout.parts(self.weights), pushed.slopes, pushed.halves)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that are held on the GPU, by KINDS."""
        if self._pushed is None:
            return super().memory
        moments = self.optimiser.first.nbytes + self.optimiser.second.nbytes
        features = sum(array.nbytes for array in self._step.features)
        workspace = sum(one.nbytes for one in self._step.workspace) + self._pushed.kinds["workspace"]
        return {
            "weights": self._pushed.kinds["weights"], "gradients": self.gradients.nbytes,
            "masters": self.weights.nbytes, "moments": moments, "features": features, "workspace": workspace,
        }  # fmt: skip

    @property
    def counted(self) -> dict[str, int]:
        """Bytes that the layers say it needs, by KINDS."""
        return counted(self._nodes, self._rows, self._exchange.ranks, self._stage)

    @property
    def params(self) -> dict[str, np.ndarray]:
        """A copy of the weights of all ranks, by name."""
        return self._layout.named(self._whole_of(self._own("weights")))

    def mean(self, losses: Array) -> float:
        """Of all ranks' losses."""
        own = self.fetched(losses)
        self._check()
        return self._exchange.total(float(own.sum(dtype=np.float64))) / self._exchange.total(len(own))

    def loss_and_gradients(
        self, x: np.ndarray, targets: np.ndarray, *, leak: float = 0.0, weights: np.ndarray | None = None
    ) -> tuple[float, dict[str, np.ndarray]]:
        """The mean loss of all ranks' inputs and copies of its gradients, by name."""
        self._compute(x, targets, leak, weights)
        if self._pushed is not None:
            self._pushed.join(self._stream)  # the next round's number must not go out in place of this one's
        whole = self._whole_of(self.gradients if self._pushed is None else self._pushed.total)
        return self.mean(self._step.losses[: len(x)]), self._layout.named(whole / self._by)

    def digest(self) -> str:
        """The digest of all weights, and of what steps on this GPU read."""
        self.settle()
        masters, read = self._whole_of(self._own("weights")), hashlib.sha256()
        if self._pushed is not None:
            halves, plain = self._pushed.reads(self._exchange, self._stream)
            masters[: plain.size] = plain
            read.update(halves.tobytes())
        read.update(masters.tobytes())
        return read.hexdigest()

    @property
    def steps(self) -> int:
        """That were made."""
        return self.optimiser.steps

    def save(self, path: Path, *, force: bool = False) -> None:
        """See `ShardedTraining.save`."""
        self.settle()
        root = self._exchange.rank == 0
        scale, shapes = self._factor.loss_scale, self._layout.shapes
        saved = None if scale is None else scale.saved
        writing = training_checkpoint.writing(path, shapes, self.steps, force, saved) if root else nullcontext()
        with writing as file:
            for kind in STATES:
                arrays = self._layout.named(self._whole_of(self._own(kind))).values()
                if file is not None:
                    for array in arrays:
                        file.write(np.ascontiguousarray(array).data)

    def resume(self, path: Path) -> None:
        """See `ShardedTraining.resume`."""
        self.settle()
        buffers, shapes = [], self._layout.shapes
        with training_checkpoint.reading(path, shapes) as (steps, scale, fill):
            if self._scale is not None:
                check_scale(scale)
            for _ in range(3):
                arrays = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
                for array in arrays.values():
                    fill(array)
                buffers.append(self._layout.flat(arrays))
        first, second = map(self._part, buffers[1:])
        self._write(buffers[0])
        self._take({"steps": steps, "first": first, "second": second, "loss_scale": scale})

    def settle(self) -> None:
        """Wait for what is under way."""
        self._stream.synchronize()
        self._check()

    def close(self) -> None:
        """Let go of the other ranks' memory, when all are done with it."""
        self.settle()
        self._exchange.total(0)
        if self._group is not None:
            self._group.close()
            self._group = None

    def _own(self, kind: str) -> Array:
        """What this rank holds of a kind of STATES."""
        return self.weights if kind == "weights" else getattr(self.optimiser, kind)

    def _take(self, state: Record) -> None:
        """Replace the moments of this rank's parts, the number of steps, and the loss scale where there is one."""
        self.optimiser.restore(state)

    def _part(self, flat: np.ndarray) -> np.ndarray:
        """What this rank holds of a buffer on the host."""
        return self._layout.own(flat, self._exchange.rank) if self._stage and self._pushed is not None else flat

    def _whole_of(self, buffer: Array) -> np.ndarray:
        """All ranks' parts of a buffer, on the host."""
        part = self.fetched(buffer) if device.on_device(buffer) else buffer
        if part.size == self._layout.size:
            return part
        return self._layout.merged(self._exchange.gathered(part))

    def _total(self, n: int) -> int:
        return self._exchange.total(n)

    def _write(self, flat: np.ndarray) -> None:
        if self._pushed is None:
            super()._write(flat)
            return
        self.weights.copy_to_device(self._part(flat), stream=self._stream)
        self._pushed.write(flat, self._stream)
        self._exchange.total(0)  # all ranks have done so, before one reads what another one has

    def _whole(self, stream: Stream) -> None:
        if self._pushed is None:
            super()._whole(stream)
            return
        self._backward(stream)
        self._settle(stream)
        self.optimiser.count(self._rate, stream)
        self._pushed.move(self.optimiser, stream)

    def _settle(self, stream: Stream) -> None:
        """By what AdamW multiplies the sums of gradients."""
        assert self._pushed is not None
        if self._clip or self._scale:
            self._pushed.norm(self._factor, self._clip, stream)

    def _backward(self, stream: Stream) -> None:
        if self._pushed is not None:
            self._pushed.begin(stream)
            super()._backward(stream)
            self._pushed.sums(stream)
            return
        super()._backward(stream)
        if self._exchange.ranks > 1:
            self._add_up_on_hosts(stream)

    def _add_up_on_hosts(self, stream: Stream) -> None:
        here = self._staged[: self.gradients.size]
        self.gradients.copy_to_host(here, stream=stream)
        stream.synchronize()
        own = self._staged.reshape(self._exchange.ranks, -1)[self._exchange.rank]

        def keep(total: np.ndarray) -> None:
            own[:] = total

        self._exchange.sums(self._staged, keep)
        self._exchange.finish_sums()
        self._exchange.gather(self._staged)()
        self.gradients.copy_to_device(here, stream=stream)

    def _check(self) -> None:
        """Raise DeviceError where a rank did not come."""
        if self._group is not None:
            self._group.check()


def group_of(comm: Comm) -> Group | None:
    """The ranks' group for copies between GPUs, where they are on one host and reach each other's memory."""
    if comm.size > RANKS or (comm.size > 1 and any(hosts(comm))):
        return None
    group = Group(comm, collectives=False, deadline=DEADLINE)
    if group.link == "GPU memory" or device.SIMULATED:
        return group
    group.close()
    return None
