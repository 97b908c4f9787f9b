"""Rows of float32 to the format of what is written: u8, bits of bf16, or float32 itself."""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from charcnn.aliases import Array


def store(row: Array, out: Array) -> None:
    """row float32 (C,) -> out (C,): to u8 what is at least 0, rounded and cut off at 255; to uint16 the bits of bf16.

    NaN stays NaN where there is one. Compiled code calls it.
    """
    raise NotImplementedError("runs in compiled code only: leave NUMBA_DISABLE_JIT unset")


@overload(store)
def _store(row, out):
    if out.dtype == types.uint8:

        def rounded(row, out):
            for c in range(row.size):
                out[c] = np.uint8(np.int32(min(row[c], np.float32(255)) + np.float32(0.5)))

        return rounded
    if out.dtype == types.uint16:

        def bits_of_bf16(row, out):
            bits = row.view(np.uint32)
            for c in range(row.size):
                kept = (bits[c] + np.uint32(0x7FFF) + (bits[c] >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
                out[c] = np.uint16(kept) if row[c] == row[c] else np.uint16(0x7FC0)

        return bits_of_bf16

    def copied(row, out):
        for c in range(row.size):
            out[c] = row[c]

    return copied
