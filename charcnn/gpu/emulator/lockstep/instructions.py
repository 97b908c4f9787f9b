"""Instructions of all threads in lockstep, in place of `ptx.*`: those of memory, and what many kernels compute with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from charcnn.aliases import DType, Function, Value
from charcnn.gpu.emulator.lockstep.code import Unsupported
from charcnn.gpu.emulator.lockstep.memory import GlobalMemory, Segment, SharedArray
from charcnn.gpu.emulator.memory import BASE
from charcnn.gpu.emulator.threads import LANES

INSTRUCTIONS: dict[str, Function] = {}
"""By name: a function of the batch and operands; or, of the constants that an instruction is made with, one that gives
such a function."""


def warps(batch: Value, value: Value) -> np.ndarray:
    """(warps, lanes) of a value.

    Raises:
        Unsupported: a part of a warp runs.
    """
    if batch.threads % LANES or (batch.mask is not None and np.diff(batch.mask.reshape(-1, LANES)).any()):
        raise Unsupported("a part of a warp")
    return batch.each(value).reshape(-1, LANES)


def _instructs(body: Function) -> Function:
    INSTRUCTIONS[body.__name__] = body
    return body


# Arithmetic.


@_instructs
def extents(batch: Value, array: Value) -> tuple[int, ...]:
    """`array.shape`"""
    return tuple(map(int, array.shape))


def _words(ptx_type: str, values: np.ndarray) -> np.ndarray:
    """float32 as the bits of f16 or bf16, in int64."""
    if ptx_type == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.int64)
    wide = values.view(np.uint32).astype(np.int64)
    return np.where(np.isnan(values), 0x7FFF, (wide + 0x7FFF + (wide >> 16 & 1)) >> 16)


@_instructs
def cvt_f16x2(ptx_type: str, rectified: bool = False) -> Function:
    """`ptx.cvt_f16x2`."""

    def pack(batch: Value, low: Value, high: Value) -> np.ndarray:
        halves = [batch.each(value).astype(np.float32) for value in (low, high)]
        if rectified:
            halves = [np.maximum(value, np.float32(0)) for value in halves]
        first, second = (_words(ptx_type, value) for value in halves)
        return first | second << 16

    return pack


@_instructs
def cvt_f32x2(ptx_type: str) -> Function:
    """`ptx.cvt_f32x2`."""

    def unpack(batch: Value, word: Value) -> tuple[np.ndarray, ...]:
        halves = [(batch.each(word).astype(np.int64) >> shift & 0xFFFF).astype(np.uint32) for shift in (0, 16)]
        if ptx_type == "f16":
            return tuple(half.astype(np.uint16).view(np.float16).astype(np.float32) for half in halves)
        return tuple((half << 16).view(np.float32) for half in halves)

    return unpack


@_instructs
def cvt_tf32(batch: Value, value: Value) -> np.ndarray:
    """`ptx.cvt_tf32`."""
    held = batch.each(value).astype(np.float32)
    bits = held.view(np.uint32).astype(np.int64)
    return np.where(np.isnan(held), bits, np.minimum(bits + 0x1000, 0xFFFFFFFF)) & 0xFFFFE000


@_instructs
def bitcast_b32(batch: Value, value: Value) -> np.ndarray:
    """`ptx.bitcast_b32`."""
    return batch.each(value).astype(np.float32).view(np.uint32).astype(np.int64)


@_instructs
def bitcast_f32(batch: Value, word: Value) -> np.ndarray:
    """`ptx.bitcast_f32`."""
    return batch.each(word).astype(np.uint32).view(np.float32)


@_instructs
def mul_rn_f32(batch: Value, a: Value, b: Value) -> np.ndarray:
    """`ptx.mul_rn_f32`."""
    return batch.each(a).astype(np.float32) * batch.each(b).astype(np.float32)


@_instructs
def max_nan_f32(batch: Value, a: Value, b: Value) -> np.ndarray:
    """`ptx.max_nan_f32`."""
    a, b = (batch.each(value).astype(np.float32) for value in (a, b))
    return np.where(a != b, np.maximum(a, b), np.where(np.signbit(a), b, a))


@_instructs
def warp_sum(batch: Value, value: Value) -> np.ndarray:
    """`ptx.warp_sum`."""
    lanes = warps(batch, value)
    return np.repeat(np.ascontiguousarray(lanes).sum(axis=1, dtype=lanes.dtype), LANES)


def _nothing(batch: Value, *operands: Value) -> None:
    """Of what has no meaning where threads run at once and no kernel beside."""


for _name in ("griddepcontrol_wait", "griddepcontrol_launch"):
    INSTRUCTIONS[_name] = _nothing


# Memory.


def _columns(data: np.ndarray, kind: DType) -> Value:
    """Rows of bytes as a number of each thread, or a tuple of such."""
    values = np.ascontiguousarray(data).view(kind)
    found = tuple(values[:, i].astype(np.int64) if kind is np.uint32 else values[:, i] for i in range(values.shape[1]))
    return found[0] if len(found) == 1 else found


def _rows(batch: Value, kind: DType, values: Sequence[Value]) -> np.ndarray:
    """Numbers of each thread as rows of bytes."""
    return np.stack([batch.each(value).astype(kind) for value in values], 1).view(np.uint8)


def _addresses(batch: Value, place: Value, size: int) -> np.ndarray:
    """Of global memory, of the threads that run."""
    found: np.ndarray = batch.each(place)[batch.chosen_lanes()].astype(np.int64)
    if (found % size).any():
        raise Unsupported("a misaligned address")
    return found


def _load(kind: DType, count: int) -> Function:
    size = np.dtype(kind).itemsize * count

    def load(batch: Value, place: Value, *index: Value) -> Value:
        if index:
            return _columns(place.load_several(batch, index[0], size // place.dtype.itemsize).view(np.uint8), kind)
        found = np.zeros((batch.size, size), np.uint8)
        found[batch.chosen_lanes()] = batch.memory.read(_addresses(batch, place, size), size)
        return _columns(found, kind)

    return load


def _store(kind: DType, count: int) -> Function:
    def store(batch: Value, place: Value, *operands: Value) -> None:
        data = _rows(batch, kind, operands[-count:])
        if len(operands) > count:
            place.store_several(batch, operands[0], data.view(place.dtype))
            return
        chosen = batch.chosen_lanes()
        addresses = _addresses(batch, place, data.shape[1])
        batch.stores += batch.memory.write(addresses, data[chosen], batch.lanes[chosen])

    return store


for _name, _kind, _count in (
    ("global_f32", np.float32, 1), ("global_b32", np.uint32, 1), ("global_v2_b32", np.uint32, 2),
    ("global_v2_f32", np.float32, 2), ("global_v4_f32", np.float32, 4), ("global_v4_b32", np.uint32, 4),
):  # fmt: skip
    INSTRUCTIONS[f"ld_{_name}"], INSTRUCTIONS[f"st_{_name}"] = _load(_kind, _count), _store(_kind, _count)
INSTRUCTIONS["ld_cg_v4_f32"] = INSTRUCTIONS["ld_global_v4_f32"]
INSTRUCTIONS["ld_weak_v4_b32"] = INSTRUCTIONS["ld_global_v4_b32"]
INSTRUCTIONS["st_global_b8"], INSTRUCTIONS["st_global_b16"] = _store(np.uint8, 1), _store(np.uint16, 1)


@_instructs
def cvta_to_shared(batch: Value, array: SharedArray) -> int:
    """`ptx.cvta_to_shared`."""
    return array.address


def _place(batch: Value, operands: Sequence[Value]) -> tuple[Segment, Value]:
    """The segment and the place in it of an operand: an address, or an array with an index and an offset."""
    if len(operands) > 1:
        array, *indices = operands
        at: Value = 0
        for index in indices:
            at = batch.operate("add", at, index)
        return array.segment, batch.operate("mul", at, array.dtype.itemsize)
    at = operands[0]
    first = at - BASE if not isinstance(at, np.ndarray) else int(at[batch.chosen_lanes()].min()) - BASE
    for segment in batch.segments():
        if segment.begin <= first < segment.begin + segment.size:
            return segment, at - BASE - segment.begin
    raise Unsupported("out of bounds")


def _load_shared(kind: DType, count: int) -> Function:
    size = np.dtype(kind).itemsize * count

    def load(batch: Value, *operands: Value) -> Value:
        segment, at = _place(batch, operands)
        return _columns(segment.load(batch, at, size), kind)

    return load


def _store_shared(kind: DType, count: int) -> Function:
    def store(batch: Value, *operands: Value) -> None:
        segment, at = _place(batch, operands[:-count])
        segment.store(batch, at, _rows(batch, kind, operands[-count:]))

    return store


for _name, _kind, _count in (
    ("shared_b32", np.uint32, 1), ("shared_v2_b32", np.uint32, 2), ("shared_v4_b32", np.uint32, 4),
    ("shared_v2_f32", np.float32, 2), ("shared_v4_f32", np.float32, 4),
):  # fmt: skip
    INSTRUCTIONS[f"ld_{_name}"] = _load_shared(_kind, _count)
    INSTRUCTIONS[f"st_{_name}"] = _store_shared(_kind, _count)


def _load_at(kind: DType) -> Function:
    load = _load_shared(kind, 4)

    def at(batch: Value, array: SharedArray, address: Value, *offsets: Value) -> Value:
        for offset in offsets:
            address = batch.operate("add", address, offset)
        return load(batch, address)

    return at


INSTRUCTIONS["ld_shared_v4_b32_at"], INSTRUCTIONS["ld_shared_v4_f32_at"] = _load_at(np.uint32), _load_at(np.float32)
INSTRUCTIONS["st_shared_v4_b32_at"] = lambda batch, array, address, *words: INSTRUCTIONS["st_shared_v4_b32"](
    batch, address, *words
)


# Copies from global to shared memory: groups that all threads make and wait for alike.


def _copied(batch: Value, segment: Segment, at: Value, data: np.ndarray) -> None:
    cells, mask, chosen = segment.claim(batch, at, data.shape[1], under_way=True), batch.mask, batch.chosen_lanes()

    def land() -> None:
        outer, batch.mask = batch.mask, mask
        segment.put(batch, at, data)
        segment.landed(batch, cells, batch.numbers[chosen], batch.block_of[chosen])
        batch.mask = outer

    batch.copies[-1].append(land)


@_instructs
def cp_async(width: int) -> Function:
    """`ptx.cp_async`."""

    def copy(batch: Value, shared: SharedArray, to: Value, offset: Value, array: GlobalMemory, at: Value,
             wanted: Value) -> None:  # fmt: skip
        segment, place = _place(batch, (shared, to, offset))
        data = np.zeros((batch.size, 4 * width), np.uint8)
        wanted = batch.each(wanted)
        kinds = np.unique(wanted[batch.chosen_lanes()])
        if not np.isin(kinds, (0, 4 * width)).all():
            raise Unsupported("a part of a copy")
        outer = batch.mask
        reads = wanted != 0 if outer is None else (wanted != 0) & outer
        if reads.any():
            batch.mask = reads
            count = 4 * width // array.dtype.itemsize
            data[reads] = array.load_several(batch, at, count).view(np.uint8)[reads]
            batch.mask = outer
        _copied(batch, segment, place, data)

    return copy


def _all(batch: Value) -> None:
    blocks = batch.together()
    if blocks is not None and not blocks.all():
        raise Unsupported("groups of copies of some threads")


@_instructs
def cp_async_commit_group(batch: Value) -> None:
    """`ptx.cp_async_commit_group`."""
    _all(batch)
    batch.copies.append([])


@_instructs
def cp_async_wait_group(groups: int) -> Function:
    """`ptx.cp_async_wait_group`."""

    def waiting(batch: Value) -> None:
        _all(batch)
        while len(batch.copies) - 1 > groups:
            for land in batch.copies.pop(0):
                land()

    return waiting
