"""The notebooks in docs/notebooks run as a reader runs them: each in a Jupyter kernel of its own, from its folder.

They are kept as executed, so that GitHub and the site show what they print. Their times are those of the machine that
ran them last; the tests compare everything else. Pictures are not kept: a stored copy would grow old. Branches for
GPUs that this machine lacks run on a stand-in, and the answer to each "Break it and see" is tried.

    python tests/test_notebooks.py        run them, and keep what they print
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import by_turns, compiler_installed

from charcnn.compiling.networks import runnable
from charcnn.compiling.stand_in import Target
from charcnn.files import replacing
from charcnn.gpu import device

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MOST = 300
"""Seconds after which a cell counts as hanging. On two slow cores, the longest compiles for half a minute."""

COMPILED = """
import json, sys
from kernel_costs import compiled
from charcnn.compiling.stand_in import Stream, Target, standing_in
Stream.elapsed_time = lambda begin, end: 1.0
target, found, names = Target.named("sm_90a"), {}, {}
with standing_in(target, lambda *launch: found.setdefault(launch)):
    for cell in json.load(open(sys.argv[1]))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
made = [compiled(kernel, kinds, target) for kernel, kinds in found]
costs = [(one.costs["warnings"], one.costs["spill_stores"]) for one in made]
print(json.dumps([(*cost, one.ptx.count("wgmma.mma_async")) for cost, one in zip(costs, made)]))
"""
"""The kernels of a notebook, compiled for Hopper without one: warnings, bytes spilled, and products."""

STOOD_IN = """
import json, sys
from types import SimpleNamespace
import numpy as np
from charcnn.compiling.stand_in import Memory, Stream, Target, standing_in
from charcnn.gpu import device
Stream.elapsed_time = lambda begin, end: 1.0
sources = ["".join(cell["source"]) for cell in json.load(open(sys.argv[1]))["cells"] if cell["cell_type"] == "code"]
begin = next(place for place, source in enumerate(sources) if "_conv1d_naive_kernel" in source)
names = {}
for source in sources[:begin]:
    if source.startswith("import "):
        exec(source, names)
    elif "def check" in source:
        exec(source.partition('\\nshow("loops"')[0], names)
        names["check"] = lambda found, exact: "stood in"
    elif "def run" in source:
        exec(source.partition('\\nrun("l0"')[0], names)
        right = lambda logits, *_: np.zeros_like(logits[:1])  # what was never written may be NaN
        names["validation"] = SimpleNamespace(expected=lambda *_: (0, 1), in_sigmas=right)
        run = names["run"]
        names["run"] = lambda name, count: run(name, count // 16)  # as many as a batch, or fewer
for name in sys.argv[2:]:
    print("target", name)
    with standing_in(Target.named(name), lambda *launch: None):
        device.on_device = lambda array: isinstance(array, Memory)  # so that texts are copied, as a reader's are
        for source in sources[begin:]:
            exec(source, names)
"""
"""What story prints from its first kernel on, on GPUs that are not there: nothing is computed, and nothing checked."""

DRIVER = """
import ctypes, json, sys
class Driver:
    def cuInit(self, flags): return 0
    def cuDeviceGet(self, gpu, index): return 0
    def cuDeviceGetAttribute(self, value, which, gpu):
        value._obj.value = {75: major}[which]
        return 0
real = ctypes.CDLL
ctypes.CDLL = lambda name, *more, **options: Driver() if name == "libcuda.so.1" else real(name, *more, **options)
source = next("".join(cell["source"]) for cell in json.load(open(sys.argv[1]))["cells"] if cell["cell_type"] == "code")
found, names = [], {}
for major in 7, 8, 9, 10, 12, 8:
    exec(source.partition("\\nif not is_hopper")[0], names)
    found.append(names["is_hopper"]())
exec(source, names)
print(found, names["device"].SIMULATED)
"""
"""Where wgmma runs, by a driver that shows a GPU of some compute capability."""

BREAKS = [
    ("story", "x.transpose(0, 2, 1)  # change this", "x.reshape(n, length, c_in)", "wrong, error 1.02"),
    ("wgmma", "SPOILED = 0", "SPOILED = 1", "WRONG, 512 of 4,096 sums are right"),
    ("wgmma", "SPOILED = 0", "SPOILED = 2", "WRONG, 512 of 4,096 sums are right"),
]
"""A notebook, what its reader changes, to what, and what the cell prints then."""


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(cell: dict[str, Any]) -> str:
    """What the cell printed, less numbers: times differ."""
    text = "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")
    return re.sub(r"[\d.,]+(e[+-]?\d+)?", "0", text)


def joined(outputs: list[Any]) -> list[Any]:
    """What a cell printed as one output for each stream, and all others as they are: Jupyter sends pieces."""
    found: list[Any] = []
    for output in outputs:
        same = [one for one in found if output.output_type == "stream" and one.get("name") == output.name]
        if same:
            same[0].text += output.text
        else:
            found.append(output)
    return found


def executed(path: Path, change: Callable[[Any], object] = lambda notebook: None) -> Any:
    """The notebook, run from the top, once `change` has changed it."""
    import nbformat
    from jupyter_client import AsyncKernelManager
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    change(notebook)
    with tempfile.TemporaryDirectory() as sockets:

        class Local(AsyncKernelManager):
            """By sockets in a folder of this user's: others of the machine reach ports."""

            def __init__(self, **options: Any) -> None:
                super().__init__(transport="ipc", ip=f"{sockets}/kernel", **options)

        folder = {"metadata": {"path": str(path.parent)}}
        NotebookClient(notebook, timeout=MOST, kernel_manager_class=Local, resources=folder).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
    notebook.metadata["language_info"] = {"name": "python"}  # and by which Python
    return notebook


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))


