"""Texts to token ids, and the files that texts come from."""

import csv
import sys
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from charcnn.text.encodings import (
    ALPHABET,
    CLASSES,
    ENCODINGS,
    Encoding,
    encode,
    encode_buffer,
    find_encoding,
    pack,
)
from charcnn.text.strings import PackedStrings
from charcnn.text.texts import read_texts, sample

ODD = Encoding("odd", alphabet="xA-b-\x00x", dash="last", reverse=True, keep="head", lowercase=False)
ALL = (*ENCODINGS.values(), ODD, replace(ODD, dash="first", reverse=False, keep="tail"))
TEXT = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40),
    st.text(st.characters(categories=["Cs", "Lu", "Ll"]), max_size=20),
    st.text(ALPHABET, max_size=40),
)


def oracle(texts, encoding, length):
    """What encode means, a character at a time."""
    ids = np.full((len(texts), length), encoding.blank)
    for row, text in zip(ids, texts, strict=True):
        values = []
        if encoding.alphabet is None:
            values, text = list(pack([text])[0]), ""
        for character in text if isinstance(text, str) else text.decode("ascii", "surrogateescape"):
            if character.isascii():
                lower = character.lower() if encoding.lowercase else character
                find = encoding.alphabet.find if encoding.dash == "first" else encoding.alphabet.rfind
                values.append(find(lower) if lower in encoding.alphabet else len(encoding.alphabet))
            else:
                size = 1 if 0xDC80 <= ord(character) <= 0xDCFF else len(character.encode("utf-8", "surrogatepass"))
                values += [len(encoding.alphabet)] * size
        values = values[:length] if encoding.keep == "head" else values[max(0, len(values) - length) :]
        row[: len(values)] = values[::-1] if encoding.reverse else values
    return ids


@pytest.mark.parametrize("encoding", ALL, ids=lambda encoding: f"{encoding.name}-{encoding.keep}")
@settings(deadline=None)  # the first call compiles
@given(texts=st.lists(TEXT, max_size=6), length=st.integers(1, 45))
@example(texts=["\ud800a\udc80b\udfff", b"\xff-\x00A", ""], length=9)
def test_encode_against_a_plain_oracle(encoding, texts, length):
    ids = encode(texts, encoding, length)
    assert ids.dtype == np.uint8
    assert ids.flags.c_contiguous
    np.testing.assert_array_equal(ids, oracle(texts, encoding, length))


def test_blank_texts_are_those_of_str():
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert PackedStrings(*pack(every)).blank().tolist() == [character.isspace() for character in every]
    spaces = "".join(character for character in every if character.isspace())
    for text in (spaces, f"{spaces}a", f"a{spaces}", "\u2000"):
        assert PackedStrings(*pack([text, "b"])).blank().tolist() == [not text.strip(), False]
    for cut in (b"\xc2", b"\xe3\x80", b" \xe2\x80"):
        assert not PackedStrings(*pack([cut, b"\xa0\x80"])).blank().any()


def test_the_alphabet_is_the_papers():
    assert len(ALPHABET) == 70
    assert [index for index, character in enumerate(ALPHABET) if character == "-"] == [36, 59]
    assert len(set(ALPHABET)) == 69


def test_crepe_by_hand():
    assert encode(["a-B"], "crepe", 5).tolist() == [[1, 59, 0, 70, 70]]
    assert encode(["abcdef"], "crepe", 3).tolist() == [[5, 4, 3]]
    assert ENCODINGS["crepe"].join(["Title", "Description"]) == "Description Title"


def test_forward_by_hand():
    assert encode(["a-B"], "forward", 5).tolist() == [[0, 36, 1, 70, 70]]
    assert encode(["abcdef"], "forward", 3).tolist() == [[0, 1, 2]]
    assert ENCODINGS["forward"].join(["Title", "Description"]) == "Title Description"


def test_defaults_are_the_networks():
    ids = encode(["x" * 2000, ""], "crepe")
    assert ids.shape == (2, 1014)
    assert (ids[0] == 23).all()
    assert (ids[1] == 70).all()


