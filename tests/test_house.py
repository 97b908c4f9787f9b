"""Limits that keep the code legible. What is beyond one is in house.json with its size, which may only fall.

python tests/test_house.py      lowers what has shrunk in house.json, and adds nothing
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import by_turns
from house import (
    LATE,
    LISTS,
    MODULES,
    OURS,
    PACKAGE,
    PRECISION,
    ROOT,
    VAGUE,
    exported,
    functions,
    internals,
    is_kernel,
    late_imports,
    levels,
    name_of,
    own_lines,
    private_names,
    words,
)

from charcnn.catalog import LEVELS

EXCEPTIONS = Path(__file__).with_name("house.json")


def beyond(name: str) -> dict[str, int]:
    """What is beyond the limit, the largest first."""
    count, limit = LISTS[name]
    over = {what: size for what, size in count().items() if size > limit}
    return dict(sorted(over.items(), key=lambda item: (-item[1], item[0])))


def known(name: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(EXCEPTIONS.read_text())[name]
    return found


@pytest.mark.parametrize("name", LISTS)
def test_nothing_grows_beyond_its_limit_and_exceptions_are_no_larger_than_they_need_to_be(name):
    found, limits = beyond(name), known(name)
    grown = {what: size for what, size in found.items() if size > limits.get(what, 0)}
    assert not grown, f"{name}: at most {LISTS[name][1]}; of exceptions at most what house.json says"
    shrunk = {what: limit for what, limit in limits.items() if found.get(what, 0) < limit}
    assert not shrunk, f"{name}: run python {name_of(Path(__file__))}, which lowers them in house.json"


def risen(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """Limits above what they were; one of a new name may be that of a name that is gone, as of a file that moved."""
    gone = max((limit for what, limit in before.items() if what not in now), default=0)
    return {what: limit for what, limit in now.items() if limit > before.get(what, gone)}


def test_limits_only_fall():
    """Beside the commit before this one; of a merge, the first of them."""
    file = name_of(EXCEPTIONS)
    try:
        shown = subprocess.run(["git", "show", f"HEAD^:{file}"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"git shows no commit before this one: {error}")
    before = json.loads(shown.stdout)
    found = {name: grown for name in LISTS if name in before and (grown := risen(before[name], known(name)))}
    assert not found, f"{file} has limits that rose"


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ({"a": 5, "b": 3}, {"a": 5}, {}),
        ({"a": 5}, {"a": 6}, {"a": 6}),
        ({"a": 5}, {"a": 5, "b": 1}, {"b": 1}),
        ({"a": 5}, {"b": 5}, {}),
        ({"a": 5}, {"b": 6}, {"b": 6}),
    ],
    ids=["one fell", "one rose", "a new one", "one moved", "one moved and rose"],
)
def test_what_has_risen(before, now, found):
    assert risen(before, now) == found


def test_few_modules_are_at_the_top():
    assert len(list(PACKAGE.glob("*.py"))) <= MODULES


def test_what_is_counted():
    code = "def f():\n    def g():\n        pass\n\n    @jit()\n    def h():\n        pass\n\n    return g\n"
    found = dict(functions(ast.parse(code)))
    assert {name: own_lines(function) for name, function in found.items()} == {"f": 7, "f.g": 2, "f.h": 2}
    assert [name for name, function in found.items() if is_kernel(function)] == ["f.h"]
    precise = ("conv_fp8", "conv_fp16_nlc", "Float32Conv", "ConvFP8", "HalfConv")
    assert all(PRECISION.search(words(name)) for name in precise)
    assert not any(PRECISION.search(words(name)) for name in ("conv_nlc", "Conv1dLayer"))
    assert "conv1d_naive" in exported()
    assert set(levels()) == {row.name for row in LEVELS}


@by_turns  # .ci/run asks for it, too
@pytest.mark.skipif(not find_spec("importlinter"), reason="needs import-linter, which is there from Python 3.11 on")
def test_rooms_import_those_below():
    """The contracts of pyproject.toml; a room that none of them names is an error, too."""
    lint = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--no-cache"]
    done = subprocess.run(lint, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_private_names_are_seen():
    code = "from charcnn.a import _b\nimport c\nclass _D:\n    _e = 1\n    def f(self, g):\n        self._h = g._i\n"
    defined, taken = private_names(ast.parse(f"{code}        return self._j, c.__name__, [0 for _ in g]\n"))
    assert defined == {"_D", "_e", "_h"}
    assert taken == ["_b", "_i"]


def test_vague_docstrings_are_seen():
    vague = ("As `there`.", "Likewise.", "The same with ReLU.", "Of each.")
    assert all(map(VAGUE.match, vague))
    assert not any(map(VAGUE.match, ("Assembles it.", "Of eachother", "See `there`.", "These of each.")))


def test_internals_are_seen():
    code = "from numba import cuda\nimport numba.cuda.cudadrv as x\nfrom numba.cuda import codegen, types\n"
    found = internals(f"{code}from numba_cuda_mlir import cuda as y\ncuda.cudadrv.driver\ncuda.grid\n")
    assert found == ["numba.cuda.cudadrv", "numba.cuda.codegen", "numba_cuda_mlir.cuda", "cuda.cudadrv"]


def test_late_imports_have_a_reason():
    assert LATE.keys() == beyond("LATE_IMPORTS").keys()


def test_late_imports_are_seen():
    code = (
        "import charcnn\nfrom charcnn import ops\n"
        "def f():\n    import charcnn.files as g\n    import numpy\n    from charcnn.gpu import device, launch\n"
        "    class C:\n        def h(self):\n            from . import x\n"
        "m = importlib.import_module('charcnn.levels.l0')\n"
    )
    assert late_imports(code) == sorted(
        [
            "charcnn.files",
            "charcnn.gpu.device",
            "charcnn.gpu.launch",
            "..x",
            "importlib.import_module('charcnn.levels.l0')",
        ]
    )


@pytest.mark.skipif(not find_spec("grimp"), reason="needs import-linter, which is there from Python 3.11 on")
def test_rooms_see_imports_within_functions():
    """The contracts hold of these, too: import-linter's graph has them."""
    from grimp import build_graph

    graph = build_graph("charcnn", exclude_type_checking_imports=True, cache_dir=None)
    for path in OURS:
        importer = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for imported in late_imports(path.read_text()):
            if imported.startswith("charcnn."):
                module = imported if imported in graph.modules else imported.rpartition(".")[0]
                assert graph.direct_import_exists(importer=importer, imported=module), (importer, imported)


def lower() -> None:
    """Write the exceptions as they are, where they have shrunk."""
    kept = {}
    for name in LISTS:
        found, limits = beyond(name), known(name)
        kept[name] = {what: min(size, limits[what]) for what, size in found.items() if what in limits}
    EXCEPTIONS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    lower()
