"""Compiled scanner of JSON Lines: which lines are one JSON object, and the texts of some of its keys.

There is no other reader of these lines, so a row's verdict and text depend on nothing but its own bytes. The grammar is
that of Python's `json`: RFC 8259, and NaN, Infinity and -Infinity as numbers; bytes that are not UTF-8 are kept as they
are, and no number is converted, so its digits may be any number. An object may nest DEEPEST deep, itself counted. Of a
key that an object has twice the last one counts.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from charcnn.text.readers.scan import BLANK, NOT_TEXT, READABLE, TORN

DEEPEST = 500
"""Objects and arrays inside each other; Python's `json` gives up at some 990, fewer where the stack is used."""

MISSING, NULL, STRING, NUMBER, BOOLEAN, ARRAY, OBJECT = range(7)
"""What a value is."""

TYPES = ("missing", "null", "a string", "a number", "true or false", "an array", "an object")
"""In words."""

WHOLE, CUT, MORE, NO_VALUE, NO_KEY, NO_COLON, NO_COMMA, CONTROL, ESCAPE, DEEP = range(10)
"""What is wrong with a line."""

FAULTS = (
    "",
    "the line ends too soon",
    "there is more after the value",
    "need a value",
    "need a key in quotes",
    "need a colon",
    "need a comma, or the end of the object or array",
    "a control character in a string",
    "an invalid escape",
    f"nested deeper than {DEEPEST}",
)
"""In words."""

_VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _NEXT = range(5)
"""What comes next in a line: a value; one or the array's end; a key; one or the object's end; a comma or an end."""

_TAB, _SPACE, _QUOTE, _PLUS, _COMMA, _MINUS, _DOT, _SLASH, _ZERO, _NINE, _COLON = b'\t "+,-./09:'
_OPEN, _BACKSLASH, _CLOSE, _BRACE, _UNBRACE = rb"[\]{}"
_B, _F, _N, _R, _T, _U, _E, _UPPER_A, _UPPER_E, _UPPER_F, _A, _UPPER_N = b"bfnrtueAEFaN"

_TRUE, _FALSE, _NULL, _NAN, _INFINITY = (
    np.frombuffer(word, np.uint8) for word in (b"true", b"false", b"null", b"NaN", b"Infinity")
)

_HIGH, _LOW, _END = 0xD800, 0xDC00, 0xE000
"""Where the two halves of surrogate pairs begin, and where they end."""


@njit(cache=True, nogil=True)
def scan_objects(buffer, rows, kinds, order, names, name_offsets, fields, types, found):
    """Which rows are one JSON object each, and where the values of the names lie.

    Args:
        buffer: uint8 (B,).
        rows: int64 (N, 3), as scan_lines left them.
        kinds: uint8 (N,): BLANK or anything else; written: READABLE, TORN (no object), or NOT_TEXT where one of the
            values is neither a string nor null, or none is a string.
        order: int64 (F,): which of the names are asked for, the first to be told of first.
        names, name_offsets: the names' bytes, one after the other.
        fields: int64 (N, W, 2), written: start and end of each name's value, where it is a string, with its quotes.
        types: uint8 (N, W), written: what each name's value is.
        found: int64 (N, 3), written: what is wrong with the line, at which of its bytes, and what its value is; where
            nothing is wrong and it is an object, in the place of the byte how many keys it has.
    """
    stack, longest = np.empty(DEEPEST, np.uint8), 0
    for k in range(name_offsets.size - 1):
        longest = max(longest, name_offsets[k + 1] - name_offsets[k])
    key = np.empty(6 * longest, np.uint8)  # an escape has at most six bytes for each that it stands for
    for n in range(rows.shape[0]):
        if kinds[n] == BLANK:
            continue
        types[n] = MISSING
        fault, place, value = _scan_line(
            buffer, rows[n, 0], rows[n, 1], names, name_offsets, key, stack, fields[n], types[n]
        )
        found[n, 0], found[n, 1], found[n, 2] = fault, place, value
        if fault != WHOLE or value != OBJECT:
            kinds[n] = TORN
            continue
        strings, others = 0, 0
        for f in range(order.size):
            of = types[n, order[f]]
            strings += of == STRING
            others += of > STRING
        kinds[n] = READABLE if strings > 0 and others == 0 else NOT_TEXT


