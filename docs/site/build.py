"""Build the site with Zensical: the repository's pages at their own paths, and the files that they link to.

So a page's links work on the site as in a checkout. Raw results and pictures are copied. A source file becomes a page
that shows it, a folder its README.md, a notebook a page with its output.
"""

from __future__ import annotations

import argparse
import ast
import base64
import html
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).resolve().parent
DEMO = ROOT / "docs" / "demo"
BUILD = ROOT / "build"
PAGES = (
    "*.md", "docs/*.md", "docs/deploy/*.md", "docs/levels/*.md", "docs/puzzles/*.md", "docs/upstream/*.md",
    "bench/README.md", "charcnn/**/README.md",
)  # fmt: skip
NOTEBOOKS = "docs/*/*.ipynb"
COPIED = {".json", ".gz", ".svg"}
LANGUAGES = {".py": "python", ".pyi": "python"}
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
SOURCE = re.compile(r'(?<=srcset=")([^"]+)')
"""Of a picture that has another form for phones."""
LEADS = re.compile(r'<(?:a|img|source|link|script)\b[^>]*?\b(?:href|src|srcset)="([^"]+)"')
ID = re.compile(r'<[a-z][^>]*?\bid="([^"]+)"')
"""What a built page links to or shows, and where links can lead within it."""
NAMED = re.compile(r"\[(`?)([\w./-]+\.md)\1\]\(([^)\s#]+)(?=[)#])")
CODE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def _expanded(entry: dict[str, Any]) -> dict[str, Any]:
    ((title, below),) = entry.items()
    if isinstance(below, str):
        return entry
    return {title: [name for pattern in below for name in (_found(pattern) if "*" in pattern else [pattern])]}


def _found(pattern: str) -> list[str]:
    if pattern.endswith(".ipynb.md"):
        return [f"{name}.md" for name in _found(pattern.removesuffix(".md"))]
    names = [file.relative_to(ROOT).as_posix() for file in ROOT.glob(pattern)]
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def _collected() -> tuple[dict[str, str], dict[str, Path], set[str]]:
    """The pages' text, and the files that are copied, by their paths on the site; and which pages are to be listed."""
    named = [name for pattern in PAGES for name in _found(pattern)]
    pages = {name: (ROOT / name).read_text("utf-8") for name in named}
    copied = {}
    for file in (SITE / "pages").rglob("*.*"):
        name = file.relative_to(SITE / "pages").as_posix()
        if file.suffix == ".md":
            pages[name] = file.read_text("utf-8")
        else:
            copied[name] = file
    copied |= {f"docs/demo/{name}": DEMO / name for name in ("index.html", "offline.js")}
    for name in _found(NOTEBOOKS):
        pages[f"{name}.md"] = _notebook(ROOT / name)
    pages["api/ops.md"] += _operators()
    listed = set(pages)
    prose = {name: CODE.sub("", pages[name]) for name in named}
    linked = {_target(name, link) for name in named for kind in (LINK, SOURCE) for link in kind.findall(prose[name])}
    wanted = sorted(linked - set(pages))
    while wanted:
        name = wanted.pop()
        file = ROOT / name
        if name in pages or name in copied or f"{name}.md" in pages:
            continue
        if file.suffix in COPIED and file.is_file():
            copied[name] = file
        elif file.is_file():
            pages[f"{name}.md"] = _shown(name, file)
        elif file.name == "README.md" and file.parent.is_dir():  # a folder that has none
            pages[name] = _listed(file.parent)
            wanted += [found.relative_to(ROOT).as_posix() for found in file.parent.glob("*.py")]
    return {name: _read_by_markdown(name, pages) for name in pages}, copied, listed


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
    options = "    options:\n      heading_level: 3\n      show_symbol_type_heading: false\n"
    blocks = [
        f"## {operator}\n\n" + "\n".join(f"::: charcnn.ops.{name}\n{options}" for name in names)
        for operator, names in operators.items()
    ]
    return "\n" + "\n".join(blocks)


