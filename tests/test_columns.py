"""Texts of every kind of column."""

import numpy as np
import pytest

from charcnn.text.columns import columns
from charcnn.text.encodings import encode


def test_columns_of_every_kind():
    pyarrow, pandas = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    texts = ["a", "", "é x", "long " * 9]
    sources = [
        texts,
        tuple(texts),
        [value.encode() for value in texts],
        np.array(texts),
        np.array(texts, object),
        np.array([value.encode() for value in texts]),
        iter(texts),
        pandas.Series(texts),
        pandas.Series(texts, dtype=object),
        pandas.Series(texts, dtype="category"),
        pyarrow.array(texts),
        pyarrow.array(["x", *texts])[1:],
        pyarrow.array(texts, pyarrow.large_string()),
        pyarrow.array(texts, pyarrow.string_view()),
        pyarrow.array(texts, pyarrow.binary()),
        pyarrow.array(texts).dictionary_encode(),
        pyarrow.chunked_array([texts[:1], [], texts[1:]], pyarrow.string()),
    ]
    for source in sources:
        found = []
        for column in columns(source, rows=3):
            data = column.buffer.tobytes()
            found += [data[a:b].decode() for a, b in zip(column.offsets, column.offsets[1:], strict=False)]
        assert found == texts, type(source)


def test_texts_that_are_none():
    pyarrow, pandas = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    cases = [
        ("abc", "for one text pass"),
        (7, "texts is a int"),
        (["a", None], r"texts\[1\] is a NoneType"),
        (["a"] * 5 + [1.5], r"texts\[5\] is a float"),
        (np.array([1.0]), "texts is an array of float64"),
        (np.array([["a"]]), "texts has 2 dimensions"),
        (pandas.DataFrame({"a": ["b"]}), "texts has 2 dimensions"),
        ({"a": ["b"]}, "texts is a dict: need a list of texts"),
        (pandas.Series(["a", None]), r"texts\[1\] is"),
        (pandas.Series(["a", "b", "c", 1.5]), r"texts\[3\] is a float"),
        (pyarrow.array(["a", "b", "c", None]), r"texts\[3\] is missing"),
        (pyarrow.DictionaryArray.from_arrays([0, 0, 1], ["a", None]), r"texts\[2\] is missing"),
        (pyarrow.array([1]), "texts is an Arrow array of int64"),
    ]
    for source, message in cases:
        with pytest.raises(ValueError, match=message):
            list(columns(source, rows=2))
    with pytest.raises(ValueError, match="texts has 2 dimensions: need one column"):
        encode(pandas.DataFrame({"a": ["b"]}), "crepe")  # else its columns' names
