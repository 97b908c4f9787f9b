"""TMA and bulk copies, as early as they may be, and stores, as late: PTX ISA, "Asynchronous copy"."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from charcnn.aliases import Function, Value
from charcnn.gpu import tensor_map
from charcnn.gpu.emulator.barriers import mbarrier_at
from charcnn.gpu.emulator.loads import as_bytes, read_global, write_global
from charcnn.gpu.emulator.memory import RANK
from charcnn.gpu.emulator.order import Actor, Shadow
from charcnn.gpu.emulator.shared import beside, copy_in, helper, place, remote, swizzled
from charcnn.gpu.emulator.swizzle import ROW
from charcnn.gpu.emulator.threads import LANES, Thread, ThreadBlock, current
from charcnn.gpu.ptx.intrinsics import EMULATED, emulates

_NUMBER = 2
"""Bytes of a number of a tensor map."""


def _signed(coordinate: int) -> int:
    """Of 32 bits, two's complement."""
    coordinate = int(coordinate) & 0xFFFFFFFF
    return coordinate - (1 << 32) if coordinate >> 31 else coordinate


def _described(address: int) -> tensor_map.Described:
    words = np.frombuffer(read_global(address, 8 * tensor_map.WORDS), np.uint64)
    return tensor_map.described([int(word) for word in words])


def _row(found: tensor_map.Described, first: int, outer: Sequence[int], count: int) -> np.ndarray:
    """So many numbers from the one at (first, *outer) on; zeros where there are none."""
    row = np.zeros(count, np.uint16)
    if all(0 <= at < size for at, size in zip(outer, found.shape[1:], strict=True)):
        begin, end = max(0, first), min(first + count, found.shape[0])
        if begin < end:
            source = found.address + sum(at * stride for at, stride in zip(outer, found.strides, strict=True))
            data = read_global(source + _NUMBER * begin, _NUMBER * (end - begin))
            row[begin - first : end - first] = np.frombuffer(data, np.uint16)
    return row


def _land(
    to: int, alignment: int, rows: np.ndarray, mbarrier: int, blocks: Sequence[ThreadBlock] | None = None
) -> None:
    """Rows of 128 or 64 bytes to shared memory, of this block or several, swizzled, and their bytes counted."""
    data = rows.view(np.uint8)
    row_bytes = data.shape[1]
    for block in blocks or [current().block]:
        at = place(to % RANK, data.size, alignment, block, "TMA writes")
        if at is not None:
            where = swizzled(at, len(rows), row_bytes)
            copy_in(block, where, data, mbarrier_at(mbarrier, block), tiled=row_bytes == ROW)


def _cluster(blocks: int) -> Sequence[ThreadBlock]:
    """The first ones of this cluster, to which a copy goes."""
    others = current().block.cluster.blocks
    if blocks > len(others):
        current().report("out of bounds", f"a copy to {blocks} blocks in a cluster of {len(others)}")
    return others[:blocks]


def _load_box(to: int, found_at: int, mbarrier: int, *first: int, blocks: Sequence[ThreadBlock] | None = None) -> None:
    """`ptx.tma_load_2d` and others: a box whose first number is at these coordinates."""
    found, begin = _described(found_at), [_signed(one) for one in first]
    if len(begin) != len(found.shape) or found.walk is not None:
        current().report("tensor map", f"a copy of {len(begin)} dimensions by {found}")
        return
    places = itertools.product(*(range(size) for size in found.box[:0:-1]))  # the last dimension first
    rows = [
        _row(found, begin[0], [a + b for a, b in zip(begin[1:], at[::-1], strict=True)], found.box[0]) for at in places
    ]
    _land(int(to), ROW, np.stack(rows), mbarrier, blocks)


@emulates
def tma_load_2d_multicast(blocks: int) -> Function:
    """`ptx.tma_load_2d_multicast`."""
    return lambda *operands: _load_box(*operands, blocks=_cluster(blocks))


for _dimensions in (2, 3, 4):
    EMULATED[f"tma_load_{_dimensions}d"] = _load_box


