"""What the root of the farm knows: the ranks, the chunks that each has, and those that wait for another rank."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from charcnn.aliases import Comm
from charcnn.offload import messages
from charcnn.offload.inputs import Part
from charcnn.offload.scheduler import Scheduler
from charcnn.runtime.timeline import Timeline


@dataclass
class Member:
    """A rank, as the root knows it."""

    rank: int
    host: str = "?"
    state: str = "starting"
    """starting, ready, closed; or lost: left (it said why), dead (MPI said so), hung (a deadline passed)."""
    why: str = ""
    inputs: int = 0
    seconds: float = 0.0
    """From the first chunk it was given in each run to its last logits."""
    closing: Any = None
    """What it sent in the end."""
    pid: int = 0
    heard: float = 0.0
    """When it last gave a sign of life, before it was ready."""
    beats: bool = True
    """Whether it gives any while it builds."""
    lag: float = 0.0
    slots: int = 0
    slowest: float = 0.0
    killed: bool = False
    began: float | None = None
    last: float = 0.0
    returned: int = 0
    """Of this run: when its first chunk left, when its last logits came, and of how many inputs."""
    away: dict[int, Part] = field(default_factory=dict)

    @property
    def lost(self) -> bool:
        """Whether it works no more."""
        return self.state in ("left", "dead", "hung")

    def count(self, inputs: int, first: float, now: float) -> None:
        """Logits came."""
        self.inputs += inputs
        self.returned += inputs
        self.seconds += now - (first if self.began is None else self.last)
        self.began, self.last = first if self.began is None else self.began, now

    def rate(self) -> float:
        """Inputs a second in this run; 0 where nothing has come yet."""
        return self.returned / (self.last - self.began) if self.began is not None else 0.0


@dataclass
class FarmState:
    """What both halves of the root read and change: `Farm` hears the workers, `WorkList` gives chunks out.

    Only tasks of the scheduler change it, which take turns in one thread.
    """

    comm: Comm | None
    length: int
    classes: int
    size: int
    """The most inputs of a chunk."""
    depth: int
    deadline: float | None
    root_computes: bool
    timeline: Timeline
    root: Member
    workers: list[Member]
    scheduler: Scheduler
    returned: deque[Part] = field(default_factory=deque)
    """Chunks of ranks that were lost, which wait for another one."""
    retries: int = 0
    """How many chunks were given to another rank, because the first one was lost."""
    root_error: Exception | None = None
    """Why the root itself cannot compute."""
    kept: dict[tuple[int, int], Any] = field(default_factory=dict)
    """Chunks and buffers, also of lost ranks, where MPI may still write."""

    def there(self) -> list[Member]:
        """The workers that are neither lost nor closed."""
        return [member for member in self.workers if member.state in ("starting", "ready")]

    @contextmanager
    def losing(self, member: Member) -> Iterator[None]:
        """A block in which an error of MPI means that the worker is dead."""
        try:
            yield
        except Exception as error:
            if self.comm is None or not isinstance(error, messages.mpi_error()):
                raise
            self.lose(member, "dead", str(error))

    def lose(self, member: Member, state: str, why: str) -> None:
        """The rank works no more: its chunks go to others."""
        if member.lost or member.state == "closed":
            return
        member.state, member.why = state, why
        self.reassign(member)
        if state == "hung" and member.host == self.root.host and member.pid and messages.survives_deaths():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(member.pid, signal.SIGKILL)  # else mpiexec would wait for it for ever, and it keeps its memory
                member.killed = True
        self.scheduler.wake.set()

    def reassign(self, member: Member) -> None:
        """Have the chunks of a rank that was lost computed by others.

        Raises:
            Exception: why the root cannot compute, where nobody else is there.
        """
        self.retries += len(member.away)
        self.returned.extend(part for _, part in sorted(member.away.items()))
        member.away.clear()
        if self.root_error is not None and not self.there():
            raise self.root_error

    def forget(self) -> None:
        """A run has ended, one way or the other: nobody has a chunk of it, and none waits."""
        self.returned.clear()
        self.root_error = None
        for member in (self.root, *self.workers):
            member.away.clear()
