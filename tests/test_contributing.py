"""CONTRIBUTING.md's steps, followed in a copy: a toy level and a toy operator need what it names and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from charcnn.catalog import LEVELS

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
LEVEL = f"l{len(LEVELS)}"

PAGE = f"# {LEVEL}: a toy\n\nHalf the batch.\n" + "".join(
    f"\n<!-- {block}:begin {LEVEL} -->\n<!-- {block}:end -->\n" for block in ("step", "change", "cost")
)
LAUNCHES = '''"""x / (1 + |x|)."""

from __future__ import annotations

from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit


@njit(cache=True, nogil=True)
def _softsign_loops_kernel(x, y):
    for i in range(x.size):
        y[i] = x[i] / (float32(1) + abs(x[i]))


@jit()
def _softsign_naive_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i] / (float32(1) + abs(x[i]))


def launch_loops(out: Array, x: Array) -> None:
    """Value after value."""
    _softsign_loops_kernel(x.reshape(-1), out.reshape(-1))


def launch_naive(call: Call, x: Array) -> None:
    """Neighbouring threads have neighbouring values."""
    call.launch_each(_softsign_naive_kernel, x.reshape(-1), call.out.reshape(-1))
'''
REFERENCE = '''def softsign(x: Array) -> Array:
    """x / (1 + |x|); NaN stays NaN."""
    shapes.relu(x)
    return x / (1 + np.abs(x))


'''
VARIANTS = """\
    *_rows("softsign", "loops", "softsign:launch_loops"),
    *_rows("softsign", "naive", "softsign:launch_naive"),
"""
ORACLE = '    "softsign": lambda x: [[value / (1 + abs(value)) for value in row] for row in x],\n'
EDITS = {
    "a level's row": (
        "charcnn/catalog/__init__.py", ")  # fmt: skip\n\n\nTRAINING_LEVELS",
        f'    Level("{LEVEL}", "cpu", after="l2"),\n',
    ),
    "a reference": ("charcnn/ops/reference/values.py", "def linear(", REFERENCE),
    "an operator's row": (
        "charcnn/ops/operators.py", '    Operator("softmax",',
        '    Operator("softsign", FLOAT32, "relu", in_place=True),\n',
    ),
    "variants' rows": ("charcnn/ops/table.py", '    *_rows("softmax", "loops"', VARIANTS),
    "what is timed": ("bench/cases.py", '    "softmax": (', '    "softsign": (Layer("logits", Draw.logits),),\n'),
    "sizes": ("tests/operator_cases.py", '    "softmax": ', '    "softsign": CLASSES,\n'),
    "an oracle in loops": ("tests/test_reference.py", '    "softmax": softmax_loops,', ORACLE),
    "PyTorch's call": ("tests/test_reference.py", '        "softmax": lambda', '        "softsign": f.softsign,\n'),
}  # fmt: skip
"""By what a step adds: the file, what stands there already, and what goes before it."""
NAMED = (
    "charcnn/ops/table.py", "charcnn/ops/operators.py", "ops/reference/", "bench/cases.py",
    "tests/operator_cases.py", "tests/test_reference.py", "charcnn/levels/", "its row in the catalogue",
    "docs/levels/lK.md", "python bench/report.py",
)  # fmt: skip
GENERATED = re.compile(r"README\.md|docs/.*\.(md|svg)|charcnn/ops/__init__\.pyi")
TOYS = f"softsign or {LEVEL}"
FILES = ("catalog", "house", "docs", "reference", "ops", "ops_arguments", "levels", "engine", "device", "tuning")
CHOSEN = (
    f"{TOYS} or disk or are_the_references or unique or matrix or is_used or stub or ops_export or test_precisions or "
    "LONG_FILES or SPREAD_NAMES or up_to_date or is_short or benchmarked or the_plot or before_it or another_level or "
    "no_positive_int or older_gpu or networks_sizes or has_not_is_an_error or in_the_simulator"
)
"""Tests that a row of the catalogue adds a case to, or that look at all rows."""


@pytest.fixture
def tree(tmp_path):
    """A copy of what a release has."""
    for folder in ("bench", "charcnn", "docs", "tests"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "no cache", ".*")
        )
    for file in ROOT.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy(file, tmp_path)
    return tmp_path


def run(tree, *words):
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    words = [sys.executable, *map(str, words)]
    return subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True, check=False)


def run_tests(tree, *words):
    return run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words)


def follow(tree, left_out=""):
    """The steps but for one."""
    old = (tree / "charcnn/levels/l2.py").read_text()
    toy = re.sub(r'^""".*?"""', '"""A toy.\n\nSince level 2: half the batch.\n"""', old, count=1, flags=re.DOTALL)
    toy = re.sub("^TITLE = .*", 'TITLE = "A toy: half the batch"', toy, flags=re.MULTILINE)
    (tree / f"charcnn/levels/{LEVEL}.py").write_text(toy.replace("batch=16", "batch=8"))
    if left_out != "a page":
        (tree / f"docs/levels/{LEVEL}.md").write_text(PAGE)
    (tree / "charcnn/ops/softsign.py").write_text(LAUNCHES)
    for step, (name, place, new) in EDITS.items():
        text = (tree / name).read_text()
        assert text.count(place) == 1, step
        if step != left_out:
            (tree / name).write_text(text.replace(place, new + place))


def contents(tree):
    return {path.relative_to(tree).as_posix(): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def test_its_steps_name_these_places():
    steps = CONTRIBUTING.partition("## To add")[2].partition("## To run")[0]
    assert [place for place in NAMED if place not in steps] == []


@pytest.mark.exhaustive
def test_a_level_and_an_operator_need_nothing_else(tree):
    follow(tree)
    before = contents(tree)
    done = run(tree, "bench/report.py")
    assert done.returncode == 0, done.stdout + done.stderr
    written = [name for name, content in contents(tree).items() if content != before[name]]
    assert {"README.md", f"docs/levels/{LEVEL}.md", "charcnn/ops/__init__.pyi"} <= set(written)
    assert all(map(GENERATED.fullmatch, written)), written
    done = run_tests(tree, "tests", "--collect-only")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"[{name}" in done.stdout for name in (LEVEL, "softsign", "softsign_loops", "softsign_naive"))
    done = run_tests(tree, *(f"tests/test_{name}.py" for name in FILES), "-k", CHOSEN)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run_tests(tree, "bench", "--tiny", "-k", TOYS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b(2 passed, 1 skipped|3 passed)", done.stdout)  # without a GPU one is left out


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("step", "file", "chosen"),
    [
        ("a level's row", "test_catalog.py", "modules_on_disk"),
        ("a page", "test_docs.py", "has_its_page"),
        ("a reference", "test_catalog.py", "operators_are_the_references"),
        ("an operator's row", "test_catalog.py", "operators_are_the_references"),
        ("variants' rows", "test_catalog.py", "matrix"),
        ("what is timed", "test_docs.py", "benchmarked"),
        ("sizes", "test_reference.py", "plain_loops"),
        ("an oracle in loops", "test_reference.py", "plain_loops"),
        ("the report", "test_docs.py", "up_to_date"),
    ],
)
def test_a_step_that_is_left_out_is_seen(tree, step, file, chosen):
    follow(tree, step)
    done = run_tests(tree, f"tests/{file}", "-k", chosen)
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert "no tests ran" not in done.stdout
