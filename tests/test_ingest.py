"""Scanners against Python's csv, and readers of CSV and of plain lines at every buffer size."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import re
import threading
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reading import CREPE, opened, read

from charcnn.text.readers import base, scan
from charcnn.text.readers.source import Source
from charcnn.text.writers.open import open_writer
from charcnn.text.writers.render import FILLED

MOST = 40
"""Pieces that are drawn: a row has one field more at most."""

pieces = st.lists(
    st.sampled_from([b'"', b'""', b",", b"\n", b"\r\n", b"\r", b"a", b"b c", b" ", b"\xff"]), max_size=MOST
)


@settings(max_examples=100)
@example([b","] * MOST)
@given(pieces)
def test_csv_rows_are_those_of_pythons_csv(tmp_path_factory, parts):
    data = b"".join(parts)
    lines = io.StringIO(data.decode("utf-8", "surrogateescape"), newline="")
    try:
        expected = [row for row in csv.reader(lines, strict=True) if row]
    except csv.Error:
        return  # what is broken has tests of its own
    kind_rows = read_rows(data)
    joined = [" ".join(row).encode("utf-8", "surrogateescape") for row in expected]
    assert kind_rows == joined


def read_rows(data):
    """All fields of each row joined, whatever their number."""
    buffer, wanted = np.frombuffer(data, np.uint8), np.arange(MOST + 1)
    rows, kind, counts = np.empty((99, 3), np.int64), np.empty(99, np.uint8), np.empty(99, np.int64)
    fields = np.empty((99, MOST + 1, 2), np.int64)
    n = scan.scan_csv(
        buffer, 0, len(data), True, ord(","), 0, wanted, 1000, rows, kind, counts, fields, np.zeros(3, np.int64)
    )
    assert all(rows[i, 2] == rows[i + 1, 0] for i in range(n - 1)), "no byte lies between rows"
    assert n == 0 or (rows[0, 0] == 0 and rows[n - 1, 2] == len(data))
    found = []
    for i in range(n):
        if kind[i] == scan.BLANK:
            continue
        texts, offsets = np.empty(len(data) + 9, np.uint8), np.empty(2, np.int64)
        one = slice(i, i + 1)
        scan.gather_fields(buffer, rows[one], kind[one], fields[one], np.arange(counts[i]), texts, offsets)
        found.append(texts[: offsets[1]].tobytes())
    return found


@settings(max_examples=150)
@given(pieces, st.integers(3, 40), st.integers(1, 5))
def test_blocks_do_not_depend_on_the_buffer(tmp_path_factory, parts, capacity, rows):
    folder, data = tmp_path_factory.mktemp("csv"), b"".join(parts)
    for kind in ("csv", "lines"):
        if kind == "csv" and torn_at_once(data):
            continue
        whole = opened(folder, data, kind, header=False)
        small = opened(folder, data, kind, rows=rows, capacity=capacity, header=False)
        expected, got = read(whole), read(small)
        assert got == expected
        assert got[2] == data.removeprefix(b"\xef\xbb\xbf"), "every byte is in a row"


def torn_at_once(data):
    """Whether the first row is torn, which opening refuses."""
    buffer, kind = np.frombuffer(data.lstrip(b"\r\n"), np.uint8), np.zeros(1, np.uint8)
    rows, counts, fields = np.empty((1, 3), np.int64), np.empty(1, np.int64), np.empty((1, 0, 2), np.int64)
    wanted = np.empty(0, np.int64)
    scan.scan_csv(
        buffer, 0, buffer.size, True, ord(","), 0, wanted, 1000, rows, kind, counts, fields, np.zeros(3, np.int64)
    )
    return kind[0] == scan.TORN


def test_a_torn_row_costs_its_first_line_alone(tmp_path):
    data = b'"1","a"\n"2","never closed\n"3","c"\n"4","d" x\n"5","e\ne"\n'
    texts, unreadable, whole = read(opened(tmp_path, data))
    assert texts == [b"a", None, b"c", None, b"e\ne"]
    assert unreadable == [(2, 2, "broken quoting"), (4, 4, "broken quoting")]
    assert whole == data


def test_a_quote_that_is_never_closed_ends_after_the_longest_row(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "LONGEST_ROW", 100)
    data = b'1,a\n2,"open\n' + b"3,b\n" * 200
    texts, unreadable, whole = read(opened(tmp_path, data, capacity=64))
    assert texts == [b"a", None] + [b"b"] * 200
    assert unreadable == [(2, 2, "broken quoting")]
    assert whole == data


def scanned(data, rows=None):
    """Of all rows: start, end, start of the next and kind; from as many calls as blocks of so many rows take."""
    buffer, failed, found, start = np.frombuffer(data, np.uint8), np.zeros(3, np.int64), [], 0
    size = rows or len(data) + 1
    while start < len(data):
        places, kind, counts = np.empty((size, 3), np.int64), np.empty(size, np.uint8), np.empty(size, np.int64)
        fields, wanted = np.empty((size, 0, 2), np.int64), np.empty(0, np.int64)
        n = scan.scan_csv(
            buffer, start, len(data), True, ord(","), 0, wanted, 1 << 20, places, kind, counts, fields, failed
        )
        found += [(*map(int, places[i]), int(kind[i])) for i in range(n)]
        start = found[-1][2]
    return found


def plainly(data):
    """Rows by the rule as it is written: each row from its start, one byte after the other."""
    line_end, found, start = re.compile(rb"\r\n|\r|\n"), [], 0
    while start < len(data):
        i, quoted, at_start, torn = start, False, True, False
        while i < len(data) and (quoted or data[i : i + 1] not in (b"\n", b"\r")):
            byte, following = data[i : i + 1], data[i + 1 : i + 2]
            if quoted and byte == b'"' and following == b'"':
                i += 1
            elif quoted and byte == b'"':
                quoted, torn = False, following not in (b"", b",", b"\n", b"\r")
            elif not quoted and byte == b'"' and at_start:
                quoted = True
            at_start = not quoted and byte == b","
            i += 1
            if torn:
                break
        torn = torn or quoted
        if torn:
            ends = line_end.search(data, start)
            i = ends.start() if ends else len(data)
        ends = line_end.match(data, i)
        following = ends.end() if ends else i
        found.append((start, i, following, scan.TORN if torn else scan.BLANK if i == start else scan.READABLE))
        start = following
    return found


torn = (b'"', b'""', b",", b"\n", b"\r\n", b"\r", b"a", b'a","b\n', b'",', b',"', b'\n"', b'"\n')
torn_pieces = st.lists(st.sampled_from(torn), max_size=60)


@settings(max_examples=500)
@given(torn_pieces, st.sampled_from([None, 1, 2, 3]))
def test_torn_rows_are_those_of_the_rule(parts, rows):
    data = b"".join(parts)
    assert scanned(data, rows=rows) == plainly(data)


def test_a_torn_quote_is_scanned_once_and_not_once_a_line():
    """2 MB whose lines each open a quote that goes on to the end: a scan a line would be 320 GB, minutes of a core."""
    for end in (b"\n", b"\r\n"):
        scanned(b"1")  # compiles
        started = time.process_time()
        found = scanned(b"text,b" + end + (b'a","b' + end) * 320_000, rows=1024)
        assert time.process_time() - started < 60
        assert [row[3] for row in found] == [scan.READABLE] + [scan.TORN] * 320_000


@settings(max_examples=100)
@example([b'""', b'""', b"\r\n", b'"'], 4, 5, 1)  # a buffer that ends between \r and \n
@example([b'"', b"aaa", b"\r\n", b'"'], 4, 20, 1)  # the longest row does
@given(torn_pieces, st.integers(4, 50), st.integers(3, 40), st.integers(1, 5))
def test_the_longest_row_does_not_depend_on_the_buffer(tmp_path_factory, parts, longest, capacity, rows):
    folder, data = tmp_path_factory.mktemp("csv"), b"1,a\n" + b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "LONGEST_ROW", longest)
        expected = read(opened(folder, data, header=False))
        assert read(opened(folder, data, rows=rows, capacity=capacity, header=False)) == expected
    assert expected[2] == data


def test_a_header_of_very_many_columns_costs_itself_alone(tmp_path):
    header = b"text," + b",".join(b"c%d" % n for n in range(10**5)) + b"\n"
    for data, layout in ((header, {}), (header.replace(b"text", b"c"), {"header": False})):
        kind = opened(tmp_path, data + b"1\n" * 500, **layout)
        writer = open_writer(kind, io.BytesIO(), ["World"], ["label", "probability"])
        size = 0
        for block in kind.blocks():
            kind.texts(block)
            rows = len(block.kinds)
            size += len(writer.render(block, np.zeros(rows, np.int64), np.ones((rows, 1), np.float32)))
        assert size < 2 * len(header)


def test_rows_that_lack_few_fields_are_filled_up(tmp_path):
    for lacking, ends in ((FILLED, b"," * FILLED), (FILLED + 1, b"")):
        kind = opened(tmp_path, b"text" + b",c" * lacking + b"\n1\n")
        writer = open_writer(kind, io.BytesIO(), ["World"], ["label", "probability"])
        block = next(kind.blocks())
        kind.texts(block)
        assert bytes(writer.render(block, np.zeros(1, np.int64), np.ones((1, 1), np.float32))) == b"1" + ends + b",,\n"


def test_a_key_that_one_row_has_costs_that_row_alone(tmp_path):
    longest = "predicted " * 300 + "label"
    taken = {longest[10 * n :]: 1 for n in range(301)}
    kind = opened(tmp_path, (json.dumps({"text": "a"} | taken) + "\n" + '{"text": "a"}\n' * 999).encode(), "jsonl")
    writer = open_writer(kind, io.BytesIO(), ["World"], ["label", "probability"])
    block = next(kind.blocks())
    kind.texts(block)
    rendered = writer.render(block, np.zeros(1000, np.int64), np.ones((1000, 1), np.float32))
    assert rendered.obj.size < block.buffer.size + 200_000


@pytest.mark.parametrize("kind", ["csv", "jsonl", "lines"])
def test_a_file_that_is_cut_short_while_it_is_read_is_no_success(tmp_path, kind):
    line = {"csv": b"1,a\n", "jsonl": b'{"text": "a"}\n', "lines": b"a line\n"}[kind]
    opening = opened(tmp_path, line * 1000, kind, rows=10, capacity=256)
    blocks = opening.blocks()
    next(blocks)
    os.truncate(tmp_path / "input", 100 * len(line))
    with pytest.raises(OSError, match=f"ends after [0-9,]+ of {len(line) * 1000:,} bytes") as caught:
        list(blocks)
    assert caught.value.filename == str(tmp_path / "input")


@pytest.mark.parametrize(
    ("head", "message"),
    [
        pytest.param(gzip.compress(b"text", mtime=0), "is compressed by gzip: unpack it first", id="gzip"),
        (b"\x28\xb5\x2f\xfd\x04", "is compressed by Zstandard"),
        pytest.param(bz2.compress(b"text"), "is compressed by bzip2", id="bzip2"),
        pytest.param(lzma.compress(b"text"), "is compressed by xz", id="xz"),
        (b"PK\x03\x04\x14", "is a ZIP archive, as an .xlsx workbook is"),
        (b"PAR1\x15\x04", "is a Parquet file: give its name"),
        ("text".encode("utf-32"), "is UTF-32"),
        ("text".encode("utf-16"), "is UTF-16"),
        ("text\n".encode("utf-16-le"), "is binary, or UTF-16"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is binary"),
        (b"a\n" * 4000 + b"\0", "is binary"),
    ],
)
@pytest.mark.parametrize("capacity", [4, 1 << 16])
def test_what_is_no_text_is_named(tmp_path, head, message, capacity):
    for kind in ("csv", "jsonl", "lines"):
        with pytest.raises(ValueError, match=message):
            read(opened(tmp_path, head, kind, capacity=capacity, **({"header": False} if kind == "csv" else {})))


@pytest.mark.parametrize(
    "head", [b"P", b"PK", b"BZh9", b"PAR1 is a name\n", b"\xef\xbb", b"(\xb5", b"a" * 9000 + b"\0"]
)
def test_text_that_begins_like_a_format_is_text(tmp_path, head):
    assert read(opened(tmp_path, head, "lines"))[2] == head


def test_a_long_row_from_a_pipe_is_not_scanned_at_each_piece(tmp_path):
    ours, theirs = os.pipe()
    with open(ours, "rb", buffering=0) as file, open(theirs, "wb", buffering=0) as other:
        other.write(b"a")
        source = Source(file, 16)
        other.write(b"a" * 1000)
        source.read()
        for _ in range(3):  # it waits for an eighth of what is there, or until the pipe is quiet
            writer = threading.Thread(target=lambda: [other.write(b"a") for _ in range(400)])
            writer.start()
            before = source.stop
            source.read()
            writer.join()
            assert source.stop > before


def test_lines_of_unreadable_rows_are_counted_once(tmp_path):
    kind = opened(tmp_path, b"1,a\n" + b"x\n\n" * 900, rows=5000)
    block = next(kind.blocks())
    kind.texts(block)
    counted, count = [], scan.count_lines
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base.scan, "count_lines", lambda part: counted.append(part.size) or count(part))
        found = block.unreadable()
    assert [row[:2] for row in found] == [(n + 2, 2 * n + 2) for n in range(900)]
    assert sum(counted) <= block.buffer.size


def test_rows_of_another_length_are_unreadable(tmp_path):
    texts, unreadable, _ = read(opened(tmp_path, b"1,a,b\n2,a\n3,a,b,c\n\n4,x,y\n"))
    assert texts == [b"a b", None, None, b"x y"]
    assert unreadable == [(2, 2, "2 fields: need 3"), (3, 3, "4 fields: need 3")]


IS_ONE = "--header where the first row is one"


@pytest.mark.parametrize(
    ("data", "layout", "texts"),
    [
        (b"text\na\n", {}, [b"a"]),
        (b"id,headline\n7,a\n", {"texts": ("headline",)}, [b"a"]),
        (b"id,Title,Description,x\n7,a,b,c\n", {}, [b"a b"]),
        (b"label,review\n7,a\n", {}, [b"a"]),
        (b"review,topic\na,b\n", {"label": "topic"}, [b"a"]),
        (b"a,b\nc,d\n", {"header": False}, [b"a b", b"c d"]),
        (b"1,a,b\n", {"label": "1"}, [b"a b"]),
        (b"3,a\n4,b\n", {}, [b"a", b"b"]),
        (b"3\n4\n", {}, [b"3", b"4"]),
        (b"3,a\n4,b\n", {"texts": ("1", "2")}, [b"3 a", b"4 b"]),
        (b"x,y\n1,a\n", {"header": True, "texts": ("2",)}, [b"a"]),
        (b"text,b\n1,a\n", {"header": False}, [b"text b", b"1 a"]),
        (b"\xef\xbb\xbftext\na\n", {}, [b"a"]),
        (b"1;a,b\n", {"delimiter": ";"}, [b"a,b"]),
        (b"\n\ntext\na\n", {}, [b"a"]),
        (b'text\n"a ""b"" c"\n', {}, [b'a "b" c']),
        (b"", {}, []),
        (b"text\n", {}, []),
        (b"\n\n", {}, []),
        (b"text\na", {}, [b"a"]),
    ],
)
def test_which_columns_are_text(tmp_path, data, layout, texts):
    assert read(opened(tmp_path, data, **layout))[0] == texts


@pytest.mark.parametrize(
    ("data", "layout", "said"),
    [
        (b"id,title,text,class\n", {}, "header; delimiter ','; text: title, text; label: class"),
        (b"3,a,b\n", {}, f"no header; delimiter ','; text: column 2, column 3; label: column 1 ({IS_ONE})"),
        (b"review\na\n", {}, f"no header; delimiter ','; text: column 1 ({IS_ONE})"),
        (b"a,b\n", {"header": False}, "no header; delimiter ','; text: column 1, column 2"),
        (b"a\tb\n", {"delimiter": "\t", "texts": ("b",)}, r"header; delimiter '\t'; text: b"),
        (
            b"headline;body\na;b\n",
            {},
            f"no header; delimiter ','; text: column 1 ({IS_ONE}, --delimiter ';' where that is between fields)",
        ),
        (b"\n", {}, ""),
    ],
)
def test_what_was_taken_is_said(tmp_path, data, layout, said):
    assert opened(tmp_path, data, **layout).said == said


def test_columns_are_joined_as_the_encoding_says(tmp_path):
    assert read(opened(tmp_path, b"title,description\na,b\n", encoding=CREPE))[0] == [b"b a"]


@pytest.mark.parametrize(
    ("data", "layout", "message"),
    [
        (b'"a\nb', {}, "its first row is not CSV: broken quoting"),
        (b"a,b\n", {"texts": ("c",)}, "has no column 'c': it has a, b"),
        (b"a,b\n", {"texts": ("3",)}, "has no column '3': it has columns 1 to 2 and no names"),
        (b"id,headline,body\n", {}, "its first row names no known column, and has 3 fields, id, headline, body: say"),
        (b"id,review,label\n", {}, "has the columns id, review, label: say which hold the text (--text-columns)"),
        (b"id,headline,topic\n", {"label": "topic"}, "has the columns id, headline, topic: say which hold the text"),
        (b"a,b,c\n", {"label": "3"}, "its first row names no known column, and has 3 fields, a, b, c: say which"),
        (b"1,b,c\n", {"label": "3"}, "its first row names no known column, and has 3 fields, 1, b, c: say which"),
        (b"a,b,c\n", {"header": False, "label": "3"}, "its first row names no known column, and has 3 fields"),
        (b"a,b\n", {"header": True}, "has the columns a, b: say which hold the text (--text-columns)"),
        (b"id;Title\n", {}, "its first row splits into id, Title at ';': say --delimiter ';'"),
        (b"id;a, b;text\n", {}, "its first row splits into id, a, b, text at ';': say --delimiter ';'"),
        (b"title\tx\n", {}, r"its first row splits into title, x at '\\t': say --delimiter '\\t'"),
        (b"body|label\n", {}, "splits into body, label at '[|]': say --delimiter '[|]'"),
        (b"headline;x\n", {"texts": ("headline",)}, "splits into headline, x at ';': say --delimiter ';'"),
        (b"sep=;\ntitle;text\n", {}, "its first line, 'sep=;', is for Excel alone: remove it, and say --delimiter ';'"),
        (b"label\n1\n", {}, "its only column is the label"),
        (b"label,text\n1,a\n", {"texts": ("2",), "label": "text"}, "column 'text' is both the label and a text"),
        (b"\xff\xfea\0", {}, "is UTF-16: need UTF-8"),
        (b"a", {"delimiter": "ab"}, "delimiter='ab': need one ASCII character"),
    ],
)
def test_a_file_that_does_not_fit_is_told(tmp_path, data, layout, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        opened(tmp_path, data, **layout)


def test_fields_of_a_megabyte(tmp_path):
    long = b"x" * (1 << 20)
    data = b'1,"' + long + b'"\n2,b\n3,' + long + b"\n"
    texts, unreadable, _ = read(opened(tmp_path, data, capacity=4096))
    assert texts == [long, b"b", long]
    assert not unreadable


@pytest.mark.parametrize(
    "line", [b'"Phishing" scams cost banks', b'"', b'""', b'"a ""b"" c"', b"a,b", b"\xff", b" \x0c a"]
)
def test_plain_lines_are_bytes_as_they_are(tmp_path, line):
    assert read(opened(tmp_path, b"before\n" + line + b"\nbehind", "lines"))[0] == [b"before", line, b"behind"]


def test_a_header_may_hold_what_ends_a_line_elsewhere(tmp_path):
    assert read(opened(tmp_path, b"te\x0cxt,text\x0b,\xc2\x85\na,b,c\n", header=True, texts=("2",)))[0] == [b"b"]
