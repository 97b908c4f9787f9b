"""What blocks are written with: tables, numbers, links."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

UNMEASURED = "not yet measured"


def table(head: list[str], rows: list[list[str]], right: int) -> str:
    """A Markdown table, whose columns from `right` on are aligned to the right."""
    rule = ["---:" if i >= right else "---" for i in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *rows]) + "\n"


def number(value: float) -> str:
    """A measured number, with as many digits as mean something."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 100 else f"{value:.2f}"


def percent(share: float) -> str:
    """A share, with two digits at least: 0.0063 %, 8.2 %, 247 %."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def link(document: Path, file: Path, text: str | None = None) -> str:
    """A link from a document to a file, called as the file is where nothing else is said."""
    return f"[{text or file.stem}]({os.path.relpath(file, document.parent)})"


def sources(document: Path, files: Iterable[Path]) -> str:
    """The line that names raw results."""
    links = [link(document, file) for file in files]
    return f"\nRaw results: {', '.join(links)}.\n" if links else ""


def headings(text: str) -> Iterator[str]:
    """The headings of a Markdown text, code apart."""
    for line in re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE).splitlines():
        if match := re.match(r"#+ +(.*)", line):
            yield match[1]


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
