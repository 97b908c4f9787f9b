"""The notebooks in docs/notebooks run, as a reader starts them: each in a kernel of Jupyter's own, from its folder.

They are kept as executed, so that they can be read where nothing runs, on GitHub and on the site. What they print of
times is the machine's that ran them last; all else is held against it.

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
from pathlib import Path
from typing import Any

import pytest
from conftest import compiler_installed

from charcnn.files import replacing
from charcnn.gpu import device

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MOST = 60
"""Seconds that a cell may take: a whole notebook takes about half of that on two slow cores that nobody else uses."""

COMPILED = """
import json, sys
from kernel_costs import compiled
from charcnn.compiling.stand_in import Target, standing_in
target, found, names = Target.named("sm_90a"), {}, {}
with standing_in(target, lambda *launch: found.setdefault(launch)):
    for cell in json.load(open(sys.argv[1]))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and "event_elapsed_time" not in source:
            exec(source, names)
made = [compiled(kernel, kinds, target) for kernel, kinds in found]
costs = [(one.costs["warnings"], one.costs["spill_stores"]) for one in made]
print(json.dumps([(*cost, one.ptx.count("wgmma.mma_async")) for cost, one in zip(costs, made)]))
"""
"""The kernels of a notebook, compiled for Hopper without one: warnings, bytes spilled, and products."""


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(cell: dict[str, Any]) -> str:
    """What the cell printed, less numbers: times differ."""
    text = "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")
    return re.sub(r"[\d.,]+(e[+-]?\d+)?", "0", text)


def executed(path: Path) -> Any:
    """The notebook, run from the top."""
    import nbformat
    from jupyter_client import AsyncKernelManager
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as sockets:

        class Local(AsyncKernelManager):
            """By sockets in a folder of this user's: others of the machine reach ports."""

            def __init__(self, **options: Any) -> None:
                super().__init__(transport="ipc", ip=f"{sockets}/kernel", **options)

        folder = {"metadata": {"path": str(path.parent)}}
        NotebookClient(notebook, timeout=MOST, kernel_manager_class=Local, resources=folder).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
    notebook.metadata["language_info"] = {"name": "python"}  # and by which Python
    return notebook


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))


def test_there_are_two():
    assert [path.stem for path in NOTEBOOKS] == ["story", "wgmma"]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.exhaustive] if path.stem == "story" else [])
        for path in NOTEBOOKS
    ],
)
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
    assert text.count("WRONG") == (path.stem == "wgmma"), "the one that is broken on purpose"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    text = "\n".join("".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#\s]+)\)", text)
    assert links
    for link in links:
        assert (path.parent / link).is_file(), link


@pytest.mark.exhaustive
@pytest.mark.skipif(not compiler_installed(), reason="the CUDA compiler is not installed: pip install -e '.[cuda]'")
def test_kernels_compile_for_hopper(environment, monkeypatch):
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = ROOT / "docs" / "notebooks" / "wgmma.ipynb"
    done = subprocess.run([sys.executable, "-c", COMPILED, path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 3
    for warnings, spilled, products in found:
        assert (warnings, spilled) == ([], 0)
        assert products >= 4


def main() -> None:
    """Run all, and keep what they print."""
    os.environ["PYTHONPATH"] = str(ROOT)
    for path in NOTEBOOKS:
        started = time.perf_counter()
        notebook = executed(path)
        with replacing(path, "w") as file:
            file.write(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
        print(f"{path.relative_to(ROOT)}: {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
