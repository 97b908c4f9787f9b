"""Data parallel training on Hopper's tensor cores: a GPU a rank, gradients added up behind backward.

On one host the GPUs add up gradients by kernels that write into each other's memory, which a CUDA graph of a step
holds as well. Between hosts gradients pass through pinned memory and MPI. Either way sums are of the order of
ranks: all ranks have the same bits.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence

import numpy as np
from numba import cuda

from charcnn.aliases import Array, Comm, Stream
from charcnn.files import Path
from charcnn.gpu import device
from charcnn.gpu.collectives import Group
from charcnn.gpu.collectives.group import RANKS
from charcnn.layers import Node
from charcnn.ops.adamw import ParameterGroup
from charcnn.runtime import training_checkpoint
from charcnn.runtime.exchange import RankExchange
from charcnn.runtime.mixed_training import MixedTraining

BUCKET = 4 << 20
"""Values of gradients that are added up by one call: 16 MB."""


def computes_here(comm: Comm | None = None) -> bool:
    """Whether each of these ranks sees a GPU with such tensor cores; the emulator does not count.

    Raises:
        ValueError: some do, and others do not.
    """
    answers = [_sees()] if comm is None else comm.allgather(_sees())
    if any(answers) and not all(answers):
        raise ValueError(f"{sum(answers)} of {len(answers)} ranks see a Hopper GPU: need all, or none")
    return all(answers)


def _sees() -> bool:
    if device.SIMULATED:
        return False
    try:
        device.gpu_count()
    except device.DeviceError:
        return False
    return device.has_tensor_cores(hopper=True)


class SharedMixedTraining(MixedTraining):
    """A rank's side, on the current GPU. All ranks call the same methods, in the same order.

    Args:
        nodes, params, group, clip, recorded, stream: as of `MixedTraining`, the same on all ranks. Between hosts no
            step is recorded.
        rows: inputs of a rank's share of a step, at most.
        comm: an mpi4py communicator of the ranks, each with a GPU of its own; None: there is one.

    Raises:
        ValueError, DeviceError: as of `MixedTraining` and `Group`.
    """

    precision = "bf16"
    files = 0
    """Bytes in files."""

    def __init__(
        self, nodes: Sequence[Node], params: Mapping[str, np.ndarray], rows: int, comm: Comm | None = None, *,
        group: ParameterGroup = ParameterGroup(0), clip: float = 1.0, recorded: bool = False, stream: Stream = None,  # noqa: B008 - frozen
    ) -> None:  # fmt: skip
        self._exchange, self._group = RankExchange(comm), None
        if comm is not None and len(set(comm.allgather(platform.node()))) == 1 and comm.size <= RANKS:
            self._group = Group(comm)
        hosted = comm is not None and self._group is None
        super().__init__(
            nodes, params, rows, group=group, clip=clip, recorded=recorded and not hosted, stream=stream
        )  # fmt: skip
        if hosted:
            size = -(-self.gradients.size // self._exchange.ranks) * self._exchange.ranks
            self._staged = cuda.pinned_array((size,), np.float32)
            self._staged[:] = 0

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that are held on the GPU, by KINDS."""
        mailboxes = 0 if self._group is None else self._group.nbytes
        found = super().memory
        return found | {"workspace": found["workspace"] + mailboxes}

    def mean(self, losses: Array) -> float:
        """Of all ranks' losses."""
        own = self.fetched(losses)
        self._check()
        return self._exchange.total(float(own.sum(dtype=np.float64))) / self._exchange.total(len(own))

    def loss_and_gradients(
        self, x: np.ndarray, targets: np.ndarray, *, leak: float = 0.0, weights: np.ndarray | None = None
    ) -> tuple[float, dict[str, np.ndarray]]:
        """The mean loss of all ranks' inputs and copies of its gradients, by name."""
        found = super().loss_and_gradients(x, targets, leak=leak, weights=weights)[1]
        return self.mean(self._step.losses[: len(x)]), found

    def digest(self) -> str:
        """Of the weights on this GPU."""
        return hashlib.sha256(self.fetched(self.weights).tobytes()).hexdigest()

    @property
    def steps(self) -> int:
        """That were made."""
        return self.optimiser.steps

    def save(self, path: Path, *, force: bool = False) -> None:
        """See `ShardedTraining.save`."""
        self.settle()
        if self._exchange.rank == 0:
            with training_checkpoint.writing(path, self._layout.shapes, self.steps, force) as file:
                for buffer in (self.weights, self.optimiser.first, self.optimiser.second):
                    for array in self._layout.named(self.fetched(buffer)).values():
                        file.write(np.ascontiguousarray(array).data)

    def resume(self, path: Path) -> None:
        """See `ShardedTraining.resume`."""
        self.settle()
        buffers, shapes = [], self._layout.shapes
        with training_checkpoint.reading(path, shapes) as (steps, file):
            for _ in range(3):
                arrays = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
                for array in arrays.values():
                    file.readinto(array.data)
                buffers.append(self._layout.flat(arrays))
        self._write(buffers[0])
        self.optimiser.restore({"steps": steps, "first": buffers[1], "second": buffers[2], "loss_scale": None})

    def settle(self) -> None:
        """Wait for what is under way."""
        self._stream.synchronize()
        self._check()

    def close(self) -> None:
        """Let go of the other ranks' memory."""
        self.settle()
        if self._group is not None:
            self._group.close()
            self._group = None

    def _total(self, n: int) -> int:
        return self._exchange.total(n)

    def _backward(self, stream: Stream) -> None:
        super()._backward(stream)
        if self._group is not None:
            for begin in reversed(range(0, self.gradients.size, BUCKET)):
                part = self.gradients[begin : begin + BUCKET]
                self._group.all_reduce(part, part, stream)
        elif self._exchange.ranks > 1:
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
