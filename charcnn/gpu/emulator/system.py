"""Memory that other processes write meanwhile, which stand for other GPUs: `ptx.ld_relaxed_sys_v2_b64` and its like.

Each value is read and written by one access of the host's, which other processes see whole. On x86 and with the
barriers of Python's own calls on others, what was written before is seen before.
"""

from __future__ import annotations

import ctypes
import time

from charcnn.aliases import Value
from charcnn.gpu.emulator.loads import global_bytes
from charcnn.gpu.ptx.intrinsics import emulates


def _checked(address: int, size: int) -> int:
    """The address, where there is memory: else the process would end."""
    global_bytes(address, size)
    return int(address)


@emulates
def ld_relaxed_sys_v2_b64(address: int) -> Value:
    """`ptx.ld_relaxed_sys_v2_b64`; lets other processes run, as who asks for it may wait for them."""
    time.sleep(0)
    at = _checked(address, 16)
    return ctypes.c_uint64.from_address(at).value, ctypes.c_uint64.from_address(at + 8).value


@emulates
def st_relaxed_sys_v2_b64(address: int, a: int, b: int) -> None:
    """`ptx.st_relaxed_sys_v2_b64`."""
    at = _checked(address, 16)
    ctypes.c_uint64.from_address(at).value, ctypes.c_uint64.from_address(at + 8).value = int(a), int(b)


@emulates
def ld_acquire_sys_b32(address: int) -> int:
    """`ptx.ld_acquire_sys_b32`; lets other processes run."""
    time.sleep(0)
    return ctypes.c_uint32.from_address(_checked(address, 4)).value


@emulates
def st_release_sys_b32(address: int, word: int) -> None:
    """`ptx.st_release_sys_b32`."""
    ctypes.c_uint32.from_address(_checked(address, 4)).value = int(word)
