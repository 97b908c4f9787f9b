"""Loads and stores by address or by array: `ptx.ld_*`, `ptx.st_*`, and copies that a thread starts, `ptx.cp_async`."""

from __future__ import annotations

import os

import numpy as np

from charcnn.aliases import Array, DType, Function, Value
from charcnn.gpu.emulator.memory import RANK
from charcnn.gpu.emulator.overlap import touch, touch_element
from charcnn.gpu.emulator.shared import copy_later, place, read, remote, write
from charcnn.gpu.emulator.threads import current
from charcnn.gpu.ptx.intrinsics import EMULATED, emulates
from charcnn.gpu.ptx.mma_windows import LANE_STEP


def as_numbers(data: np.ndarray, kind: DType) -> Value:
    """Bytes as numbers: one, or a tuple; words as Python's integers, which do not wrap."""
    values = data.view(kind)
    found = tuple(map(int, values)) if np.issubdtype(kind, np.integer) else tuple(values)
    return found[0] if len(found) == 1 else found


def as_bytes(kind: DType, values: Value) -> np.ndarray:
    """Numbers as the bytes that a store writes."""
    return np.array([kind(value) for value in values], kind).view(np.uint8)


# Global memory: by the system, which refuses an address that is nobody's, where a load would end the process.

MEMORY = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
"""All of the process."""


def read_global(address: int, size: int) -> bytes:
    """Bytes at the host's own address; zeros where there is no memory, which is a finding."""
    touch(address, size, "reads")
    try:
        return os.pread(MEMORY, size, int(address)) if size else b""
    except (OSError, OverflowError):
        current().report("out of bounds", f"reads {size} bytes of global memory at {int(address):#x}: nobody's")
        return bytes(size)


def write_global(address: int, data: bytes) -> None:
    """Bytes to the host's own address; where there is no memory that is a finding."""
    touch(address, len(data), "writes")
    if (launch := current().block.launch).findings is not None:
        launch.results.stores.append((int(address), len(data)))
    try:
        os.pwrite(MEMORY, data, int(address))
    except (OSError, OverflowError):
        current().report("out of bounds", f"writes {len(data)} bytes of global memory at {int(address):#x}: nobody's")


def global_bytes(address: int, size: int) -> np.ndarray:
    """A copy of bytes at the host's own address, a multiple of the size."""
    if int(address) % size:
        current().report("misaligned address", f"{size} bytes of global memory at {int(address):#x}")
    return np.frombuffer(read_global(address, size), np.uint8)


