"""Compiled scanners: bytes to rows and fields, with no Python object a row.

Offsets count bytes from the start of the buffer that a scanner is given. All release the GIL.
"""

from __future__ import annotations

from numba import njit

READABLE, BLANK, TORN, FEW, MANY, NOT_TEXT, NO_CLASS = range(7)
"""What a row is: readable; an empty line; broken quoting; too few or too many fields; its text is none, or its label no
class."""

_SCANNING, _ENDED, _OPEN, _UNCLOSED, _BROKEN, _AS_FAILED = range(6)
"""How the scan of a row of CSV stands: under way; at its end; at the buffer's end, which may be its own; there, too, in
an open quote; at a byte that may not follow a quote; where an earlier row, that failed, was in the same state."""

_NEWLINE, _RETURN, _QUOTE, _SPACE = 10, 13, 34, 32


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