@pytest.mark.parametrize(
    "texts",
    [
        ("ab", "c\n"),
        iter(["ab", "c\n"]),
        np.array(["ab", "c\n"]),
        np.array([b"ab", b"c\n"]),
        np.array(["ab", b"c\n"], object),
        dict.fromkeys(["ab", "c\n"]).keys(),
    ],
    ids=["tuple", "iterator", "str array", "bytes array", "object array", "view"],
)
def test_any_iterable_of_texts(texts):
    assert encode(texts, "forward", 2).tolist() == [[0, 1], [2, 69]]


def test_no_texts():
    assert encode([], "crepe").shape == (0, 1014)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("one text", "crepe"), r"texts is a str: .*\[text\]"),
        ((b"one text", "crepe"), "texts is a bytes"),
        ((None, "crepe"), "texts is a NoneType"),
        ((["a", "b", 3], "crepe"), r"texts\[2\] is a int"),
        ((["a", None], "crepe"), r"texts\[1\] is a NoneType"),
        ((np.zeros((2, 2), "U1"), "crepe"), "texts has 2 dimensions: need one column"),
        ((np.array("a"), "crepe"), "texts has 0 dimensions"),
        (({"text": ["a"]}, "crepe"), "texts is a dict: need a list of texts, as one of its values may be"),
        ((["a"], "latin"), "encoding='latin': need an Encoding or one of crepe, forward"),
        ((["a"], None), "encoding=None"),
        ((["a"],), r"encoding=None: need the model's, one of crepe, forward, bytes; Classifier\.encode\(texts\) takes"),
        ((["a"], "crepe", 0), "length=0"),
        ((["a"], "crepe", 2.0), "length=2.0"),
        ((["a"], "crepe", True), "length=True"),
    ],
)
def test_what_encode_cannot_take_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        encode(*arguments)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_buffer_may_be_a_slice_and_read_only(dtype):
    buffer = np.frombuffer(b"..abcd", np.uint8)
    ids = encode_buffer(buffer, np.array([9, 2, 4, 4, 6, 9], dtype)[1:-1], "forward", 3)
    assert ids.tolist() == [[0, 1, 70], [70, 70, 70], [2, 3, 70]]


@pytest.mark.parametrize("offsets", [[-1, 2], [0, 4], [0, 3, 2], []])
def test_offsets_that_leave_the_buffer_are_refused(offsets):
    with pytest.raises(ValueError, match="offsets"):
        encode_buffer(np.zeros(3, np.uint8), np.array(offsets, np.int64), "crepe", 3)


def test_a_buffer_of_another_type_is_refused():
    offsets = np.array([0, 1])
    with pytest.raises(ValueError, match="buffer is int8"):
        encode_buffer(np.zeros(3, np.int8), offsets, "crepe", 3)
    with pytest.raises(ValueError, match="buffer is uint8"):
        encode_buffer(np.zeros(6, np.uint8)[::2], offsets, "crepe", 3)
    with pytest.raises(ValueError, match="offsets is float64"):
        encode_buffer(np.zeros(3, np.uint8), offsets.astype(float), "crepe", 3)


@pytest.mark.parametrize(("size", "count"), [(235, 20_000), (50_000, 100)])
def test_encode_is_not_a_python_loop_over_characters(size, count):
    rng = np.random.default_rng(0)
    texts = [rng.integers(32, 127, size, np.uint8).tobytes().decode() for _ in range(count)]
    encode(texts[:1], "crepe")
    lines = 0

    def traced(frame, event, given):
        nonlocal lines
        lines += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        encode(texts, "crepe")
    finally:
        sys.settrace(before)
    assert lines < 20 * count + 1_000


