"""Kernels that may begin before those before them have ended: who touches their results before `griddepcontrol_wait`.

Launches run one after another here. So what each wrote is kept. An early kernel's accesses are held against it, until
the thread has waited, or one that a barrier orders before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from charcnn.aliases import Array, Stream, Value
from charcnn.gpu.emulator.results import Results
from charcnn.gpu.emulator.threads import LaunchConfig, current
from charcnn.gpu.ptx.intrinsics import emulates


@dataclass
class Launches:
    """Those of a context that checks: which may still run, by stream, when the next one begins."""

    running: dict[int, list[Results]] = field(default_factory=dict)

    def before(self, stream: Stream, early: bool) -> list[Results]:
        """What of the stream may still run when a launch begins."""
        return list(self.running.get(_key(stream), ())) if early else []

    def after(self, stream: Stream, launch: LaunchConfig) -> None:
        """A launch has run."""
        before = launch.running if launch.releases_early or not launch.waits else []
        self.running[_key(stream)] = [*before, launch.results]


def _key(stream: Stream) -> int:
    return id(stream) if stream else 0


def written(arrays: Sequence[np.ndarray], before: Sequence[np.ndarray], results: Results) -> None:
    """Keep which bytes of arrays a launch has changed."""
    for array, old in zip(arrays, before, strict=True):
        found = array.view(np.ndarray)
        if array.flags.c_contiguous and array.size:
            changed = found.reshape(-1).view(np.uint8) != old.reshape(-1).view(np.uint8)
            if changed.any():
                results.arrays.append((array.ctypes.data, changed, array))


def results_of(arrays: Sequence[Array]) -> Results:
    """Results that are all of these arrays."""
    found = Results()
    for array in arrays:
        held = np.asarray(array)
        found.arrays.append((held.ctypes.data, np.ones(held.nbytes, bool), array))
    return found


def touch(address: int, size: int, does: str) -> None:
    """Check an access of the running thread to global memory."""
    thread = current()
    launch, grid = thread.block.launch, thread.block.cluster.before
    if grid is None or thread.actor.knows[grid.number]:
        return
    if any(results.holds(int(address), size) for results in launch.running):
        what = f"{does} what a kernel before writes that may still run, before griddepcontrol_wait"
        thread.report("missing grid wait", what)


def touch_element(array: np.ndarray, index: int, size: int, does: str) -> None:
    """Check an access to elements of an array, from an index on."""
    if current().block.launch.running:
        touch(array.ctypes.data + int(index) * array.itemsize, size, does)


class GlobalArray(np.ndarray):
    """An argument of a kernel that begins early: its elements' accesses are checked."""

    def _look(self, at: Value, does: str) -> None:
        thread = current()
        grid, indices = thread.block.cluster.before, at if isinstance(at, tuple) else (at,)
        if grid is None or thread.actor.knows[grid.number] or len(indices) != self.ndim:
            return
        if all(isinstance(one, (int, np.integer)) for one in indices):
            places = zip(indices, self.shape, self.strides, strict=True)
            touch(self.ctypes.data + sum(int(i) % size * step for i, size, step in places), self.itemsize, does)

    def __getitem__(self, at: Value) -> Value:
        self._look(at, "reads")
        return super().__getitem__(at)

    def __setitem__(self, at: Value, value: Value) -> None:
        self._look(at, "writes")
        super().__setitem__(at, value)


@emulates
def griddepcontrol_wait() -> None:
    """`ptx.griddepcontrol_wait`: the kernels before have ended."""
    thread = current()
    if grid := thread.block.cluster.before:
        thread.block.launch.waits = True
        thread.actor.knows[grid.number] = grid.time


@emulates
def griddepcontrol_launch() -> None:
    """`ptx.griddepcontrol_launch`: the next kernel may begin."""
    thread = current()
    grid = thread.block.cluster.before
    if grid and not thread.actor.knows[grid.number]:
        thread.block.launch.releases_early = True
