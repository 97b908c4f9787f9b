"""Numba's cache of compiled code: no folder that can be written, and files that are damaged."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from charcnn.caching import disk
from charcnn.ops import argmax

ROOT = Path(__file__).parent.parent

LOGITS = np.array([[1, 3, 2]], np.float32)


def started():
    """A small function of the package, as a start has it: not compiled yet."""
    function = numba.njit(cache=True, nogil=True)(argmax._argmax_loops_kernel.py_func)
    labels = np.empty(1, np.int64)
    function(LOGITS, labels)
    assert labels.tolist() == [1]
    return function


def found(function):
    """Whether its code came from the cache."""
    return sum(function.stats.cache_hits.values()) == 1


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache that holds the function."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    assert not found(started())
    assert found(started())
    return tmp_path / "kept"


@pytest.mark.parametrize("name", ["*.nbi", "*.nbc"])
@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-100],
        lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :],
        lambda data: data[:-32],  # as Numba alone writes it
    ],
    ids=["emptied", "cut off", "one bit", "no digest"],
)
def test_a_damaged_file_is_compiled_and_written_anew(kept, name, change):
    (file,) = kept.rglob(name)
    file.write_bytes(change(file.read_bytes()))
    assert not found(started())
    assert found(started())


def test_a_data_file_that_is_gone_is_written_anew(kept):
    (file,) = kept.rglob("*.nbc")
    file.unlink()
    assert not found(started())
    assert found(started())


def test_a_full_disk_keeps_nothing_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    disk._not_kept.cache_clear()

    def full(self, path):
        raise OSError(28, "No space left on device", path)

    files = type(argmax._argmax_loops_kernel._cache._cache_file)
    monkeypatch.setattr(files, "_open_for_write", full)
    with pytest.warns(UserWarning, match=r"compiled code cannot be kept.*: .*: No space left on device") as told:
        functions = [started(), started()]
    assert not any(map(found, functions))
    assert len(told) == 1


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Neither the package nor the user's folder can be written; gives the temporary folder."""
    shown = numba.core.caching.FunctionCache._impl_class._locator_classes
    for locator in shown:
        if locator is not disk._PrivateLocator:
            monkeypatch.setattr(locator, "from_function", classmethod(lambda *_: None))
    monkeypatch.setattr(disk.tempfile, "tempdir", str(tmp_path))
    disk.private_folder.cache_clear()
    yield tmp_path
    disk.private_folder.cache_clear()


def test_no_cache_can_be_written(nowhere):
    assert not found(started())
    function = started()
    assert found(function)
    folder = nowhere / f"charcnn-{os.getuid()}"
    assert Path(function.stats.cache_path).parent == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    disk.private_folder.cache_clear()  # as another process
    assert found(started())


@pytest.mark.parametrize("taken", ["open", "link", "file", "another user's"])
def test_a_folder_of_somebody_else_is_not_taken(nowhere, monkeypatch, taken):
    user = os.getuid()
    if taken == "another user's":
        user += 1
        monkeypatch.setattr(disk.os, "getuid", lambda: user)
    folder = nowhere / f"charcnn-{user}"
    if taken == "link":
        (nowhere / "theirs").mkdir(mode=0o700)
        folder.symlink_to(nowhere / "theirs")
    elif taken == "file":
        folder.write_text("")
    else:
        folder.mkdir(mode=0o700)
    if taken == "open":
        folder.chmod(0o770)
    path = Path(started().stats.cache_path).parent
    assert path.parent == nowhere
    assert path != folder
    assert not any(nowhere.joinpath("theirs").glob("*"))
    disk._remove(str(path), os.getpid() + 1)  # a fork's end
    assert path.exists()
    disk._remove(str(path), os.getpid())
    assert not path.exists()


def test_no_folder_at_all(nowhere, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.tempfile, "TemporaryFile", full)
    with pytest.raises(PermissionError, match=r"set NUMBA_CACHE_DIR to one \(No space left on device\)"):
        started()


def test_an_installation_of_another_user(tmp_path):
    # As in a container: root may write whatever modes say, so that files stand where folders would be made.
    shutil.copytree(
        ROOT / "charcnn", tmp_path / "charcnn", ignore=shutil.ignore_patterns("__pycache__", "weights", "levels")
    )
    for folder in ("charcnn", "charcnn/ops"):
        (tmp_path / folder / "__pycache__").write_text("")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "other.py").write_text("from numba import njit\n@njit(cache=True)\ndef f():\n    return 1\n")
    code = "import charcnn.ops.argmax as argmax, other\n"
    for function in ("other.f", "argmax._argmax_loops_kernel", "argmax._argmax_naive_kernel"):
        code += f"print(type({function}._cache._cache_file).__module__, {function}.stats.cache_path)\n"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "PYTHON", "XDG_"))}
    environment |= {"HOME": str(tmp_path / "other.py"), "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    others, own, kernels = (line.split() for line in done.stdout.splitlines())
    assert others == ["numba.core.caching", str(tmp_path / "__pycache__")], "functions of others are left alone"
    folder = tmp_path / "tmp" / f"charcnn-{os.getuid()}"
    assert [own[0], Path(own[1]).parent] == [kernels[0], Path(kernels[1]).parent] == ["charcnn.caching.disk", folder]
