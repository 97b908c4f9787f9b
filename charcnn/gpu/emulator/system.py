"""Memory that other processes write meanwhile, which stand for other GPUs: `ptx.ld_relaxed_sys_v2_b64` and its like.

Blocks that run together write and read it, too: `ptx.ld_acquire_gpu_b32`.

Each value is read and written by one access of the host's, which other processes see whole. On x86 and with the
barriers of Python's own calls on others, what was written before is seen before.
"""

from __future__ import annotations

import ctypes
import time

from charcnn.aliases import Value
from charcnn.gpu.emulator.loads import global_bytes
from charcnn.gpu.emulator.threads import current
from charcnn.gpu.ptx.intrinsics import EMULATED, emulates


def _give_way() -> None:
    """Let other threads run, and other processes: who asks for such memory may wait for one of them."""
    thread = current()
    thread.polls, thread.ready, thread.waits_for = True, lambda: True, "another process"
    time.sleep(0)
    thread.parent.switch()


def _checked(address: int, size: int) -> int:
    """The address, where there is memory: else the process would end."""
    global_bytes(address, size)
    return int(address)


@emulates
def ld_relaxed_sys_v2_b64(address: int) -> Value:
    """`ptx.ld_relaxed_sys_v2_b64`."""
    _give_way()
    at = _checked(address, 16)
    return ctypes.c_uint64.from_address(at).value, ctypes.c_uint64.from_address(at + 8).value


@emulates
def st_relaxed_sys_v2_b64(address: int, a: int, b: int) -> None:
    """`ptx.st_relaxed_sys_v2_b64`."""
    at = _checked(address, 16)
    ctypes.c_uint64.from_address(at).value, ctypes.c_uint64.from_address(at + 8).value = int(a), int(b)


@emulates
def ld_acquire_sys_b32(address: int) -> int:
    """`ptx.ld_acquire_sys_b32`."""
    _give_way()
    return ctypes.c_uint32.from_address(_checked(address, 4)).value


@emulates
def st_release_sys_b32(address: int, word: int) -> None:
    """`ptx.st_release_sys_b32`."""
    ctypes.c_uint32.from_address(_checked(address, 4)).value = int(word)


EMULATED["ld_acquire_gpu_b32"], EMULATED["st_release_gpu_b32"] = ld_acquire_sys_b32, st_release_sys_b32


@emulates
def trap() -> None:
    """`ptx.trap`."""
    current().report("trap", "ends the kernel")
    raise RuntimeError("the kernel has ended itself by a trap")