def test_there_are_two():
    assert [path.stem for path in NOTEBOOKS] == ["story", "wgmma"]


@by_turns
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, environment):
    pytest.importorskip("nbclient", reason="nbclient is not installed: pip install -e '.[test]'")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install -e '.[test]'")
    found = code_cells(executed(path))
    kept = code_cells(read(path))
    assert ["".join(cell["source"]) for cell in kept] == ["".join(cell["source"]) for cell in found]
    if device.SIMULATED and path.stem == "wgmma":
        assert [printed(cell) for cell in kept] == [printed(cell) for cell in found]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_as_it_ran_from_the_top(path):
    cells = code_cells(read(path))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    assert not [output for cell in cells for output in cell["outputs"] if output.get("name") == "stderr"]
    text = "".join(printed(cell) for cell in cells)
    assert "wrong" not in text.lower()
    assert {output["output_type"] for cell in cells for output in cell["outputs"]} == {"stream"}, "no picture is kept"


@pytest.mark.parametrize(
    ("name", "line", "changed", "answer"),
    [pytest.param(*one, id=f"{one[0]}-{one[2]}", marks=pytest.mark.exhaustive) for one in BREAKS],
)
def test_what_is_broken_shows(environment, name, line, changed, answer):
    pytest.importorskip("nbclient", reason="nbclient is not installed: pip install -e '.[test]'")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install -e '.[test]'")

    def change(notebook):
        (place,) = [n for n, cell in enumerate(notebook.cells) if cell.cell_type == "code" and line in cell.source]
        assert "predict" in notebook.cells[place - 1].source.lower()
        assert re.search(r"\d[\d.,]+", answer)[0] in notebook.cells[place + 1].source
        notebook.cells[place].source = notebook.cells[place].source.replace(line, changed)
        del notebook.cells[place + 1 :]

    (path,) = [path for path in NOTEBOOKS if path.stem == name]
    (output,) = executed(path, change).cells[-1].outputs
    assert answer in output.text


def run_apart(program: str, *words: Any, **environment: str) -> str:
    """What a program prints in a process of its own, which no GPU is shown to."""
    given = {key: value for key, value in os.environ.items() if key != "NUMBA_ENABLE_CUDASIM"}
    given |= {"CUDA_VISIBLE_DEVICES": "", **environment}
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, env=given, timeout=MOST
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.exhaustive
@pytest.mark.skipif(not compiler_installed(), reason="the CUDA compiler is not installed: pip install -e '.[cuda]'")
def test_story_runs_what_each_gpu_can(environment):
    targets = {
        "sm_75": "T4",
        "sm_80": "A100",
        "sm_86": "RTX 3090",
        "sm_89": "RTX 4090",
        "sm_90": "H100",
        "sm_120": "5090",
    }
    (path,) = [path for path in NOTEBOOKS if path.stem == "story"]
    printed = run_apart(STOOD_IN, path, *targets, NUMBA_ENABLE_CUDASIM="0")
    for part in printed.split("target ")[1:]:
        name, *lines = part.splitlines()
        told = {line.split()[0]: "does not run here" not in line for line in lines if re.match(r"l\d+ ", line)}
        can = {level for level, _ in runnable(Target.named(name))}
        assert told == {level: level in can for level in told}
        assert set(told) >= {"l9", "l12", "l13", "l14", "l15", "l16", "l17", "l19"}
        tiled = [line for line in lines if line.startswith("double_buffered")]
        assert ["does not run here" in line for line in tiled] == [name == "sm_75"]
        assert sum("stood in" in line for line in lines) == 5 - (name == "sm_75")


def test_wgmma_is_emulated_on_any_gpu_but_hopper(environment):
    (path,) = [path for path in NOTEBOOKS if path.stem == "wgmma"]
    *_, said, found = run_apart(DRIVER, path).splitlines()
    assert said == "emulated"
    assert found == f"{[False, False, True, False, False, False]} True"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    text = "\n".join("".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#\s]+)\)", text)
    assert links
    for link in links:
        assert (path.parent / link).is_file(), link


@pytest.mark.exhaustive
@pytest.mark.skipif(not compiler_installed(), reason="the CUDA compiler is not installed: pip install -e '.[cuda]'")
def test_kernels_compile_for_hopper(environment):
    (path,) = [path for path in NOTEBOOKS if path.stem == "wgmma"]
    found = json.loads(run_apart(COMPILED, path, NUMBA_ENABLE_CUDASIM="0").splitlines()[-1])
    assert len(found) == 3, "one_tile, any_size and by_tma"
    for warnings, spilled, products in found:
        assert (warnings, spilled) == ([], 0)
        assert products >= 4


def main() -> None:
    """Run all, and keep what they print, but not what they draw."""
    os.environ["PYTHONPATH"] = str(ROOT)
    for path in NOTEBOOKS:
        started = time.perf_counter()
        notebook = executed(path)
        for cell in code_cells(notebook):
            cell["outputs"] = [output for output in cell["outputs"] if output["output_type"] == "stream"]
        with replacing(path, "w") as file:
            file.write(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
        print(f"{path.relative_to(ROOT)}: {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
