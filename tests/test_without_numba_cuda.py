"""The core alone: no numba-cuda, on Linux as it is, and with what Python lacks on Windows taken away."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import by_turns

from charcnn.host.install import pip_install

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest brings tomli there
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
CORE = "import without; without.hide('numba_cuda', '_numba_cuda_redirector', 'cuda', 'greenlet')"
WINDOWS = """
import os, signal, sys, types
import charcnn.host.terminal, subprocess, tempfile, concurrent.futures, multiprocessing  # which have their own ways
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
sys.modules["msvcrt"] = types.SimpleNamespace(locking=lambda *_: None, LK_LOCK=1, LK_NBLCK=2)
for name in ("fork", "getuid", "geteuid", "sched_getaffinity", "sched_setaffinity", "pread", "nice"):
    delattr(os, name)
for name in ("SIGPIPE", "SIGHUP", "SIGKILL", "pthread_kill", "pthread_sigmask"):
    delattr(signal, name)
"""
LABEL = "from charcnn.__main__ import main; sys.exit(main(['classify', '-']))"
OPERATOR = """
import numpy as np
from charcnn import Embedder, ops, train
from charcnn.gpu.device import DeviceError
x = -np.ones((1, 2, 3), np.float32)
assert not ops.relu_loops(x).any()
try:
    ops.relu_naive(x)
except DeviceError as error:
    print(error)
"""


def ran(code, **options):
    code = f"import sys\nsys.path[:0] = {[str(ROOT), str(ROOT / 'tests')]}\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300, **options
    )


def ran_level(name, *words):
    run = f"import runpy\nrunpy.run_module('charcnn.levels.{name}', run_name='__main__', alter_sys=True)"
    return ran(f"{CORE}\nsys.argv = {['', '--inputs', '2', *words]}\n{run}", cwd=ROOT)


def test_texts_are_labelled_with_what_windows_has():
    done = ran(f"{CORE}\n{WINDOWS}\n{LABEL}", input="Stocks fell on Monday.\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Business")


TRAIN = """
import charcnn
rows = [(f"the {word} of day {day}", word) for day in range(30) for word in ("goal", "bank")]
assert charcnn.train(*zip(*rows)).predict(["a bank"]) == ["bank"]
"""


def test_a_model_is_trained():
    """By default, which looks for a GPU first."""
    done = ran(f"{CORE}\n{TRAIN}")
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
def test_levels_of_the_cpu_run():
    done = ran_level("l0", "--config", "tiny")
    assert done.returncode == 0, done.stderr
    assert "validated passed" in done.stdout


@pytest.mark.parametrize("name", ["l5", pytest.param("l15", marks=pytest.mark.exhaustive)])
def test_levels_of_the_gpu_name_the_extra_in_one_line(name):
    done = ran_level(name)
    assert done.returncode == 2
    assert re.fullmatch(rf"{name}: .* need numba-cuda: .* -m pip install -e '\.\[simulator\]'\n", done.stderr)


@by_turns
def test_operators_of_a_gpu_name_the_extra():
    done = ran(f"{CORE}\n{OPERATOR}")
    assert done.returncode == 0, done.stderr
    assert pip_install("simulator").partition("install")[2] in done.stdout.replace("-m pip", "pip")


def test_the_core_needs_nothing_of_cuda():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [name for name in project["dependencies"] if re.search("cuda|nvidia", name)]
    assert "charcnn[simulator]" in project["optional-dependencies"]["cuda"]
