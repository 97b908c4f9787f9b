"""Threads of a grid without threads of the host: each is a greenlet, of which one runs until it waits.

Numba's simulator starts a thread of the host for each of a block, and watches for barriers in a loop, which takes most
of its time. Here which warp is first, and which lane of it, changes from turn to turn, and a warp goes as far as it
can, so that what a missing barrier leaves to chance goes wrong at once. Threads that all wait for ever are an error.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from charcnn.aliases import Value
from charcnn.gpu.emulator.coroutines import getcurrent, greenlet
from charcnn.gpu.emulator.findings import EmulatorError, Findings, place_of
from charcnn.gpu.emulator.memory import UNWRITTEN, SharedMemory
from charcnn.gpu.emulator.order import Actor, History, Shadow, Where
from charcnn.gpu.emulator.results import Results
from charcnn.gpu.emulator.swizzle import Pieces

LANES = 32
"""Threads of a warp."""

WARPGROUP = 128
"""Threads of a warpgroup."""


class Dim3(NamedTuple):
    """Of a thread in its block, of a block in the grid; or the size of either."""

    x: int
    y: int
    z: int


Size = int | Sequence[int]
"""Along x, or along up to three axes."""


def sizes(size: Size) -> Dim3:
    """With all axes."""
    given = tuple(size) if isinstance(size, Sequence) else (size,)
    return Dim3(*(int(one) for one in (*given, 1, 1)[:3]))


class Gate:
    """A barrier that all living threads of a block (`cuda.syncthreads`) or of a warp (`cuda.syncwarp`) reach."""

    def __init__(self, threads: int, history: History | None = None) -> None:
        self.living, self.waiting, self.phases, self._history = threads, 0, 0, history

    def _end_phase(self) -> None:
        if self.waiting and self.waiting == self.living:
            self.waiting, self.phases = 0, self.phases + 1
            if self._history:
                self._history.end_phase()

    def leave(self) -> None:
        """A thread has ended: nobody waits for it."""
        self.living -= 1
        self._end_phase()

    def synchronise(self, what: str) -> None:
        """Wait for the others."""
        before, self.waiting = self.phases, self.waiting + 1
        if self._history:
            self._history.arrive(current().actor)
        self._end_phase()
        wait(lambda: self.phases > before, what)
        if self._history:
            current().actor.join(self._history.published)


class Meeting:
    """Of so many threads, again and again: the last to come does the work of all.

    What it made is kept until all have come to the next one, so that nobody waits for those who still read it.
    """

    def __init__(self, size: int) -> None:
        self._given: list[Value] = [None] * size
        self._made: list[list[Value]] = [[], []]
        self._turn, self._come, self._met = [0] * size, 0, 0

    def result(self, place: int, value: Value, work: Callable[[list[Value]], Iterable[Value]], what: str) -> Value:
        """What the work makes of the values of all, of which this is the one at `place`."""
        turn, self._given[place], self._come = self._turn[place], value, self._come + 1
        if self._come == len(self._given):
            self._made[turn % 2], self._come, self._met = list(work(self._given)), 0, turn + 1
        else:
            wait(lambda: self._met > turn, what)
        self._turn[place] = turn + 1
        return self._made[turn % 2][place]


class PhaseBarrier:
    """A named barrier, an mbarrier, or a cluster's: a phase ends with so many arrivals, and all bytes expected."""

    def __init__(self, arrivals: int, cluster: Cluster) -> None:
        self.arrivals = self.missing = arrivals
        self.bytes = self.phases = 0
        self.history = None if cluster.actors is None else History()
        self.copies = None if cluster.actors is None else Actor(cluster.actors, "copy")
        """Counts those that land for an mbarrier."""

    def count(self, arrivals: int, size: int = 0, by: Thread | None = None, where: Where | None = None) -> int:
        """Arrivals, and bytes to wait for, or less than none that came; the phases that had ended before."""
        self.missing, self.bytes, before = self.missing - arrivals, self.bytes + size, self.phases
        if self.history and arrivals:
            self.history.arrive(current().actor)
        if self.missing < 0:
            (by or current()).report("barrier", f"more arrivals than the {self.arrivals} of a phase")
            self.missing = 0
        if self.missing == 0 and self.bytes < 0:
            said = f"{-self.bytes} bytes come that no arrival of the phase expects"
            (by or current()).report("missing expect_tx", said, where)
            self.bytes = 0
        if self.missing == self.bytes == 0:
            self.missing, self.phases = self.arrivals, before + 1
            if self.history:
                self.history.end_phase()
        return before

    def land(self, size: int, by: Thread, where: Where) -> None:
        """Bytes of a copy are there, which this thread began in this line."""
        if self.history and self.copies:
            self.history.pending.knows[self.copies.number] = self.copies.time
        self.count(0, -size, by, where)

    def wait(self, ended: Callable[[int], bool], what: str) -> None:
        """Until that is so of the phases that have ended."""
        wait(lambda: ended(self.phases), f"{what}, of whose phase {self._lacks()}")
        if self.history:
            thread = current()
            thread.actor.join(self.history.published)
            thread.passed[self, self.phases] = thread.passed.get((self, self.phases), 0) + 1
            thread.waited[self] = place_of(sys._getframe(1))

    def _lacks(self) -> str:
        return f"{self.missing} of {self.arrivals} arrivals and {self.bytes} bytes are missing"


