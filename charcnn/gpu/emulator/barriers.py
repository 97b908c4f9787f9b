"""mbarriers, named barriers, and clusters': PTX ISA, "Parallel Synchronization and Communication Instructions"."""

from __future__ import annotations

from charcnn.aliases import Function
from charcnn.gpu.emulator.memory import RANK
from charcnn.gpu.emulator.shared import place, remote
from charcnn.gpu.emulator.threads import PhaseBarrier, ThreadBlock, current
from charcnn.gpu.ptx.intrinsics import EMULATED, emulates

_BYTES = 8
"""Of an mbarrier."""


def mbarrier_at(address: int, block: ThreadBlock) -> PhaseBarrier:
    """The mbarrier at an address of the block's shared memory; one that nobody made is a finding."""
    at = int(address) % RANK
    if at not in block.barriers:
        current().report("barrier", f"no mbarrier was made at {at:#x}")
        block.barriers[at] = PhaseBarrier(1, block.cluster)
    return block.barriers[at]


@emulates
def mbarrier_init(mbarrier: int, count: int) -> None:
    """`ptx.mbarrier_init`."""
    block = current().block
    place(mbarrier, _BYTES, _BYTES, block, "an mbarrier takes")
    block.barriers[int(mbarrier) % RANK] = PhaseBarrier(int(count), block.cluster)


@emulates
def mbarrier_arrive_expect_tx(mbarrier: int, size: int) -> None:
    """`ptx.mbarrier_arrive_expect_tx`."""
    mbarrier_at(mbarrier, current().block).count(1, int(size))


@emulates
def mbarrier_arrive(mbarrier: int) -> None:
    """`ptx.mbarrier_arrive`."""
    mbarrier_at(mbarrier, current().block).count(1)


@emulates
def mbarrier_arrive_cluster(mbarrier: int) -> None:
    """`ptx.mbarrier_arrive_cluster`."""
    block, at = remote(mbarrier)
    mbarrier_at(at, block).count(1)


@emulates
def mbarrier_wait(mbarrier: int, parity: int) -> None:
    """`ptx.mbarrier_wait`."""
    barrier = mbarrier_at(mbarrier, current().block)
    barrier.wait(lambda phases: phases % 2 != parity, f"parity {int(parity)} of the mbarrier at {int(mbarrier):#x}")


def _named(number: int, threads: int) -> PhaseBarrier:
    block = current().block
    if number not in block.named:
        block.named[number] = PhaseBarrier(threads, block.cluster)
    return block.named[number]


@emulates
def named_barrier_arrive(number: int, threads: int) -> Function:
    """`ptx.named_barrier_arrive`."""

    def arrive() -> None:
        _named(number, threads).count(1)

    return arrive


@emulates
def named_barrier_sync(number: int, threads: int) -> Function:
    """`ptx.named_barrier_sync`."""

    def sync() -> None:
        barrier = _named(number, threads)
        before = barrier.count(1)
        barrier.wait(lambda phases: phases > before, f"barrier {number} of {threads} threads")

    return sync


@emulates
def cluster_arrive_relaxed() -> None:
    """`ptx.cluster_arrive_relaxed`."""
    thread = current()
    thread.arrived = thread.block.cluster.gate.count(1)


@emulates
def cluster_wait() -> None:
    """`ptx.cluster_wait`."""
    thread = current()
    before = thread.arrived
    thread.block.cluster.gate.wait(lambda phases: phases > before, "the cluster's barrier")


@emulates
def cluster_sync() -> None:
    """`ptx.cluster_sync`."""
    cluster_arrive_relaxed()
    cluster_wait()


EMULATED["cluster_sync_relaxed"] = cluster_sync


def _nothing() -> None:
    """Of what one thread after another has no need of."""


@emulates
def fence_proxy_async() -> None:
    """`ptx.fence_proxy_async`: only the order of accesses has one."""
    if current().block.shadow:
        current().actor.fence()


EMULATED["fence_mbarrier_init"] = _nothing
