"""`source_digest`: what changes a kernel's machine code changes its digest, and what does not leaves it."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from conftest import compiler_installed, wheels_installed

pytestmark = pytest.mark.skipif(
    not compiler_installed(), reason="the CUDA compiler is not installed: pip install -e '.[cuda]'"
)

SOURCE = '''
from dataclasses import dataclass
from numba import cuda
from charcnn.gpu.ptx.intrinsics import instruction
from charcnn.ops.common import epilogues

SCALE, SHIFT = 2.0, 1.0

@dataclass(frozen=True)
class Tile:
    rows: int

@instruction("add.f32 $0, $1, $2;", "f", "ff")
def add(a, b):
    """Add."""

def halved(x):
    return x / 2

@cuda.jit(device=True)
def scaled(x):
    """Twice."""
    return halved(x) * SCALE

def make(taps, tile, function=scaled):
    @cuda.jit(lineinfo=False)
    def kernel(x, y):
        i = cuda.grid(1)  # one each
        y[i] = add(function(x[i]), epilogues._relu(x[i])) + taps + tile.rows
    return kernel

def other():
    return SHIFT

kernel = make(3, Tile(8))
'''

THE_SAME = {
    "comment": ("# one each", "# another word"),
    "docstring": ('"""Twice."""', '"""Two times."""'),
    "its place": ("SCALE,", "\n\nSCALE,"),
    "what it does not use": ("SHIFT = 2.0, 1.0", "SHIFT = 2.0, 3.0"),
    "another function": ("return SHIFT", "return -SHIFT"),
}

ANOTHER = {
    "its own source": ("+ taps", "- taps"),
    "a global": ("= 2.0, 1.0", "= 3.0, 1.0"),
    "what it calls": (") * SCALE", ") + SCALE"),
    "what that calls": ("x / 2", "x / 3"),
    "what it closes over": ("make(3,", "make(4,"),
    "an object that it closes over": ("Tile(8)", "Tile(4)"),
    "a function of a module": ("epilogues._relu", "epilogues._identity"),
    "options": ("lineinfo=False", "lineinfo=True"),
    "assembly": ("add.f32", "sub.f32"),
}

DIGESTS = """
import json, sys
from importlib import import_module
from numba.cuda import types
from source_digest import digest
floats, doubles = types.float32[::1], types.float64[::1]
found = {name: digest(import_module(name).kernel, (floats, floats)) for name in sys.argv[1:]}
print(json.dumps([found, digest(import_module("base").kernel, (floats, doubles))]))
"""


@pytest.fixture(scope="module")
def digests(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    names = {"base": SOURCE}
    for place, (old, new) in enumerate([*THE_SAME.values(), *ANOTHER.values()]):
        assert SOURCE.count(old) == 1, old
        names[f"changed{place}"] = SOURCE.replace(old, new)
    for name, source in names.items():
        (folder / f"{name}.py").write_text(source)
    here = Path(__file__).parent
    found = {}
    for seed in "12":
        environment = {
            "PYTHONPATH": os.pathsep.join([str(folder), str(here), str(here.parent)]),
            "PYTHONHASHSEED": seed,
            "NUMBA_ENABLE_CUDASIM": "0",
        }
        done = subprocess.run(
            [sys.executable, "-c", DIGESTS, *names],
            capture_output=True, text=True, env={**os.environ, **environment}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found[seed] = json.loads(done.stdout)
    assert found["1"] == found["2"], "the same in every process"
    return found["1"]


def test_a_compiler_that_is_no_wheel_has_no_version(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert not wheels_installed()


def test_what_does_not_change_the_machine_code(digests):
    found, _ = digests
    for place, what in enumerate(THE_SAME):
        assert found[f"changed{place}"] == found["base"], what


def test_what_does(digests):
    found, of_other_types = digests
    changed = {what: found[f"changed{place}"] for place, what in enumerate(ANOTHER, len(THE_SAME))}
    changed["types"] = of_other_types
    for what, digest in changed.items():
        assert digest != found["base"], what
    assert len(set(changed.values())) == len(changed)