def _read_by_markdown(page: str, pages: dict[str, str]) -> str:
    """A page as Python-Markdown reads it: links to pages of source, no markers of blocks, a line before lists.

    A link that is called by its file is called by that page's title.
    """

    def link(match: re.Match[str]) -> str:
        name = _target(page, match[1])
        if name and f"{name}.md" in pages:
            return f"{match[1]}.md"
        is_folder = name.endswith("/README.md") and not match[1].endswith("README.md")
        return posixpath.join(match[1], "README.md") if is_folder else match[1]

    def named(match: re.Match[str]) -> str:
        name = _target(page, match[3])
        said = re.search(r"^# (.+)$", pages[name], re.MULTILINE) if name in pages else None
        is_its_path = match[2] in (name, match[3])
        return f"[{said[1]}]({match[3]}" if said and is_its_path else match[0]

    parts = CODE.split(pages[page])
    parts[::2] = [LINK.sub(link, NAMED.sub(named, _separated(part))) for part in parts[::2]]
    alone = "---\nhide: [navigation]\n---\n" if page == "README.md" else ""  # in its part of the navigation
    return alone + "".join(parts)


def _separated(prose: str) -> str:
    prose = re.sub(r"^<!-- \w+:(begin|end).*-->$", "", prose, flags=re.MULTILINE)
    return re.sub(r"^((?!\s|[-*#|]|\d+\.).+\n)(?=- |\d+\. )", r"\1\n", prose, flags=re.MULTILINE)


def _write(file: Path, content: bytes) -> None:
    """Write a file that has changed; Zensical then serves the others as they are."""
    if not file.is_file() or file.read_bytes() != content:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def prepare() -> tuple[Path, list[str]]:
    """Write all that Zensical reads to build/; give the file of its settings, and what is wrong with the navigation."""
    pages, copied, listed = _collected()
    for name, text in pages.items():
        _write(BUILD / "pages" / name, text.encode())
    for name, file in copied.items():
        _write(BUILD / "pages" / name, file.read_bytes())
    for file in (BUILD / "pages").rglob("*.*"):
        if file.is_file() and file.relative_to(BUILD / "pages").as_posix() not in {*pages, *copied}:
            file.unlink()
    settings = tomllib.loads((SITE / "zensical.toml").read_text("utf-8"))["project"]
    settings["nav"] = [_expanded(entry) for entry in settings["nav"]]
    _write(BUILD / "zensical.yml", json.dumps(settings, indent=1).encode())  # JSON is YAML, too
    shown = set(re.findall(r'"([^"]+\.md)"', json.dumps(settings["nav"])))
    wrong = [f"{name} is not in the navigation" for name in sorted(listed - shown)]
    return BUILD / "zensical.yml", wrong + [
        f"{name} is named in the navigation, and is no page" for name in sorted(shown - listed)
    ]


def broken(site: Path) -> list[str]:
    """Links, pictures and anchors of a built site that lead nowhere, each with its page."""
    texts = {file: file.read_text("utf-8") for file in site.rglob("*.html") if file.name != "404.html"}
    anchors = {file: set(ID.findall(text)) for file, text in texts.items()}
    found = []
    for file, text in texts.items():
        for link in dict.fromkeys(LEADS.findall(text)):
            path, _, anchor = html.unescape(link).partition("#")
            target = Path(os.path.normpath(file.parent / path)) if path else file
            if re.match(r"[a-z]+:", path) or (not anchor and target.is_file()):
                continue
            if path.startswith("/") or not target.is_file() or anchor not in anchors.get(target, ()):
                found.append(f"{file.relative_to(site)}: {link} leads nowhere")
    return sorted(found)


def main() -> int:
    """Build the site, or serve it; return 1 where a link leads nowhere or the navigation lacks a page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--serve", action="store_true", help="serve it at http://localhost:8000 and show changes at once"
    )
    parser.add_argument(
        "--demo", metavar="PACKAGE", help="the folder of npm's package onnxruntime-web: the demo gets its model and it"
    )
    options = parser.parse_args()
    serve = options.serve
    settings, wrong = prepare()
    if wrong and not serve:
        return _told(wrong)
    shutil.rmtree(BUILD / "site", ignore_errors=True)
    command = [sys.executable, "-m", "zensical", *(["serve"] if serve else ["build", "--strict", "--clean"])]
    environment = {**os.environ, "PYTHONPATH": str(SITE)}  # site_markdown.py
    with subprocess.Popen([*command, "-f", str(settings)], env=environment) as process:
        try:
            while serve and process.poll() is None:
                time.sleep(1)
                prepare()
            process.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            process.terminate()
    if options.demo and not process.returncode:
        subprocess.run([sys.executable, DEMO / "build.py", options.demo, BUILD / "site" / "docs" / "demo"], check=True)
    return process.returncode or _told(broken(BUILD / "site"))


def _told(wrong: list[str]) -> int:
    for line in wrong:
        print(line, file=sys.stderr)
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
