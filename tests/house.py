"""What the house counts: lines, names, words and imports of its sources, by file or room, with the limit of each."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from charcnn.catalog import LAYERS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "charcnn"
SOURCES = sorted(path for folder in ("charcnn", "bench", "tests") for path in (ROOT / folder).rglob("*.py"))
OURS = [path for path in SOURCES if PACKAGE in path.parents]

PRECISION = re.compile(r"_(fp32|tf32|fp16x3|fp16|bf16|fp8|half|halves|float32|float16)(_|$)")

KERNEL, FUNCTION, FILE, LEVEL, IFS, MODULES, PLACES, DOCSTRING = 180, 120, 400, 100, 6, 6, 1, 10
"""The limits: lines of a kernel, of another function, of a file, of a level; conditions in a level's `build`; modules
directly under charcnn/; lines that spell an operator's name outside levels and the generated stub; lines of a module's
docstring."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(code: str) -> ast.Module:
    """A file's tree, which several counts read."""
    return ast.parse(code)


def lines_of_files() -> dict[str, int]:
    return {name_of(path): len(path.read_text().splitlines()) for path in SOURCES}


def is_kernel(function: ast.FunctionDef) -> bool:
    return any(re.search(r"\b(n?jit|inline)\b", ast.unparse(decorator)) for decorator in function.decorator_list)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """All functions, by their qualified names, those within others too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{prefix}{node.name}"
            if not isinstance(node, ast.ClassDef):
                yield name, node
            yield from functions(node, f"{name}.")
        else:
            yield from functions(node, prefix)


def own_lines(function: ast.FunctionDef) -> int:
    """Lines less those of the kernels within, which count for themselves."""
    own = set(range(function.lineno, function.end_lineno + 1))
    for _, inner in functions(function):
        if is_kernel(inner):
            own -= set(range(inner.lineno, inner.end_lineno + 1))
    return len(own)


@cache
def kernels_and_others() -> tuple[dict[str, int], dict[str, int]]:
    """Lines of functions: of those that are no kernels, and of kernels."""
    found: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for path in OURS:
        for name, function in functions(parsed(path.read_text())):
            found[is_kernel(function)][f"{name_of(path)} {name}"] = own_lines(function)
    return found


def levels() -> dict[str, Path]:
    return {path.stem: path for path in (PACKAGE / "levels").glob("l[0-9]*.py")}


def lines_of_levels() -> dict[str, int]:
    return {name: len(path.read_text().splitlines()) for name, path in levels().items()}


def lines_of_docstrings() -> dict[str, int]:
    """Of modules that are not tests: what is longer belongs in a README.md."""
    modules = {name_of(path): parsed(path.read_text()) for path in SOURCES if ROOT / "tests" not in path.parents}
    return {name: len((ast.get_docstring(module) or "").splitlines()) for name, module in modules.items()}


VAGUE = re.compile(r"(As|Likewise|The same|Of each)\b")
"""How a docstring begins that says what it is like, and not what it is."""


def vague_docstrings() -> dict[str, int]:
    """By room, texts that stand alone, behind a name or below it, and begin so."""
    found: Counter[str] = Counter()
    for path in SOURCES:
        room, text = "/".join(name_of(path).split("/")[:2]), path.read_text()
        for node in ast.walk(parsed(text)) if re.search(f"[\"']{VAGUE.pattern}", text) else ():
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                found[room] += bool(VAGUE.match(str(node.value.value)))
    return dict(found)


def ifs_of_levels() -> dict[str, int]:
    """Conditions in `build` and the functions within, those of expressions and comprehensions too."""
    found = {}
    for name, path in levels().items():
        build = dict(functions(parsed(path.read_text())))["build"]
        found[name] = sum(
            isinstance(node, (ast.If, ast.IfExp)) + len(getattr(node, "ifs", ())) for node in ast.walk(build)
        )
    return found


def exported() -> list[str]:
    """The operators' names: what the stub shows."""
    stub = parsed((PACKAGE / "ops" / "__init__.pyi").read_text())
    return [node.name for node in stub.body if isinstance(node, ast.FunctionDef)]


def names_with_a_precision() -> dict[str, int]:
    """Operators, and layers."""
    return {name: 1 for name in (*exported(), *(layer.name for layer in LAYERS)) if PRECISION.search(words(name))}


def words(name: str) -> str:
    """A class's name as those of functions are written, with _ before each word."""
    return re.sub(r"(?<![A-Z_])(?=[A-Z])", "_", name).lower()


