"""Texts in memory, of any kind that Python users have, as buffers of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from charcnn.host.install import pip_install
from charcnn.text import encodings
from charcnn.text.strings import PackedStrings

ArrowArray = Any
"""pyarrow.Array, an extra that may be missing."""

ArrowType = Any
"""pyarrow.DataType."""


def columns(texts: Any, rows: int) -> Iterator[PackedStrings]:
    """Texts in columns of at most so many rows, made one at a time, so that memory does not grow with their number.

    Args:
        texts: str or bytes in a list, tuple, NumPy array (of objects, str, bytes or StringDType), pandas or polars
            column, or any iterable; or an Arrow array of strings, whose buffers are taken as they are.
        rows: the most of a column.

    Raises:
        ValueError: texts is one text, has two dimensions, or holds a missing value or something else than texts.
    """
    encodings.check_column(texts)
    if hasattr(texts, "__arrow_c_stream__") or hasattr(texts, "__arrow_c_array__"):
        yield from _arrow_columns(texts, rows)
        return
    if hasattr(texts, "to_numpy"):  # pandas
        texts = texts.to_numpy()
    if isinstance(texts, np.ndarray) and texts.dtype.kind not in "OUST":
        raise ValueError(f"texts is an array of {texts.dtype}: need str or bytes")
    first = 0
    for part in _parts(texts, rows):
        yield PackedStrings(*encodings.pack(part, first))
        first += len(part)


def _parts(texts: Any, rows: int) -> Iterator[Sequence[Any]]:
    if isinstance(texts, (Sequence, np.ndarray)):
        for start in range(0, len(texts), rows):
            part = texts[start : start + rows]
            yield part.tolist() if isinstance(part, np.ndarray) else part
    elif isinstance(texts, Iterable):
        rest = iter(texts)
        while part := list(islice(rest, rows)):
            yield part
    else:
        raise ValueError(f"texts is a {type(texts).__name__}: need a list of texts")


def _arrow_columns(texts: Any, rows: int) -> Iterator[PackedStrings]:
    pyarrow = require_arrow("texts in an Arrow or data-frame column")
    if not isinstance(texts, (pyarrow.Array, pyarrow.ChunkedArray)):
        try:
            texts = pyarrow.chunked_array(texts) if hasattr(texts, "__arrow_c_stream__") else pyarrow.array(texts)
        except (pyarrow.ArrowException, TypeError) as error:  # a column of Python objects that are not all str
            if not hasattr(texts, "to_numpy"):
                raise ValueError(
                    f"texts is a {type(texts).__name__} that is not an Arrow column of strings: {error}"
                ) from error
            yield from columns(texts.to_numpy(), rows)
            return
    first = 0
    for chunk in getattr(texts, "chunks", [texts]):
        for start in range(0, len(chunk), rows):
            part = decoded(chunk.slice(start, rows))
            if part.null_count:
                index = first + start + part.is_null().index(True).as_py()
                raise ValueError(f"texts[{index}] is missing: need str or bytes")
            yield from_arrow(part)
        first += len(chunk)


def require_arrow(purpose: str) -> Any:
    """The module pyarrow; ValueError where it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise ValueError(f"{purpose}: needs pyarrow: {pip_install('arrow')}") from error
    return pyarrow


def decoded(array: ArrowArray) -> ArrowArray:
    """An Arrow array with its values in place of numbers of a dictionary, where a value that is null shows as one."""
    import pyarrow.types as kind

    return array.dictionary_decode() if kind.is_dictionary(array.type) else array


_TEXTS = ("string", "large_string", "binary", "large_binary", "string_view", "binary_view")


def is_text(type: ArrowType) -> bool:
    """Whether an Arrow array of this type holds strings or bytes, in any layout."""
    import pyarrow.types as kind

    of = type.value_type if kind.is_dictionary(type) else type
    return any(getattr(kind, f"is_{name}")(of) for name in _TEXTS)


def from_arrow(array: ArrowArray) -> PackedStrings:
    """An Arrow array of strings or bytes; its own buffers where their layout is offsets and bytes. A null is empty.

    Raises:
        ValueError: it holds something else.
    """
    import pyarrow
    import pyarrow.types as kind

    array = decoded(array)
    if not is_text(array.type):
        raise ValueError(f"texts is an Arrow array of {array.type}: need strings")
    if kind.is_string_view(array.type) or kind.is_binary_view(array.type):
        array = array.cast(pyarrow.large_binary())
    wide = kind.is_large_string(array.type) or kind.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    buffer = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    if offsets is None or len(array) == 0:
        return PackedStrings(buffer, np.zeros(1, np.int64))
    values = np.frombuffer(offsets, np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
    return PackedStrings(buffer, values)
