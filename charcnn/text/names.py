"""Names that a file brings along and that are written on, to terminals and into files: of classes and encodings."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

LONGEST = 1000
"""Characters of a name: it is written once a row."""

_REFUSED = {
    "Cc": "a control character",
    "Cs": "half of a surrogate pair, which no file can hold",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
}
_DIRECTIONS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}


@lru_cache(maxsize=4096)  # training asks once a row
def problem(name: str) -> str | None:
    """What is wrong with a name; None where nothing is.

    It may hold no control character, surrogate, separator of lines or paragraphs, or change of the writing direction,
    no blank at an end, and at most LONGEST characters.
    """
    if not name:
        return "is empty: need some characters"
    if len(name) > LONGEST:
        return f"has {len(name):,} characters: need {LONGEST:,} at most"
    for character in name:
        what = _REFUSED.get(unicodedata.category(character))
        if what is None and ord(character) in _DIRECTIONS:
            what = "a change of the writing direction"
        if what is not None:
            return f"holds {what} ({character!r}): need none"
    if name != name.strip():
        return "begins or ends with a blank: need none there"
    return None


def check_classes(names: object, count: int) -> None:
    """Raise ValueError unless these are names for so many classes: a tuple of str, each good, no two the same."""
    if not isinstance(names, tuple) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise ValueError(f"classes={_shown(names)}: need {count} names")
    for name in names:
        wrong = problem(name)
        if wrong is not None:
            raise ValueError(f"classes: the name {_shown(name)} {wrong}")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"classes={_shown(names)} holds {_shown(name)} twice: need names that differ")
        seen.add(name)


def named(labels: Sequence[object] | np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Labels as names of classes.

    Args:
        labels: N names, or N indices of them.
        classes: str (C,).

    Raises:
        ValueError: a label is no class.
    """
    wanted = np.asarray(labels)
    if wanted.dtype.kind in "iu":
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < len(classes):
            raise ValueError(f"labels hold {wanted.min()} to {wanted.max()}: need 0 to {len(classes) - 1}")
        wanted = classes[wanted]
    unknown = set(wanted.tolist()) - set(classes.tolist())
    if unknown:
        raise ValueError(f"labels hold {sorted(map(str, unknown))[0]!r}: need {', '.join(classes)}")
    return wanted


def _shown(value: object) -> str:
    """What came, as one short line, with nothing in it that a terminal obeys."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
