"""Blocks of code: a function as it stands in its file, and what a level changed of the one that it builds on."""

from __future__ import annotations

import ast
import difflib
import textwrap
from pathlib import Path
from typing import Any

from charcnn import catalog
from report import limits
from report.schema import ROOT, ReportError


def change(document: Path, name: str, *functions: str) -> str:
    """What a level's `build` changed of the level that it builds on, with a line of context.

    `functions`: only these, inside `build`; OLD:NEW where the name differs, too. `...` stands for what is the same.
    """
    level, before = catalog.level(name), limits.predecessor(name)
    if before is None:
        raise ReportError(f"{document.name}: {name} builds on no level")
    files = [f"charcnn/levels/{row.name}.py" for row in (before, level)]
    lines = []
    for function in functions or ("",):
        inside = function.split(":")
        names = ["build." + inside[0], "build." + inside[-1]] if function else ["build", "build"]
        old, new = (_source(document, file, part) for file, part in zip(files, names, strict=True))
        if old == new and not functions:  # what it changed stands beside `build`
            old, new = (_undocumented(file) for file in files)
        shown = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=1))[2:]
        if not shown:
            raise ReportError(f"{document.name}: {function} is the same in {before.name} and {name}")
        lines += shown[0 if lines else 1 :]
    everything = sum(line[0] in "+-" for line in level.difference()[2:])
    return (
        "```diff\n" + "\n".join("..." if line.startswith("@@") else line for line in lines) + "\n```\n\n"
        f"`python -m charcnn levels --diff {name}` prints all {everything} lines that differ from {before.name}.\n"
    )


def code(document: Path, file: str, name: str, loop: str = "") -> str:
    """A function or class of a file; `outer.inner` for one inside another; with `loop`, its first loop on that name."""
    return f"```python\n# {file}\n{_source(document, file, name, loop)}\n```\n"


def _undocumented(file: str) -> str:
    """A file without its docstring."""
    text = (ROOT / file).read_text(encoding="utf-8")
    docstring = ast.parse(text).body[0]
    return "\n".join(text.splitlines()[docstring.end_lineno :])


def _source(document: Path, file: str, name: str, loop: str = "") -> str:
    text = (ROOT / file).read_text(encoding="utf-8")
    node: Any = ast.parse(text)
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        inside = [child for child in ast.walk(node) if isinstance(child, kinds) and child.name == part]
        if not inside:
            raise ReportError(f"{document.name}: {file} has no {name}")
        node = inside[0]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    if loop:
        loops = [child for child in ast.walk(node) if isinstance(child, (ast.While, ast.For)) and _is_on(child, loop)]
        if not loops:
            raise ReportError(f"{document.name}: {name} in {file} has no loop on {loop}")
        node = min(loops, key=lambda found: found.lineno)
        first = node.lineno
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]))


def _is_on(loop: ast.While | ast.For, name: str) -> bool:
    """Whether a loop's condition, or what it counts, is this variable."""
    heads = [loop.test] if isinstance(loop, ast.While) else [loop.target]
    return any(isinstance(child, ast.Name) and child.id == name for head in heads for child in ast.walk(head))
