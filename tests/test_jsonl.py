"""JSON Lines against Python's json: a verdict a line, and the object that names the keys."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import opened, read

from charcnn.text import encodings
from charcnn.text.readers import base, json_scan, jsonl, scan

JSONL = b"""{"text": "a", "label": "World"}
{"text": "b \\u00e9 \\"q\\"", "label": 2}

{"text": 5}
{"label": "World"}
not json
["text"]
{"text": "\xff"}
{"text": null}
"""


KEYS = st.sampled_from(["label", "labels", "a", 'a "b"', "é", "", "\\", "{", ":"])
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), KEYS, st.sampled_from(['"label": 1', "}", "[", 'label":'])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)  # the first call compiles
@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=4), max_size=4), st.booleans(), st.sampled_from([":", "\t : "]))
def test_keys_are_those_of_pythons_json(objects, ascii_only, colon):
    lines = [json.dumps(value, ensure_ascii=ascii_only, separators=(",", colon)) for value in objects]
    data = np.frombuffer("\n".join(lines).encode() + b"\n", np.uint8)
    rows, names = np.empty((len(lines), 3), np.int64), ["label", "é", ""]
    scan.scan_lines(data, 0, data.size, True, rows)
    kinds_of_rows = np.zeros(len(lines), np.uint8)
    _, types, _ = jsonl.scanned(data, rows, kinds_of_rows, jsonl.NO_NAMES[0], *encodings.pack(names))
    for value, found in zip(objects, types, strict=True):
        assert [kind != json_scan.MISSING for kind in found] == [name in value for name in names]


def test_json_lines(tmp_path):
    texts, unreadable, whole = read(opened(tmp_path, JSONL, "jsonl"))
    assert texts == [b"a", 'b é "q"'.encode(), None, None, None, None, b"\xff", None]
    assert [row[:2] for row in unreadable] == [(3, 4), (4, 5), (5, 6), (6, 7), (8, 9)]
    assert unreadable[0][2] == "text is a number: need a string"
    assert unreadable[1][2] == "'text' is missing"
    assert unreadable[2][2] == "not JSON: need a value (byte 1)"
    assert unreadable[3][2] == "an array: need a JSON object"
    assert whole == JSONL


DEEP, TOO_DEEP = (b"[" * (json_scan.DEEPEST - extra) + b"]" * (json_scan.DEEPEST - extra) for extra in (1, 0))

VERDICTS = [
    (b'{"text": "a"}', b"a"),
    (b' \t{"n": [1, {"text": 5}], "text" : "b"}\t ', b"b"),
    (b'{"te\\u0078t": "c", "te": 1}', b"c"),
    (b'{"text": 1, "text": "the last"}', b"the last"),
    (b'{"text": "the first", "text": 1}', "text is a number: need a string"),
    (
        b'{"text": "\\u0041\\ud83d\\ude00\\ud83d \\udcff\\u00e9\\u20ac\\n\\/"}',
        "A\U0001f600\ufffd ".encode() + b"\xff" + "\u00e9\u20ac\n/".encode(),
    ),
    (b'{"text": "\xff\xed\xa0\x80"}', b"\xff\xed\xa0\x80"),
    (b'{"text": "a", "n": [-0, 1.5e-3, 1E400, NaN, Infinity, -Infinity]}', b"a"),
    (b'{"text": "a", "n": ' + b"9" * 5000 + b"}", b"a"),
    (b'{"text": "a", "n": ' + DEEP + b"}", b"a"),
    (b'{"text": "a", "n": ' + TOO_DEEP + b"}", "nested deeper than 500"),
    (b'{"text": null}', "'text' is missing"),
    (b'{"text": true}', "text is true or false: need a string"),
    (b'{"text": ["a"]}', "text is an array: need a string"),
    (b'{"text": {}}', "text is an object: need a string"),
    (b"{}", "'text' is missing"),
    (b"null", "null: need a JSON object"),
    (b"-5", "a number: need a JSON object"),
    (b'"\\u001b[31m"', "a string: need a JSON object"),
    (b'[{"text": "a"}]', "an array: need a JSON object"),
    (b"  ", "not JSON: the line ends too soon (byte 3)"),
    (b'{"text": "a"} {"text": "b"}', "not JSON: there is more after the value (byte 15)"),
    (b'{"text": "a",', "not JSON: the line ends too soon (byte 14)"),
    (b'"text": "b"}', "not JSON: there is more after the value (byte 7)"),
    (b'\xef\xbb\xbf{"text": "a"}', "not JSON: need a value (byte 1)"),
    (b'{"text": "a",}', "not JSON: need a key in quotes (byte 14)"),
    (b'{"text": "a", "n": [1,]}', "not JSON: need a value (byte 23)"),
    (b'{"text": "a", "n": 01}', "not JSON: need a comma, or the end of the object or array (byte 21)"),
    (b'{"text": "a", "n": 1.}', "not JSON: need a comma, or the end of the object or array (byte 21)"),
    (b'{"text": "a", "n": -NaN}', "not JSON: need a value (byte 20)"),
    (b'{"text": "a"]', "not JSON: need a comma, or the end of the object or array (byte 13)"),
    (b'{"text" "a"}', "not JSON: need a colon (byte 9)"),
    (b'{"text": "a\tb"}', "not JSON: a control character in a string (byte 12)"),
    (b'{"text": "\\x41"}', "not JSON: an invalid escape (byte 11)"),
    (b'{"text": "\\u00g0"}', "not JSON: an invalid escape (byte 11)"),
    (b'{"text": "a"}\x0c', "not JSON: there is more after the value (byte 14)"),
]


def test_a_json_line_has_its_own_verdict(tmp_path):
    """Alone, and among all others, in blocks of every size."""
    expected = [value for _, value in VERDICTS]
    for (line, _), value in zip(VERDICTS, expected, strict=True):
        texts, unreadable, _ = read(opened(tmp_path, b"\n" + line + b"\n", "jsonl", texts=("text",)))
        assert (texts[0], [row[2] for row in unreadable]) == (
            (value, []) if isinstance(value, bytes) else (None, [value])
        )
    whole = b"\n".join(line for line, _ in VERDICTS)
    for rows in (1, 2, 7, 1000):
        texts, unreadable, _ = read(opened(tmp_path, whole, "jsonl", rows=rows, capacity=100))
        assert texts == [value if isinstance(value, bytes) else None for value in expected]
        bad = [n for n, value in enumerate(expected, 1) if isinstance(value, str)]
        assert unreadable == [(n, n, expected[n - 1]) for n in bad]


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b'{}\n{"headline": "a"}\n', [None, b"a"]),
        (b'null\n[{"text": "x"}]\n"text"\n{ }\n{"Title": "a"}\n', [None, None, None, None, b"a"]),
        (b"{}\n{}\n", [None, None]),
        (b"none\n", [None]),
        (b"\n\n", []),
    ],
)
def test_the_first_object_with_keys_shows_which_are_texts(tmp_path, data, texts):
    for rows, capacity in ((1000, 1 << 16), (1, 4)):
        assert read(opened(tmp_path, data, "jsonl", rows, capacity))[0] == texts


def test_a_first_object_that_is_too_long(tmp_path, monkeypatch):
    """It shows no keys, whatever the buffer; rows of any length can be read."""
    monkeypatch.setattr(base, "LONGEST_ROW", 1 << 20)
    long = b"x" * (1 << 20)
    for capacity in (100, 1 << 22):
        for data in (b'{"text": "' + long + b'"}\n', b"[1]\n" * (1 << 18) + b'{"text": "a"}\n'):
            with pytest.raises(ValueError, match="no object with keys ends in its first 1 MB: name its text keys"):
                opened(tmp_path, data, "jsonl", capacity=capacity)
    assert read(opened(tmp_path, b'{"a": "' + long + b'"}', "jsonl", texts=("a",)))[0] == [long]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_lines_without_an_object_that_end_where_the_first_may(tmp_path, monkeypatch, end):
    """A file of no object with keys is read, whose last line ends in the last byte looked at."""
    monkeypatch.setattr(base, "LONGEST_ROW", 40)
    for capacity in (7, 42, 1 << 16):
        assert read(opened(tmp_path, b"[1]\n" * 9 + b"true" + end, "jsonl", capacity=capacity))[0] == [None] * 10


def test_a_reason_is_short(tmp_path):
    """Also where the key that holds the text is not."""
    _, unreadable, _ = read(opened(tmp_path, b'{"' + b"k\\u001b" * 1000 + b'": "a"}\n{}\n', "jsonl"))
    assert len(unreadable[0][2]) < 100
    assert unreadable[0][2].isprintable()