@njit(cache=True, nogil=True)
def _scan_line(buffer, start, end, names, name_offsets, key, stack, fields, types):
    """What is wrong, at which byte of the line (where nothing is: the number of keys), and what the value is."""
    i, depth, expected, value, name, keys = start, 0, _VALUE, MISSING, -1, 0
    while True:
        while i < end and (buffer[i] == _SPACE or buffer[i] == _TAB):
            i += 1
        if i == end:
            whole = depth == 0 and expected == _NEXT
            return (WHOLE, keys, value) if whole else (CUT, i - start, value)
        byte = buffer[i]
        if expected == _NEXT:
            if depth == 0:
                return MORE, i - start, value
            inside = stack[depth - 1]
            if byte == _COMMA:
                expected = _KEY if inside == OBJECT else _VALUE
            elif byte == (_UNBRACE if inside == OBJECT else _CLOSE):
                depth -= 1
            else:
                return NO_COMMA, i - start, value
            i += 1
        elif (expected == _FIRST_KEY and byte == _UNBRACE) or (expected == _FIRST_VALUE and byte == _CLOSE):
            depth, expected = depth - 1, _NEXT
            i += 1
        elif expected in (_KEY, _FIRST_KEY):
            if byte != _QUOTE:
                return NO_KEY, i - start, value
            fault, last, escaped = _string_end(buffer, i + 1, end)
            if fault != WHOLE:
                return fault, last - start, value
            if depth == 1:
                name, keys = _find(buffer, i + 1, last, escaped, names, name_offsets, key), keys + 1
            i = last + 1
            while i < end and (buffer[i] == _SPACE or buffer[i] == _TAB):
                i += 1
            if i == end:
                return CUT, i - start, value
            if buffer[i] != _COLON:
                return NO_COLON, i - start, value
            i, expected = i + 1, _VALUE
        else:
            first, of = i, NUMBER
            if byte == _QUOTE:
                fault, last, _ = _string_end(buffer, i + 1, end)
                if fault != WHOLE:
                    return fault, last - start, value
                i, of, expected = last + 1, STRING, _NEXT
            elif byte in (_BRACE, _OPEN):
                if depth == DEEPEST:
                    return DEEP, i - start, value
                of = OBJECT if byte == _BRACE else ARRAY
                i, stack[depth], expected = i + 1, of, _FIRST_KEY if of == OBJECT else _FIRST_VALUE
                depth += 1
            else:
                of, i = _scan_word(buffer, i, end)
                if of == MISSING:
                    return NO_VALUE, i - start, value
                expected = _NEXT
            level = depth - 1 if of >= ARRAY else depth  # that the value lies in
            if level == 0:
                value = of
            elif level == 1 and name >= 0:
                types[name], fields[name, 0], fields[name, 1] = of, first, i


@njit(cache=True, nogil=True)
def _string_end(buffer, i, end):
    """What is wrong with a string whose first byte this is, where it ends or is wrong, and whether it has escapes."""
    escaped = False
    while i < end:
        byte = buffer[i]
        if byte == _QUOTE:
            return WHOLE, i, escaped
        if byte < _SPACE:
            return CONTROL, i, escaped
        if byte == _BACKSLASH:
            escaped = True
            if i + 1 == end:
                break
            kind = buffer[i + 1]
            if kind == _U:
                for k in range(i + 2, i + 6):
                    if k == end:
                        return CUT, end, escaped
                    if _digit(buffer[k]) < 0:
                        return ESCAPE, i, escaped
                i += 4
            elif kind not in (_QUOTE, _BACKSLASH, _SLASH, _B, _F, _N, _R, _T):
                return ESCAPE, i, escaped
            i += 1
        i += 1
    return CUT, end, escaped


@njit(cache=True, nogil=True)
def _scan_word(buffer, i, end):
    """A number, true, false or null: what it is and where it ends; MISSING, and where it begins, if it is none."""
    byte = buffer[i]
    if byte == _N:
        return (NULL, i + 4) if _is_word(buffer, i, end, _NULL) else (MISSING, i)
    if byte == _T:
        return (BOOLEAN, i + 4) if _is_word(buffer, i, end, _TRUE) else (MISSING, i)
    if byte == _F:
        return (BOOLEAN, i + 5) if _is_word(buffer, i, end, _FALSE) else (MISSING, i)
    if byte == _UPPER_N:
        return (NUMBER, i + 3) if _is_word(buffer, i, end, _NAN) else (MISSING, i)
    first = i
    if byte == _MINUS:
        i += 1
    if _is_word(buffer, i, end, _INFINITY):
        return NUMBER, i + 8
    whole = _digits_end(buffer, i, end)
    if whole == i:
        return MISSING, first
    i = i + 1 if buffer[i] == _ZERO else whole  # what follows a leading zero is no part of the number
    if i < end and buffer[i] == _DOT:
        fraction = _digits_end(buffer, i + 1, end)
        if fraction == i + 1:
            return NUMBER, i
        i = fraction
    if i < end and (buffer[i] == _E or buffer[i] == _UPPER_E):
        signed = i + 2 if i + 1 < end and (buffer[i + 1] == _PLUS or buffer[i + 1] == _MINUS) else i + 1
        exponent = _digits_end(buffer, signed, end)
        if exponent > signed:
            i = exponent
    return NUMBER, i