@dataclass
class LaunchConfig:
    """One launch of a kernel: what all its threads share."""

    grid: Dim3
    """Blocks."""
    block: Dim3
    """Threads of a block."""
    shared: int
    """Bytes of dynamic shared memory."""
    cluster: int
    seed: int
    findings: Findings | None = None
    """Where what is found goes; None: it is raised."""
    running: list[Results] = field(default_factory=list)
    """Of launches that may still run when this one begins."""
    results: Results = field(default_factory=Results)
    waits: bool = False
    """Whether a thread has waited for them."""
    releases_early: bool = False
    """Whether one let the next kernel begin before it had waited."""
    unwritten: int = UNWRITTEN

    @classmethod
    def of(
        cls, clusters: Size, threads: Size, shared: int, cluster: int, seed: int = 0, findings: Findings | None = None
    ) -> LaunchConfig:
        """Of a grid of so many clusters."""
        grid = sizes(clusters)
        return cls(Dim3(grid.x * cluster, grid.y, grid.z), sizes(threads), shared, cluster, seed, findings)


class ThreadBlock:
    """What the threads of a block share."""

    def __init__(self, launch: LaunchConfig, index: Dim3, rank: int, cluster: Cluster) -> None:
        threads = launch.block.x * launch.block.y * launch.block.z
        self.launch, self.index, self.rank, self.cluster = launch, index, rank, cluster
        checked = cluster.actors is not None
        self.gate, self.size = Gate(threads, History() if checked else None), threads
        self.memory = SharedMemory(launch.shared, launch.unwritten, rank)
        self.shadow = Shadow(len(self.memory.bytes), cluster.actors) if cluster.actors is not None else None
        """Of what is checked: who wrote and read last."""
        self.pieces = Pieces(len(self.memory.bytes)) if checked else None
        self.warps: list[Actor] = []
        """In the order of accesses, where that is checked."""
        self.helpers: dict[tuple[str, int], Actor] = {}
        """What counts for the products of a warpgroup, and for the bulk stores of a warp."""
        self.barriers: dict[int, PhaseBarrier] = {}
        """mbarriers, by address."""
        self.named: dict[int, PhaseBarrier] = {}
        """The sixteen of `bar.sync`."""
        self.meetings: dict[tuple[int, int], Meeting] = {}
        self.watched: dict[tuple[Value, ...], np.ndarray] = {}
        """Shared arrays whose accesses are checked, by address, type and shape."""

    def together(
        self, thread: Thread, size: int, value: Value, work: Callable[..., Iterable[Value]], what: str
    ) -> Value:
        """What the work makes of the values of so many neighbouring threads, such as a warp."""
        group, place = divmod(thread.number, size)
        meeting = self.meetings.get((size, group))
        if meeting is None:
            meeting = self.meetings[size, group] = Meeting(min(size, self.size - group * size))
        return meeting.result(place, value, work, what)


@dataclass
class Cluster:
    """Blocks that run at once, and reach each other's shared memory."""

    launch: LaunchConfig
    blocks: list[ThreadBlock] = field(default_factory=list)
    actors: list[Actor] | None = None
    """All whose order is kept; None where nothing is checked."""
    under_way: list[Callable[[], None]] = field(default_factory=list)
    """Copies by TMA that have not landed."""
    before: Actor | None = None
    """What those who have waited for the kernels before know; None where none may still run."""
    gate: PhaseBarrier = field(init=False)
    """What `barrier.cluster` waits at."""

    def __post_init__(self) -> None:
        block = self.launch.block
        if self.launch.findings is not None:
            self.actors = []
            if self.launch.running:
                self.before = Actor(self.actors, "grid")
        self.gate = PhaseBarrier(self.launch.cluster * block.x * block.y * block.z, self)


class Registers(np.ndarray):
    """A thread's local array, where accumulators are checked."""

    fences = 0
    """That its thread had passed when it was written last."""

    def __setitem__(self, at: Value, value: Value) -> None:
        self.fences = current().fences
        super().__setitem__(at, value)


