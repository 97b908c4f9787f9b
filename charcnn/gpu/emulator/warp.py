"""Warps: matrices from shared memory, products by `mma.sync`, sums and exchanges between lanes.

The lanes of a warp meet where an instruction is the whole warp's, and one of them does it for all. Layouts are those of
the PTX ISA, "Matrix Fragments for mma.m16n8k16" and the sections of the other shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from charcnn.aliases import Array, Function, Value
from charcnn.gpu.emulator.memory import BASE, RANK
from charcnn.gpu.emulator.shared import read, read_rows
from charcnn.gpu.emulator.threads import LANES, current
from charcnn.gpu.ptx.intrinsics import emulates
from charcnn.gpu.ptx.simulated import E4M3, LOW_SCALE


def together(value: Value, work: Callable[[list[Value]], Iterable[Value]], what: str, size: int = LANES) -> Value:
    """What the work makes of the values of a warp, or of so many threads, for each of them."""
    thread = current()
    return thread.block.together(thread, size, value, work, what)


def numbers(words: Array, ptx_type: str) -> np.ndarray:
    """(..., words or bytes) as (..., numbers) in float64."""
    words = np.ascontiguousarray(words)
    if ptx_type == "tf32":
        return (words.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if ptx_type == "e4m3":
        return np.asarray(E4M3[words.view(np.uint8)])
    halves = words.view(np.uint16)
    if ptx_type == "bf16":
        return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return halves.view(np.float16).astype(np.float64)


def load_matrices(addresses: Iterable[int]) -> np.ndarray:
    """ldmatrix.x4: (lane, matrix) words, of the rows at the lanes' addresses."""
    places = [int(address) for address in addresses]
    rows = read_rows(places, 16).view(np.uint32).reshape(4, 8, 4)
    pieces = current().block.pieces
    if pieces and not all(pieces.is_column(at % RANK - BASE for at in places[i : i + 8]) for i in range(0, LANES, 8)):
        current().report("wrong swizzle", "the rows of a matrix are pieces of different columns")
    return rows.transpose(1, 2, 0).reshape(LANES, 4)


def product(a: Array, b: Array, c: Array, ptx_type: str) -> np.ndarray:
    """mma.sync: a (lane, 4) and b (lane, 2) words, c (lane, 4) floats."""
    rows = a.reshape(8, 4, 4)  # (group, thread of group, word)
    upper = np.concatenate([rows[:, :, 0], rows[:, :, 2]], 1)
    lower = np.concatenate([rows[:, :, 1], rows[:, :, 3]], 1)
    left = numbers(np.concatenate([upper, lower]), ptx_type)
    columns = b.reshape(8, 4, 2)
    right = numbers(np.concatenate([columns[:, :, 0], columns[:, :, 1]], 1), ptx_type)
    with np.errstate(invalid="ignore"):
        sums = (left @ right.T).reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(LANES, 4)
    return (sums + c).astype(np.float32)


@emulates
def ldmatrix_x4(address: int) -> Value:
    """`ptx.ldmatrix_x4`."""
    return together(address, lambda given: [tuple(map(int, words)) for words in load_matrices(given)], "ldmatrix")


@emulates
def ldmatrix_x4_trans(address: int) -> Value:
    """`ptx.ldmatrix_x4_trans`."""

    def work(given: list[Value]) -> list[Value]:
        rows = np.ascontiguousarray(load_matrices(given).reshape(8, 4, 4).transpose(2, 0, 1))  # (matrix, row, word)
        columns = np.ascontiguousarray(rows.view(np.uint16).transpose(0, 2, 1)).view(np.uint32)
        return [tuple(map(int, words)) for words in columns.reshape(4, LANES).T]

    return together(address, work, "ldmatrix")


@emulates
def mma_sync(ptx_type: str) -> Function:
    """`ptx.mma_sync`."""

    def work(given: list[Value]) -> np.ndarray:
        a, b = (np.array([one[at] for one in given], np.uint32) for at in (slice(4), slice(4, 6)))
        return product(a, b, np.array([one[6:] for one in given], np.float32), ptx_type)

    return lambda *operands: together(operands, work, "mma.sync")


@emulates
def mma_sync_terms(*operands: Value) -> Value:
    """`ptx.mma_sync_terms`."""

    def work(given: list[Value]) -> list[Value]:
        a, low, b = (np.array([one[at] for one in given], np.uint32) for at in (slice(4), slice(4, 8), slice(8, 10)))
        rest, sums = (np.array([one[at] for one in given], np.float32) for at in (slice(10, 14), slice(14, 18)))
        small, term = product(low, b, rest, "f16"), product(a, b, np.zeros_like(sums), "f16")
        return [(*one, *other) for one, other in zip(small, sums + term, strict=True)]

    return together(operands, work, "mma.sync")


