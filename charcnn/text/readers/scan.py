"""Compiled scanners: bytes to rows and fields, and rows with labels back to bytes, with no Python object a row.

Offsets count bytes from the start of the buffer that a scanner is given. All release the GIL.
"""

from __future__ import annotations

import numpy as np
from numba import njit

READABLE, BLANK, TORN, FEW, MANY, NOT_TEXT, NO_CLASS = range(7)
"""What a row is: readable; an empty line; broken quoting; too few or too many fields; its text is none, or its label no
class."""

FILLED = 64
"""Fields that a row may lack and is filled up with when it is written; one that lacks more stays as short as it is.
Else a header of a million names would cost a million bytes for each short row."""

_SCANNING, _ENDED, _OPEN, _UNCLOSED, _BROKEN, _AS_FAILED = range(6)
"""How the scan of a row of CSV stands: under way; at its end; at the buffer's end, which may be its own; there, too, in
an open quote; at a byte that may not follow a quote; where an earlier row, that failed, was in the same state."""

_NEWLINE, _RETURN, _QUOTE, _SPACE = 10, 13, 34, 32
_TAB, _BRACE, _UNBRACE = 9, 123, 125


@njit(cache=True, nogil=True)
def _line_end(buffer, position, stop):
    """Where the line's end starts and where the next line starts; (stop, stop) where it has none."""
    for i in range(position, stop):
        if buffer[i] == _NEWLINE:
            return i, i + 1
        if buffer[i] == _RETURN:
            return i, i + 2 if i + 1 < stop and buffer[i + 1] == _NEWLINE else i + 1
    return stop, stop


@njit(cache=True, nogil=True)
def count_lines(part):
    r"""Line ends: \n, \r\n or \r."""
    lines = 0
    for i in range(part.size):
        if part[i] == _NEWLINE or (part[i] == _RETURN and not (i + 1 < part.size and part[i + 1] == _NEWLINE)):
            lines += 1
    return lines


@njit(cache=True, nogil=True)
def scan_lines(buffer, start, stop, final, rows):
    """Rows that are lines, as many as fit into `rows` (R, 3): start, end, start of the next.

    Without `final` a last line whose end is not in the buffer is left.

    Returns:
        How many rows.
    """
    n, position = 0, start
    while n < rows.shape[0] and position < stop:
        end, following = _line_end(buffer, position, stop)
        if not final and (end == stop or (following == stop and buffer[stop - 1] == _RETURN)):
            break
        rows[n, 0], rows[n, 1], rows[n, 2] = position, end, following
        n, position = n + 1, following
    return n