def test_encodings_are_frozen_values_with_names():
    for name, encoding in ENCODINGS.items():
        assert encoding.name == name
        assert find_encoding(name) is find_encoding(encoding) is encoding
        assert Encoding(**encoding.to_dict()) == encoding
        assert encoding.blank == (255 if name == "bytes" else 70)
    with pytest.raises(FrozenInstanceError):
        ENCODINGS["crepe"].reverse = False


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": None},
        {"alphabet": ""},
        {"alphabet": "é"},
        {"alphabet": b"ab"},
        {"alphabet": "a" * 256},
        {"alphabet": "aB"},
        {"dash": "middle"},
        {"keep": None},
        {"reverse": 1},
        {"reverse_fields": "no"},
        {"lowercase": None},
    ],
)
def test_an_encoding_of_wrong_values_names_the_field(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        Encoding(**{"name": "mine", **fields})


def test_the_sample():
    texts = sample()
    assert len(CLASSES) == 4
    assert len(texts.texts) == len(set(texts.texts)) == 40
    assert np.bincount(texts.labels).tolist() == [10, 10, 10, 10]
    assert all(len(text) > 100 for text in texts.texts)
    assert any(not text.isascii() for text in texts.texts)
    forward = sample("forward")
    title = forward.texts[0].split(b" Delegates")[0]
    assert texts.texts[0] == forward.texts[0].removeprefix(title + b" ") + b" " + title
    assert (encode(texts.texts, "crepe") < 70).sum(axis=1).min() > 80


def written(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_plain_lines(tmp_path):
    path = written(tmp_path, "lines.txt", b'\xef\xbb\xbf"one", "two"\r\n\xff\xfe\rlast \x0b\x85 line')
    texts = read_texts(path)
    assert texts.texts == [b'"one", "two"', b"\xff\xfe", b"last \x0b\x85 line"]
    assert texts.labels is None


def test_csv_as_ag_news_has_it(tmp_path):
    data = '"2","A ""quoted"", title","two\nlines"\r\n"1","Zürn",""\r\n\r\n"2"," b","c"\r\n'
    path = written(tmp_path, "NEWS.CSV", data.encode())
    texts = read_texts(path, "forward")
    assert texts.texts == [b'A "quoted", title two\nlines', "Zürn ".encode(), b" b c"]
    assert texts.labels.dtype == np.int64
    assert texts.labels.tolist() == [1, 0, 1]
    assert read_texts(path).texts[0] == b'two\nlines A "quoted", title'


def test_csv_with_a_header(tmp_path):
    path = written(tmp_path, "a.csv", b"\xef\xbb\xbfTitle,Class Index,Body\nx,3,y\nz,1,w\n")
    texts = read_texts(path, "forward")
    assert texts.texts == [b"x", b"z"]  # as all commands have it: columns of other names are no text
    assert texts.labels.tolist() == [2, 0]
    assert read_texts(written(tmp_path, "b.csv", b"Body,Class\nx,3\n")).texts == [b"x"]  # unless there is none


def test_csv_with_a_header_and_no_label(tmp_path):
    texts = read_texts(written(tmp_path, "a.csv", b"text\n2012\n'\n"))
    assert texts.texts == [b"2012", b"'"]
    assert texts.labels is None


def test_csv_with_neither(tmp_path):
    with pytest.raises(ValueError, match=r"names no known column, and has 2 fields, some, words: say which hold"):
        read_texts(written(tmp_path, "a.csv", b"some,words\n2012,more\n"), "forward")
    texts = read_texts(written(tmp_path, "a.csv", b"some words\n2012\n\nlast\n"), "forward")
    assert texts.texts == [b"some words", b"2012", b"last"]
    assert texts.labels is None
    assert texts.said.startswith("no header; delimiter ','; text: column 1 (--header")


def test_csv_of_one_column_of_numbers(tmp_path):
    texts = read_texts(written(tmp_path, "a.csv", b"2012\n7\n"))
    assert texts.texts == [b"2012", b"7"]
    assert texts.labels is None


def test_other_formats_by_their_names(tmp_path):
    lines = b'{"label": 2, "text": "a"}\n{"label": "1", "text": "b"}\n'
    for name, data in (("a.jsonl", lines), ("a.tsv", b"2\ta\n1\tb\n")):
        texts = read_texts(written(tmp_path, name, data))
        assert texts.texts == [b"a", b"b"]
        assert texts.labels.tolist() == [1, 0]
    assert read_texts(written(tmp_path, "b.jsonl", b'{"text": "a"}\n')).labels is None


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": [1, 0]}), path)
    with pytest.raises(ValueError, match=r"a\.parquet, row 2: label '0': need a whole number from 1"):
        read_texts(path)


def test_bytes_that_are_not_utf8_survive(tmp_path):
    data = b"caf\xe9 \xc3\xa9 \xf0\x9f\x98\x80\xed\xa0\x80\xff"
    expected = encode([data], "forward")
    for name, content in (("a.txt", data), ("a.csv", b'1,"' + data + b'"\n')):
        np.testing.assert_array_equal(encode(read_texts(written(tmp_path, name, content)).texts, "forward"), expected)


def test_a_huge_field_fits(tmp_path):
    path = written(tmp_path, "a.csv", b'1,"' + b"x" * 3_000_000 + b'"\n')
    assert len(read_texts(path).texts[0]) == 3_000_000
    with pytest.raises(ValueError, match=r"b\.csv: its first row is not CSV: broken quoting"):
        read_texts(written(tmp_path, "b.csv", b'1,"'))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"", "a.csv holds no texts"),
        ("a.txt", b"", "a.txt holds no texts"),
        ("a.csv", b"\n\r\n", "a.csv holds no texts"),
        ("a.csv", b"label,text\n", "a.csv holds no texts"),
        ("a.csv", b"1,a\n2,b\0c\n", "a.csv: is binary, or UTF-16: it holds NUL bytes"),
        ("a.txt", "one\ntwo".encode("utf-16"), "a.txt: is UTF-16: need UTF-8"),
        ("a.csv", "1,one\n2,two".encode("utf-16"), "a.csv: is UTF-16: need UTF-8"),
        ("a.csv", b'1,a\n2,"b\nc\n3,d\n', "a.csv, line 2: broken quoting"),
        ("a.csv", b'1,"a\nb"\n2,"c"d\n', "a.csv, line 3: broken quoting"),
        ("a.csv", b'1,"a\nb"\nx,c\n', "a.csv, line 3: label 'x': .*'text'"),
        ("a.csv", b"1,a\n0,b\n", "a.csv, line 2: label '0'"),
        ("a.csv", b"1,a\n-1,b\n", "a.csv, line 2: label '-1'"),
        ("a.csv", b"1,a\n\n2\n", "a.csv, line 3: 1 fields: need 2"),
        ("a.csv", b"text,label\na,1\nb,\n", "a.csv, line 3: label ''"),
        ("a.csv", b"1,a\n2,b,c\n", "a.csv, line 2: 3 fields: need 2"),
        ("a.csv", b"label\n1\n", "a.csv: its only column is the label"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 1}\n', "a.jsonl, line 2: text is a number: need a string"),
        ("a.csv", b"text,label\na,World\n", "a.csv, line 2: label 'World'"),
    ],
)
def test_a_file_that_is_not_texts_is_named_with_its_line(tmp_path, name, data, message):
    with pytest.raises(ValueError, match=message):
        read_texts(written(tmp_path, name, data))


