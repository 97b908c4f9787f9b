"""A thread's place, clusters of blocks, words from block to block, the time, and kernels that overlap.

PTX ISA: "Special Registers", "griddepcontrol".
"""

from __future__ import annotations

import time

from charcnn.gpu.device import HOPPER
from charcnn.gpu.ptx.intrinsics import instruction

_NOTHING = {HOPPER: ""}
"""Before Hopper."""


@instruction("mov.u32 $0, %tid.x;", "r")
def tid_x():
    """`cuda.threadIdx.x`, read anew: what is computed from it is not kept in registers from earlier on.

    PTX: mov.u32 from %tid.x; section "Special Registers: %tid". Any compute capability.
    """


@instruction("mov.u32 $0, %globaltimer_lo;", "r", simulated=lambda: time.perf_counter_ns() & 0xFFFFFFFF)
def globaltimer_lo():
    """Nanoseconds of the GPU's own clock, the lower 32 bits; uint32.

    PTX: mov.u32 from %globaltimer_lo; section "Special Registers: %globaltimer". Any compute capability.
    """


@instruction("mapa.shared::cluster.u32 $0, $1, $2;", "r", "rr")
def mapa(address, rank):
    """Where an address of shared memory lies in the cluster's block `rank`, for what reaches the whole cluster; uint32.

    PTX: mapa.shared::cluster.u32; section "mapa". Since compute capability 9.0.
    """


@instruction("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;")
def cluster_sync():
    """Until all threads of all of the cluster's blocks are here, less those that have ended.

    PTX: barrier.cluster.arrive.release and barrier.cluster.wait.acquire; section "barrier.cluster". Since compute
    capability 9.0.
    """


@instruction("barrier.cluster.arrive.relaxed;")
def cluster_arrive_relaxed():
    """Say that this thread is here; each then calls `cluster_wait`. Nothing that was written need be seen.

    PTX: barrier.cluster.arrive.relaxed; section "barrier.cluster". Since compute capability 9.0.
    """


@instruction("barrier.cluster.wait.acquire;")
def cluster_wait():
    """Until all threads of all of the cluster's blocks have called `cluster_arrive_relaxed`, or ended.

    PTX: barrier.cluster.wait.acquire; section "barrier.cluster". Since compute capability 9.0.
    """


@instruction("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;")
def cluster_sync_relaxed():
    """`cluster_sync`, but nothing that was written need be seen: none ends before all have read its shared memory.

    PTX: barrier.cluster.arrive.relaxed and barrier.cluster.wait; section "barrier.cluster". Since compute capability
    9.0.
    """


@instruction("st.release.gpu.global.b32 [$0], $1;", "", "lr")
def st_release_gpu_b32(address, word):
    """A word to global memory: what acquires it on this GPU sees what this thread saw and wrote before.

    PTX: st.release.gpu.global.b32; section "st". Since compute capability 7.0.
    """


@instruction("ld.acquire.gpu.global.b32 $0, [$1];", "r", "l")
def ld_acquire_gpu_b32(address):
    """A word, uint32, and with it the sight of all that its writer, on this GPU, saw and wrote before it released it.

    PTX: ld.acquire.gpu.global.b32; section "ld". Since compute capability 7.0.
    """


@instruction("trap;")
def trap():
    """End the kernel with an error: the process can use the GPU no more.

    PTX: trap; section "Miscellaneous Instructions: trap". Any compute capability.
    """


@instruction("griddepcontrol.wait;", before=_NOTHING)
def griddepcontrol_wait():
    """Until the kernel before this one on the stream has ended, and what it wrote can be read.

    PTX: griddepcontrol.wait; section "griddepcontrol". Since compute capability 9.0; nothing before, where the kernel
    before has ended in any case.
    """


@instruction("griddepcontrol.launch_dependents;", before=_NOTHING)
def griddepcontrol_launch():
    """Let the kernel after this one begin, as far as this block goes.

    PTX: griddepcontrol.launch_dependents; section "griddepcontrol". Since compute capability 9.0; nothing before, where
    none begins so early.
    """
