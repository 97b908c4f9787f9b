"""Products by warpgroups: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".

The 128 threads of a warpgroup meet, and one of them multiplies for all. Matrices in shared memory are K-major or
transposed; their rows of 128 or 64 bytes are swizzled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from charcnn.aliases import Array, Function, Value
from charcnn.gpu.emulator.order import Actor
from charcnn.gpu.emulator.shared import helper, read_matrix
from charcnn.gpu.emulator.swizzle import ROW
from charcnn.gpu.emulator.threads import WARPGROUP, Registers, Thread, current
from charcnn.gpu.emulator.warp import numbers, together
from charcnn.gpu.ptx.intrinsics import EMULATED, emulates
from charcnn.gpu.ptx.wgmma import DESCRIPTOR_ADDRESS

_ROWS = 64
_LEADING = 16
"""Of a matrix descriptor's lower word: where the leading dimension begins, in units of 16 bytes, too."""


def _matrix(descriptor: int, rows: int, ptx_type: str, row_bytes: int) -> np.ndarray:
    return numbers(read_matrix((int(descriptor) & DESCRIPTOR_ADDRESS) << 4, rows, row_bytes), ptx_type)


def _starts(operands: Sequence[Value], registers: Sequence[Array], multiplied: Callable[..., np.ndarray]) -> None:
    """What all threads of a warpgroup give, the sums first, and what makes the product of it: (64, columns)."""

    def work(given: list[Value]) -> list[None]:
        if any(one[-1] != given[0][-1] for one in given):
            current().report("wgmma", "threads of a warpgroup have descriptors of their own")
        with np.errstate(invalid="ignore"):
            made = multiplied(given)
        # Rows of (warp, second half, group of lanes), columns of (eight, lane of a group, second).
        made = made.reshape(4, 2, 8, -1, 4, 2).transpose(0, 2, 4, 3, 1, 5).reshape(WARPGROUP, -1)
        for (sums, *_), values in zip(given, made, strict=True):
            sums.view(np.ndarray)[:] = values
        return [None] * WARPGROUP

    thread = current()
    if thread.block.shadow and any(array.fences == thread.fences for array in registers):
        thread.report("missing wgmma fence", "reads what this thread wrote with no wgmma_fence between")
    together(operands, work, "wgmma", WARPGROUP)
    if thread.block.shadow:
        for array in registers:
            array.__class__ = UnderWay
        thread.products.append((registers, _product(thread).time))


def _sums(given: Sequence[Value]) -> np.ndarray:
    """(64, columns): what is added to."""
    held = np.stack([one[0].view(np.ndarray) for one in given])
    return held.reshape(4, 8, 4, -1, 2, 2).transpose(0, 4, 1, 3, 2, 5).reshape(_ROWS, -1)


