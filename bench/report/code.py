"""Blocks of code: a function as it stands in its file, and what differs between two levels."""

from __future__ import annotations

import ast
import difflib
import textwrap
from pathlib import Path
from typing import Any

from report.schema import ROOT, ReportError


def change(document: Path, before: str, after: str) -> str:
    """What differs between two levels' `build`, with a line of context; `...` stands for what is the same."""
    old, new = (_source(document, f"charcnn/levels/{name}.py", "build").splitlines() for name in (before, after))
    lines = list(difflib.unified_diff(old, new, lineterm="", n=1))[3:]
    if not lines:
        raise ReportError(f"{document.name}: `build` is the same in {before} and {after}")
    return "```diff\n" + "\n".join("..." if line.startswith("@@") else line for line in lines) + "\n```\n"


def code(document: Path, file: str, name: str, loop: str = "") -> str:
    """A function or class of a file; `outer.inner` for one inside another; with `loop`, its first loop on that name."""
    return f"```python\n# {file}\n{_source(document, file, name, loop)}\n```\n"


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