@njit(cache=True, nogil=True)
def scan_csv(buffer, start, stop, final, delimiter, columns, wanted, longest, rows, kinds, counts, fields, failed):
    """Rows of CSV: quoted fields hold delimiters, line ends and doubled quotes; a quote inside a bare field is one.

    A row whose quoting is broken, or that has not ended after `longest` bytes, is its first line alone: rows start
    again at the next one. A line that is longer than that is cut there. Without `final` a last row whose end is not
    in the buffer is left.

    The time is linear, also where each line opens a quote that never closes. A row goes on behind a line's end inside
    quotes only. So two rows that both go on behind the same one are in the same state there, and end alike: `failed`
    keeps the last row that did not end, and how, and a row that it went through is scanned up to its own first line
    end alone.

    Args:
        buffer: uint8 (B,).
        start, stop: the part to scan.
        final: whether the file ends at `stop`.
        delimiter: the byte between fields.
        columns: fields that a row must have; 0 for any number.
        wanted: int64 (W,): columns whose places go into `fields`, rising.
        longest: bytes of a row.
        rows: int64 (R, 3): start, end, start of the next, of at most R rows.
        kinds: uint8 (R,): READABLE, BLANK, TORN, FEW or MANY.
        counts: int64 (R,): fields; 0 of a TORN row.
        fields: int64 (R, W, 2): start and end of each wanted field, quotes included; (0, 0) where the row has none.
            Written of READABLE rows alone.
        failed: int64 (3,): zeros, or what the scan of an earlier part left here, of the same buffer and `stop`.

    Returns:
        How many rows.
    """
    n, position = 0, start
    while n < rows.shape[0] and position < stop:
        i, count, next_wanted, how = position, 0, 0, _SCANNING
        until = stop
        if failed[0] <= position < failed[1]:
            line, following = _line_end(buffer, position, failed[1])
            if line < failed[1]:
                until = following
        while how == _SCANNING:
            field = i
            if i < stop and buffer[i] == _QUOTE:
                i += 1
                while True:
                    while i < until and buffer[i] != _QUOTE:
                        i += 1
                    if i + 1 < stop and i < until and buffer[i + 1] == _QUOTE:
                        i += 2
                        continue
                    break
                if i >= until:
                    how = _UNCLOSED if until == stop else _AS_FAILED
                    break
                i += 1
                if i < stop and buffer[i] != delimiter and buffer[i] != _NEWLINE and buffer[i] != _RETURN:
                    how = _BROKEN
                    break
            else:
                while i < stop and buffer[i] != delimiter and buffer[i] != _NEWLINE and buffer[i] != _RETURN:
                    i += 1
            if next_wanted < wanted.size and wanted[next_wanted] == count:
                fields[n, next_wanted, 0], fields[n, next_wanted, 1] = field, i
                next_wanted += 1
            count += 1
            if i < stop and buffer[i] == delimiter:
                i += 1
                continue
            how = _ENDED
        end = following = i
        if how == _ENDED and i < stop:
            following = i + 2 if buffer[i] == _RETURN and i + 1 < stop and buffer[i + 1] == _NEWLINE else i + 1
        if how == _ENDED and (i == stop or (following == stop and buffer[stop - 1] == _RETURN)):
            how = _OPEN  # what reaches the buffer's end may go on behind it
        as_failed = how == _AS_FAILED
        if as_failed:
            end, how = failed[1], failed[2]
        if how in (_OPEN, _UNCLOSED) and not final and end - position <= longest:
            break
        if how in (_BROKEN, _UNCLOSED) or end - position > longest:
            if end > failed[1]:
                failed[0], failed[1], failed[2] = position, end, how
            end, following = _line_end(buffer, position, min(stop, position + longest + 2))  # 2: \r\n
            if end - position > longest:
                end = following = position + longest
            elif not final and (end == stop or (following == stop and buffer[stop - 1] == _RETURN)):
                break
            kinds[n] = TORN
            count = 0
        elif as_failed:  # that was too long, and this is not: to be scanned whole, and then behind it
            failed[1] = 0
            continue
        elif end == position:
            kinds[n] = BLANK
        elif columns > 0 and count < columns:
            kinds[n] = FEW
        elif columns > 0 and count > columns:
            kinds[n] = MANY
        else:
            kinds[n] = READABLE
            for w in range(next_wanted, wanted.size):
                fields[n, w, 0] = fields[n, w, 1] = 0
        rows[n, 0], rows[n, 1], rows[n, 2], counts[n] = position, end, following, count
        n, position = n + 1, following
    return n


@njit(cache=True, nogil=True)
def gather_fields(buffer, rows, kinds, fields, order, texts, offsets):
    """Texts of rows one after the other: each row's fields in this order, unquoted, with a space between them.

    Args:
        buffer, rows, kinds, fields: as scan_csv left them.
        order: int64 (F,): which of the wanted fields.
        texts: uint8, room for all.
        offsets: int64 (N + 1,), written; a row that is not READABLE has an empty text.
    """
    at = 0
    for n in range(rows.shape[0]):
        offsets[n] = at
        if kinds[n] != READABLE:
            continue
        for f in range(order.size):
            if f > 0:
                texts[at] = _SPACE
                at += 1
            first, last = fields[n, order[f], 0], fields[n, order[f], 1]
            if first < last and buffer[first] == _QUOTE:
                i = first + 1
                while i < last - 1:
                    byte = buffer[i]
                    texts[at] = byte
                    at += 1
                    i += 2 if byte == _QUOTE else 1  # the second of two quotes
            else:
                for i in range(first, last):
                    texts[at] = buffer[i]
                    at += 1
    offsets[rows.shape[0]] = at


@njit(cache=True, nogil=True)
def gather_lines(buffer, rows, texts, offsets):
    """Rows one after the other, byte for byte: into texts, uint8 with room for all, and offsets, int64 (N + 1,)."""
    at = 0
    for n in range(rows.shape[0]):
        offsets[n] = at
        at = put(texts, at, buffer, rows[n, 0], rows[n, 1])
    offsets[rows.shape[0]] = at


@njit(cache=True, nogil=True)
def put(out, at, values, first, last):
    """Write values[first:last] from `at` on; where the next ones stand."""
    for i in range(first, last):
        out[at] = values[i]
        at += 1
    return at


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


CSV, LINES, JSON = range(3)
"""Styles of `render`."""
