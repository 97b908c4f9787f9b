"""Read random files of lines, JSON Lines and CSV in many ways: a row's verdict and text must depend on no other row.

What is compared: a reading line by line in plain Python; blocks of several sizes out of buffers of several sizes; short
reads; a pipe; with pyarrow and without; and a reading that ends at every block and is gone on with, as after a kill. Of
each: texts, numbers, lines and reasons of unreadable rows, labels, and the rows as they are written.

    python tests/fuzz_lines.py --files 200000 --seed 1
    python tests/fuzz_lines.py --commands 200 --seed 1      the command itself, cut off and gone on with

`test_fuzz_lines.py` runs a share of it.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import random
import re
import sys
import tempfile
import time
import zlib
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np

from charcnn.text import encodings
from charcnn.text.layout import Layout
from charcnn.text.readers import base, scan
from charcnn.text.readers.json_scan import DEEPEST
from charcnn.text.readers.open import open_reader
from charcnn.text.writers.open import open_writer

ENCODINGS = [encodings.ENCODINGS["forward"], encodings.ENCODINGS["crepe"]]
CLASSES = ["World", 'a "b", c']

# ---------------------------------------------------------------------------------------------------------- files

ENDS = [b"\n", b"\n", b"\n", b"\r\n", b"\r"]

STRINGS = [
    b'""', b'"a"', b'"plain words"', b'"\\"quoted\\" \\\\ \\/ \\b\\f\\n\\r\\t"', b'"\\u0041\\u00e9\\u20AC"',
    b'"\\ud83d\\ude00"', b'"\\ud83d"', b'"\\ude00\\ud83d"', b'"\\udcff\\udc80"', b'"\\ud83d\\u0041"',
    b'"\\ud83d\\ud83d\\ude00"', b'"\\u0000"', b'"\xff\xfe"', b'"\xed\xa0\x80"', b'"\xc3\xa9 \xf0\x9f\x98\x80"',
    b'"}{][,:"', b'"\x7f"', b'"\xe2\x80\xa8"', b'"\\', b'"\\u12', b'"\\uD8zz"', b'"\\x41"', b'"tab\there"',
    b'"nul\x00"', b'"\x1f"', b'"\\\'"', b'"\xef\xbb\xbf"', b"'a'",
]  # fmt: skip

SCALARS = [
    b"null", b"true", b"false", b"0", b"-0", b"5", b"-12", b"1.5", b"1e5", b"1E+5", b"2.5e-3", b"1e999",
    b"12345678901234567890", b"NaN", b"Infinity", b"-Infinity", b"-NaN", b"+1", b"01", b"-01", b"1.", b".5", b"1e",
    b"1e+", b"-", b"--1", b"nul", b"nulll", b"True", b"None", b"0x10", b"1_000", b"-Inf", b"\xd9\xa1", b"tru", b"1.e5",
    b"0.0", b"00", b"-0.0e-0", b"N", b"-I",
]  # fmt: skip

KEYS = [
    b'"text"', b'"text"', b'"text"', b'"te\\u0078t"', b'"title"', b'"label"', b'"l\\u0061bel"', b'"a"', b'""',
    b'"Text"', b'"text "', b'"\xff"', b'"\\udcff"', b'"\\ud800"', b'"\\ufffd"', b'"\xc3\xa9"', b'"\\u00e9"',
    b'"probability"', b"text", b'"te\\x', b'"\\u0000"',
]  # fmt: skip

BLANKS = [b"", b"", b"", b"", b" ", b"\t", b"  ", b"\x0c", b"\x0b", b"\xc2\xa0", b"\x00", b"\xef\xbb\xbf"]

TEXTS = [
    b"", b"a", b'"', b'""', b'"Phishing" scams cost banks $500m a year', b'a "b"', b",", b"\x00", b"\x0c", b"\x85",
    b"\xe2\x80\xa8", b"\xff", b"\xef\xbb\xbf", b"\t", b" ", b"'", b"\\", b"words and words", b'"a","b"', b"\x1a",
    b"\xc3\xa9",
]  # fmt: skip

FIELDS = [
    b"", b"a", b"b c", b'"q"', b'"q, ""r"""', b'"x\ny"', b'"x\r\ny"', b'a"b', b"\xff", b" ", b"7", b'"', b'"t" x',
    b"\x0c", b"\x85",
]  # fmt: skip


