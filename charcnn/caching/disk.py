"""Where Numba keeps what it compiled of charcnn: a folder where there is none that can be written, and damage mended.

Numba takes NUMBA_CACHE_DIR, or the `__pycache__` beside the source, or the user's cache folder. Where none can be
written it refuses to import the functions; here a folder of the process's user under the temporary folder follows. A
file that is cut off or damaged ends every later start; here each holds a SHA-256 of its content, and what does not fit
it is compiled and written anew. Neither guards against whoever may write the folder: pickles can run anything.

Two processes that add to a function's index at once lose an entry, and may give two compiled versions one file. Here,
one writes at a time. `charcnn.caching.hook` has Numba's two modules changed for functions of this package alone.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import pickle
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from types import ModuleType
from typing import Any

from charcnn import files
from charcnn.aliases import NumbaType

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")

LOCK = "charcnn.lock"
"""In each folder of the cache; held while an entry is added."""

_WARNED = "CHARCNN_WARNED_OF_CACHE"
"""Set in the environment once that was done."""

_SIZE = hashlib.sha256().digest_size


def _ours(function: Any) -> bool:
    return os.path.abspath(function.__code__.co_filename).startswith(PACKAGE)


@cache
def private_folder() -> str:
    """A folder under the temporary one that this process's user alone can enter: found again by later starts.

    Where its name is taken by what is none of this user's, it is one of this process alone, and is removed at its end.

    Raises:
        OSError: none can be made.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0  # Windows: each user has a temporary folder
    path = os.path.join(tempfile.gettempdir(), f"charcnn-{user}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or stat.S_IMODE(found.st_mode) != 0o700:
            path = tempfile.mkdtemp(prefix="charcnn-")
            atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:  # not a fork of it
        shutil.rmtree(path, ignore_errors=True)


class _PrivateLocator:
    """The last of Numba's locators: it finds `private_folder`."""

    def __init__(self, function: Any, file: str) -> None:
        self._file, self._line = file, function.__code__.co_firstlineno
        place = hashlib.sha256(os.path.dirname(os.path.abspath(file)).encode()).hexdigest()[:16]
        self._path = os.path.join(private_folder(), place)

    @classmethod
    def from_function(cls, function: Any, file: str) -> _PrivateLocator | None:
        """Numba's call: a locator, or None for functions outside this package."""
        if not _ours(function):
            return None
        try:
            found = cls(function, file)
            found.ensure_cache_path()
        except OSError as error:
            raise PermissionError(
                errno.EACCES,
                f"no folder for compiled code is writable: set NUMBA_CACHE_DIR to one ({error.strerror})",
            ) from error
        return found

    def ensure_cache_path(self) -> None:
        """Make the folder."""
        os.makedirs(self._path, 0o700, exist_ok=True)
        tempfile.TemporaryFile(dir=self._path).close()

    def get_cache_path(self) -> str:
        """The folder."""
        return self._path

    def get_source_stamp(self) -> bytes:
        """What changes with the source."""
        with open(self._file, "rb") as file:
            return hashlib.sha256(file.read()).digest()

    def get_disambiguator(self) -> str:
        """What tells functions of one name in a file."""
        return str(self._line)


def _mended(files: type) -> type:
    """A class of the index and the data of a function, as Numba's, that takes no damaged file."""

    class Mended(files):
        def _dump(self, obj: Any) -> bytes:
            data: bytes = super()._dump(obj)
            return data + hashlib.sha256(data).digest()  # unpickling ends before it

        def _load_index(self) -> dict[Any, str]:
            try:
                with open(self._index_path, "rb") as file:
                    pickle.load(file)  # the version
                    _check(file.read())
                found: dict[Any, str] = super()._load_index()
            except Exception:  # of many types, for what damage makes pickle meet
                return {}  # so that it is written anew
            return found

        def load(self, key: Any) -> Any:
            name = self._load_index().get(key)
            if name is None:
                return None
            try:
                with open(self._data_path(name), "rb") as file:
                    data = file.read()
                _check(data)
                return pickle.loads(data)
            except Exception:
                return None

    return Mended


def _check(data: bytes) -> None:
    if hashlib.sha256(data[:-_SIZE]).digest() != data[-_SIZE:]:
        raise ValueError("damaged")


@cache  # once a process
def _not_kept(reason: str) -> None:
    warnings.warn(f"compiled code cannot be kept, so the next start compiles again: {reason}", stacklevel=2)


@contextmanager
def _writing(folder: str) -> Iterator[None]:
    """No other process adds to this folder."""
    with ExitStack() as stack:
        with suppress(OSError):  # of a file system without locks; of a full one, which `_not_kept` tells
            files.lock(stack.enter_context(open(os.path.join(folder, LOCK), "a")))
        yield


def open_to_all(folder: str) -> bool:
    """Whether any user can write a folder; a sticky one, too, where files that are not there yet can be planted."""
    try:
        return bool(os.stat(folder).st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _warn_of_open_folder() -> None:
    folder = os.environ.get("NUMBA_CACHE_DIR", "")
    if folder and _WARNED not in os.environ and open_to_all(folder):
        os.environ[_WARNED] = "1"  # processes that this one starts have no need to say it again
        if sys.stderr is not None:
            with suppress(OSError):
                sys.stderr.write(
                    f"charcnn: NUMBA_CACHE_DIR={folder!r}: any user can write there, and so run code as you; take a "
                    "folder that only you can write\n"
                )


def mend(module: ModuleType) -> None:
    """Change one of Numba's caching modules."""
    _warn_of_open_folder()
    kind, files = module.Cache, _mended(module.IndexDataCacheFile)
    begin, save = kind.__init__, kind.save_overload

    def __init__(self: Any, function: Any) -> None:
        begin(self, function)
        if _ours(function):
            self._cache_file.__class__ = files

    def save_overload(self: Any, signature: NumbaType, data: Any) -> None:
        if not isinstance(self._cache_file, files):
            save(self, signature, data)
            return
        try:
            with _writing(self._cache_path):
                save(self, signature, data)
        except OSError as error:  # a full disk, say: the code is there, and runs
            _not_kept(f"{error.filename or self._cache_path}: {error.strerror or error}")

    kind.__init__, kind.save_overload = __init__, save_overload
    base = getattr(module, "CacheImpl", None) or module._CacheImpl  # as it is called before Numba 0.63
    base._locator_classes.append(_PrivateLocator)