def places_of_names() -> dict[str, int]:
    """Lines on which an exported name stands under charcnn/ outside levels."""
    found: Counter[str] = Counter()
    names = set(exported())
    for path in PACKAGE.rglob("*.py"):
        if path.parent != PACKAGE / "levels":
            for line in path.read_text().splitlines():
                found.update(names & set(re.findall(r"\w+", line)))
    return dict(found)


WRONG = {
    r"(?i:copy[ ]engines?\b)": ("",),  # CUDA's name of what copies between host and GPU, for TMA, which it is not
    r"\b(Column|Raw)\b": ("charcnn/",),  # PackedStrings
    r"\bspoken\b": ("charcnn/",),  # level_ranges, names_of
    r"\b(Turns|aware import)\b": ("charcnn/",),  # Scheduler, ranks
    r"\b(FORMATS|EIGHTHS)\b": ("charcnn/ops/", "charcnn/catalog/", "charcnn/tuning/"),  # of files they are formats
    r"\bkind\b": tuple(f"charcnn/gpu/ptx/{chapter}.py" for chapter in ("mma", "wgmma", "convert", "arithmetic")),
    r"\b(fewer|more)\(": ("charcnn/ops/conv1d/wgmma/",),  # alloc, dealloc
    r"\bparts\b": ("charcnn/ops/conv1d/double_buffered.py",),  # products, groups, k splits
}
"""By the rooms where they are done with, words that the field has others for."""


def released() -> list[str]:
    """The files of a source distribution, which is no checkout."""
    sources = (ROOT / "charcnn.egg-info" / "SOURCES.txt").read_text()
    return [name for name in sources.splitlines() if (ROOT / name).is_file()]


def wrong_words() -> dict[str, int]:
    """How many of WRONG a file has."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    listed = done.stdout.split() if done.returncode == 0 else released()
    found = {}
    for file in listed:
        if file.endswith((".py", ".md", ".pyi", ".toml")) and file != "docs/glossary.md" and (ROOT / file).exists():
            text = " ".join((ROOT / file).read_text().split())
            found[file] = sum(len(re.findall(word, text)) for word, rooms in WRONG.items() if file.startswith(rooms))
    return found


NUMBAS = {"_arrays", "_load_index"}
"""Private names of Numba's and its successor's that a file here has, too, and another one uses."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def private_names(tree: ast.AST) -> tuple[set[str], list[str]]:
    """The private names that a file defines, and those that it takes of others than `self` and `cls`."""
    defined, taken = set(), []
    for node in ast.walk(tree):
        own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute) and own and isinstance(node.ctx, ast.Store):
            defined.add(node.attr)
        elif isinstance(node, ast.Attribute) and not own:
            taken.append(node.attr)
        elif isinstance(node, ast.ImportFrom):
            taken += [alias.name for alias in node.names]
    return set(filter(is_private, defined)), list(filter(is_private, taken))


def private_names_of_others() -> dict[str, int]:
    """By file, uses of names that begin with _ and that another file of the package defines, and this one does not."""
    found = {name_of(path): private_names(parsed(path.read_text())) for path in OURS}
    every = {name for defined, _ in found.values() for name in defined} - NUMBAS
    return {file: sum(name in every - defined for name in taken) for file, (defined, taken) in found.items()}


def anys_of_rooms() -> dict[str, int]:
    """By room, how often `Any` stands for a type: charcnn/aliases.py has names for most of these."""
    found: Counter[str] = Counter()
    for path in OURS:
        if path.name != "aliases.py" and "Any" in (text := path.read_text()):
            nodes = ast.walk(parsed(text))
            found["/".join(path.relative_to(ROOT).parts[:2])] += sum(
                isinstance(node, ast.Name) and node.id == "Any" for node in nodes
            )
    return dict(found)


def casts_of_rooms() -> dict[str, int]:
    """By room, how often an operator's file casts to uint32: `charcnn.gpu.integers` keeps sums of uint32 so narrow."""
    found: Counter[str] = Counter()
    for path in OURS:
        if PACKAGE / "ops" in path.parents:
            found["/".join(path.relative_to(ROOT).parts[:3])] += path.read_text().count("uint32(")
    return dict(found)