def wide_int(rng):
    """More digits than Python converts."""
    return b"9" * rng.choice([640, 641, 4300, 4301, 5000])


def nested(rng):
    """About as deep as it may be, or much deeper."""
    depth = rng.choice([1, 3, DEEPEST - 2, DEEPEST - 1, DEEPEST, DEEPEST + 1, 1200])
    opened = [rng.choice([b"[", b'{"a":']) for _ in range(depth)]
    closed = [b"]" if part == b"[" else b"}" for part in reversed(opened)]
    inner = rng.choice([b"", b"1", b'"a"']) if opened[-1] == b"[" else b"1"
    return b"".join([*opened, inner, *closed[: len(closed) - (rng.random() < 0.1)]])


def value(rng, depth=0):
    """A JSON value, or nearly one."""
    draw = rng.random()
    if draw < 0.55:
        return rng.choice(STRINGS[:18] if rng.random() < 0.9 else STRINGS)
    if draw < 0.85 or depth > 2:
        return rng.choice(SCALARS[:16] if rng.random() < 0.9 else SCALARS)
    if draw < 0.855:
        return wide_int(rng)
    if draw < 0.86:
        return nested(rng)
    if draw < 0.93:
        return b"[" + b",".join(value(rng, depth + 1) for _ in range(rng.randrange(3))) + b"]"
    return json_object(rng, depth + 1)


def json_object(rng, depth=0):
    """An object, blanks between its parts."""
    neat = rng.random() < 0.8
    blank = (lambda: b"") if neat else (lambda: rng.choice(BLANKS[:7] if rng.random() < 0.95 else BLANKS))
    parts = []
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 5])):
        key = rng.choice(KEYS[:18] if rng.random() < 0.97 else KEYS)
        parts.append(blank() + key + blank() + b":" + blank() + value(rng, depth) + blank())
    return blank() + b"{" + b",".join(parts) + b"}" + blank()


def good_object(rng):
    """What most lines of a real file are."""
    return b'{"id": %d, "text": %s}' % (rng.randrange(9), rng.choice(STRINGS[:18]))


def mutated(rng, line):
    """A byte or two changed, taken out, or put in."""
    found = bytearray(line)
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(len(found) + 1)
        byte = rng.choice(b'{}[]",:\\ \t0a\x0c\xff-u.eN') if rng.random() < 0.9 else rng.randrange(256)
        draw = rng.random()
        if draw < 0.4 or at == len(found):
            found.insert(at, byte)
        elif draw < 0.7:
            del found[at]
        else:
            found[at] = byte
    return bytes(found)


