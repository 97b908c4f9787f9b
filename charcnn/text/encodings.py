"""Characters to token ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from numba import njit

from charcnn.aliases import Record
from charcnn.text import names

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789-,;.!?:'\"/\\|_@#$%^&*~`+-=<>()[]{}\n"
"""The paper's 70 characters; '-' stands twice, at 36 and at 59."""

BLANK_BYTE = 0xFF
"""A byte that UTF-8 never holds: where ids are the bytes themselves, its id is free to stand for no text."""

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
"""The four classes of AG News, and of the sample."""


@dataclass(frozen=True)
class Encoding:
    """How a text becomes token ids. A model is good only for the encoding that it was trained with.

    Args:
        name: for people; the other fields say all.
        alphabet: 1 to 255 ASCII characters; a byte's id is its character's index here, all other bytes are unknown.
            None: a byte's id is the byte itself, and 0xFF, which no text in UTF-8 holds, is the blank.
        dash: "first" or "last": the index that a character takes which stands in the alphabet twice, as '-' does.
        reverse: whether a text's last byte comes first.
        keep: "head" or "tail": the side that stays of a text that is too long.
        reverse_fields: whether a row's fields are joined from the last to the first (description, title).
        lowercase: whether A to Z count as a to z; of bytes False.

    Raises:
        ValueError: a field is not of these; names it.
    """

    name: str
    alphabet: str | None = ALPHABET
    dash: str = "first"
    reverse: bool = False
    keep: str = "head"
    reverse_fields: bool = False
    lowercase: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"name={self.name!r}: need a str")
        wrong = names.problem(self.name)
        if wrong is not None:
            raise ValueError(f"name={self.name[:100]!r} {wrong}")
        if self.alphabet is None:
            if self.lowercase is not False:
                raise ValueError(f"lowercase={self.lowercase!r}: with alphabet=None ids are the bytes; need False")
        elif (
            not isinstance(self.alphabet, str)
            or not self.alphabet.isascii()
            or not 1 <= len(self.alphabet) <= BLANK_BYTE
        ):
            raise ValueError(f"alphabet={self.alphabet!r}: need a str of 1 to 255 ASCII characters, or None for bytes")
        elif self.lowercase is True and any("A" <= character <= "Z" for character in self.alphabet):
            raise ValueError(f"alphabet={self.alphabet!r} holds capitals: with lowercase=True no text reaches them")
        for field, choices in (("dash", ("first", "last")), ("keep", ("head", "tail"))):
            if getattr(self, field) not in choices:
                raise ValueError(f"{field}={getattr(self, field)!r}: need {choices[0]!r} or {choices[1]!r}")
        for field in ("reverse", "reverse_fields", "lowercase"):
            if not isinstance(getattr(self, field), bool):
                raise ValueError(f"{field}={getattr(self, field)!r}: need True or False")

    @property
    def blank(self) -> int:
        """The id of no character and of an unknown one: 70, of bytes 255."""
        return BLANK_BYTE if self.alphabet is None else len(self.alphabet)

    def join(self, fields: Sequence[str]) -> str:
        """One text from a row's fields, with a space between them."""
        return " ".join(reversed(fields) if self.reverse_fields else fields)

    def to_dict(self) -> Record:
        """The fields as JSON values; `Encoding(**value)` reads them back."""
        return asdict(self)


ENCODINGS = {
    encoding.name: encoding
    for encoding in (
        # As in the authors' own program, Crepe.
        Encoding("crepe", dash="last", reverse=True, keep="tail", reverse_fields=True),
        Encoding("forward"),
        # Any language in UTF-8: 255 bytes that texts may hold and one that they may not are all that a uint8 counts.
        Encoding("bytes", alphabet=None, lowercase=False),
    )
}


def find_encoding(encoding: str | Encoding) -> Encoding:
    """The encoding of this name; an Encoding is given back as it is.

    Raises:
        ValueError: no encoding has this name.
    """
    if isinstance(encoding, Encoding):
        return encoding
    if not isinstance(encoding, str) or encoding not in ENCODINGS:
        raise ValueError(f"encoding={encoding!r}: need an Encoding or one of {', '.join(ENCODINGS)}")
    return ENCODINGS[encoding]


@cache
def byte_table(encoding: Encoding) -> np.ndarray:
    """The id of each of the 256 bytes."""
    table = np.full(256, encoding.blank, np.uint8)
    if encoding.alphabet is None:
        table[:] = np.arange(256)
    for index, character in enumerate(encoding.alphabet or ""):
        if encoding.dash == "last" or table[ord(character)] == encoding.blank:
            table[ord(character)] = index
    if encoding.lowercase:
        table[ord("A") : ord("Z") + 1] = table[ord("a") : ord("z") + 1]
    table.setflags(write=False)  # every caller shares it
    return table


@njit(cache=True, nogil=True)
def _encode_kernel(buffer, starts, ends, table, blank, tail, reverse, ids):
    length = ids.shape[1]
    for n in range(ids.shape[0]):
        start, end = starts[n], ends[n]
        kept = min(end - start, length)
        if tail:
            start = end - kept
        if reverse:
            for t in range(kept):
                ids[n, t] = table[buffer[start + kept - 1 - t]]
        else:
            for t in range(kept):
                ids[n, t] = table[buffer[start + t]]
        ids[n, kept:] = blank


