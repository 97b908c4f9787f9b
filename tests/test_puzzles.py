"""The puzzles in docs/puzzles: with a gap no check passes, filled each does; notebooks are what their sources make."""

from __future__ import annotations

import json
import re
import sys
from itertools import combinations
from pathlib import Path

import pytest
from conftest import by_turns, compiler_installed
from test_notebooks import code_cells, environment, executed, read, run_apart  # noqa: F401 - a fixture

from charcnn.gpu import device

ROOT = Path(__file__).parent.parent
PUZZLES = ROOT / "docs" / "puzzles"
sys.path.append(str(PUZZLES))

import make_notebooks  # noqa: E402

emulated = pytest.mark.skipif(not device.SIMULATED, reason="on a GPU kernels with gaps may wait for ever")


def gaps(path):
    return range(len(make_notebooks.GAP.findall(path.read_text(encoding="utf-8"))))


def said(path, filled):
    """What the puzzle's last cell prints, with these gaps filled."""
    return make_notebooks.run(make_notebooks.with_gaps(path.read_text(encoding="utf-8"), filled), path.stem)[-1]


LEFT = [
    (path, filled)
    for path in make_notebooks.SOLVED
    for count in gaps(path)
    for filled in combinations(gaps(path), count)
]
"""Puzzles with some of their gaps filled, but not all."""

NAMED = {
    "06_cp_async": [("wait_but_one()\n        cuda", "cuda", "copy before wait"), ("cuda.syncthreads()\n", "", "race")],
    "07_wgmma": [
        ("(p ^ row % 8)", "p", "wrong swizzle"),
        ("(p ^ row % 8)", "(p ^ row % 4)", "wrong swizzle"),
        ("ptx.wgmma_fence()", "", "missing wgmma fence"),
        ("ptx.fence_proxy_async()", "", "missing proxy fence"),
        ("wait_all()", "", "accumulator before wait"),
    ],
    "08_tma": [
        ("box % 2)", "0)", "write before empty"),
        ("expect_tx(full, BOX)", "expect_tx(full, 16)", "missing expect_tx"),
    ],
    "10_specialised": [("(turn + 1) % 2", "turn % 2", "deadlock"), ("wait_all()\n", "\n", "accumulator before wait")],
    "11_cluster": [("HALF * rank, HALF,", "HALF * rank, BOX,", "out of bounds"), ("ptx.cluster_sync()", "", "barrier")],
}
"""What a solver may write instead, and what the check calls it."""


def test_there_are_twelve_and_each_leads_to_the_next():
    names = [make_notebooks.target(path).name for path in make_notebooks.SOLVED]
    assert [int(name[:2]) for name in names] == list(range(1, 13))
    assert sorted(path.name for path in PUZZLES.glob("*.ipynb")) == names
    assert re.findall(r"^\| \[\d+\. .*?\]\((.*?)\)", (PUZZLES / "README.md").read_text(), re.MULTILINE) == names
    for path, after in zip(make_notebooks.SOLVED, names[1:], strict=False):
        assert f"({after})" in make_notebooks.cells(path.read_text(encoding="utf-8"))[-1][1]


@pytest.mark.parametrize("path", make_notebooks.SOLVED, ids=lambda path: path.stem)
def test_a_notebook_has_a_task_gaps_a_check_and_a_hint(path):
    kept, source = read(make_notebooks.target(path)), make_notebooks.with_gaps(path.read_text(encoding="utf-8"))
    printed = ["".join("".join(output["text"]) for output in cell["outputs"]) for cell in code_cells(kept)]
    assert kept == json.loads(json.dumps(make_notebooks.notebook(source, printed)))
    task, *_, check, hint = make_notebooks.cells(source)
    assert "**Task**" in task[1]
    assert "check" in check[1]
    assert "<details><summary>Hint</summary>" in hint[1]
    assert source.count("# gap: ") == source.count(" ...\n") == len(gaps(path)) > 0
    for link in re.findall(r"\]\(([^)#\s]+)", task[1] + hint[1]):
        assert (PUZZLES / link).exists(), link


@emulated
@pytest.mark.parametrize(("path", "filled"), LEFT, ids=lambda value: getattr(value, "stem", str(value)))
def test_with_a_gap_no_check_passes(path, filled):
    wrong = said(path, filled)
    assert wrong.startswith("not yet: ")
    if not filled:
        assert wrong == "".join(code_cells(read(make_notebooks.target(path)))[-1]["outputs"][0]["text"])


@pytest.mark.parametrize("path", make_notebooks.SOLVED, ids=lambda path: path.stem)
def test_filled_a_check_passes(path):
    if not device.SIMULATED and not device.has_tensor_cores(hopper=True):
        pytest.skip("this GPU is no Hopper")
    assert said(path, gaps(path)).startswith("solved")


@emulated
@pytest.mark.parametrize(
    ("name", "right", "wrong", "kind"), [(name, *one) for name, several in NAMED.items() for one in several]
)
def test_a_likely_mistake_is_named(name, right, wrong, kind):
    source = (PUZZLES / "solved" / f"{name}.py").read_text(encoding="utf-8")
    changed = make_notebooks.GAP.sub(lambda gap: gap[0].replace(right, wrong), source)
    assert changed != source
    assert f"  {kind}, line " in make_notebooks.run(changed, name)[-1]


@by_turns
@emulated
def test_jupyter_prints_the_same(environment):  # noqa: F811
    pytest.importorskip("nbclient", reason="nbclient is not installed: pip install -e '.[test]'")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install -e '.[test]'")
    path = make_notebooks.target(make_notebooks.SOLVED[5])
    assert code_cells(executed(path))[-1].outputs[0].text == "".join(code_cells(read(path))[-1]["outputs"][0]["text"])


COMPILED = """
import json, sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import make_notebooks
from kernel_costs import compiled
from charcnn.compiling.stand_in import Target, standing_in
target, found = Target.named("sm_90a"), {}
with standing_in(target, lambda *launch: found.setdefault(launch)):
    for path in make_notebooks.SOLVED[3:]:
        source = path.read_text(encoding="utf-8")
        make_notebooks.run(source, path.stem)
made = [compiled(kernel, kinds, target) for kernel, kinds in found]
print(json.dumps([(one.costs["warnings"], one.costs["spill_stores"]) for one in made]))
"""
"""Kernels of solved puzzles, compiled for Hopper without one."""


@pytest.mark.exhaustive
@pytest.mark.skipif(not compiler_installed(), reason="the CUDA compiler is not installed: pip install -e '.[cuda]'")
def test_kernels_compile_for_hopper(environment):  # noqa: F811
    found = json.loads(run_apart(COMPILED, PUZZLES, ROOT / "tests", NUMBA_ENABLE_CUDASIM="0").splitlines()[-1])
    assert found == [[[], 0]] * 9