def json_line(rng):
    """One line, at times two: what a file of JSON Lines may hold, and what it should not."""
    draw = rng.random()
    if draw < 0.4:
        return good_object(rng)
    if draw < 0.62:
        return json_object(rng)
    if draw < 0.72:
        return mutated(rng, rng.choice([good_object, json_object])(rng))
    if draw < 0.77:
        return rng.choice(
            [b"", b"", b" ", b"\t", b"\x0c", b"null", b"{}", b"{ }", b"[]", b"{", b"}", b"\xef\xbb\xbf", b"nan"]
        )
    if draw < 0.82:
        return value(rng)
    if draw < 0.87:  # two objects on a line
        return json_object(rng) + rng.choice([b"", b" ", b",", b"\t"]) + json_object(rng)
    if draw < 0.92:  # an object over two lines
        whole = good_object(rng)
        at = rng.choice([len(whole) // 2, whole.index(b",") + 1, 1])
        return whole[:at] + rng.choice(ENDS) + whole[at:]
    if draw < 0.94:
        return b"\xef\xbb\xbf" + good_object(rng)
    if draw < 0.96:
        return b'{"text":"a","n":' + nested(rng) + b"}"
    if draw < 0.97:
        return nested(rng)
    if draw < 0.98:
        return b'{"text":"a","n":' + rng.choice([b"", b"-"]) + wide_int(rng) + rng.choice([b"", b".5", b"e5"]) + b"}"
    return good_object(rng) + rng.choice([b" ", b",", b"\x00", b"\x0c", b"}", b"#", b" null", b" 1"])


def csv_line(rng):
    """A row, at times a broken one."""
    count = 2 if rng.random() < 0.85 else rng.randrange(4)
    return b",".join(rng.choice(FIELDS[:11] if rng.random() < 0.95 else FIELDS) for _ in range(count))


MAKERS = {
    "jsonl": json_line,
    "lines": lambda rng: b"".join(rng.choice(TEXTS) for _ in range(rng.choice([0, 1, 1, 2, 3]))),
    "csv": csv_line,
}

LAYOUTS = {
    "jsonl": [
        *[{}] * 4, {"texts": ("text",)}, {"texts": ("title", "text")}, {"texts": ("text", "text")},
        {"texts": ("é", "text")}, {"texts": ("\udcff",)}, {"texts": ("text",), "label": "a"}, {"texts": ("",)},
    ],
    "lines": [{}],
    "csv": [{"header": False}, {"header": False, "texts": ("2", "1")}, {"header": False, "label": "1"}],
}  # fmt: skip


def make(rng):
    """Kind, bytes and layout of a file."""
    kind = rng.choices(["jsonl", "lines", "csv"], [7, 2, 1])[0]
    ends = [rng.choice(ENDS)] if rng.random() < 0.7 else ENDS
    data = b"".join(MAKERS[kind](rng) + rng.choice(ends) for _ in range(rng.choice([0, 1, 2, 4, 8, 8, 16, 16])))
    if kind == "jsonl" and rng.random() < 0.5:  # else many files are refused for their first object's keys
        data = good_object(rng) + rng.choice(ends) + data
    if rng.random() < 0.3:
        data = data[: -rng.randrange(1, 4)]
    if rng.random() < 0.1:
        data = rng.choice([b"\xef\xbb\xbf", b"\xef\xbb\xbf" * 2, b"\xef\xbb", b"\n\n", b"\xff\xfe"]) + data
    return kind, data, rng.choice(LAYOUTS[kind])


# ------------------------------------------------------------------------------------------------------ reference


LINE_END = re.compile(rb"\r\n|\r|\n")


class Refused(Exception):
    """A file that is not opened."""


def split(data):
    """The file's lines, without their ends."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise Refused
    lines = LINE_END.split(data.removeprefix(b"\xef\xbb\xbf"))
    return lines if lines[-1] else lines[:-1]


def as_bytes(value):
    """A str as the bytes that a text has."""
    return b"".join(
        character.encode("utf-8", "surrogateescape" if "\udc80" <= character <= "\udcff" else "strict")
        if not "\ud800" <= character <= "\udfff" or "\udc80" <= character <= "\udcff"
        else b"\xef\xbf\xbd"
        for character in value
    )


class Pairs(list):
    """An object's keys and values."""


class Number(str):
    """A number as it is written."""


DECODER = json.JSONDecoder(object_pairs_hook=Pairs, parse_int=Number, parse_float=Number, parse_constant=Number)

TYPES = [
    (bool, "true or false"),
    (Number, "a number"),
    (str, "a string"),
    (Pairs, "an object"),
    (list, "an array"),
    (type(None), "null"),
]


def type_of(value):
    """In the words that reasons use."""
    return next(words for kind, words in TYPES if isinstance(value, kind))


def depth_of(line):
    """The most objects and arrays that are open at once: strings hold none."""
    depth = most = 0
    for bracket in re.findall(r"[][{}]", re.sub(r'"(?:[^"\\]|\\.)*"', "", line, flags=re.DOTALL)):
        depth += 1 if bracket in "[{" else -1
        most = max(most, depth)
    return most


def json_value(line):
    """What one line is: a value, or a str that begins as the reason does."""
    decoded = line.decode("utf-8", "surrogateescape")
    try:
        found = DECODER.decode(decoded)
    except ValueError:
        return "not JSON" if depth_of(decoded) <= DEEPEST else "not JSON|nested deeper"
    if depth_of(decoded) > DEEPEST:
        return "nested deeper"
    return found if isinstance(found, Pairs) else f"{type_of(found)}: need a JSON object"


def as_read(value):
    """A value in Python's own types, as far as a label's words show them."""
    if isinstance(value, Number):
        if value.lstrip("-").isdecimal():
            return int(value) if len(value) <= 640 else float(value)
        return int(had) if abs(had := float(value)) < base.LARGEST_WHOLE and had == int(had) else had
    if isinstance(value, Pairs):
        return {key: as_read(inner) for key, inner in value}
    return [as_read(inner) for inner in value] if isinstance(value, list) else value


def has_words(text):
    return bool(text.decode("utf-8", "surrogateescape").strip())


def json_reference(data, layout, reverse, longest):
    """Rows of JSON Lines: (text or None, reason's beginning, label); and the line of each."""
    lines = split(data)
    values = [json_value(line) if line else None for line in lines]
    names, label, first = layout.texts, layout.label, None
    plain = data.removeprefix(b"\xef\xbb\xbf")
    ends = [match.start() for match in LINE_END.finditer(plain)] + [len(plain)]
    for end, value in zip(ends, values, strict=False):
        if end > longest:
            if not names:
                raise Refused
            break
        if isinstance(value, Pairs) and value:
            first = dict(value)
            break
    if first is not None and not names:
        names = tuple(name for name in first if name.lower() in ("text", "title", "description"))
        if not names:
            names = tuple(name for name, value in first.items() if type_of(value) == "a string")
            if len(names) != 1:
                raise Refused
    names = names or ("text",)
    if label is None and first is not None:
        label = next(
            (name for name in first if name.strip().lower() in ("label", "class", "category", "class index")), None
        )
        label = None if label in names else label
    names = names[::-1] if reverse else names
    rows, at_lines = [], []
    for number, (line, value) in enumerate(zip(lines, values, strict=True), 1):
        if not line:
            continue
        at_lines.append(number)
        if isinstance(value, str):
            rows.append((None, value, None))
            continue
        by_bytes = {as_bytes(key): inner for key, inner in value}
        fields = [by_bytes.get(as_bytes(name)) for name in names]
        wrong = [type_of(field) for field in fields if type_of(field) not in ("a string", "null")]
        if wrong:
            rows.append((None, f"text is {wrong[0]}", None))
        elif all(field is None for field in fields):
            rows.append((None, f"{names[0]!r}", None))
        else:
            had = as_read(dict(value).get(label)) if label is not None else None
            fits = isinstance(had, (str, int)) and not isinstance(had, bool)
            text = as_bytes(" ".join(field or "" for field in fields))
            rows.append((text, None, str(had) if fits else None) if has_words(text) else NO_TEXT)
    return rows, at_lines, label is not None


def lines_reference(data):
    """Rows of plain lines, likewise."""
    lines = split(data)
    return [(line, None, None) if has_words(line) else NO_TEXT for line in lines], list(range(1, len(lines) + 1)), False


def csv_reference(data, layout, reverse):
    """Rows of CSV, likewise; None where Python's csv takes none of it."""
    split(data)
    decoded = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    if "\0" in decoded:
        return None
    try:
        found = [row for row in csv.reader(io.StringIO(decoded, newline=""), strict=True) if row]
    except csv.Error:
        return None
    first = found[0] if found else []
    label, texts = layout.label_column(first), layout.text_columns(first)
    texts = texts[::-1] if reverse else texts
    rows = []
    for row in found:
        if len(row) != len(first):
            rows.append((None, f"{len(row)} fields: need {len(first)}", None))
        else:
            joined = " ".join(row[index] for index in texts).encode("utf-8", "surrogateescape")
            had = None if label is None or re.search("[\udc80-\udcff]", row[label]) else row[label]  # UTF-8
            rows.append((joined, None, had and had.strip()) if has_words(joined) else NO_TEXT)
    return rows, None, label is not None


# -------------------------------------------------------------------------------------------------------- reading


class Dribble(io.FileIO):
    """A file that gives a few bytes at a time."""

    def __init__(self, fd, most):
        super().__init__(fd, "rb", closefd=False)
        self._most = most

    def readinto(self, buffer):
        return super().readinto(memoryview(buffer)[: self._most])


class Reader:
    """One file, to be read in several ways."""

    def __init__(self, kind, data, layout, encoding, longest):
        self.kind, self.data, self.layout, self.encoding, self.longest = kind, data, layout, encoding, longest
        self._fd = os.memfd_create("input")
        os.write(self._fd, data)

    def close(self):
        os.close(self._fd)

    def opened(self, file, rows, capacity):
        return open_reader(self.kind, "input", file, self.layout, self.encoding, rows=rows, capacity=capacity)

    def read(self, rows, capacity, most=1 << 20):
        """In one go: what `_take` makes of it."""
        os.lseek(self._fd, 0, os.SEEK_SET)
        with Dribble(self._fd, most) as file:
            return self._take(self.opened(file, rows, capacity))

    def read_pipe(self, rows, capacity):
        """Out of a pipe, which holds all of it."""
        out, into = os.pipe()
        with open(out, "rb", buffering=0) as file:
            os.write(into, self.data)
            os.close(into)
            return self._take(self.opened(file, rows, capacity))

    def read_resumed(self, rows, capacity):
        """A new start for each block, from where the journal would have it."""
        found, state = None, (0, 0, 0)
        while True:
            os.lseek(self._fd, 0, os.SEEK_SET)
            with Dribble(self._fd, 1 << 20) as file:
                kind = self.opened(file, rows, capacity)
                if found is not None:
                    kind.go_on(*state)
                block = next(kind.blocks(), None)
                part = self._take(kind, [block] if block else [])
            if found is None:
                found = part
            else:
                for whole, more in zip(found, part, strict=True):
                    whole.extend(more)
            if block is None:
                return found
            state = block.end, state[1] + block.rows, state[2] + block.lines

    def _take(self, kind, blocks=None):
        """Texts (None where unreadable), unreadable rows, labels, and rows as they are written."""
        texts, unreadable, labels, sink = [], [], [], io.BytesIO()
        writer = open_writer(kind, sink, CLASSES, ["label", "probability"], resumed=True)
        for block in kind.blocks() if blocks is None else blocks:
            column = kind.texts(block)
            data, offsets = column.buffer.tobytes(), column.offsets.tolist()
            own = [data[a:b] for a, b in pairwise(offsets)]
            for part, sort in zip(own, block.kinds.tolist(), strict=True):
                if sort != scan.BLANK:
                    texts.append(part if sort == scan.READABLE else None)
            unreadable += block.unreadable()
            classes = np.array([class_of(part) for part in own], np.int64)
            writer.write(writer.render(block, classes, np.full((len(own), 1), 0.5, np.float32)))
            if self.kind != "lines" and getattr(kind, "_label", getattr(kind, "_label_at", None)) is not None:
                labels += [had for had, sort in zip(kind.labels(block), block.kinds, strict=True) if sort != scan.BLANK]
        return texts, unreadable, labels, [sink.getvalue()]


def class_of(part):
    """A label that tells texts apart."""
    return zlib.crc32(part) % len(CLASSES)


@contextmanager
def without_arrow():
    """pyarrow is not installed."""
    names = ("pyarrow", "pyarrow.json", "pyarrow.parquet")
    there = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]  # None: it cannot be imported
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(there)


# ------------------------------------------------------------------------------------------------------ comparing


def outcome(read, *args):
    """What a reading gives, or the words with which it is refused: any, where a NUL may be seen before all else."""
    try:
        texts, unreadable, labels, written = read(*args)
    except ValueError as error:
        return NUL if b"\0" in read.__self__.data else str(error).removeprefix("input: ")
    return texts, unreadable, labels, b"".join(written)


NUL = "refused, and holds a NUL"
NO_TEXT = None, "no text: it is empty or blank", None


def check(kind, data, layout, encoding, longest, rng):
    """Read one file in all ways; how many they were, or AssertionError."""
    base.LONGEST_ROW = longest
    reader = Reader(kind, data, Layout(**layout), encoding, longest)
    try:
        whole = outcome(reader.read, 1000, 1 << 16)
        _compare_with_reference(kind, data, reader.layout, encoding.reverse_fields, longest, whole)
        shortest = [1, 2, 3, 5] if len(data) < 80 else [len(data) // 12]  # each read and each block has its cost
        small = [(rng.choice([1, 2, 3, 7]), rng.choice([*shortest, 33, 64, 100, 300])) for _ in range(3)]
        assert outcome(reader.read, *small[0]) == whole, f"blocks of {small[0]}"
        short = rng.choice(shortest)
        assert outcome(reader.read, *small[1], short) == whole, f"blocks of {small[1]}, {short} bytes a read"
        assert outcome(reader.read_resumed, *small[2]) == whole, f"gone on with after each block of {small[2]}"
        if rng.random() < 0.3:
            assert outcome(reader.read_pipe, *small[0]) == whole, f"a pipe, blocks of {small[0]}"
        if rng.random() < 0.3:
            with without_arrow():
                assert outcome(reader.read, *small[0]) == whole, "without pyarrow"
    finally:
        reader.close()
    return not isinstance(whole, str)


def _compare_with_reference(kind, data, layout, reverse, longest, whole):
    try:
        if kind == "jsonl":
            expected = json_reference(data, layout, reverse, longest)
        elif kind == "lines":
            expected = lines_reference(data)
        else:
            expected = csv_reference(data, layout, reverse)
    except (Refused, ValueError):
        assert isinstance(whole, str), "the reference refuses it"
        return
    if expected is None:
        return
    if whole == NUL:
        return
    rows, lines, labelled = expected
    assert not isinstance(whole, str), f"refused: {whole}"
    texts, unreadable, labels, written = whole
    assert texts == [row[0] for row in rows], "texts"
    bad = [number for number, row in enumerate(rows, 1) if row[1]]
    assert [row for row, _, _ in unreadable] == bad, "numbers of unreadable rows"
    for number, line, reason in unreadable:
        assert lines is None or line == lines[number - 1], "line"
        assert any(reason.startswith(start) for start in rows[number - 1][1].split("|")), f"reason {reason!r}"
        assert reason.isprintable(), "nothing for a terminal to obey"
        assert len(reason) < 200, "a reason is short"
    if labelled:
        kept = [had for had, row in zip(labels, rows, strict=True) if row[1] is None]
        assert kept == [row[2] for row in rows if row[1] is None], "labels"
    if kind == "jsonl":
        _compare_written(rows, [line for line in LINE_END.split(written) if line])


def _compare_written(rows, lines):
    """Each line of the output holds its own text's label."""
    for (content, reason, _), line in zip(rows, lines, strict=True):
        if reason is None:
            added = DECODER.decode(line.decode("utf-8", "surrogateescape"))[-2:]
            assert added[0][1] == CLASSES[class_of(content)], "label"
            assert [key.removeprefix("predicted ")[:5] for key, _ in added] == ["label", "proba"], "keys"


def run(seed, files=None, seconds=None):
    """Check files until there were so many, or so long; how many, and how many of them were read.

    Raises:
        AssertionError: a reading differs; says which, and the file.
    """
    limit, longest_row = sys.getrecursionlimit(), base.LONGEST_ROW
    sys.setrecursionlimit(max(limit, 10_000))  # for the reference, on what is nested deep
    count = opened = 0
    begun = time.monotonic()
    try:
        while (files is None or count < files) and (seconds is None or time.monotonic() - begun < seconds):
            rng = random.Random(f"{seed} {count}")
            kind, data, layout = make(rng)
            encoding, longest = rng.choice(ENCODINGS), longest_row
            if kind == "jsonl" and rng.random() < 0.2:  # the first object may be too long
                longest = 40
            try:
                opened += check(kind, data, layout, encoding, longest, rng)
            except Exception as error:
                words = f"seed {seed}, file {count}: {kind} {layout} {encoding.name}, longest {longest}: {error}"
                raise AssertionError(f"{words}\n{data!r}") from error
            count += 1
    finally:
        base.LONGEST_ROW = longest_row
        sys.setrecursionlimit(limit)
    return count, opened


# --------------------------------------------------------------------------------------------------- the command


class Killed(BaseException):
    """The process ends here."""


def check_command(folder, rng):
    """Label a file with the command, cut it off at some block, go on; the outputs are those of a run in one go."""
    from charcnn.__main__ import main
    from charcnn.classify.classifier import ROWS
    from charcnn.text import output

    while True:
        kind, data, layout = make(rng)
        if kind != "csv" and not layout and len(split_or_none(data)) > 2:
            break
    suffix = {"jsonl": "jsonl", "lines": "txt"}[kind]
    source, whole, out = (folder / f"{name}.{suffix}" for name in ("in", "whole", "out"))
    for left in folder.iterdir():
        if left.name.startswith(("in.", "whole.", "out.")):
            left.unlink()
    source.write_bytes(data)
    words = ["classify", str(source), "--model", str(folder / "tiny.safetensors"), "--quiet", "-o"]
    strikes = [rng.randrange(3) for _ in range(2)]

    def struck(self, position, rows, lines, advance=output.Partial.advance):
        advance(self, position, rows, lines)
        if strikes:
            strikes[0] -= 1
            if strikes[0] < 0:
                strikes.pop(0)
                raise Killed

    def killed(self):  # no journal is written any more
        for file in (self.file, self._report_file):
            if file is not None:
                file.close()

    with mock.patch.dict(ROWS, {"cpu": rng.choice([1, 2, 3])}), mock.patch.object(output, "EVERY_SECONDS", 0.0):
        expected = main([*words, str(whole)])
        with mock.patch.object(output.Partial, "advance", struck), mock.patch.object(output.Partial, "close", killed):
            while True:
                try:
                    status = main([*words, str(out)])
                except Killed:
                    continue
                break
    assert status == expected, f"status {status} instead of {expected}"
    for name in ("", ".unreadable.csv"):
        one, other = Path(f"{whole}{name}"), Path(f"{out}{name}")
        assert one.exists() == other.exists(), f"OUTPUT{name} is there once"
        assert not one.exists() or one.read_bytes() == other.read_bytes(), f"OUTPUT{name}"


def split_or_none(data):
    """The file's lines; none of a file that is refused."""
    try:
        return split(data)
    except Refused:
        return []


def run_commands(seed, files, folder):
    """`run` with the command."""
    from charcnn.config import TINY
    from charcnn.model import params

    params.save(
        folder / "tiny.safetensors", params.init(TINY, seed=0), TINY, encoding="crepe", classes=encodings.CLASSES
    )
    for count in range(files):
        try:
            check_command(folder, random.Random(f"{seed} {count}"))
        except AssertionError as error:
            data = next(folder.glob("in.*")).read_bytes()
            raise AssertionError(f"seed {seed}, command {count}: {error}\n{data!r}") from error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, metavar="N", help="number of files (default 10,000; with --seconds any)")
    parser.add_argument("--seconds", type=float, metavar="S", help="stop after this long")
    parser.add_argument("--commands", type=int, default=0, metavar="N", help="run the command on N files instead")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default 0")
    given = parser.parse_args()
    started = time.monotonic()
    if given.commands:
        with tempfile.TemporaryDirectory() as scratch:
            run_commands(given.seed, given.commands, Path(scratch))
        told = f"{given.commands:,} commands cut off and gone on with"
    else:
        total, read = run(given.seed, given.files or (None if given.seconds else 10_000), given.seconds)
        told = f"{total:,} files ({read:,} opened)"
    print(f"seed {given.seed}: {told} in {time.monotonic() - started:.0f} s, 0 differences")