@njit(cache=True, nogil=True)
def _is_word(buffer, i, end, word):
    if end - i < word.size:
        return False
    same = 0
    while same < word.size and buffer[i + same] == word[same]:
        same += 1
    return same == word.size


@njit(cache=True, nogil=True)
def _digits_end(buffer, i, end):
    while i < end and _ZERO <= buffer[i] <= _NINE:
        i += 1
    return i


@njit(cache=True, nogil=True)
def _digit(byte):
    """What a hexadecimal digit stands for; -1 if it is none."""
    if _ZERO <= byte <= _NINE:
        return np.int64(byte) - _ZERO
    if _UPPER_A <= byte <= _UPPER_F:
        return np.int64(byte) - _UPPER_A + 10
    if _A <= byte <= _F:
        return np.int64(byte) - _A + 10
    return np.int64(-1)


@njit(cache=True, nogil=True)
def _find(buffer, first, last, escaped, names, name_offsets, key):
    """Which of the names a key is; -1 if none. `key`: room for what an escaped one stands for, if it can be a name."""
    if not escaped:
        return _position(buffer, first, last, names, name_offsets)
    if last - first > key.size:
        return -1
    return _position(key, 0, _unescape(buffer, first, last, key, 0), names, name_offsets)


@njit(cache=True, nogil=True)
def _position(buffer, first, last, names, name_offsets):
    for k in range(name_offsets.size - 1):
        start, size = name_offsets[k], name_offsets[k + 1] - name_offsets[k]
        if size == last - first:
            same = 0
            while same < size and buffer[first + same] == names[start + same]:
                same += 1
            if same == size:
                return k
    return -1


@njit(cache=True, nogil=True)
def gather_strings(buffer, kinds, fields, types, order, texts, offsets):
    """Texts of rows one after the other: each row's strings in this order, unescaped, with a space between them.

    Args:
        buffer, kinds, fields, types: as scan_objects left them.
        order: int64 (F,): which of the names.
        texts: uint8, room for all.
        offsets: int64 (N + 1,), written; a row that is not READABLE has an empty text.
    """
    at = 0
    for n in range(kinds.size):
        offsets[n] = at
        if kinds[n] != READABLE:
            continue
        for f in range(order.size):
            if f > 0:
                texts[at] = _SPACE
                at += 1
            name = order[f]
            if types[n, name] == STRING:
                at = _unescape(buffer, fields[n, name, 0] + 1, fields[n, name, 1] - 1, texts, at)
    offsets[kinds.size] = at


@njit(cache=True, nogil=True)
def _unescape(buffer, i, last, out, at):
    """Write what a string's bytes stand for, as UTF-8; where that ends.

    Half a surrogate pair is what it is in Python: one that stands for a byte (U+DC80 to U+DCFF) is that byte, any other
    one the replacement character.
    """
    while i < last:
        byte = buffer[i]
        if byte != _BACKSLASH:
            out[at] = byte
            i, at = i + 1, at + 1
            continue
        kind = buffer[i + 1]
        if kind != _U:
            out[at] = _control(kind)
            i, at = i + 2, at + 1
            continue
        code = _code(buffer, i + 2)
        i += 6
        if _HIGH <= code < _LOW and i + 6 <= last and buffer[i] == _BACKSLASH and buffer[i + 1] == _U:
            low = _code(buffer, i + 2)
            if _LOW <= low < _END:
                code = 0x10000 + ((code - _HIGH) << 10) + (low - _LOW)
                i += 6
        at = _put_code(out, at, code)
    return at


@njit(cache=True, nogil=True)
def _control(kind):
    """The byte that a backslash and this letter stand for."""
    if kind == _B:
        return 8
    if kind == _F:
        return 12
    if kind == _N:
        return 10
    if kind == _R:
        return 13
    if kind == _T:
        return 9
    return kind


@njit(cache=True, nogil=True)
def _code(buffer, i):
    """Four hexadecimal digits."""
    code = np.int64(0)
    for k in range(i, i + 4):
        code = 16 * code + _digit(buffer[k])
    return code


@njit(cache=True, nogil=True)
def _put_code(out, at, code):
    """A code point's bytes."""
    if _LOW + 0x80 <= code < _LOW + 0x100:
        out[at] = code - _LOW
        return at + 1
    if _HIGH <= code < _END:
        code = 0xFFFD
    if code < 0x80:
        out[at] = code
        return at + 1
    if code < 0x800:
        out[at] = 0xC0 | (code >> 6)
    elif code < 0x10000:
        out[at] = 0xE0 | (code >> 12)
        at += 1
        out[at] = 0x80 | ((code >> 6) & 0x3F)
    else:
        out[at] = 0xF0 | (code >> 18)
        out[at + 1] = 0x80 | ((code >> 12) & 0x3F)
        at += 2
        out[at] = 0x80 | ((code >> 6) & 0x3F)
    out[at + 1] = 0x80 | (code & 0x3F)
    return at + 2
