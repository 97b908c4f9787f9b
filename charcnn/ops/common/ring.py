"""A ring of stages in shared memory, which one thread has filled while others read, each with two mbarriers.

The full barrier says that a stage's copies have come, the empty one that all have read it. Barriers of a kind lie one
behind the other, so a kernel has the address of the first. `Stage` says which stage is next, and which phase of its
barrier is waited for: the parity changes when the ring begins anew.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32
from charcnn.gpu.launch import jit


class Stage(NamedTuple):
    """A place in the ring, as uint32."""

    slot: Any
    parity: Any


@jit(device=True, forceinline=True)
def to_read():
    """The first stage, for those who read: its first phase has ended when it is full."""
    return Stage(uint32(0), uint32(0))


@jit(device=True, forceinline=True)
def to_fill():
    """The first stage, for whoever fills: of a new mbarrier the phase before the first has ended, so none waits."""
    return Stage(uint32(0), uint32(1))


@jit(device=True, forceinline=True)
def barrier(barriers, stage):
    """The address of the stage's mbarrier, among those that begin at `barriers`."""
    return barriers + stage.slot * 8


@jit(device=True, forceinline=True)
def wait(barriers, stage):
    """Until the stage is full, or empty."""
    ptx.mbarrier_wait(barriers + stage.slot * 8, stage.parity)


@jit(device=True, forceinline=True)
def arrive(barriers, stage):
    """At the stage's mbarrier: it was read."""
    ptx.mbarrier_arrive(barriers + stage.slot * 8)


def make_advance(stages: int, turns: bool = True) -> Any:
    """The device function advance(stage): the next one. A ring that is filled once for all never `turns` its parity."""
    flip = 1 if turns else 0

    @jit(device=True, forceinline=True)
    def advance(stage):
        if stage.slot + 1 == stages:
            return Stage(uint32(0), stage.parity ^ flip)
        return Stage(stage.slot + 1, stage.parity)

    return advance


def make_before(stages: int) -> Any:
    """The device function before(stage): the place of the one before, recomputed: a kernel has no register for it."""

    @jit(device=True, forceinline=True)
    def before(stage):
        return Stage((stage.slot if stage.slot > 0 else uint32(stages)) - 1, stage.parity)

    return before


def make_init(stages: int, readers: int) -> Any:
    """The device function init(full, empty): one thread fills a stage, and so many arrive when it was read."""

    @jit(device=True, forceinline=True)
    def init(full, empty):
        for i in range(stages):
            ptx.mbarrier_init(full + i * 8, 1)
            ptx.mbarrier_init(empty + i * 8, readers)

    return init
