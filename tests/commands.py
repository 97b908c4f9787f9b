"""The command `charcnn` as tests run it, in this process or in one of its own. conftest.py imports the fixture."""

import csv
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXTS = [f"{word} number {n}" for n in range(40) for word in ("stocks", "match", "talks", "chips")]

HEARS = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
"""What a process that is interrupted begins with: it inherits that SIGINT is ignored where pytest runs by `nohup`."""

SLOW = """
import time
from charcnn.classify import classifier
from charcnn.classify.labelling import Labelling
from charcnn.text import output
classifier.ROWS = dict.fromkeys(classifier.ROWS, 50)
Labelling._block_rows = lambda self: self.classifier.rows
output.EVERY_SECONDS = 0
advance = output.Partial.advance
output.Partial.advance = lambda *values: (advance(*values), time.sleep(0.01))
"""


@pytest.fixture
def interrupted(charcnn, monkeypatch):
    """Run a command, and end it by Ctrl-C after so many blocks of 50 rows; the journal knows of all of them."""
    from charcnn.classify.classifier import ROWS
    from charcnn.classify.labelling import Labelling
    from charcnn.text import output

    def run(blocks, *words, **options):
        advance, left = output.Partial.advance, [blocks]

        def once(self, *values):
            advance(self, *values)
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setitem(ROWS, "cpu", 50)
            patch.setattr(Labelling, "_block_rows", lambda self: self.classifier.rows)
            patch.setattr(output, "EVERY_SECONDS", 0)
            patch.setattr(output.Partial, "advance", once)
            assert charcnn(*words, **options)[0] == 130

    return run


def command(*words, code="", **options):
    """The command in a process of its own, after this code."""
    code = f"import sys\n{HEARS}\nfrom charcnn.__main__ import main\n{code}\nsys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], env=environment, **options)


def rows(path, **options):
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.reader(file, **options))


def left(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def tree(folder, files):
    """Files of these contents below a folder."""
    for name, given in files.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(given if isinstance(given, bytes) else given.encode())
    return Path(folder)


def below(folder):
    """Names of all files below a folder, but hidden ones, as lists of what is done are."""
    found = (path for path in Path(folder).rglob("*") if path.is_file() and path.name[0] != ".")
    return sorted(str(path.relative_to(folder)) for path in found)


@pytest.fixture
def ended(capsys):
    """Call what ends a process, such as a command's `main`: its status and what it said, as of a process."""

    def call(main, *arguments):
        with pytest.raises(SystemExit) as end:
            main(*arguments)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, end.value.code, said.out, said.err)

    return call


@pytest.fixture
def as_module(ended, monkeypatch):
    """Run a package's module in this process as `python -m` does: its status and what it said, as of a process."""

    def call(package, name, *options):
        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        return ended(runpy.run_module, f"{package}.{name}", None, "__main__", True)

    return call