def test_a_missing_file_is_an_oserror(tmp_path):
    for name in ("a.csv", "a.txt"):
        with pytest.raises(FileNotFoundError):
            read_texts(tmp_path / name)


@settings(deadline=None)  # the first call compiles
@given(st.binary(max_size=60))
@example(b'1,"a\r')
@example(b'"1\n2",\r\x85')
def test_any_bytes_are_texts_or_a_valueerror(tmp_path_factory, data):
    for name in ("a.csv", "a.txt"):
        path = written(tmp_path_factory.getbasetemp(), name, data)
        try:
            texts = read_texts(path)
        except ValueError as error:
            assert name in str(error)  # noqa: PT017
        else:
            assert len(encode(texts.texts, "crepe", 20)) == len(texts.texts) > 0


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.tuples(st.integers(1, 4), st.text(max_size=9), st.text(max_size=9)), min_size=1, max_size=9))
def test_what_csv_writes_is_read_back(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "written.csv"
    rows = [(label, title.replace("\0", ""), text.replace("\0", "")) for label, title, text in rows]
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    if any(not (title + text).strip() for _, title, text in rows):
        with pytest.raises(ValueError, match=r"written.csv, line [0-9]+: no text: it is empty or blank"):
            read_texts(path, "forward")
        return
    texts = read_texts(path, "forward")
    assert texts.texts == [f"{title} {text}".encode() for _, title, text in rows]
    assert texts.labels.tolist() == [label - 1 for label, _, _ in rows]
