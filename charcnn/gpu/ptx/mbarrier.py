"""Barriers: mbarriers in shared memory, which also count bytes, and a block's 16 named ones.

PTX ISA: "Parallel Synchronization and Communication Instructions". Addresses are of the shared window, uint32.
"""

from __future__ import annotations

from functools import cache

from charcnn.aliases import Intrinsic
from charcnn.gpu.ptx.intrinsics import instruction


@instruction("mbarrier.init.shared::cta.b64 [$0], $1;", "", "rr")
def mbarrier_init(mbarrier, count):
    """Make the 8 shared bytes at `mbarrier` one whose phase ends at `count` arrivals, and all bytes expected.

    PTX: mbarrier.init.shared::cta.b64; section "mbarrier.init". Since compute capability 8.0.
    """


@instruction("fence.mbarrier_init.release.cluster;")
def fence_mbarrier_init():
    """Let TMA and the cluster see the mbarriers that this thread made.

    PTX: fence.mbarrier_init.release.cluster; section "membar, fence". Since compute capability 9.0.
    """


@instruction("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "", "rr")
def mbarrier_arrive_expect_tx(mbarrier, size):
    """Arrive at an mbarrier, whose phase then also waits for `size` more bytes.

    PTX: mbarrier.arrive.expect_tx.shared::cta.b64; section "mbarrier.arrive". Since compute capability 9.0.
    """


@instruction("mbarrier.arrive.shared::cta.b64 _, [$0];", "", "r")
def mbarrier_arrive(mbarrier):
    """Arrive at an mbarrier.

    PTX: mbarrier.arrive.shared::cta.b64; section "mbarrier.arrive". Since compute capability 8.0.
    """


@instruction("mbarrier.arrive.shared::cluster.b64 _, [$0];", "", "r")
def mbarrier_arrive_cluster(mbarrier):
    """Arrive at an mbarrier of any block of the cluster, at an address that `mapa` gave.

    It orders no writes for other blocks, which takes a fence and the wait for all stores: enough where the block only
    read, and waited for that.

    PTX: mbarrier.arrive.shared::cluster.b64; section "mbarrier.arrive". Since compute capability 9.0.
    """


@instruction(
    "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1;\n"
    "@done bra READY;\nbra AGAIN;\nREADY:\n}",
    "",
    "rr",
)
def mbarrier_wait(mbarrier, parity):
    """Until an mbarrier's phase of this parity has ended: a new one's first phase is 0, and the one before it, 1, has.

    PTX: mbarrier.try_wait.parity.shared::cta.b64 in a loop; section "mbarrier.test_wait, mbarrier.try_wait". Since
    compute capability 9.0.
    """


@cache
def named_barrier_sync(number: int, threads: int) -> Intrinsic:
    """sync(): this warp and others, `threads` in all, arrive at the block's barrier `number`, and wait for each other.

    PTX: bar.sync number, threads; section "bar, barrier". Since compute capability 2.0.
    """

    @instruction(f"bar.sync {number}, {threads};")
    def sync():
        """See `named_barrier_sync`."""

    return sync


@cache
def named_barrier_arrive(number: int, threads: int) -> Intrinsic:
    """arrive(): as `named_barrier_sync`, but this warp does not wait.

    PTX: bar.arrive number, threads; section "bar, barrier". Since compute capability 2.0.
    """

    @instruction(f"bar.arrive {number}, {threads};")
    def arrive():
        """See `named_barrier_arrive`."""

    return arrive
