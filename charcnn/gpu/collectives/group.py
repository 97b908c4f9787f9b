"""A rank's side of a group of GPUs that exchange arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import cuda

from charcnn.aliases import Array, Comm, Kernel, Stream
from charcnn.gpu import device
from charcnn.gpu.arrays import shape_of
from charcnn.gpu.collectives import kernels
from charcnn.gpu.collectives.protocols import BLOCKS, CAPACITIES, PROTOCOLS, VECTOR, Mailboxes
from charcnn.gpu.collectives.regions import GpuRegion, HostRegion, opens, reaches
from charcnn.gpu.device import SIMULATED, DeviceError
from charcnn.gpu.launch import Call
from charcnn.gpu.zero_copy import Mapped
from charcnn.host.shared_memory import hosts
from charcnn.layers.layer import Shape

LONGEST = 1_000_000
"""Seconds of a deadline, at most."""

SHOTS = {1: "all_reduce", 2: "two_shot"}
"""How often values travel in an all-reduce: the kernel."""

RANKS = 8
"""Of a group, at most."""

MOST = (1 << 32) - 1
"""Bytes of an array: a kernel counts them in 32 bits."""

LINES_UP_TO = 1 << 18
"""Bytes that a rank sends as lines; more as tiles."""

TWO_SHOT_FROM = 1 << 18
"""Bytes that more than two ranks add up in two shots."""


class Group:
    """A rank of a group of GPUs of one host, one a rank.

    All ranks call the same methods in the same order, with arrays of the same sizes and dtypes. What differs is not
    noticed, and gives wrong numbers. Each call's kernels run in the order of the calls: on one stream, or on streams
    that wait for each other. That holds for all groups of a GPU and NCCL together: kernels that wait for other GPUs in
    different orders wait for ever. Sums are of float32, in the order of ranks, rounded once: the same bits on all
    ranks. A group that gave up a rank stays unusable.

    Args:
        comm: an mpi4py communicator of ranks on one host, each with a GPU of its own as the current one. All call this
            together.
        collectives: whether there is memory for these; else there are `share`, `waiting` and `check` alone.
        deadline: seconds, default 60: how long a kernel waits for another rank's. Then it gives up, all ranks' later
            calls end at once, their results are worth nothing, and `check` raises.
        numbers: of the ranks, as errors name them; as in `comm` where None.

    Raises:
        ValueError: more ranks than RANKS, ranks of several hosts, or a deadline that is not above 0.
        DeviceError: the driver refuses to share memory.
    """

    in_kernels = True
    """Whether kernels do all that an exchange takes."""

    def __init__(
        self, comm: Comm, *, deadline: float = 60.0, collectives: bool = True, numbers: Sequence[int] | None = None
    ) -> None:  # fmt: skip
        if not 1 <= comm.size <= RANKS:
            raise ValueError(f"{comm.size} ranks: a group has 1 to {RANKS}")
        if not 0 < deadline <= LONGEST:
            raise ValueError(f"{deadline=}: need seconds above 0, and at most {LONGEST:,}")
        self.rank, self.ranks, self.deadline = comm.rank, comm.size, deadline
        self._numbers = numbers or range(comm.size)
        self._gpu = device.current()
        gpu = None if SIMULATED else device.pci_address(self._gpu)
        if any(found := hosts(comm)):
            raise ValueError(
                f"ranks on {len(set(found))} hosts: need one, whose memory all GPUs reach; start ranks on one "
                "(what takes a group of `Hosts` runs on several)"
            )
        gpus, multiprocessors = zip(*comm.allgather((gpu, device.multiprocessors())), strict=True)
        peers = not SIMULATED and len(set(gpus)) == len(gpus) and all(comm.allgather(_all_reach(gpus))) and opens(comm)
        self.link = "GPU memory" if peers else "host memory"
        """Where values lie that a rank sends: the other GPU's memory, or, where GPUs do not reach that, the host's."""
        self.blocks = min(BLOCKS, *multiprocessors)
        """Of a kernel at most: on each GPU all run at once."""
        self._fault = Mapped((1,), np.uint32)
        self._fault.host[:] = 0
        self._comm, self._shared = comm, list[GpuRegion | HostRegion]()
        self.nbytes = 0
        """Bytes of this rank's memory that others write to."""
        addresses = self.share(Mailboxes(self.ranks).nbytes) if collectives else ()
        behind = ((self.rank + away) % self.ranks for away in range(self.ranks)) if collectives else ()
        self.regions: tuple[np.uint64, ...] = tuple(np.uint64(addresses[rank]) for rank in behind)
        """Addresses of the ranks' regions: this rank's first, then those of the ranks behind it."""

    def share(self, nbytes: int) -> list[int]:
        """Zeros of so many bytes on every rank, which all can write to: by rank, their addresses on this one.

        All ranks call it together.
        """
        region = GpuRegion(nbytes) if self.link == "GPU memory" else HostRegion(nbytes)
        self._shared.append(region)
        self.nbytes += nbytes
        addresses = region.shared(self._comm)
        self._comm.Barrier()
        return addresses

    # Collectives

    def all_reduce(
        self, x: Array, out: Array = None, stream: Stream = 0, *, protocol: str | None = None,
        shots: int | None = None, epilogue: Kernel | None = None,
    ) -> Array:  # fmt: skip
        """The sum of all ranks' x, on every rank.

        Args:
            x: float32, float16 or uint16, which is bfloat16, C-contiguous, on this rank's GPU, of Numba, CuPy or
                PyTorch; or NumPy's. Of the same shape on all ranks, which may be any.
            out: where the sum goes, of x's shape and dtype; x itself will do. A new array where None.
            stream: a CUDA stream, as all operators take it.
            protocol: lines or tiles, default by size.
            shots: 1: each rank adds up everything; 2: each its part, which it sends to all. Default by size.
            epilogue: a device function of a float32, which each sum passes through before it is rounded.

        Returns:
            out.

        Raises:
            ValueError: an array has another dtype or order, or begins at no multiple of 16 bytes.
        """
        x = array_of(x, stream)
        if shots is None:
            shots = 2 if self.ranks > 2 and x.nbytes >= TWO_SHOT_FROM else 1
        if shots not in SHOTS:
            raise ValueError(f"{shots=}: need 1 or 2")
        kind = SHOTS[shots]
        return self._exchange(kind, x, tuple(x.shape), out, stream, x.size, protocol, "x", epilogue)

    def reduce_scatter(self, x: Array, out: Array = None, stream: Stream = 0, *, protocol: str | None = None) -> Array:
        """Of the sum of all ranks' x, this rank's part.

        Args:
            x: as of `all_reduce`, of shape (ranks, ...).
            out: x.shape[1:].
            stream, protocol: as of `all_reduce`.

        Returns:
            out, the sum's element `rank` along the first axis.

        Raises:
            ValueError: as of `all_reduce`, or x's first axis does not have the ranks.
        """
        x = array_of(x, stream)
        return self._exchange(
            "reduce_scatter", x, self.scattered(x), out, stream, x.size // self.ranks, protocol
        )  # fmt: skip

    def scattered(self, x: Array) -> Shape:
        """The shape of a rank's part of x.

        Raises:
            ValueError: its first axis does not have the ranks.
        """
        shape = tuple(x.shape)
        if shape[:1] != (self.ranks,):
            raise ValueError(f"x has shape {shape}: need {self.ranks} along the first axis, the ranks")
        return shape[1:]

    def all_gather(self, x: Array, out: Array = None, stream: Stream = 0, *, protocol: str | None = None) -> Array:
        """All ranks' x, on every rank.

        Args:
            x: as of `all_reduce`.
            out: (ranks, *x.shape).
            stream, protocol: as of `all_reduce`.

        Returns:
            out, in the order of ranks.

        Raises:
            ValueError: as of `all_reduce`.
        """
        x = array_of(x, stream)
        return self._exchange("all_gather", x, (self.ranks, *x.shape), out, stream, x.size, protocol)

    def _exchange(
        self, kind: str, x: Array, shape: Shape, out: Array, stream: Stream, size: int,
        protocol: str | None, in_place: str = "", epilogue: Kernel | None = None,
    ) -> Array:  # fmt: skip
        ptx_type = ptx_type_of(x)
        call = Call(out, stream, shape, x.dtype, {"x": x.dtype}, in_place, x=x)
        nbytes = size * x.dtype.itemsize
        protocol = protocol if protocol is not None else tiled(nbytes // self.ranks if kind == "two_shot" else nbytes)
        if protocol not in PROTOCOLS:
            raise ValueError(f"{protocol=}: need one of {', '.join(PROTOCOLS)}")
        (given,) = call.inputs
        check_begin(x=given, out=call.out)
        halves = nbytes // kernels.HALF
        if (whole := max(x.nbytes, call.out.nbytes)) > MOST:
            raise ValueError(f"x has {x.nbytes:,} bytes, with out {whole:,}: need at most {MOST:,}")
        vectors = -(-halves // kernels.PER)
        threads = kernels.THREADS[protocol]
        blocks = min(self.blocks, -(-vectors // threads))
        count = min(CAPACITIES[protocol], -(-vectors // max(blocks, 1)))
        early = device.begins_early()
        kernel = kernels.make_exchange(kind, ptx_type, self.ranks, protocol, early, epilogue)
        places = (np.uint64(device.address(array)) for array in (given, call.out))
        numbers = map(np.uint32, (self.rank, halves, count))
        call.launch(kernel, blocks, threads, *places, self.regions, *numbers, *self.waiting, early=early)
        return call.result()

    @property
    def waiting(self) -> tuple[np.uint64, np.uint64]:
        """Nanoseconds that a kernel waits, and where it writes the number of a rank that did not come, plus 1."""
        return np.uint64(self.deadline * 1e9), np.uint64(device.address(self._fault.device))

    @property
    def lost(self) -> int | None:
        """The number of a rank that did not come within the deadline."""
        found = int(self._fault.host[0])
        return self._numbers[found - 1] if found else None

    def check(self) -> None:
        """Raise DeviceError if a rank did not come within the deadline: what was computed since is worth nothing."""
        if (lost := self.lost) is not None:
            raise late(lost, self._numbers[self.rank], self.deadline)

    def close(self) -> None:
        """Let go of the other ranks' memory; all ranks call it, once none computes any more."""
        with cuda.gpus[self._gpu]:
            for region in self._shared:
                region.close()
            self._comm.Barrier()  # a rank may free its memory once no other one has it open
            self._shared.clear()


def late(lost: int, rank: int, deadline: float) -> DeviceError:
    """The error on a rank that has waited for another one."""
    return DeviceError(
        f"rank {lost} did not come within {deadline:g} s to where rank {rank} waited for it: it has died, hangs or "
        "computes something else"
    )


def check_begin(**arrays: Array) -> None:
    """Raise ValueError where an array does not begin as kernels read it."""
    for name, array in arrays.items():
        if device.address(array) % VECTOR:
            raise ValueError(f"{name} does not begin at a multiple of {VECTOR} bytes: need an array that does")


def tiled(nbytes: int) -> str:
    """The protocol for so many bytes from a rank."""
    return "lines" if nbytes <= LINES_UP_TO else "tiles"


def array_of(x: Array, stream: Stream) -> Array:
    """An array of any library's as NumPy's or Numba's."""
    shape_of("x", x)
    return device.as_device_array(x, device.as_stream(stream)) if device.on_device(x) else x


def ptx_type_of(x: Array) -> str:
    """PTX's name of an array's numbers."""
    found = {"float32": "f32", "float16": "f16", "uint16": "bf16"}.get(str(x.dtype))
    if found is None:
        raise ValueError(f"x has dtype {x.dtype}: need float32, float16, or uint16 for bfloat16")
    return found


def _all_reach(addresses: Sequence[str]) -> bool:
    """Whether this process sees the GPUs at these PCI addresses, and each reaches the others' memory."""
    seen = {device.pci_address(gpu): gpu for gpu in range(len(cuda.gpus))}
    return all(at in seen for at in addresses) and reaches([seen[at] for at in addresses])
