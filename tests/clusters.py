"""Clusters of blocks for kernels of `wgmma` in Numba's simulator, beside what `emulation` has.

The simulator runs one block after another, all with the same shared memory. Here the blocks of a cluster run at once,
each with its own.
"""

from __future__ import annotations

import ctypes
from itertools import chain

import numpy as np
from emulation import BASE, block
from emulation_hopper import Barrier, Hopper, emulate_hopper
from greenlet import getcurrent
from simulated_threads import BlockManager, run

from charcnn.gpu import ptx
from charcnn.gpu.launch import Call

RANK = 1 << 24
"""What an address of the shared window is raised by for each block of the cluster before the one that it is in."""


class PerBlock(dict):
    """A dict in which each block has keys of its own."""

    def __getitem__(self, key):
        return super().__getitem__((block(), key))

    def __setitem__(self, key, value):
        super().__setitem__((block(), key), value)

    def of(self, number, key):
        """The value that block `number` has."""
        return super().__getitem__((number, key))

    def setdefault(self, key, value):
        return super().setdefault((block(), key), value)


class Cluster(Hopper):
    """Blocks that reach each other's shared memory."""

    size = 1
    """Blocks of a cluster; a launch says how many, and how many threads each has."""
    together_now = None

    def __init__(self) -> None:
        super().__init__()
        self.barriers, self.named, self.memories = PerBlock(), PerBlock(), PerBlock()

    @property
    def memory(self):
        return self.memories["shared"]

    @memory.setter
    def memory(self, array):
        self.memories.setdefault("shared", np.full_like(array, 0xFF))  # the simulator's own is one for all blocks

    def _others(self):
        first = block() // self.size * self.size
        return range(first, first + self.size)

    def bulk_load_multicast(self, blocks):
        def copy(to, source, size, barrier):
            assert blocks == self.size
            data = np.frombuffer(ctypes.string_at(source, size), np.uint8)
            for other in self._others():
                self.memories.of(other, "shared")[to - BASE : to - BASE + size] = data
                self.barriers.of(other, barrier).count(0, -size)

        return copy

    def mapa(self, address, rank):
        return address + RANK * rank

    def mbarrier_arrive_cluster(self, address):
        rank, barrier = divmod(address, RANK)
        self.barriers.of(self._others()[rank], barrier).count(1)

    def ld_shared_cluster_v4_f32(self, address):
        rank, at = divmod(address, RANK)
        memory = self.memories.of(self._others()[rank], "shared")
        return tuple(memory[at - BASE : at - BASE + 16].view(np.float32))

    def st_async_v4_b32(self, address, a, b, c, d, barrier):
        (rank, at), (of, barrier) = divmod(address, RANK), divmod(barrier, RANK)
        other = self._others()[rank]
        assert self.size > 1  # an H100 has no such instruction where a block is alone
        assert rank == of
        assert at % 16 == 0
        self.memories.of(other, "shared")[at - BASE : at - BASE + 16].view(np.uint32)[:] = a, b, c, d
        self.barriers.of(other, barrier).count(0, -16)

    def cluster_arrive_relaxed(self):
        getcurrent().arrived = self.together_now.count(1)

    def cluster_wait(self):
        before = getcurrent().arrived
        self.together_now.wait(lambda phases: phases > before)

    def cluster_sync(self):
        before = self.together_now.count(1)
        self.together_now.wait(lambda phases: phases > before)


def emulate_clusters(monkeypatch):
    """Let kernels of `wgmma` run in the simulator, a cluster at a time."""
    from numba.cuda.simulator import kernel as simulator

    machine, begun, launch = Cluster(), {}, Call.launch
    emulate_hopper(monkeypatch, machine)

    class Manager(BlockManager):
        """Keeps a block's threads; with the last one of a cluster all run."""

        def run(self, place, *args):
            cluster = place[0] // machine.size, *place[1:]  # of a grid of several axes, its blocks do not come in a row
            begun.setdefault(cluster, []).append(self.threads(place, *args))
            if len(begun[cluster]) == machine.size:
                run(list(chain.from_iterable(begun.pop(cluster))))

    def launch_ints(call, kernel, blocks, threads, *args, shared=0, cluster=1, early=False):
        machine.__init__()
        machine.size, machine.together_now = cluster, Barrier(cluster * threads)
        args = [int(arg) if isinstance(arg, np.integer) else arg for arg in args]
        first, *rest = blocks if isinstance(blocks, tuple) else (blocks,)
        launch(call, kernel, (first * cluster, *rest), threads, *args, shared=shared)

    monkeypatch.setattr(simulator, "BlockManager", Manager)
    monkeypatch.setattr(Call, "launch", launch_ints)
    monkeypatch.setattr(ptx, "cluster_sync_relaxed", machine.cluster_sync)
    for name in (
        "bulk_load_multicast", "mapa", "mbarrier_arrive_cluster", "cluster_arrive_relaxed", "cluster_sync",
        "cluster_wait", "ld_shared_cluster_v4_f32", "st_async_v4_b32",
    ):  # fmt: skip
        monkeypatch.setattr(ptx, name, getattr(machine, name))
