"""Commands on pages: their words are taken by the command that they are for, and their scripts and options exist."""

import contextlib
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from report.documents import documents

from charcnn.__main__ import parser
from charcnn.catalog import ENCODERS, training_level
from charcnn.levels.runner.level_options import LevelCommand
from charcnn.levels.runner.sharded import sharded_parser
from charcnn.levels.runner.training import parser as training_parser
from charcnn.networks.runner.command import NetworkCommand
from charcnn.networks.runner.encoder import EncoderCommand

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
LAUNCHED = re.compile(r"(^|[|&;\s])(?:\.venv/bin/)?(?P<command>charcnn|python -m charcnn\.\S+|python bench/\S+)(?= |$)")


def commands(text):
    """Commands of a page's blocks for the shell, from the program of ours on: what starts them is not."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.startswith("#") and (found := LAUNCHED.search(line)):
                yield line[found.start("command") :]


def level_parser(name):
    if name.startswith("t"):
        row = training_level(name)
        if row.ranks:
            return sharded_parser(name, "", row.module.build)[0]
        return training_parser(name, "")
    return LevelCommand(name, import_module(f"charcnn.levels.{name}").build).parser(quiet=True)


def take(command):
    """Give a command's words to its own parser; a SystemExit where they do not fit."""
    words = shlex.split(command, comments=True)
    if words[0] == "charcnn":
        parser(words[1]).parse_args(words[1:])
        return
    if words[1] == "-m":
        room, name = words[2].removeprefix("charcnn.").split(".")
        command = EncoderCommand if name in (row.name for row in ENCODERS) else NetworkCommand
        own = level_parser(name) if room == "levels" else command(name).parser(quiet=True)
        own.parse_args(words[3:])
        return
    known = set(re.findall(r'"(--[\w-]+)"', (ROOT / words[1]).read_text()))
    for name in (word for word in words if re.fullmatch(r"l\d+", word)):  # the level that it runs takes the rest
        known |= set(level_parser(name).format_help().replace(",", " ").split())
    if unknown := [word for word in words if word.startswith("--") and word not in known]:
        raise SystemExit(f"{words[1]} has no {unknown}")


PAGES = [*documents(), ROOT / "bench" / "README.md"]
COMMANDS = [(page.relative_to(ROOT).as_posix(), command) for page in PAGES for command in commands(page.read_text())]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_is_taken(page, command):
    with contextlib.ExitStack() as stack:
        if "--help" in command:
            stack.enter_context(pytest.raises(SystemExit, match=r"^0$"))
        take(command)


def test_pages_have_commands():
    found = {page for page, _ in COMMANDS}
    assert {"README.md", "docs/classify.md", "docs/running.md", "docs/networks.md", "docs/offload.md"} <= found


@pytest.mark.parametrize(
    "wrong",
    [
        "charcnn classify a.csv --probability-of-rain",
        "charcnn labels a.csv",
        "python -m charcnn.levels.l5 --gpu-count 2",
        "python -m charcnn.networks.mnist --as fastest",
        "python bench/offload.py path --jason a.json",
    ],
)
def test_a_wrong_command_is_seen(wrong):
    with pytest.raises(SystemExit) as ended:
        take(wrong)
    assert ended.value.code != 0


def test_what_is_found_in_a_block():
    text = "```sh\n# charcnn no\nmpiexec -n 2 .venv/bin/python -m charcnn.levels.l1 \\\n  --inputs 3  # why\n"
    text += 'echo "a" | charcnn classify -\nNUMBA_NUM_THREADS=1 python bench/offload.py overhead\n```\n'
    assert [shlex.split(command, comments=True) for command in commands(text)] == [
        ["python", "-m", "charcnn.levels.l1", "--inputs", "3"],
        ["charcnn", "classify", "-"],
        ["python", "bench/offload.py", "overhead"],
    ]