def _turned(descriptor: int, columns: int, depth: int, ptx_type: str, row_bytes: int) -> np.ndarray:
    """(depth, columns) of a transposed matrix."""
    at, apart = int(descriptor), int(descriptor) >> _LEADING
    blocks = range(-(-2 * columns // row_bytes))
    return np.concatenate([_matrix(at + i * apart, depth, ptx_type, row_bytes) for i in blocks], 1)


@emulates
def wgmma(
    ptx_type: str, columns: int, accumulate: bool = True, quarters: int = 4, row_bytes: int = ROW,
    transposed: tuple[bool, bool] = (False, False),
) -> Function:  # fmt: skip
    """`ptx.wgmma`."""

    def matrix(descriptor: int, rows: int, turned: bool) -> np.ndarray:
        if turned:
            return _turned(descriptor, rows, 16 * quarters, ptx_type, row_bytes).T
        whole = _matrix(descriptor, rows, ptx_type, row_bytes)
        return whole[:, : whole.shape[1] * quarters * ROW // (4 * row_bytes)]

    def multiplied(given: list[Value]) -> np.ndarray:
        left, right = map(matrix, given[0][1], (_ROWS, columns), transposed)
        made = left @ right.T
        return np.asarray(_sums(given) + made.astype(np.float32) if accumulate else made)

    return lambda sums, a, b: _starts((sums, (a, b)), (sums,), multiplied)


@emulates
def wgmma_registers(ptx_type: str, columns: int, steps: int, row_bytes: int = ROW) -> Function:
    """`ptx.wgmma_registers`."""

    def multiplied(given: list[Value]) -> np.ndarray:
        words = np.stack([one[1].view(np.ndarray) for one in given]).reshape(4, 8, 4, steps, 2, 2)
        words = words.transpose(0, 5, 1, 3, 4, 2).reshape(_ROWS, -1)  # (warp, half, group), (step, half, lane)
        right = _turned(given[0][2], columns, 16 * steps, ptx_type, row_bytes)
        return np.asarray(_sums(given) + (numbers(words, ptx_type) @ right).astype(np.float32))

    return lambda sums, words, b: _starts((sums, words, b), (sums, words), multiplied)


@emulates
def wgmma_sparse(ptx_type: str, columns: int, accumulate: bool = True) -> Function:
    """`ptx.wgmma_sparse`."""

    def multiplied(given: list[Value]) -> np.ndarray:
        a, b = given[0][-1]
        words = np.stack([one[1].view(np.ndarray) for one in given])
        kept, right = _matrix(a, _ROWS, ptx_type, ROW // 2), _matrix(b, columns, ptx_type, ROW)
        places = sparse_places(words, ptx_type)
        if (places[..., 0] >= places[..., 1]).any():
            current().report("wgmma", "metadata: the first place of four is not before the second")
        left = np.zeros((_ROWS, right.shape[1] // 4, 4))
        np.put_along_axis(left, places, kept.reshape(places.shape), 2)
        made = left.reshape(_ROWS, -1) @ right.T
        return np.asarray(_sums(given) + made.astype(np.float32) if accumulate else made)

    return lambda sums, a, b, words: _starts((sums, words, (a, b)), (sums, words), multiplied)


def sparse_places(words: np.ndarray, ptx_type: str) -> np.ndarray:
    """Which two of each four numbers in depth A has, (64, fours, 2) of 0 to 3, by the metadata of 128 threads.

    A nibble is a four: bits 0 and 1 are the first one's place. Four lanes have two rows, 8 apart. In 16 bits, lanes 0
    and 1 have the first 32 numbers, lanes 2 and 3 the others. Each has 16 of both rows, the first row's in its lower
    half. In e4m3 a word has 32 numbers of a row. Lanes 1 and 3 have those of the second row, lanes 2 and 3 the second
    half of 64. PTX ISA, "wgmma: Sparse matrix storage".

    Args:
        words: uint32 (128, 1) in 16 bits, (128, 2) in e4m3.
        ptx_type: f16, bf16 or e4m3.
    """
    nibbles = words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 0xF
    if ptx_type == "e4m3":  # (warp, group, half of 64, row, 64, four)
        rows = nibbles.reshape(4, 8, 2, 2, 2, 8).transpose(0, 3, 1, 4, 2, 5)
    else:  # (warp, group, lane, row, four)
        rows = nibbles.reshape(4, 8, 4, 2, 4).transpose(0, 3, 1, 2, 4)
    fours = rows.reshape(_ROWS, -1, 1).astype(np.int64)
    return np.concatenate([fours & 3, fours >> 2], 2)


def _product(thread: Thread) -> Actor:
    return helper(thread.block, "product", thread.number // WARPGROUP)


class UnderWay(Registers):
    """Accumulators that a wgmma adds to: nobody else may touch them."""

    def _touched(self) -> None:
        current().report("accumulator before wait", "touches accumulators of a wgmma that was not waited for")

    def __getitem__(self, at: Value) -> Value:
        self._touched()
        return super().__getitem__(at)

    def __setitem__(self, at: Value, value: Value) -> None:
        self._touched()
        super().__setitem__(at, value)


@emulates
def wgmma_wait_group(groups: int) -> Callable[[], None]:
    """`ptx.wgmma_wait_group`."""

    def waiting() -> None:
        thread = current()
        while len(thread.products) > groups:
            registers, time = thread.products.pop(0)
            thread.actor.knows[_product(thread).number] = time
            for array in registers:
                if all(array is not other for others, _ in thread.products for other in others):
                    array.__class__ = Registers

    return waiting


@emulates
def wgmma_fence() -> None:
    """`ptx.wgmma_fence`."""
    current().fences += 1


EMULATED["setmaxnreg"] = lambda **constants: lambda: None
