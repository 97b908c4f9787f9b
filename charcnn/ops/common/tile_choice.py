"""Which tile a kernel takes for a layer on a GPU: what was measured there, else what ships, else a rule.

A kernel names its candidates, first the one that its rule takes, and `choose` gives one of them. Nothing is measured
here: `charcnn tune` measures, and writes what it chose to the user's cache, a file a GPU, which has the first word. The
files that ship stand in charcnn/tuning in the same form. Each is read once a process, when it is first asked for.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from charcnn import files
from charcnn.aliases import Record
from charcnn.gpu import device
from charcnn.gpu.replay import Replay

Candidate = TypeVar("Candidate")
"""A frozen dataclass of plain numbers."""

PACKAGE = Path(__file__).parent.parent.parent

SOURCES = {
    "double_buffered": ("ops/conv1d/double_buffered.py", "ops/conv1d/tile_moments.py", "gpu/ptx"),
    "mma": (*(f"ops/conv1d/mma/{name}" for name in ("config.py", "kernel.py", "loads.py")), "gpu/ptx"),
    "wgmma": (
        *(f"ops/conv1d/wgmma/{name}.py" for name in ("config", "few_rows", "kernel", "loads", "matmul")),
        "ops/conv1d/wgmma/epilogue",
        "gpu/ptx",
    ),
}
"""By the first word of a kernel's name, the files and folders that make it: where one changes, what was measured counts
no more."""


class Key(NamedTuple):
    """What a tile is chosen for."""

    kernel: str
    """One of SOURCES, and its epilogue."""
    precision: str
    taps: int
    c_in: int
    c_out: int
    rows: int
    """Of the product, up to the next power of 4: what is measured for one batch serves batches of about its size."""

    def __str__(self) -> str:
        return f"{self.kernel} {self.precision}, {self.taps} x {self.c_in} x {self.c_out}, up to {self.rows} rows"


Pick = Callable[[Key, Sequence[Any]], Any]

_trial: ContextVar[Pick | None] = ContextVar("trial", default=None)


def choose(
    kernel: str, precision: str, shape: tuple[int, int, int], rows: int, candidates: tuple[Candidate, ...]
) -> Candidate:
    """The candidate for a layer on the current GPU.

    Args:
        kernel: one of SOURCES, and after a space the epilogue.
        precision: what it multiplies in.
        shape: of the weights, (K, C_in, C_out).
        rows: of the product.
        candidates: first the one that the rule takes, which needs no measurement.
    """
    if len(candidates) == 1:
        return candidates[0]
    key = Key(kernel, precision, *shape, 4 ** -(-max(rows - 1, 0).bit_length() // 2))
    pick = _trial.get()
    return _chosen(device.gpu_name(), key, candidates) if pick is None else pick(key, candidates)


@contextmanager
def trying(pick: Pick) -> Iterator[None]:
    """In this context and thread, `choose` gives what `pick` does, of the key and the candidates."""
    token = _trial.set(pick)
    try:
        with Replay.pause():
            yield
    finally:
        _trial.reset(token)


@cache
def _chosen(gpu: str, key: Key, candidates: tuple[Any, ...]) -> Any:
    entry = _read(cache_file(gpu), gpu).get(str(key))
    if entry is not None and entry.get("versions") == versions(key.kernel):
        for candidate in candidates:
            if asdict(candidate) == entry["tile"]:
                return candidate
    return untuned(gpu, key, candidates)


def untuned(gpu: str, key: Key, candidates: Sequence[Any]) -> Any:
    """The candidate where the user's cache has none: the one that ships for this GPU, else the rule's."""
    entry = _read(PACKAGE / "tuning" / f"{_slug(gpu)}.json", gpu).get(str(key), {})
    return next((candidate for candidate in candidates if asdict(candidate) == entry.get("tile")), candidates[0])


def cache_file(gpu: str) -> Path:
    """Where the user's choices for a GPU of this name are kept: $CHARCNN_CACHE, else the user's folder of caches."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("CHARCNN_CACHE") or os.path.join(base, "charcnn"), "tiles", f"{_slug(gpu)}.json")


def _slug(gpu: str) -> str:
    return "-".join(gpu.lower().replace("/", "-").split())


@cache
def _read(path: Path, gpu: str) -> dict[str, Record]:
    """The entries of a file by str(Key), none where there is no file; of one that is damaged none, with a warning."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not isinstance(found, dict) or found.get("gpu") != gpu:
            raise ValueError(f"is not of the GPU {gpu!r}")
        tiles = found.get("tiles")
        if not isinstance(tiles, dict) or not all(isinstance(e, dict) and "tile" in e for e in tiles.values()):
            raise ValueError('"tiles" holds no entries with a "tile" each')
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        what = " ".join(str(error.strerror if isinstance(error, OSError) else error).split())
        warnings.warn(f"{path}: {what}; its tiles are ignored: delete it, or run charcnn tune", stacklevel=2)
        return {}
    return tiles


def store(path: Path, gpu: str, entries: dict[str, Record]) -> None:
    """Add entries, by str(Key), to a file; of processes that do so at once none loses what another one wrote.

    Raises:
        OSError: the folder cannot be made or written.
    """
    import json

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        files.lock(lock)
        forget()
        merged = {**_read(path, gpu), **entries}
        with files.replacing(path) as file:
            lines = [f"  {json.dumps(key)}: {json.dumps(merged[key], allow_nan=False)}" for key in sorted(merged)]
            file.write(f'{{"gpu": {json.dumps(gpu)}, "tiles": {{\n' + ",\n".join(lines) + "\n}}\n")
    forget()


def forget() -> None:
    """Read files anew when they are next asked for."""
    _chosen.cache_clear()
    _read.cache_clear()
    Replay.forget()


@cache
def versions(kernel: str) -> str:
    """What a measurement of the kernel is true of: its source, and its compiler."""
    import hashlib
    from importlib import metadata

    named = [PACKAGE / name for name in SOURCES[kernel.split()[0]]]
    files = [file for path in named for file in (sorted(path.glob("*.py")) if path.is_dir() else [path])]
    source = b"".join(file.read_bytes() for file in files)
    return f"{hashlib.sha256(source).hexdigest()[:12]}, numba-cuda {metadata.version('numba-cuda')}"