@emulates
def mma_tile(
    ptx_type: str, down: int, across: int, phases: int = 1, split: bool = False, quarters: int = 4
) -> Function:
    """`ptx.mma_tile`."""

    def work(given: list[Value]) -> list[None]:
        sums = np.stack([one[0] for one in given])
        first = np.array([[int(address) for address in one[1]] for one in given])
        columns = np.array([int(one[2]) for one in given])
        for turned in range(0, 32 * quarters, 64 if split else 32):

            def rows(low: int, turned: int = turned) -> list[np.ndarray]:
                return [
                    load_matrices((first[:, i % phases] ^ turned + low) + i // phases * phases * 16 * 128)
                    for i in range(down)
                ]

            def pairs(low: int, turned: int = turned) -> list[np.ndarray]:
                fours = [load_matrices((columns ^ turned + low) + j * 2048) for j in range(-(-across // 2))]
                return [fours[j // 2][:, j % 2 * 2 : j % 2 * 2 + 2] for j in range(across)]

            high, low = rows(0), rows(16) if split else []
            for j, (pair, rest) in enumerate(zip(pairs(0), pairs(16) if split else [None] * across, strict=True)):
                if split:
                    halves = np.ascontiguousarray(pair).view(np.float16) / np.float16(LOW_SCALE)
                    small = halves.view(np.uint32)
                for i in range(down):
                    at = slice((i * across + j) * 4, (i * across + j) * 4 + 4)
                    if split:
                        term = product(low[i], small, np.zeros((LANES, 4), np.float32), ptx_type)
                        term = product(high[i], rest, term, ptx_type)
                        sums[:, at] += product(high[i], pair, term, ptx_type)
                    else:
                        sums[:, at] = product(high[i], pair, sums[:, at], ptx_type)
        for one, made in zip(given, sums, strict=True):
            one[0][:] = made
        return [None] * LANES

    return lambda sums, a, b: together((sums, a, b), work, "mma.sync")


@emulates
def mma_windows(
    ptx_type: str,
    rows: int,
    kernel_rows: int,
    places: Sequence[tuple[int, int]],
    pitch: int,
    low: int = 0,
    stacked: bool = False,
) -> Function:
    """`ptx.mma_windows`."""
    terms = 2 if low else 1
    held = 1 if stacked else terms
    products: tuple[tuple[int, int, int], ...] = ((0, 0, 0),)
    if low:
        products = ((0, 0, 0), (1, 0, 1)) if stacked else ((0, 1, 1), (0, 0, 0), (1, 0, 1))

    def word(address: int) -> list[int]:
        return [int(read(address + term * low, 4).view(np.uint32)[0]) for term in range(terms)]

    def two(words: np.ndarray) -> np.ndarray:  # of a lane, or one and a zero
        return np.concatenate([words, np.zeros_like(words)], 1)[:, :2] if words.shape[1] == 1 else words

    def work(given: list[Value]) -> list[None]:
        weights = np.array([one[1] for one in given], np.uint32)[:, : held * kernel_rows * len(places) * 2]
        weights = weights.reshape(LANES, held, kernel_rows, len(places), 2)
        sums = np.zeros((LANES, rows, terms, 4), np.float32)
        for row in range(rows + kernel_rows - 1):
            loaded = [[word(int(one[2][at]) + behind + row * pitch) for at, behind in places] for one in given]
            words = np.array(loaded, np.uint32)
            for r in range(max(0, row - kernel_rows + 1), min(rows, row + 1)):
                for k in range(0, len(places), 2):
                    own = weights[:, :, row - r, k : k + 2]
                    a = [np.concatenate([two(own[:, w, :, half]) for half in (0, 1)], 1)[:, [0, 2, 1, 3]]
                         for w in range(held)]  # fmt: skip
                    for x, w, to in products:
                        b = two(words[:, k : k + 2, x])
                        sums[:, r, to] = product(a[w], b, sums[:, r, to], ptx_type)
        for one, made in zip(given, sums.reshape(LANES, -1), strict=True):
            one[0][: made.size] = made
        return [None] * LANES

    return lambda acc, a, at: together((acc, a, at), work, "mma.sync")


@emulates
def warp_sum(value: Value) -> Value:
    """`ptx.warp_sum`."""
    kind = np.result_type(value)
    return together(value, lambda values: [kind.type(np.sum(values, dtype=kind))] * LANES, "shfl.sync")


@emulates
def quad_sum(value: Value) -> Value:
    """`ptx.quad_sum`."""

    def work(values: list[Value]) -> np.ndarray:
        sums = np.array(values, np.float32).reshape(8, 4)
        pairs = sums + sums[:, [1, 0, 3, 2]]
        return np.asarray((pairs + pairs[:, [2, 3, 0, 1]]).reshape(-1))

    return together(value, work, "shfl.sync")


@emulates
def shfl_exchange(words: int, lane_mask: int) -> Function:
    """`ptx.shfl_exchange`."""

    def work(given: list[Value]) -> list[Value]:
        made = []
        for lane, (first, second, odd) in enumerate(given):
            if bool(odd) != bool(lane & lane_mask):
                current().report("lanes", f"odd is {odd} in lane {lane}: need its number & {lane_mask}")
            others = given[lane ^ lane_mask]
            made.append((*others[1], *second) if odd else (*first, *others[0]))
        return made

    return lambda first, second, odd: together((first, second, odd), work, "shfl.sync")


@emulates
def tid_x() -> int:
    """`ptx.tid_x`."""
    return current().threadIdx.x