def encode_buffer(buffer: np.ndarray, offsets: np.ndarray, encoding: str | Encoding, length: int) -> np.ndarray:
    """Token ids of texts that lie one after the other, as in an Arrow array of strings. Releases the GIL.

    Args:
        buffer: uint8 (B,), C-contiguous: the texts' bytes.
        offsets: int64 or int32 (N + 1,): text n is buffer[offsets[n]:offsets[n + 1]].
        encoding: an Encoding, or the name of one of ENCODINGS.
        length: columns of the result.

    Returns:
        uint8 (N, length): the index in the alphabet; encoding.blank for an unknown byte and behind a text's end.

    Raises:
        ValueError: an argument's dtype or shape does not fit, or offsets fall or leave the buffer.
    """
    encoding = find_encoding(encoding)
    if isinstance(length, bool) or not hasattr(length, "__index__") or length < 1:
        raise ValueError(f"length={length!r}: need a positive int")
    check_buffer(buffer, offsets)
    offsets = np.ascontiguousarray(offsets, np.int64)
    return _encoded(buffer, offsets[:-1], offsets[1:], encoding, length)


def encode_windows(buffer: np.ndarray, starts: np.ndarray, size: int, encoding: Encoding, length: int) -> np.ndarray:
    """Token ids of parts of texts, which may overlap. Releases the GIL.

    Args:
        buffer: uint8 (B,), C-contiguous.
        starts: int64 (W,): part w is buffer[starts[w]:starts[w] + size], all of it inside.
        size: bytes of each.
        encoding: how.
        length: columns of the result.

    Returns:
        uint8 (W, length), as of `encode_buffer`.
    """
    return _encoded(buffer, starts, starts + size, encoding, length)


def _encoded(buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray, encoding: Encoding, length: int) -> np.ndarray:
    ids = np.empty((starts.size, length), np.uint8)
    table, tail = byte_table(encoding), encoding.keep == "tail"
    _encode_kernel(buffer, starts, ends, table, encoding.blank, tail, encoding.reverse, ids)
    return ids


@njit(cache=True, nogil=True)
def _rise_within(offsets, size):
    last = np.int64(0)
    for n in range(offsets.size):
        if offsets[n] < last:
            return False
        last = np.int64(offsets[n])
    return last <= size


def check_buffer(buffer: np.ndarray, offsets: np.ndarray) -> None:
    """Raise ValueError unless these are texts one after the other, as `encode_buffer` takes them."""
    if buffer.dtype != np.uint8 or buffer.ndim != 1 or not buffer.flags.c_contiguous:
        raise ValueError(f"buffer is {buffer.dtype} of shape {buffer.shape}: need contiguous uint8 (B,)")
    if offsets.dtype not in (np.int64, np.int32) or offsets.ndim != 1 or not offsets.size:
        raise ValueError(f"offsets is {offsets.dtype} of shape {offsets.shape}: need int64 or int32 (N + 1,)")
    if not _rise_within(offsets, buffer.size):
        raise ValueError(f"offsets leave the buffer or fall: need 0 <= rising values <= {buffer.size}")


_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def _utf8(text: str) -> bytes:
    """The text's bytes. A surrogate that stands for a byte that was not UTF-8 is that byte; any other is unknown."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode("utf-8", "surrogateescape")


def encode(texts: Iterable[str | bytes], encoding: str | Encoding | None = None, length: int = 1014) -> np.ndarray:
    """Token ids of texts. A model's encoding and length: `Classifier.encode(texts)` takes them from it.

    A str counts as its UTF-8 bytes, so a character that is not ASCII is two to four unknown ones, or with the encoding
    `bytes` two to four known ones. Longer texts are truncated, an empty one is all blank.

    Args:
        texts: str or bytes, also mixed: a list, a tuple, a NumPy array, or any other iterable.
        encoding: an Encoding, or the name of one of ENCODINGS: the one that the model learned from, as every other
            gives it other ids.
        length: columns of the result.

    Returns:
        uint8 (N, length): the index in the encoding's alphabet, or the byte; its `blank` (70, or 255) for an unknown
        one and for none.

    Raises:
        ValueError: texts is one text, or holds something else than texts; no encoding is given, or none has this name.
    """
    if encoding is None:
        names = ", ".join(ENCODINGS)
        raise ValueError(
            f"encoding=None: need the model's, one of {names}; Classifier.encode(texts) takes it from there"
        )
    check_column(texts)
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    if not isinstance(texts, Iterable):
        raise ValueError(f"texts is a {type(texts).__name__}: need a list of texts")
    return encode_buffer(*pack(texts), encoding, length)


def check_column(texts: Any) -> None:
    """Raise ValueError where these are not one column of texts, but one text, a table or a mapping."""
    kind = type(texts).__name__
    if isinstance(texts, (str, bytes)):
        raise ValueError(f"texts is a {kind}: need a list of texts; for one text pass [text]")
    if getattr(texts, "ndim", 1) != 1:  # a data frame gives the names of its columns, one by one
        raise ValueError(f"texts has {texts.ndim} dimensions: need one column")
    if isinstance(texts, Mapping):
        raise ValueError(f"texts is a {kind}: need a list of texts, as one of its values may be")


def pack(texts: Iterable[str | bytes], first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Texts one after the other, as `encode_buffer` takes them: the bytes, uint8 (B,), and offsets, int64 (N + 1,).

    Args:
        texts: str, which count as their UTF-8 bytes, or bytes.
        first: what errors call the first one's index.

    Raises:
        ValueError: one is neither; names its index.
    """
    parts = []
    for index, text in enumerate(texts, first):
        if isinstance(text, str):
            text = _utf8(text)
        elif not isinstance(text, bytes):
            raise ValueError(f"texts[{index}] is a {type(text).__name__}: need str or bytes")
        parts.append(text)
    offsets = np.fromiter(accumulate(map(len, parts), initial=0), np.int64, len(parts) + 1)
    return np.frombuffer(b"".join(parts), np.uint8), offsets
