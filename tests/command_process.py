"""The command `charcnn` in a process of its own, and what it leaves."""

import csv
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXTS = [f"{word} number {n}" for n in range(40) for word in ("stocks", "match", "talks", "chips")]

HEARS = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
"""What a process that is interrupted begins with: it inherits that SIGINT is ignored where pytest runs by `nohup`."""


SLOW = """
import time
from charcnn.classify import classifier
from charcnn.text import output
classifier.ROWS = dict.fromkeys(classifier.ROWS, 50)
output.EVERY_SECONDS = 0
advance = output.Partial.advance
output.Partial.advance = lambda *values: (advance(*values), time.sleep(0.01))
"""
"""Before the command: few rows a block, each noted in the journal, and slowly."""


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
