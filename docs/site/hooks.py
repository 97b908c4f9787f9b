"""What MkDocs makes the site of: the repository's pages at their own paths, and the files that these link to.

So the links of a page hold on the site as they do in a checkout. Raw results and pictures are copied. A file of source
becomes a page that shows it, a folder is its README.md. A notebook becomes a page with all that it printed.
"""

from __future__ import annotations

import ast
import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("*.md", "docs/*.md", "docs/levels/*.md", "docs/upstream/*.md", "bench/README.md", "charcnn/**/README.md")
NOTEBOOKS = "docs/notebooks/*.ipynb"
COPIED = {".json", ".gz", ".svg"}
LANGUAGES = {".py": "python", ".pyi": "python"}
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
SOURCE = re.compile(r'(?<=srcset=")([^"]+)')
"""Of a picture that has another form for phones."""
NAMED = re.compile(r"\[(`?)([\w./-]+\.md)\1\]\(([^)\s#]+)(?=[)#])")
OPTION = re.compile(r"(?<![^\s(\[>])-{1,2}[A-Za-z][\w-]{0,30}")
WRAPPED = re.compile(r'(?<!</span>)<code>[^<]*</code>|<div class="language-sh highlight">.*?</div>', re.DOTALL)
"""Inline code, as a block has an empty span before it; and blocks that site.css wraps."""
CODE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """Put the files in the navigation that a * stands for, in the order in which people count."""
    config.nav = [_expanded(entry) for entry in config.nav or []]


def _expanded(entry: dict[str, Any]) -> dict[str, Any]:
    ((title, below),) = entry.items()
    if isinstance(below, str):
        return entry
    return {title: [name for pattern in below for name in (_found(pattern) if "*" in pattern else [pattern])]}


def _found(pattern: str) -> list[str]:
    names = [file.relative_to(ROOT).as_posix() for file in ROOT.glob(pattern)]
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's pages, and what they link to."""
    pages = [name for pattern in PAGES for name in _found(pattern)]
    for name in pages:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for name in _found(NOTEBOOKS):
        files.append(File.generated(config, f"{name}.md", content=_notebook(ROOT / name)))
    prose = {name: _prose((ROOT / name).read_text("utf-8")) for name in pages}
    linked = {
        _target(name, link) for name in pages for pattern in (LINK, SOURCE) for link in pattern.findall(prose[name])
    }
    wanted = sorted(linked - set(pages))
    while wanted:
        name = wanted.pop()
        file = ROOT / name
        if name in files.src_uris or f"{name}.md" in files.src_uris:
            continue
        if file.suffix in COPIED and file.is_file():
            files.append(File.generated(config, name, abs_src_path=str(file)))
            continue
        if file.is_file():
            shown = File.generated(config, f"{name}.md", content=_shown(name, file))
        elif file.name == "README.md" and file.parent.is_dir():  # a folder that has none
            shown = File.generated(config, name, content=_listed(file.parent))
            wanted += [found.relative_to(ROOT).as_posix() for found in file.parent.glob("*.py")]
        else:
            continue  # MkDocs names the link that leads nowhere
        shown.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(shown)
    files.remove(files.src_uris["api/ops.md"])
    files.append(File.generated(config, "api/ops.md", content=_operators()))
    return files


def _prose(text: str) -> str:
    return CODE.sub("", text)


def _target(page: str, link: str) -> str:
    """What a page's link leads to, from the root of the repository."""
    if re.match(r"[a-z]+:", link):
        return ""
    name = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    return f"{name}/README.md" if (ROOT / name).is_dir() else name


def _shown(name: str, file: Path) -> str:
    """A page with a file's source, which the search leaves out."""
    return (
        f"---\nsearch:\n  exclude: true\n---\n# {name}\n\n"
        f"`````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8')}\n`````\n"
    )


def _notebook(file: Path) -> str:
    """A page with a notebook's cells, and what they printed and drew."""
    parts = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        printed = ""
        for output in cell.get("outputs", ()):
            printed += "".join(output.get("text", ""))
            if drawn := "".join(output.get("data", {}).get("image/svg+xml", "")):
                said = re.search(r"<title>(.*?)</title>", drawn)
                encoded = base64.b64encode(drawn.encode()).decode()  # on its own, as its styles are no page's
                parts.append(f'<img alt="{said[1] if said else ""}" src="data:image/svg+xml;base64,{encoded}">')
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _listed(folder: Path) -> str:
    """A page with a folder's modules, and what each says of itself."""
    rows = []
    for file in sorted(folder.glob("*.py")):
        said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        rows.append(f"- [{file.name}]({file.name}): {said.partition(chr(10))[0]}")
    return f"# {folder.relative_to(ROOT).as_posix()}\n\n" + "\n".join(rows) + "\n"


def _operators() -> str:
    """The page of operators: all that the stub shows, by what each computes."""
    operators: dict[str, list[str]] = {}
    stub = (ROOT / "charcnn" / "ops" / "__init__.pyi").read_text(encoding="utf-8")
    for heading, name in re.findall(r"^# (\w+)$|^def (\w+)\(", stub, re.MULTILINE):
        if heading:
            names = operators.setdefault(heading, [])
        else:
            names.append(name)
    head = (ROOT / "docs" / "site" / "pages" / "api" / "ops.md").read_text(encoding="utf-8")
    options = "    options:\n      heading_level: 3\n      show_symbol_type_heading: false\n"
    blocks = [
        f"## {operator}\n\n" + "\n".join(f"::: charcnn.ops.{name}\n{options}" for name in names)
        for operator, names in operators.items()
    ]
    return "\n".join([head, *blocks])


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page as Python-Markdown reads it: links to pages of source, no markers of blocks, a line before lists.

    A link that is called by its file is called by that page's title.
    """
    if page.is_homepage:  # alone in its part of the navigation
        page.meta["hide"] = ["navigation"]

    def link(match: re.Match[str]) -> str:
        name = _target(page.file.src_uri, match[1])
        if name and f"{name}.md" in files.src_uris:
            return f"{match[1]}.md"
        is_folder = name.endswith("/README.md") and not match[1].endswith("README.md")
        return posixpath.join(match[1], "README.md") if is_folder else match[1]

    def named(match: re.Match[str]) -> str:
        name = _target(page.file.src_uri, match[3])
        said = (
            re.search(r"^# (.+)$", (ROOT / name).read_text("utf-8"), re.MULTILINE) if name in files.src_uris else None
        )
        is_its_path = match[2] in (name, match[3])
        return f"[{said[1]}]({match[3]}" if said and is_its_path else match[0]

    parts = CODE.split(markdown)
    parts[::2] = [LINK.sub(link, NAMED.sub(named, _separated(part))) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page with the options marked in code that wraps, as browsers end lines behind hyphens."""

    def marked(match: re.Match[str]) -> str:
        return OPTION.sub(r'<span class="option">\g<0></span>', match[0])

    return WRAPPED.sub(marked, html)


def _separated(prose: str) -> str:
    prose = re.sub(r"^<!-- \w+:(begin|end).*-->$", "", prose, flags=re.MULTILINE)
    return re.sub(r"^((?!\s|[-*#|]|\d+\.).+\n)(?=- |\d+\. )", r"\1\n", prose, flags=re.MULTILINE)
