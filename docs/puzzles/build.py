"""Notebooks with gaps, from solved puzzles: `python docs/puzzles/build.py` writes them, and keeps what they print.

A solved puzzle is a program in the percent format, whose cells begin with `# %%`, or `# %% [markdown]`. What stands
between a line `# gap: …` and a line `# end` is left out of the notebook, in which `...` stands there.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOLVED = sorted((HERE / "solved").glob("*.py"))
GAP = re.compile(r"^( *)(# gap: .*\n)((?:.*\n)*?) *# end\n", re.MULTILINE)
CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


def with_gaps(source: str, filled: Sequence[int] = ()) -> str:
    """A solved puzzle with its gaps, but for those with these numbers, from 0."""
    number = iter(range(len(GAP.findall(source))))
    return GAP.sub(lambda gap: gap[1] + gap[2] + (gap[3] if next(number) in filled else f"{gap[1]}...\n"), source)


def cells(source: str) -> list[tuple[str, str]]:
    """Kind and text of each."""
    _, *parts = CELL.split(source)
    return [
        ("markdown", re.sub("^# ?", "", text, flags=re.MULTILINE).strip()) if kind else ("code", text.strip("\n"))
        for kind, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def run(source: str, name: str) -> list[str]:
    """What each of the code cells prints. The process is fit for no other puzzle of other modules then."""
    sys.path.insert(0, str(HERE))
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for number, (kind, text) in enumerate(cells(source)):
        if kind == "code":
            file = f"<{name} {number}>"
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
            with contextlib.redirect_stdout(io.StringIO()) as said:
                exec(compile(text, file, "exec"), names)
            printed.append(said.getvalue())
    return printed


def notebook(source: str, printed: Sequence[str]) -> dict[str, Any]:
    """A notebook of its cells, as executed."""
    made: list[dict[str, Any]] = []
    outputs = iter(printed)
    for number, (kind, text) in enumerate(cells(source)):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number:02}", "metadata": {}, "source": _lines(text)}
        if kind == "code":
            said = next(outputs)
            cell["execution_count"] = sum(one["cell_type"] == "code" for one in made) + 1
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": _lines(said)}] * bool(said)
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def target(solved: Path) -> Path:
    """The notebook of a solved puzzle."""
    return HERE / f"{solved.stem}.ipynb"


def main() -> None:
    """With a puzzle's number, print its notebook; with none, write all."""
    if len(sys.argv) > 1:
        (path,) = [one for one in SOLVED if one.stem.startswith(sys.argv[1])]
        source = with_gaps(path.read_text(encoding="utf-8"))
        text = json.dumps(notebook(source, run(source, path.stem)), indent=1, ensure_ascii=False, sort_keys=True)
        print(text)
        return
    for path in SOLVED:
        done = subprocess.run([sys.executable, __file__, path.stem], stdout=subprocess.PIPE, text=True, check=True)
        target(path).write_text(done.stdout, encoding="utf-8")


if __name__ == "__main__":
    main()