def _load(kind: DType, count: int) -> Function:
    size = np.dtype(kind).itemsize * count

    def load(place: Value, *index: int) -> Value:
        """By an address, or of an array by the index of an element."""
        if not index:
            return as_numbers(global_bytes(place, size), kind)
        touch_element(place, index[0], size, "reads")
        elements = [place.flat[index[0] + i] for i in range(size // place.dtype.itemsize)]
        return as_numbers(np.array(elements, place.dtype).view(np.uint8), kind)

    return load


def _store(kind: DType, count: int) -> Function:
    def store(place: Value, *operands: Value) -> None:
        """To an address, or to an array by the index of an element."""
        data = as_bytes(kind, operands[-count:])
        if len(operands) > count:
            touch_element(place, operands[0], len(data), "writes")
            for i, element in enumerate(data.view(place.dtype)):
                place.flat[operands[0] + i] = element
            return
        if int(place) % len(data):
            current().report("misaligned address", f"{len(data)} bytes of global memory at {int(place):#x}")
        write_global(place, data.tobytes())

    return store


def _guarded(address: int, wanted: int) -> Value:
    return _words(address) if wanted else (0, 0, 0, 0)


def _narrow_store(kind: DType) -> Function:
    store = _store(kind, 1)
    return lambda address, word: store(address, int(word) & np.iinfo(kind).max)


_words = _load(np.uint32, 4)
_half = _load(np.uint16, 1)
for _name, _kind, _count in (
    ("global_f32", np.float32, 1), ("global_b32", np.uint32, 1), ("global_v2_b32", np.uint32, 2),
    ("global_v2_f32", np.float32, 2), ("global_v4_f32", np.float32, 4), ("global_v4_b32", np.uint32, 4),
):  # fmt: skip
    EMULATED[f"ld_{_name}"], EMULATED[f"st_{_name}"] = _load(_kind, _count), _store(_kind, _count)
EMULATED["ld_cg"] = EMULATED["ld_nc_no_allocate"] = _guarded
EMULATED["ld_global_b16"] = lambda address, wanted: _half(address) if wanted else 0
EMULATED["ld_cg_v4_f32"] = EMULATED["ld_global_v4_f32"]
EMULATED["ld_weak_v4_b32"] = _words
EMULATED["st_global_b8"], EMULATED["st_global_b16"] = _narrow_store(np.uint8), _narrow_store(np.uint16)


# Shared memory.


@emulates
def cvta_to_shared(array: Array) -> int:
    """`ptx.cvta_to_shared`."""
    return current().block.memory.address_of(array)


def _place(operands: tuple[Value, ...]) -> int:
    """The address of an operand: that, or an array with an index and an offset to it."""
    if len(operands) == 1:
        return int(operands[0])
    array, *indices = operands
    return current().block.memory.address_of(array) + int(sum(map(int, indices))) * int(array.dtype.itemsize)


def _load_shared(kind: DType, count: int) -> Function:
    size = np.dtype(kind).itemsize * count
    return lambda *place: as_numbers(read(_place(place), size, whole=count == 1), kind)


def _store_shared(kind: DType, count: int) -> Function:
    return lambda *operands: write(_place(operands[:-count]), as_bytes(kind, operands[-count:]))


def _load_at(kind: DType) -> Function:
    return lambda array, address, *offset: as_numbers(read(int(address) + int(sum(offset)), 16, whole=False), kind)


for _name, _kind, _count in (
    ("shared_b32", np.uint32, 1), ("shared_v2_b32", np.uint32, 2), ("shared_v4_b32", np.uint32, 4),
    ("shared_f32", np.float32, 1), ("shared_v2_f32", np.float32, 2), ("shared_v4_f32", np.float32, 4),
):  # fmt: skip
    EMULATED[f"ld_{_name}"], EMULATED[f"st_{_name}"] = _load_shared(_kind, _count), _store_shared(_kind, _count)
EMULATED["ld_shared_v4_b32_at"], EMULATED["ld_shared_v4_f32_at"] = _load_at(np.uint32), _load_at(np.float32)
EMULATED["st_shared_v4_b32_at"] = lambda array, address, *words: write(int(address), as_bytes(np.uint32, words))


@emulates
def ld_shared_each(count: int) -> Function:
    """`ptx.ld_shared_each`."""

    def fill(words: Array, address: int) -> None:
        for i in range(0, count, 4):
            words[i : i + 4] = read(int(address) + i // 4 * LANE_STEP, 16).view(np.uint32)

    return fill


@emulates
def mapa(address: int, rank: int) -> int:
    """`ptx.mapa`: blocks of a cluster lie RANK apart."""
    return int(address) % RANK + RANK * int(rank)


@emulates
def ld_shared_cluster_v4_f32(address: int) -> Value:
    """`ptx.ld_shared_cluster_v4_f32`."""
    block, at = remote(address)
    return as_numbers(read(at, 16, block), np.float32)


# Copies from global to shared memory: a group a commit, done when waited for, as late as they may be.


def _copy(to: int, source: bytes | np.ndarray, size: int, source_at: int | None = None) -> None:
    data = np.zeros(size, np.uint8)
    given = np.frombuffer(source, np.uint8)
    data[: len(given)] = given
    thread = current()
    at = place(to, size, size, thread.block, "cp.async writes")
    if at is not None:
        thread.copies[-1].append(copy_later(thread, at, data, source_at))


@emulates
def cp_async(width: int) -> Function:
    """`ptx.cp_async`."""

    def copy(*operands: Value) -> None:
        """By addresses, or by a place in each of two arrays."""
        if len(operands) == 3:
            to, source, wanted = map(int, operands)
            return _copy(to, read_global(source, wanted), 4 * width, source if wanted else None)
        shared, to, offset, array, at, wanted = operands
        touch_element(array, at, int(wanted), "reads")
        elements = [array.flat[int(at) + i] for i in range(int(wanted) // array.dtype.itemsize)]
        return _copy(_place((shared, to, offset)), np.array(elements, array.dtype).tobytes(), 4 * width)

    return copy


@emulates
def cp_async_16(to: int, source: int, wanted: int) -> None:
    """`ptx.cp_async_16`."""
    _copy(int(to), read_global(source, int(wanted)), 16, int(source) if wanted else None)


@emulates
def cp_async_commit_group() -> None:
    """`ptx.cp_async_commit_group`."""
    current().copies.append([])


@emulates
def cp_async_wait_group(groups: int) -> Function:
    """`ptx.cp_async_wait_group`."""

    def waiting() -> None:
        under_way = current().copies
        while len(under_way) - 1 > groups:
            for land in under_way.pop(0):
                land()

    return waiting