LATE = {
    "charcnn/__init__.py": "public names are there without what defines them: importing charcnn imports no Numba",
    "charcnn/__main__.py": "a command is imported when it is called; a GPU's errors are where Numba is",
    "charcnn/caching/hook.py": "importing charcnn imports no Numba",
    "charcnn/catalog/__init__.py": "rows name layers and levels, which are imported where they are used",
    "charcnn/catalog/networks.py": "rows name networks, likewise",
    "charcnn/classify/classifier.py": "on a CPU nothing of a GPU is imported",
    "charcnn/classify/engine.py": "on a CPU nothing of a GPU; what compiles ahead only where something is not compiled",
    "charcnn/classify/cpu_functions.py": "it begins to compile before it has what labels; Numba's events first",
    "charcnn/compiling/networks.py": "only networks that take texts encode them",
    "charcnn/levels/runner/profile.py": "it is for --profile alone, and needs a GPU",
    "charcnn/offload/checkpoint.py": "plans and MPI import no Numba",
    "charcnn/offload/farm/worker.py": "likewise: a GPU's errors are there where a level has imported Numba",
    "charcnn/ops/__init__.py": "a name's module is imported when it is first used",
    "charcnn/ops/chain/planned.py": "plans are made without kernels",
    "charcnn/ops/functions.py": "a row names its launch, likewise; on a CPU nothing of a GPU is imported",
    "charcnn/ops/prepared.py": "on a CPU nothing of a GPU is imported",
    "charcnn/ops/operator_row.py": "rows name references and functions, likewise",
    "charcnn/training/with_torch.py": "PyTorch is optional, and its import slow",
}
"""Why a file imports parts of the package within functions, or by name. Commands do so for their start: they are in
charcnn/cli, and `test_help_is_quick` holds that it helps."""


def classes_of_one_name() -> dict[str, int]:
    """How many public classes of the package have a name."""
    trees = (parsed(path.read_text()) for path in OURS)
    return dict(
        Counter(
            node.name
            for tree in trees
            for node in tree.body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        )
    )


@cache
def late_imports(code: str) -> list[str]:
    """What of the package is imported within functions, as far as it is named, and each call that imports by name."""
    found: list[str] = []
    if not re.search(r"(?m)^\s+(from|import) |\b(import_module|__import__)\b", code):  # most files: not to be walked
        return found
    tree, by_name = parsed(code), ("import_module", "__import__")
    for node in ast.walk(tree) if any(name in code for name in by_name) else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in by_name:
            found.append(ast.unparse(node))
    inner = {node for _, function in functions(tree) for node in ast.walk(function)}
    for node in inner:
        if isinstance(node, ast.ImportFrom) and (node.level or f"{node.module}.".startswith("charcnn.")):
            found += [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if f"{alias.name}.".startswith("charcnn.")]
    return sorted(found)


def late_imports_of_files() -> dict[str, int]:
    """Outside of commands."""
    files = [path for path in OURS if PACKAGE / "cli" not in path.parents]
    return {name_of(path): len(late_imports(path.read_text())) for path in files}


def internals(code: str) -> list[str]:
    """What is imported of numba.cuda and its successor beyond their public names: `numba.cuda` and its `types`."""
    found = []
    for node in ast.walk(parsed(code)):
        names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        whole = [f"{node.module}.{name}" for name in names] if isinstance(node, ast.ImportFrom) else names
        found += [name for name in whole if re.match(r"numba\.cuda\.(?!types$)|numba_cuda", name)]
        if isinstance(node, ast.Attribute) and node.attr in INTERNAL and ast.unparse(node.value) == "cuda":
            found.append(f"cuda.{node.attr}")
    return found


INTERNAL = {"cudadrv", "codegen", "dispatcher", "simulator", "extending", "core", "descriptor"}
"""Modules in numba.cuda that are attributes of it, too."""


def internals_of_files() -> dict[str, int]:
    """Outside of the one room that is for them."""
    files = [path for path in OURS if PACKAGE / "gpu" / "backend" not in path.parents]
    return {name_of(path): len(internals(path.read_text())) for path in files}


LISTS = {
    "LONG_FILES": (lines_of_files, FILE),
    "LONG_FUNCTIONS": (lambda: kernels_and_others()[0], FUNCTION),
    "LONG_KERNELS": (lambda: kernels_and_others()[1], KERNEL),
    "LONG_LEVELS": (lines_of_levels, LEVEL),
    "BRANCHED_LEVELS": (ifs_of_levels, IFS),
    "PRECISE_NAMES": (names_with_a_precision, 0),
    "SPREAD_NAMES": (places_of_names, PLACES),
    "WRONG_WORDS": (wrong_words, 0),
    "LONG_DOCSTRINGS": (lines_of_docstrings, DOCSTRING),
    "VAGUE_DOCSTRINGS": (vague_docstrings, 0),
    "LATE_IMPORTS": (late_imports_of_files, 0),
    "PRIVATE_NAMES": (private_names_of_others, 0),
    "ANYS": (anys_of_rooms, 0),
    "CASTS": (casts_of_rooms, 0),
    "SHARED_NAMES": (classes_of_one_name, 1),
    "INTERNALS": (internals_of_files, 0),
}
"""By the list of exceptions: what is counted, and the limit."""
