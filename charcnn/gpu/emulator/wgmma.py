"""Products by warpgroups: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".

The 128 threads of a warpgroup meet, and one of them multiplies for all. Both matrices are K-major, their rows of 128
bytes swizzled.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from charcnn.aliases import Array, Function, Value
from charcnn.gpu.emulator.order import Actor
from charcnn.gpu.emulator.shared import helper, read_matrix
from charcnn.gpu.emulator.threads import WARPGROUP, Registers, Thread, current
from charcnn.gpu.emulator.warp import numbers, together
from charcnn.gpu.ptx.intrinsics import EMULATED, emulates

_ROWS = 64
_ADDRESS = 0x3FFF
"""Of a matrix descriptor: the address in units of 16 bytes."""


def _matrix(descriptor: int, rows: int, ptx_type: str) -> np.ndarray:
    return numbers(read_matrix((int(descriptor) & _ADDRESS) << 4, rows), ptx_type)


@emulates
def wgmma(ptx_type: str, columns: int, accumulate: bool = True, quarters: int = 4) -> Function:
    """`ptx.wgmma`."""

    def work(given: list[Value]) -> list[None]:
        _, a, b = given[0]
        if any(matrices != [a, b] for _, *matrices in given):
            current().report("wgmma", "threads of a warpgroup have descriptors of their own")
        with np.errstate(invalid="ignore"):
            left, right = _matrix(a, _ROWS, ptx_type), _matrix(b, columns, ptx_type)
            depth = left.shape[1] * quarters // 4
            made = left[:, :depth] @ right[:, :depth].T
        # Rows of (warp, second half, group of lanes), columns of (eight, lane of a group, second).
        made = made.reshape(4, 2, 8, columns // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5).reshape(WARPGROUP, -1)
        for (sums, *_), values in zip(given, made, strict=True):
            raw = sums.view(np.ndarray)
            raw[:] = raw + values if accumulate else values
        return [None] * WARPGROUP

    def multiply(sums: Array, a: int, b: int) -> None:
        thread = current()
        if thread.block.shadow and sums.fences == thread.fences:
            thread.report("missing wgmma fence", "adds to what this thread wrote with no wgmma_fence between")
        together((sums, a, b), work, "wgmma", WARPGROUP)
        if thread.block.shadow:
            sums.__class__ = UnderWay
            thread.products.append((sums, _product(thread).time))

    return multiply


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
            sums, time = thread.products.pop(0)
            thread.actor.knows[_product(thread).number] = time
            if all(sums is not other for other, _ in thread.products):
                sums.__class__ = Registers

    return waiting


@emulates
def wgmma_fence() -> None:
    """`ptx.wgmma_fence`."""
    current().fences += 1


EMULATED["setmaxnreg"] = lambda **constants: lambda: None
