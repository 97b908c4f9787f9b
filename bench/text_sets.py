"""Six sets of labelled texts that a machine makes of what it has: no download, and rows of none are committed.

Digits need nothing, modules Python's own library, licences and packages Debian or Ubuntu, languages translated manual
pages, and news a folder with AG News' train.csv, which the environment variable CHARCNN_AG_NEWS names.
"""

from __future__ import annotations

import ast
import csv
import os
import re
import subprocess
import sysconfig
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from zlib import crc32

import manual_pages
import numpy as np

Rows = list[tuple[str, str]]
"""Label and text of each."""

NEWS = "CHARCNN_AG_NEWS"
"""The variable that names the folder of AG News."""

SHORTEST = 60
"""Characters of a text at least, of licences and docstrings."""

LEAST = 10
"""Rows of a class at least."""

_ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen""".split()  # noqa: SIM905
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905


def in_words(number: int) -> str:
    """A whole number below a million in English words: "twelve thousand three hundred five"."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return " ".join([_TENS[number // 10 - 2], *([_ONES[number % 10]] if number % 10 else [])])
    unit, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    rest = [in_words(number % unit)] if number % unit else []
    return " ".join([in_words(number // unit), name, *rest])


def digits() -> Rows:
    """Numbers in words: the last digit, which only the end of a text tells."""
    numbers = np.random.default_rng(0).choice(1_000_000, 8000, replace=False)
    return [(str(number % 10), in_words(int(number))) for number in numbers]


def licences(folder: str = "/usr/share/common-licenses") -> Rows:
    """Pieces of licences, of some 100 characters: which licence are they from? Those of several are left out."""
    found = []
    for path in sorted(Path(folder).iterdir()):
        if not path.is_symlink():
            for text in re.split(r"\n\s*\n", path.read_text(encoding="utf-8", errors="replace")):
                found += [(path.name, piece) for piece in textwrap.wrap(" ".join(text.split()), 100)]
    return _apart(found)


def languages(folder: str = "/usr/share/man") -> Rows:
    """Paragraphs of translated manual pages: which language are they in?"""
    chosen = manual_pages.rows(Path(folder), 2000, 200)
    return chosen[False] + chosen[True]


def modules(classes: int = 20) -> Rows:
    """First paragraphs of docstrings of Python's own library: which package or module are they from?"""
    root = Path(sysconfig.get_path("stdlib"))
    found: Rows = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).parts[0].removesuffix(".py")
        if name in ("site-packages", "dist-packages", "test", "idlelib", "lib2to3", "turtledemo", "__phello__"):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((name, " ".join((ast.get_docstring(node) or "").split())[:400]))
    return _largest(_apart(found), classes)


def packages(classes: int = 10) -> Rows:
    """One-line descriptions of Debian's packages: which section are they in?"""
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    found = []
    for entry in listed.split("\n\n"):
        fields = dict(re.findall(r"^(Section|Description(?:-en)?): (.+)$", entry, re.MULTILINE))
        if "Section" in fields and len(fields) == 2:
            found.append((fields.pop("Section"), next(iter(fields.values()))))
    return _largest(_apart(found, shortest=10), classes)


def news() -> Rows:
    """AG News' training rows: one of four topics, of title and body.

    Raises:
        OSError: the variable names no folder with train.csv.
    """
    with open(Path(os.environ.get(NEWS, f"${NEWS}")) / "train.csv", newline="", encoding="utf-8") as file:
        return [(row[0], " ".join(row[1:])) for row in csv.reader(file)]


SETS: dict[str, tuple[Callable[[], Rows], str, str]] = {
    "digits": (digits, "forward", "numbers in words: the last digit"),
    "licences": (licences, "forward", "paragraphs of licences"),
    "languages": (languages, "bytes", "manual pages' languages"),
    "packages": (packages, "forward", "Debian packages' sections"),
    "modules": (modules, "forward", "docstrings of 20 modules of Python"),
    "news": (news, "forward", "news in 4 topics (AG News)"),
}
"""What makes each, the encoding it is learned with, and what a table calls it."""


def _apart(rows: Iterable[tuple[str, str]], shortest: int = SHORTEST) -> Rows:
    """The rows of some length, each text once, and none that has two labels."""
    labels = defaultdict[str, set[str]](set)
    for label, text in rows:
        if len(text) >= shortest:
            labels[text].add(label)
    return [(*own, text) for text, own in labels.items() if len(own) == 1]


def _largest(rows: Rows, classes: int) -> Rows:
    """The rows of the labels that have most."""
    kept = {label for label, _ in Counter(label for label, _ in rows).most_common(classes)}
    return [row for row in rows if row[0] in kept]


def halves(rows: Rows) -> tuple[Rows, Rows]:
    """Rows to choose settings on, and rows to test with what was chosen: a text is always in the same half."""
    odd = [crc32(text.encode()) % 2 == 1 for _, text in rows]
    chosen, tested = ([row for row, is_odd in zip(rows, odd, strict=True) if is_odd == half] for half in (False, True))
    return chosen, tested


def drawn(
    rows: Rows, count: int, tested: int, seed: int, *, rare: bool = False, seen: AbstractSet[str] = frozenset()
) -> tuple[Rows, Rows]:
    """So many rows to learn from, of each class as many, and others to test with.

    Args:
        rows: of a set.
        count: rows to learn from.
        tested: rows to test with, at most.
        seed: of the draw.
        seen: texts that are not tested with, as something was chosen by what was right of them.
        rare: whether there are two classes, nine rows of one to one of the other, in both parts; else all classes.

    Raises:
        ValueError: a class has too few rows.
    """
    rng = np.random.default_rng(seed)
    by_class = defaultdict[str, Rows](list)
    for row in rows:
        by_class[row[0]].append(row)
    names = sorted(by_class, key=lambda name: (-len(by_class[name]), name))
    # A class that has too few rows for its share is left out: sets are no larger than a machine's files.
    names = [name for name in names if len(by_class[name]) >= max(LEAST, 1.2 * count / len(names))]
    if not names:
        raise ValueError(f"no class has its share of {count} rows")
    if rare:
        names = [names[n] for n in rng.permutation(len(names))]
        many = [name for name in names if len(by_class[name]) >= 0.9 * (count + tested)]
        if not many or len(names) < 2:
            raise ValueError(
                f"no class has {0.9 * (count + tested):.0f} rows, nine of ten to learn from and to test with"
            )
        names = [many[0], next(name for name in names if name != many[0])]
    shares = [0.9, 0.1] if rare else [1 / len(names)] * len(names)
    parts: tuple[Rows, Rows] = ([], [])
    for name, share in zip(names, shares, strict=True):
        own = [by_class[name][n] for n in rng.permutation(len(by_class[name]))]
        learned = max(2, round(share * count))
        if learned >= len(own):
            raise ValueError(f"class {name!r} has {len(own)} rows: need more than {learned}")
        parts[0].extend(own[:learned])
        unseen = [row for row in own[learned:] if row[1] not in seen]
        parts[1].extend(unseen[: max(1, round(share * tested))])
    for part in parts:
        part[:] = [part[n] for n in rng.permutation(len(part))]
    return parts
