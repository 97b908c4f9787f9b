"""Several labels a row, as one field: names one after the other, and likewise their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from charcnn.text import encodings
from charcnn.text.readers.scan import put
from charcnn.text.writers.render import put_share


@dataclass(frozen=True)
class Style:
    """How a format writes a list."""

    opening: bytes = b""
    between: bytes = b"|"
    closing: bytes = b""
    missing: bytes = b""
    """In place of the list of a row that cannot be read."""


def written(
    chosen: np.ndarray,
    shares: np.ndarray,
    readable: np.ndarray,
    names: Sequence[bytes],
    style: Style,
    keys: Sequence[bytes],
    key_sets: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """What stands in each row for its labels, and where there are keys, for their probabilities, too.

    Args:
        chosen: bool (N, C): which labels a row has.
        shares: float32 (N, C): their probabilities.
        readable: bool (N,): whether a row has any.
        names: C of them, as they are written.
        style: what stands around them.
        keys: of each set what stands between labels and probabilities; none where these are not written.
        key_sets: int64 (N,): which one is a row's.

    Returns:
        uint8 (B,), and offsets, int64 (N + 1,): row n's bytes are from offsets[n] to offsets[n + 1].
    """
    lists = 2 if keys else 1
    longest = max(map(len, names), default=0) + 6 + 2 * len(style.between)  # of a name and its share
    around = len(style.opening) + len(style.closing) + len(style.missing)
    room = len(chosen) * (lists * around + max(map(len, keys), default=0)) + int(chosen.sum()) * longest
    out, offsets = np.empty(room, np.uint8), np.empty(len(chosen) + 1, np.int64)
    marks = encodings.pack([style.opening, style.between, style.closing, style.missing])
    _write(chosen, shares, readable, *encodings.pack(names), *marks, *encodings.pack(keys), key_sets, out, offsets)
    return out, offsets


@njit(cache=True, nogil=True)
def _write(
    chosen, shares, readable, names, name_offsets, marks, mark_offsets, keys, key_offsets, key_sets, out, offsets
):  # fmt: skip
    at, lists = 0, 1 if key_offsets.size == 1 else 2
    for n in range(chosen.shape[0]):
        offsets[n] = at
        for which in range(lists):
            if which == 1:
                at = put(out, at, keys, key_offsets[key_sets[n]], key_offsets[key_sets[n] + 1])
            if not readable[n]:
                at = put(out, at, marks, mark_offsets[3], mark_offsets[4])
                continue
            at = put(out, at, marks, mark_offsets[0], mark_offsets[1])
            first = True
            for c in range(chosen.shape[1]):
                if not chosen[n, c]:
                    continue
                if not first:
                    at = put(out, at, marks, mark_offsets[1], mark_offsets[2])
                first = False
                if which == 0:
                    at = put(out, at, names, name_offsets[c], name_offsets[c + 1])
                else:
                    at = put_share(out, at, shares[n, c])
            at = put(out, at, marks, mark_offsets[2], mark_offsets[3])
    offsets[chosen.shape[0]] = at
