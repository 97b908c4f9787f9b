"""What a teacher of any kind answers to the rows learned from: probabilities of classes, in a file or in memory."""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from charcnn.aliases import Argument, Array, Record
from charcnn.files import Path
from charcnn.host.terminal import listed
from charcnn.model import params
from charcnn.text.columns import require_arrow

SUFFIXES = (".npz", ".npy", ".csv", ".parquet")

VALUES, CLASSES = "probabilities", "classes"
"""Names of an .npz file's arrays; one array alone may have any name."""

TOLERANCE = 1e-3
"""How far a row's sum may be from 1."""


def read(path: Path, rows: int, classes: Sequence[str]) -> np.ndarray:
    """A file's probabilities, float32 (rows, classes), in the order of the classes.

    CSV begins with a row of the classes' names. Parquet has a column of each name. An .npz file may have their names as
    `classes` beside its `probabilities`. Other columns than the classes' are refused. An .npy file's columns, and those
    of an .npz file without names, are in the order of the classes.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is none of these kinds or is damaged, or as of `checked` and `by_class`; names the file.
    """
    name = os.fspath(path)
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{name}: need a name that ends in {', '.join(SUFFIXES)}")
    with open(path, "rb"), _as_value_error(name, suffix):  # the system's own words where it cannot be read
        found, names = {".npz": _npz, ".npy": _npy, ".csv": _csv, ".parquet": _parquet}[suffix](name)
    if names is not None:
        found = _ordered(name, found, names, classes)
    return checked(name, found, rows, classes)


def of_texts(given: Argument, rows: int, classes: Sequence[str]) -> np.ndarray:
    """Probabilities in memory, likewise: an array (rows, classes), or a table or mapping with a column for each class.

    Raises:
        ValueError: as of `checked`; or a class has no column, or a column is of no class.
    """
    name = "teacher_probabilities"
    names = next((getattr(given, of) for of in ("column_names", "columns", "keys") if hasattr(given, of)), None)
    if names is None:
        return checked(name, given, rows, classes)
    keys = list(names() if callable(names) else names)
    columns = [np.asarray(given[key]) for key in keys]
    if any(column.shape != (rows,) for column in columns):
        raise ValueError(f"{name}: need {rows} values in each column, one a text")
    return checked(name, _ordered(name, np.stack(columns, 1), [str(key) for key in keys], classes), rows, classes)


def checked(name: str, given: Array, rows: int, classes: Sequence[str]) -> np.ndarray:
    """Probabilities as float32 (rows, classes), each row's sum made 1.

    Args:
        name: what an error calls them.
        given: numbers (rows, classes).
        rows: how many are needed.
        classes: names of the columns.

    Raises:
        ValueError: the shape is another, a value is no number, not finite or below 0, or a row's sum is off by more
            than TOLERANCE.
    """
    try:
        found = np.asarray(given, np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: need numbers, a row of probabilities for each row learned from") from error
    if found.shape != (rows, len(classes)):
        need = f"{rows} rows of {len(classes)} probabilities, one a class: {listed(classes)}"
        raise ValueError(f"{name} has the shape {found.shape}: need {need}")
    sums = found.sum(axis=1)
    for wrong, what in (
        (~np.isfinite(found).all(axis=1), "holds a value that is not finite"),
        ((found < 0).any(axis=1), "holds a value below 0"),
        (~(np.abs(sums - 1) <= TOLERANCE), "sums to {:.6g}"),
    ):
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(
                f"{name}: row {row + 1:,} of {rows:,} {what.format(sums[row])}: need probabilities, 0 or more, "
                f"that sum to 1 within {TOLERANCE:g}"
            )
    return (found / sums[:, None]).astype(np.float32)


def _ordered(name: str, values: np.ndarray, names: Sequence[str], classes: Sequence[str]) -> np.ndarray:
    """The columns in the order of the classes."""
    missing = [label for label in classes if label not in names]
    other = [label for label in names if label not in classes]
    if missing or other or len(names) != len(classes) or values.ndim != 2 or values.shape[1] != len(names):
        what = f"no column {missing[0]!r}" if missing else f"a column {other[0]!r}" if other else f"columns {names}"
        raise ValueError(f"{name} has {what}: need one for each class, {listed(classes)}, and no other")
    return values[:, [list(names).index(label) for label in classes]]


@contextmanager
def _as_value_error(name: str, suffix: str) -> Iterator[None]:
    """Whatever a damaged file makes its reader raise, as ValueError."""
    try:
        yield
    except (ImportError, MemoryError, ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{name}: cannot be read as {suffix}: {str(error).splitlines()[0]}") from error


def _npz(path: str) -> tuple[np.ndarray, list[str] | None]:
    with np.load(path, allow_pickle=False) as arrays:
        if not hasattr(arrays, "files"):
            raise ValueError("it holds one array, as .npy files do")
        names = arrays[CLASSES].tolist() if CLASSES in arrays.files else None
        others = [own for own in arrays.files if own != CLASSES]
        if VALUES not in others and len(others) != 1:
            raise ValueError(f"it holds {listed(arrays.files)}: need {VALUES!r}")
        found = arrays[VALUES if VALUES in others else others[0]]
    return found, None if names is None else list(map(str, names))


def _npy(path: str) -> tuple[np.ndarray, None]:
    return np.load(path, mmap_mode="r", allow_pickle=False), None  # mapped: what a header claims allocates nothing


def _csv(path: str) -> tuple[np.ndarray, list[str]]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        names = [field.strip() for field in next(csv.reader([file.readline()]), [])]
        return np.loadtxt(file, delimiter=",", ndmin=2, quotechar='"', comments=None), names


def _parquet(path: str) -> tuple[np.ndarray, list[str]]:
    require_arrow("Parquet")
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path, page_checksum_verification=True)
    return np.stack([column.to_numpy() for column in table.columns], 1), list(table.column_names)


def credited(
    networks: Record | None,
    probabilities: np.ndarray | None,
    *,
    file: str | None = None,
    teaching: float,
    name: str | None,
    license: str | None,
) -> Record | None:
    """What a model that was taught says of its teachers, as JSON values; None where it had none.

    Args:
        networks: what it says of networks that taught it, or None.
        probabilities: those that it learned from, or None.
        file: whose they are.
        teaching: their weight in the loss.
        name, license: of the teacher, as whoever trains says.

    Raises:
        ValueError: a name or a licence is given, and there is no teacher.
    """
    said = {key: value for key, value in (("name", name), ("license", license)) if value is not None}
    if networks is None and probabilities is None:
        if said:
            raise ValueError(f"teacher {' and '.join(said)}: there is no teacher to say it of")
        return None
    found = {**(networks or {})}
    if probabilities is not None:
        found["probabilities"] = {**({} if file is None else {"file": file}), "digest": digest(probabilities)}
        found["teaching"] = teaching
    return found | said


def digest(probabilities: np.ndarray) -> str:
    """16 hexadecimal digits that tell them from others."""
    return params.digest({VALUES: probabilities})


def targets(labels: np.ndarray, classes: int, probabilities: np.ndarray | None, teaching: float) -> np.ndarray:
    """What a network is to answer to rows, float32 (N, classes): `teaching` of a teacher's answers, else the labels."""
    own = np.eye(classes, dtype=np.float32)[labels]
    return own if probabilities is None else (1 - teaching) * own + np.float32(teaching) * probabilities