class Thread(greenlet):
    """A thread of a block, whose kernel begins when it is first switched to."""

    ready: Callable[[], bool] | None = None
    """What it waits for."""
    waits_for = ""
    """In words."""
    polls = False
    """Whether it looks again and again at what other processes write."""
    atomic = False
    """Whether what it does now is an atomic operation."""
    arrived = 0
    """Phases of the cluster's barrier that had ended when it arrived there."""

    def __init__(
        self, kernel: Callable[[], None], block: ThreadBlock, index: Dim3, number: int, warp: Gate, actor: Actor | None
    ) -> None:
        super().__init__(kernel)
        self._actor = actor
        self.block, self.blockIdx, self.threadIdx, self.number, self.warp = block, block.index, index, number, warp
        self.copies: list[list[Callable[[], None]]] = [[]]
        """Groups of cp.async, of which the last one is open."""
        self.stores: list[list[Callable[[], None]]] = [[]]
        """Groups of bulk stores, likewise."""
        self.products: list[tuple[Sequence[Registers], int]] = []
        """Accumulators of wgmma under way, and when it was started."""
        self.fences = 0
        """`wgmma_fence`s that it has passed."""
        self.passed: dict[tuple[PhaseBarrier, int], int] = {}
        """How often it passed a barrier after so many phases."""
        self.waited: dict[PhaseBarrier, tuple[str, int]] = {}
        """Where it waited at a barrier last."""

    @property
    def actor(self) -> Actor:
        """Its warp, in the order of accesses; only where that is checked."""
        assert self._actor is not None
        return self._actor

    def turn(self) -> bool:
        """Run until it waits or ends; whether it did anything."""
        if self.ready and not self.ready():
            return False
        self.ready, self.polls = None, False
        try:
            self.switch()
        except EmulatorError:
            raise
        except Exception as error:
            if isinstance(error, IndexError) and self.block.launch.findings is not None and error.__traceback__:
                frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
                self.report("out of bounds", str(error), frames[-1])
                self._ended()
                return True
            where = f"{self.threadIdx} of block {self.blockIdx}: {error}"
            raise type(error)(where).with_traceback(error.__traceback__) from None
        if self.dead:
            self._ended()
        return True

    def _ended(self) -> None:
        self.block.gate.leave()
        self.warp.leave()

    def report(self, kind: str, text: str, place: tuple[str, int] | None = None) -> None:
        """A mistake of the kernel in a line, that which this thread is in: kept where findings are, else raised."""
        file, line = place or place_of(sys._getframe(1))
        where = f"thread {tuple(self.threadIdx)} of block {tuple(self.blockIdx)}: {text}"
        findings = self.block.launch.findings
        if findings is None:
            raise EmulatorError(kind, file, line, where)
        findings.add(kind, file, line, where)


def in_kernel() -> bool:
    """Whether a thread of a kernel runs."""
    return type(getcurrent()) is Thread


def current() -> Thread:
    """The thread that runs.

    Raises:
        NotImplementedError: none does.
    """
    thread = getcurrent()
    if type(thread) is not Thread:
        raise NotImplementedError("only in a kernel that runs: this is an instruction of a GPU's thread")
    return thread


def wait(ready: Callable[[], bool], what: str) -> None:
    """Give way to other threads until that is so."""
    if not ready():
        thread = current()
        thread.ready, thread.waits_for = ready, what
        thread.parent.switch()


LANDING = ("at once", "late", "now and then")
"""When copies by TMA land, by the seed."""


def run(threads: Sequence[Thread], order: random.Random) -> None:
    """Run them to their ends: each time another warp, as far as it comes without the others.

    Where the seed is odd, one warp runs only while all others wait, or look again and again at what it may write.
    """
    warps = [list(threads[first : first + LANES]) for first in range(0, len(threads), LANES)]
    seed, under_way = (cluster := threads[0].block.cluster).launch.seed, cluster.under_way
    late = order.choice(warps) if seed % 2 else None
    try:
        while warps:
            order.shuffle(warps)
            moved = [_advance(warp, order) for warp in warps if warp is not late]
            polled = any(one.polls for warp in warps for one in warp)
            if late and (polled or not any(moved)):
                moved.append(_advance(late, order))
            if under_way and (polled or not any(moved) or (seed % len(LANDING) == 2 and order.random() < 0.5)):
                under_way.pop(order.randrange(len(under_way)))()
                moved = [True]
            if not any(moved):
                _stuck([thread for warp in warps for thread in warp])
                return
            warps = [warp for warp in warps if warp]
    finally:
        for thread in threads:  # of which one failed: others would keep what they hold until nobody knows of them
            thread.throw()


def _advance(warp: list[Thread], order: random.Random) -> bool:
    """Run a warp until all its lanes wait for others; those that end are left out. Whether any did anything."""
    moved = False
    while True:
        order.shuffle(warp)
        turns = [thread.turn() for thread in warp]
        if not any(turns):
            return moved
        moved, warp[:] = True, [thread for thread in warp if not thread.dead]
        if any(one.polls for one in warp) and all(one.polls or (one.ready and not one.ready()) for one in warp):
            return moved  # to other warps, and processes


def _stuck(threads: Sequence[Thread]) -> None:
    """Report threads that wait for ever: once for each line in which some do."""
    first: dict[tuple[str, int], list[Thread]] = {}
    for thread in sorted(threads, key=lambda one: (one.blockIdx, one.number)):
        first.setdefault(place_of(thread.gr_frame), []).append(thread)
    for place, alike in first.items():
        alike[0].report("deadlock", f"{len(alike)} threads wait for ever, for {alike[0].waits_for}", place)