def _pixels(walk: tensor_map.Im2col, shape: Sequence[int], at: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(column, row, image) of the windows' first pixels, along W, then H, then N."""
    (left, top), ends = walk.lower, [size + corner for size, corner in zip(shape[1:3], walk.upper, strict=True)]
    column, row, image = at
    for _ in range(walk.pixels):
        yield column, row, image
        column += walk.stride[0]
        if column >= ends[0]:
            column, row = left, row + walk.stride[1]
        if row >= ends[1]:
            row, image = top, image + 1


@emulates
def tma_load_im2col_4d(
    to: int, found_at: int, mbarrier: int, channel: int, column: int, row: int, image: int, right: int, down: int
) -> None:
    """`ptx.tma_load_im2col_4d`."""
    found = _described(found_at)
    if found.walk is None:
        current().report("tensor map", f"a copy by im2col by {found}")
        return
    windows = _pixels(found.walk, found.shape, [_signed(one) for one in (column, row, image)])
    places = [(across + int(right), along + int(down), which) for across, along, which in windows]
    rows = [_row(found, _signed(channel), at, ROW // _NUMBER) for at in places]
    _land(int(to), 8 * ROW, np.stack(rows), mbarrier)


def _load(blocks: Sequence[ThreadBlock], to: int, source: int, size: int, mbarrier: int) -> None:
    to, source, size = int(to), int(source), int(size)
    if (to | source | size) % 16:
        current().report("misaligned address", f"a bulk copy of {size} bytes from {source:#x} to {to:#x}: need 16s")
    data = np.frombuffer(read_global(source, size), np.uint8)
    for block in blocks:
        at = place(to % RANK, size, 1, block, "a bulk copy writes")
        if at is not None:
            copy_in(block, np.arange(at, at + size), data, mbarrier_at(mbarrier, block))


@emulates
def bulk_load(to: int, source: int, size: int, mbarrier: int) -> None:
    """`ptx.bulk_load`."""
    _load([current().block], to, source, size, mbarrier)


@emulates
def bulk_load_multicast(blocks: int) -> Function:
    """`ptx.bulk_load_multicast`."""

    return lambda *operands: _load(_cluster(blocks), *operands)


@emulates
def st_async_v4_b32(address: int, a: int, b: int, c: int, d: int, mbarrier: int) -> None:
    """`ptx.st_async_v4_b32`, whose bytes tell what their sender knew: they are counted with release semantics."""
    (block, at), (other, barrier) = remote(address), remote(mbarrier)
    if block is not other or len(block.cluster.blocks) == 1:  # an H100 has no such instruction where a block is alone
        current().report("barrier", "st.async: need an mbarrier of the same block, in a cluster of two or more")
    data = as_bytes(np.uint32, (a, b, c, d))
    begin = place(at, len(data), len(data), block, "writes")
    if begin is not None:
        counts = mbarrier_at(barrier, other)
        if counts.history:
            counts.history.arrive(current().actor)
        copy_in(block, np.arange(begin, begin + len(data)), data, counts)


@emulates
def bulk_store(*operands: Value) -> None:
    """`ptx.bulk_store`: done when it is waited for."""
    *to, source, size = operands  # an array and an index, or an address
    thread, size = current(), int(size)
    if (int(source) | size) % 16:
        thread.report("misaligned address", f"a bulk store of {size} bytes from {int(source):#x}: need 16s")
    at = place(source, size, 1, thread.block, "a bulk store reads")
    if at is not None:
        if thread.block.shadow:
            beside(thread.block, Shadow.span(at, size), _reader(thread))
        thread.stores[-1].append(_store(to, thread.block.memory.bytes[at : at + size]))


def _store_box(found_at: int, source: int, column: int, row: int) -> None:
    """`ptx.tma_store_2d`: done when it is waited for."""
    thread, found, first = current(), _described(found_at), [_signed(one) for one in (column, row)]
    if len(found.shape) != len(first) or found.walk is not None:
        thread.report("tensor map", f"a store of 2 dimensions by {found}")
        return
    columns, rows = found.box
    size = rows * columns * _NUMBER
    at = place(source, size, ROW, thread.block, "TMA reads")
    if at is not None:
        if thread.block.shadow:
            beside(thread.block, Shadow.span(at, size), _reader(thread))
        held = thread.block.memory.bytes[swizzled(at, rows, columns * _NUMBER)]
        thread.stores[-1].append(lambda: _stored(found, first, held))


def _stored(found: tensor_map.Described, first: Sequence[int], held: np.ndarray) -> None:
    """Write the part of a box that lies in its array."""
    (column, row), (columns, rows) = first, found.shape
    begin, end = max(0, column), min(column + held.shape[1] // _NUMBER, columns)
    for i, data in enumerate(held):
        if begin < end and 0 <= row + i < rows:
            part = data[_NUMBER * (begin - column) : _NUMBER * (end - column)]
            write_global(found.address + (row + i) * found.strides[0] + _NUMBER * begin, part.tobytes())


EMULATED["tma_store_2d"] = _store_box


def _reader(thread: Thread) -> Actor:
    return helper(thread.block, "store", thread.number // LANES)


def _store(to: Sequence[Value], held: np.ndarray) -> Callable[[], None]:
    def store() -> None:
        if len(to) == 1:
            write_global(to[0], held.tobytes())
        else:
            array, index = to
            array.flat[int(index) : int(index) + len(held) // array.dtype.itemsize] = held.view(array.dtype)

    return store


@emulates
def bulk_wait_group_read(groups: int) -> Function:
    """`ptx.bulk_wait_group_read`."""

    def waiting() -> None:
        thread = current()
        under_way = thread.stores
        while len(under_way) - 1 > groups:
            for store in under_way.pop(0):
                store()
        if thread.block.shadow:
            reader = _reader(thread)
            thread.actor.knows[reader.number] = reader.time

    return waiting


@emulates
def bulk_commit_group() -> None:
    """`ptx.bulk_commit_group`."""
    current().stores.append([])


def _nothing(*operands: int) -> None:
    """Of what changes no value."""


for _name in ("bulk_prefetch_l2", "fence_proxy_tensormap"):
    EMULATED[_name] = _nothing
