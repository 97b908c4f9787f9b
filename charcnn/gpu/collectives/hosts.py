"""A group of GPUs of several hosts: the kernels of `Group` within a host, messages of MPI between hosts.

What goes to another host is copied to pinned pages of this one. The host sends them, and every GPU there reads the
pages in which they arrive. Such a message is a step between two graphs (`charcnn.gpu.graph.on_host`).
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from charcnn.aliases import Array, Comm, Kernel, Stream
from charcnn.gpu import device
from charcnn.gpu import graph as recording
from charcnn.gpu.collectives.group import MOST, RANKS, Group, array_of, check_begin, late, ptx_type_of
from charcnn.gpu.collectives.pieces import Piece, launch_pieces
from charcnn.gpu.collectives.regions import GpuRegion, HostRegion
from charcnn.gpu.collectives.sums import launch_sum
from charcnn.gpu.launch import Call
from charcnn.host.shared_memory import PINNED_PAGES, hosts

if TYPE_CHECKING:
    from mpi4py import MPI

ALIGNED = 256
"""Bytes at whose multiples a place in the pages begins."""

LONGEST_MESSAGE = 1 << 30
"""Bytes: MPI counts them in 31 bits."""

VALUES, HERE, LOST = range(3)
"""Tags: values; that a rank of the host has come; the rank that another one has given up."""

PATIENCE = 1.25
"""Deadlines that a rank waits for another host. The host whose rank is late then says first which one it is."""

Parts = Sequence[tuple[int, int, int]]
"""By message, the other rank, the address here and the bytes."""


Pages = tuple[GpuRegion | HostRegion, list[int]]
"""Memory of a rank, and by rank of the host the address here of its own."""


class Message(NamedTuple):
    """What a rank sends to another host, of each row, in bytes."""

    source: int
    host: int
    """The number of the host that it goes to."""
    to: int
    """The rank there that receives it, for all ranks of its host."""
    begin: int
    """In a row of the source."""
    size: int
    inbox: int
    """The number of its place among those that `to` receives."""
    outbox: int
    """The number of its place among those that the source sends."""


def messages(on: Sequence[Sequence[int]], pieces: Sequence[Sequence[Piece]]) -> list[Message]:
    """The messages between hosts that bring every rank its pieces: one from a rank to a host.

    Args:
        on: by host, its ranks.
        pieces: by the rank that gives, then by the rank that takes.
    """
    found, taken = list[Message](), [0] * len(pieces)
    for own in on:
        for at, source in enumerate(own):
            others = (number for number, ranks in enumerate(on) if ranks is not own)
            for outbox, host in enumerate(others):
                some = [piece for to in on[host] if (piece := pieces[source][to]).size]
                begin = min((piece.begin for piece in some), default=0)
                size = max((piece.begin + piece.size for piece in some), default=0) - begin
                to = on[host][at % len(on[host])]
                found.append(Message(source, host, to, begin, size, taken[to], outbox))
                taken[to] += 1
    return found


class Hosts(Group):
    """A rank of a group of GPUs of one host or several, one GPU a rank.

    It has the collectives of `Group`, and `pieces`. Sums are float32: of each host's ranks in their order, then of the
    hosts in theirs, rounded once. So all ranks get the same bits, but other hosts may give others. In a collective the
    host waits for the stream, then for messages. NumPy arrays work, too.

    Args:
        comm: an mpi4py communicator of ranks each with a GPU of its own as the current one. All call this together.
        deadline: as of `Group`. A rank waits PATIENCE times as long for another host.
        direct: whether this rank's MPI takes GPU memory. Where every rank's does, no values pass through pinned pages.

    Raises:
        ValueError: more ranks than RANKS on a host, or a deadline that is not above 0.
        DeviceError: the driver refuses to share or pin memory.
    """

    in_kernels = False

    def __init__(self, comm: Comm, *, deadline: float = 60.0, direct: bool = False) -> None:
        found = hosts(comm)
        self.rank, self.ranks, self.deadline = comm.rank, comm.size, deadline
        self.on = [[rank for rank, of in enumerate(found) if of == first] for first in dict.fromkeys(found)]
        """By host, its ranks."""
        if (most := max(map(len, self.on))) > RANKS:
            raise ValueError(f"{most} ranks on a host: a group has 1 to {RANKS} there")
        self._here = next(ranks for ranks in self.on if comm.rank in ranks)
        self._comm, self._near = comm.Dup(), comm.Split(found[comm.rank], comm.rank)
        self.near = Group(self._near, deadline=deadline, numbers=self._here)
        """The ranks of this host."""
        direct = direct and (self.near.ranks == 1 or self.near.link == "GPU memory")
        self._region = GpuRegion if all(comm.allgather(direct)) else HostRegion
        self.link = "MPI from GPU memory" if self._region is GpuRegion else PINNED_PAGES
        self.link += f", {self.near.link} within a host" * (most > 1)
        self._wide = most > 1
        """Whether sums of a host travel, which are float32."""
        self.nbytes = self.near.nbytes
        self._pages, self._half = list[Pages](), 0
        self._lost: tuple[int, int] | None = None
        """The rank that was given up, and the one that waited for it."""
        self._said = list["MPI.Request"]()

    def share(self, nbytes: int) -> list[int]:
        """Zeros of so many bytes on every rank, which those of its host can write to: by rank, their addresses here.

        All ranks call it together. A rank of another host has the address 0.
        """
        addresses = dict(zip(self._here, self.near.share(nbytes), strict=True))
        self.nbytes = self.near.nbytes
        return [addresses.get(rank, 0) for rank in range(self.ranks)]

    # Collectives

    def all_reduce(
        self, x: Array, out: Array = None, stream: Stream = 0, *, protocol: str | None = None,
        shots: int | None = None, epilogue: Kernel | None = None,
    ) -> Array:  # fmt: skip
        """The sum of all ranks' x, on every rank.

        A host's ranks add up their x. Each of them sends a part of the sum to the other hosts, where every GPU adds up
        what came.

        Args:
            x, out, stream, epilogue: as of `Group.all_reduce`.
            protocol, shots: of the sum within a host, as there.

        Returns:
            out.

        Raises:
            ValueError: as of `Group.all_reduce`, or the sum has more bytes than MOST.
            DeviceError: a rank did not come within the deadline.
        """
        x = array_of(x, stream)
        of, wire = ptx_type_of(x), "f32" if self._wide else ptx_type_of(x)
        call = Call(out, stream, tuple(x.shape), x.dtype, {"x": x.dtype}, "x", x=x)
        (own,), stream, y = call.inputs, call.stream, device.address(call.out)
        itemsize, size = 4 if wire == "f32" else x.dtype.itemsize, x.size
        check_begin(x=own, out=call.out)
        if size * itemsize > MOST:
            raise ValueError(f"x has {size:,} numbers of {itemsize} bytes between hosts: need at most {MOST:,} bytes")
        if not size:
            return call.result()
        if wire != of:
            wide = device.empty(tuple(x.shape), np.float32, stream)
            launch_sum(device.address(wide), wire, [device.address(own)], of, size, stream)
            own = wide
        if self.near.ranks > 1:
            own = self.near.all_reduce(own, own if wire != of else None, stream, protocol=protocol, shots=shots)
        shares = min(map(len, self.on))  # parts of the sum, each of which a rank of every host sends
        step = -(-size // (8 * shares)) * 8
        parts = [(begin, min(step, size - begin)) for begin in range(0, size, step)]
        pieces = [[Piece(0, 0, 0)] * self.ranks for _ in range(self.ranks)]
        for ranks in self.on:
            for rank, (begin, count) in zip(ranks, parts, strict=False):
                pieces[rank] = [Piece(begin * itemsize, count * itemsize, 0)] * self.ranks
        came = self._brought(device.address(own), size * itemsize, pieces, 1, stream)
        for at, (begin, count) in enumerate(parts):
            mine = device.address(own) + begin * itemsize
            sums = [mine if ranks is self._here else came[ranks[at]][0] for ranks in self.on]
            launch_sum(y + begin * x.dtype.itemsize, of, sums, wire, count, stream, epilogue)
        return call.result()

    def reduce_scatter(self, x: Array, out: Array = None, stream: Stream = 0, *, protocol: str | None = None) -> Array:
        """Of the sum of all ranks' x, this rank's part: it sends as much as an all-reduce.

        Args:
            x: (ranks, ...), of a dtype that `Group.all_reduce` takes.
            out: x.shape[1:].
            stream, protocol: as of `Group.all_reduce`.

        Returns:
            out, the sum's element `rank` along the first axis.

        Raises:
            ValueError, DeviceError: as of `all_reduce`, or x's first axis does not have the ranks.
        """
        x = array_of(x, stream)
        shape = self.scattered(x)
        call = Call(out, stream, shape, x.dtype, {"x": x.dtype}, x=x)
        (given,), nbytes = call.inputs, call.out.nbytes
        total = self.all_reduce(given, None, call.stream, protocol=protocol)
        begin = device.address(total) + self.rank * nbytes
        recording.copy_rows(device.address(call.out), nbytes, begin, nbytes, nbytes, 1, call.stream)
        return call.result()

    def all_gather(self, x: Array, out: Array = None, stream: Stream = 0, *, protocol: str | None = None) -> Array:
        """All ranks' x, on every rank; each goes to another host once.

        Args:
            x: of a dtype that `Group.all_reduce` takes, of the same shape on all ranks.
            out: (ranks, *x.shape).
            stream, protocol: as of `Group.all_reduce`.

        Returns:
            out, in the order of ranks.

        Raises:
            ValueError, DeviceError: as of `all_reduce`.
        """
        x = array_of(x, stream)
        ptx_type_of(x)
        call = Call(out, stream, (self.ranks, *x.shape), x.dtype, {"x": x.dtype}, x=x)
        (given,), nbytes, y = call.inputs, x.nbytes, device.address(call.out)
        pieces = [[Piece(0, nbytes, 0)] * self.ranks] * self.ranks
        came = self._brought(device.address(given), nbytes, pieces, 1, call.stream)
        near = self.near.all_gather(given, None, call.stream, protocol=protocol)
        places = {rank: place for rank, (place, *_) in came.items()}
        places |= {rank: device.address(near) + at * nbytes for at, rank in enumerate(self._here)}
        for rank, place in places.items():
            recording.copy_rows(y + rank * nbytes, nbytes, place, nbytes, nbytes, 1, call.stream)
        return call.result()

    def pieces(
        self, x: int, x_row: int, ys: Sequence[int], y_rows: Sequence[int], pieces: Sequence[Sequence[Piece]],
        rows: int, stream: Stream,
    ) -> None:  # fmt: skip
        """Start to bring every rank the other ranks' pieces of all rows; arguments and errors as of `launch_pieces`.

        A result may be written again by the next call, with nothing between them.
        """
        came = self._brought(x, x_row, pieces, rows, stream)
        here, (y, y_row) = self._here, (ys[self.rank], y_rows[self.rank])
        near = [[pieces[source][to] for to in here] for source in here]
        launch_pieces(
            self.near, x, x_row, [ys[rank] for rank in here], [y_rows[rank] for rank in here], near, rows, stream
        )
        for source, (place, row, first) in came.items():
            piece = pieces[source][self.rank]
            recording.copy_rows(y + piece.place, y_row, place + piece.begin - first, row, piece.size, rows, stream)

    def _brought(
        self, x: int, x_row: int, pieces: Sequence[Sequence[Piece]], rows: int, stream: Stream
    ) -> dict[int, tuple[int, int, int]]:
        """Start to bring this host what its ranks take from other hosts.

        Returns:
            By rank of another host, the address here of what it sent, the bytes of a row, and where in a row of the
            rank these begin.
        """
        all_ = messages(self.on, pieces)
        each = max((-(-one.size * rows // ALIGNED) * ALIGNED for one in all_), default=0)
        inboxes = max((one.inbox + 1 for one in all_), default=0)
        (region, addresses), half = self._paged(max(inboxes, len(self.on) - 1) * each), self._half
        at, here = dict(zip(self._here, addresses, strict=True)), self.on.index(self._here)
        leave, come = list[tuple[int, int, int]](), list[tuple[int, int, int]]()
        for one in all_:
            if one.source == self.rank:
                place = half + one.outbox * each
                recording.copy_rows(at[self.rank] + place, one.size, x + one.begin, x_row, one.size, rows, stream)
                leave.append((one.to, region.address + place, one.size * rows))
            if one.to == self.rank:
                come.append((one.source, region.address + one.inbox * each, one.size * rows))
        recording.on_host(stream, partial(self._exchanged, leave, come))
        return {
            one.source: (at[one.to] + one.inbox * each, one.size, one.begin) for one in all_ if one.host == here
        }  # fmt: skip

    def _paged(self, nbytes: int) -> Pages:
        """Memory for messages on every rank of the host: this rank's, and the addresses here of all.

        It has so many bytes for what comes, and then as many for what leaves. That is written while the host's other
        GPUs still read what came before. Graphs have the addresses: it is kept.
        """
        if nbytes > self._half or not self._pages:
            self._half = max(nbytes, ALIGNED)
            region = self._region(2 * self._half)
            self._pages.append((region, region.shared(self._near)))
        return self._pages[-1]

    # On the host

    def _exchanged(self, leave: Parts, come: Parts) -> None:
        """Send and receive. All GPUs of the host have read what came before, and may read what comes."""
        self._met()
        requests = list[tuple[int, "MPI.Request"]]()
        for act, parts in ((self._comm.Irecv, come), (self._comm.Isend, leave)):
            for rank, address, nbytes in parts:
                for begin in range(0, nbytes, LONGEST_MESSAGE):
                    kind = ctypes.c_uint8 * min(LONGEST_MESSAGE, nbytes - begin)
                    requests.append((rank, act(kind.from_address(address + begin), rank, VALUES)))
        self._finish(requests, PATIENCE * self.deadline)
        self._met()

    def _met(self) -> None:
        """All ranks of the host have come here."""
        others = [rank for rank in self._here if rank != self.rank]
        come = [(rank, self._comm.Irecv(bytearray(0), rank, HERE)) for rank in others]
        self._finish([*come, *((rank, self._comm.Isend(b"", rank, HERE)) for rank in others)], self.deadline)

    def _finish(self, requests: list[tuple[int, MPI.Request]], seconds: float) -> None:
        until = time.monotonic() + seconds
        self.check()
        while requests := [(rank, request) for rank, request in requests if not request.Test()]:
            self.check()
            if time.monotonic() > until:
                self._give_up(requests[0][0])
            os.sched_yield()

    def _give_up(self, lost: int) -> None:
        """Say on all ranks that one is lost."""
        self._lost, said = (lost, self.rank), np.array([lost, self.rank], np.int64)
        for rank in range(self.ranks):
            if rank != self.rank:
                with suppress(Exception):  # the rank that has died
                    self._said.append(self._comm.Isend(said, rank, LOST))
        self.check()

    def check(self) -> None:
        """Raise DeviceError if a rank did not come within the deadline, here or to another one that has said so."""
        if not self._lost and (lost := self.near.lost) is not None:
            self._give_up(lost)
        if not self._lost and self._comm.Iprobe(tag=LOST):
            said = np.empty(2, np.int64)
            self._comm.Recv(said, tag=LOST)
            self._lost = int(said[0]), int(said[1])
        if self._lost:
            raise late(*self._lost, self.deadline)

    def close(self) -> None:
        """Let go of the other ranks' memory; all ranks call it, once none computes any more."""
        for region, _ in self._pages:
            region.close()
        self._near.Barrier()  # a rank may free its memory once no other one has it open
        self._pages.clear()
        self.near.close()
