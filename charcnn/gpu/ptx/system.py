"""Memory that other GPUs and the host write and read while a kernel runs, and the time.

PTX ISA: "Memory Consistency Model", whose scope .sys has all threads of all GPUs and of the host.
"""

from __future__ import annotations

import time

from charcnn.gpu.ptx.intrinsics import instruction


@instruction("st.relaxed.sys.global.v2.b64 [$0], {$1, $2};", "", "lll")
def st_relaxed_sys_v2_b64(address, a, b):
    """Two uint64 to memory of any GPU or the host, at a multiple of 16 bytes: each is seen whole or not at all.

    PTX: st.relaxed.sys.global.v2.b64; sections "st" and "Vector Data-types". Since compute capability 7.0.
    """


@instruction("ld.relaxed.sys.global.v2.b64 {$0, $1}, [$2];", "ll", "l")
def ld_relaxed_sys_v2_b64(address):
    """(a, b), two uint64 that other GPUs or the host may write meanwhile, at a multiple of 16 bytes; each is whole.

    PTX: ld.relaxed.sys.global.v2.b64; sections "ld" and "Vector Data-types". Since compute capability 7.0.
    """


@instruction("st.release.sys.global.b32 [$0], $1;", "", "lr")
def st_release_sys_b32(address, word):
    """A word to memory of any GPU or the host: who acquires it sees what this thread saw and wrote before.

    PTX: st.release.sys.global.b32; section "st". Since compute capability 7.0.
    """


@instruction("ld.acquire.sys.global.b32 $0, [$1];", "r", "l")
def ld_acquire_sys_b32(address):
    """A word, uint32, and with it the sight of all that its writer saw and wrote before it released it.

    PTX: ld.acquire.sys.global.b32; section "ld". Since compute capability 7.0.
    """


@instruction("mov.u64 $0, %globaltimer;", "l", simulated=time.perf_counter_ns)
def globaltimer():
    """Nanoseconds of the GPU's own clock, uint64.

    PTX: mov.u64 from %globaltimer; section "Special Registers: %globaltimer". Any compute capability.
    """


@instruction("mov.b64 $0, {$1, $2};", "l", "rr", pure=True, simulated=lambda low, high: int(low) | int(high) << 32)
def pack_b64(low, high):
    """Two words as a uint64.

    PTX: mov.b64; section "mov". Any compute capability.
    """


@instruction(
    "mov.b64 {$0, $1}, $2;",
    "rr",
    "l",
    pure=True,
    simulated=lambda value: (int(value) & 0xFFFFFFFF, int(value) >> 32),
)
def unpack_b64(value):
    """(low, high), the words of a uint64.

    PTX: mov.b64; section "mov". Any compute capability.
    """
