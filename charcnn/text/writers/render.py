"""Rows with labels back to bytes, compiled, with no Python object a row."""

from __future__ import annotations

import numpy as np
from numba import njit

from charcnn.text.readers.scan import BLANK, FEW, NOT_TEXT, READABLE, put

CSV, LINES, JSON = range(3)
"""Styles of `render`."""

FILLED = 64
"""Fields that a row may lack and is filled up with when it is written; one that lacks more stays as short as it is.
Else a header of a million names would cost a million bytes for each short row."""

_NEWLINE, _SPACE, _TAB, _BRACE, _UNBRACE = 10, 32, 9, 123, 125


@njit(cache=True, nogil=True)
def put_share(out, at, share):
    """A number from 0 to 1 with four decimals."""
    whole = np.int64(np.round(np.float64(share) * 10000))
    out[at] = 49 if whole >= 10000 else 48
    out[at + 1] = 46
    whole %= 10000
    for digit in range(4):
        out[at + 5 - digit] = 48 + whole % 10
        whole //= 10
    return at + 6


@njit(cache=True, nogil=True)
def render(
    buffer, rows, kinds, counts, columns, delimiter, style, labels, shares, names, name_offsets, keys, key_offsets,
    key_sets, out,
):  # fmt: skip
    """Rows as they came, each with its label and shares.

    Args:
        buffer, rows, kinds, counts: as a scanner left them.
        columns: fields that a row has; a row that lacks at most FILLED is filled up.
        delimiter: what stands between fields.
        style: CSV (fields behind the row), LINES (in front of it), or JSON (before the object's last brace).
        labels: int64 (N,): index of the row's label, or of what stands for one that it has not.
        shares: float32 (N, S): numbers to write behind the label.
        names, name_offsets: the labels' bytes, one after the other.
        keys, key_offsets: JSON only: what stands before the label, before each share, and at the end; so for each set.
        key_sets: int64 (N,): which set of keys the row gets.
        out: uint8, room for all.

    Returns:
        Bytes written.
    """
    at = 0
    for n in range(rows.shape[0]):
        start, end, following = rows[n, 0], rows[n, 1], rows[n, 2]
        readable = kinds[n] == READABLE
        label = labels[n]
        if kinds[n] == BLANK or (style == JSON and not readable and kinds[n] != NOT_TEXT):
            at = put(out, at, buffer, start, end)
        elif style == CSV:
            at = put(out, at, buffer, start, end)
            if kinds[n] == FEW and columns - counts[n] <= FILLED:
                for _ in range(counts[n], columns):
                    out[at] = delimiter
                    at += 1
            out[at] = delimiter
            at = put(out, at + 1, names, name_offsets[label], name_offsets[label + 1])
            for s in range(shares.shape[1]):
                out[at] = delimiter
                at += 1
                if readable:
                    at = put_share(out, at, shares[n, s])
        elif style == LINES:
            at = put(out, at, names, name_offsets[label], name_offsets[label + 1])
            for s in range(shares.shape[1]):
                out[at] = delimiter
                at += 1
                if readable:
                    at = put_share(out, at, shares[n, s])
            out[at] = delimiter
            at = put(out, at + 1, buffer, start, end)
        else:
            brace = end - 1
            while brace > start and buffer[brace] != _UNBRACE:
                brace -= 1
            at = put(out, at, buffer, start, brace)
            last = brace - 1
            while last > start and (buffer[last] == _SPACE or buffer[last] == _TAB):
                last -= 1
            key = key_sets[n] * (2 + shares.shape[1])
            first = key_offsets[key] + (1 if buffer[last] == _BRACE else 0)  # no comma in an object that was empty
            at = put(out, at, keys, first, key_offsets[key + 1])
            at = put(out, at, names, name_offsets[label], name_offsets[label + 1])
            for s in range(shares.shape[1]):
                at = put(out, at, keys, key_offsets[key + 1 + s], key_offsets[key + 2 + s])
                if readable:
                    at = put_share(out, at, shares[n, s])
                else:
                    at = put(out, at, names, name_offsets[label], name_offsets[label + 1])
            key += 1 + shares.shape[1]
            at = put(out, at, keys, key_offsets[key], key_offsets[key + 1])
        if following > end:
            at = put(out, at, buffer, end, following)
        else:
            out[at] = _NEWLINE
            at += 1
    return at
