"""What is seen of a command while it runs, what a signal leaves, and what hints say."""

import argparse
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from commands import command
from conftest import by_turns

from charcnn import catalog
from charcnn.caching import disk
from charcnn.catalog import level_ranges
from charcnn.classify.labelling import BLOCK_SECONDS, Labelling
from charcnn.cli import CLOSED, TERMINATED, UNUSABLE, info, train_options
from charcnn.config import TINY
from charcnn.host import install, interrupts, progress
from charcnn.host.progress import Progress
from charcnn.model import params
from charcnn.runtime.monitor import Monitor
from charcnn.text import encodings

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    params.save(path, params.init(TINY, seed=3), TINY, encoding="crepe", classes=encodings.CLASSES)
    return str(path)


class Log:
    """Standard error, with an event at each line."""

    def __init__(self, terminal):
        self.text, self.came, self._terminal = "", threading.Event(), terminal

    def isatty(self):
        return self._terminal

    def fileno(self):
        raise OSError("has none")

    def write(self, text):
        self.text += text
        self.came.set()

    def flush(self):
        pass


def test_a_log_has_lines_by_time_though_nothing_ends(monkeypatch):
    log = Log(terminal=False)
    monkeypatch.setattr(sys, "stderr", log)
    with Progress("classify", every=0.01, note=lambda: "5 rows/s") as shown:
        shown.count(200, "B")
        assert log.came.wait(60), "before the first block ends"
        shown.update(50)
        assert "classify:  25% 50.0/200 [" in shown.line()
        assert shown.line().endswith("5 rows/s]")
        shown.step("checking")
        assert re.fullmatch(r"classify: checking, \d\d:\d\d", shown.line())
    said = log.text
    assert said.startswith("classify: ")
    assert said.endswith("\n")
    assert "\r" not in said
    time.sleep(0.05)
    assert log.text == said, "none behind its end"


@pytest.mark.parametrize("options", [{"every": 0}, {"every": 0.01, "hidden": True}])
def test_no_thread_where_nothing_is_shown(options):
    before = threading.active_count()
    with Progress("l0", **options):
        assert threading.active_count() == before


def test_a_terminal_of_no_width_shows_it_too(monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.0)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Progress("evaluate") as shown:
            shown.count(10, "row")
            assert os.read(ours, 1000).startswith(b"\revaluate:   0%|")
            shown.tell("row 3: no text")
        assert b"\r\x1b[Krow 3: no text\r\n" in os.read(ours, 1000)
        monkeypatch.undo()
    os.close(ours)


def test_batches_are_counted_when_they_are_done():
    told = []
    batches = Monitor(told.append).batches(5, 2)
    assert next(batches) == slice(0, 2)
    assert told == [], "handed out, and not computed"
    assert [*batches] == [slice(2, 4), slice(4, 5)]
    assert told == [2, 2, 1]


@pytest.mark.parametrize(
    ("rate", "batch", "level", "rows"),
    [(0, 48, "l18", 48), (0, 1, "l0", 1), (2, 1, "l0", 2 * int(BLOCK_SECONDS)), (59, 48, "l18", 288),
     (5000, 48, "l18", 1024), (0, 4096, "l16", 1024), (3, 16, "l16", 16)],
)  # fmt: skip
def test_a_block_takes_seconds_whatever_the_machine(rate, batch, level, rows):
    from types import SimpleNamespace

    engine = SimpleNamespace(batch=batch, choice=SimpleNamespace(level=catalog.level(level)))
    work = SimpleNamespace(classifier=SimpleNamespace(rows=1024, engine=engine), rate=lambda: rate)
    assert Labelling._block_rows(work) == rows


@by_turns
def test_sigterm_says_what_is_kept(weights, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("text\n" * 20_000)
    slow = "import time\nfrom charcnn.text import output\noutput.EVERY_SECONDS = 0\n" + (
        "advance = output.Partial.advance\n"
        "output.Partial.advance = lambda *values: (advance(*values), time.sleep(0.5))\n"
    )
    process = command("classify", source, "--model", weights, code=slow, stderr=subprocess.PIPE)
    journal, limit = tmp_path / "in.labelled.txt.part.json", time.monotonic() + 300
    while not (journal.exists() and json.loads(journal.read_text())["state"]["rows"]) and time.monotonic() < limit:
        time.sleep(0.05)
    process.terminate()
    process.terminate()  # as where both a group and its leader are sent one
    err = process.communicate()[1].decode().splitlines()
    assert process.returncode == TERMINATED == 143
    rows = json.loads(journal.read_text())["state"]["rows"]
    part = str(journal).removesuffix(".json")
    said = f"charcnn classify: terminated; {rows:,} rows kept in {part}: the same command resumes after them"
    assert err[-1] == said
    done = command("classify", source, "--model", weights, stderr=subprocess.PIPE)
    err = done.communicate()[1].decode()
    assert done.returncode == 0
    assert f"resuming after row {rows:,} " in err


def test_sigterm_is_left_alone_under_mpiexec(monkeypatch):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with interrupts.between_locks():
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
        with interrupts.between_locks():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_who_reads_the_head_alone_gets_the_status_of_a_closed_pipe():
    words = (
        "import os, sys; os.dup2(int(sys.argv.pop()), 1); from charcnn.__main__ import main; sys.exit(main(['levels']))"
    )
    ours, theirs = os.pipe()
    os.close(ours)
    code = [sys.executable, "-c", words, str(theirs)]
    done = subprocess.run(code, cwd=ROOT, pass_fds=[theirs], capture_output=True, check=False)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (CLOSED, b"")
    assert CLOSED == 141


def test_a_hint_installs_from_the_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(install, "_pip", lambda: "pip")
    monkeypatch.setattr(install, "ROOT", tmp_path)
    assert install.pip_install("plot") == "pip install 'charcnn[plot]'", "it is installed: no index is asked for it"
    (tmp_path / "pyproject.toml").write_text("")
    assert install.pip_install("plot") == f"pip install -e '{tmp_path}[plot]'"
    monkeypatch.chdir(tmp_path)
    assert install.pip_install("plot") == "pip install -e '.[plot]'"


def test_hints_name_extras_that_are_there_and_no_index():
    extras = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text().partition("optional-")[2], re.M))
    sources = {path: path.read_text() for path in (ROOT / "charcnn").rglob("*.py")}
    named = [name for text in sources.values() for name in re.findall(r"pip_install\(['\"](\w+)", text)]
    for path in PAGES:
        text = path.read_text()
        assert not re.search(r"pip install '?charcnn\[", text), path
        named += [name for group in re.findall(r"pip install -e '\.\[([\w,]+)\]'", text) for name in group.split(",")]
    assert len(named) > 15
    assert set(named) <= extras
    assert [path for path, text in sources.items() if "'charcnn[" in text] == []


def test_a_cache_that_anybody_can_write_is_told_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv(disk._WARNED, raising=False)
    disk._warn_of_open_folder()
    assert capsys.readouterr().err == ""
    tmp_path.chmod(0o1777)
    disk._warn_of_open_folder()
    disk._warn_of_open_folder()
    err = capsys.readouterr().err
    assert err.startswith(f"charcnn: NUMBA_CACHE_DIR='{tmp_path}': any user can write there")
    assert err.count("\n") == 1


def test_without_the_compiler_one_line_says_so(weights):
    words = [sys.executable, "-m", "charcnn", "explain", "a", "--model", weights, "--device", "cpu"]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    said = "charcnn explain: NUMBA_DISABLE_JIT is set, and this runs in compiled code only: unset it\n"
    assert (done.returncode, done.stderr) == (UNUSABLE, said)


def test_standard_input_is_refused_under_open_mpi(monkeypatch):

    from charcnn.cli import ranks

    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"^-: Open MPI does not pass on the end of standard input"):
        ranks.Ranks(None, "farm", deadline=None, root_serves=False).check(["-"], None)


def test_pages_say_which_levels_the_simulator_runs():
    on_gpus = [level for level in catalog.LEVELS if level.device == "cuda"]
    runs, emulated = ([level for level in on_gpus if level.tensor_cores is wanted] for wanted in (False, True))
    text = " ".join((ROOT / "docs/running.md").read_text().split())
    assert f"With no GPU, {level_ranges(runs)} run at a tiny size in Numba's simulator" in text
    assert f"So do {level_ranges(emulated)}, whose tensor cores are" in text


def test_info_fits_a_terminal(tmp_path, capsys):
    path = tmp_path / "m.safetensors"
    deep = {"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}}
    training = {"command": "charcnn train " + "--option value " * 60, "recipe": {"rate": np.pi, "batch": 256}}
    params.save(path, params.init(TINY), TINY, encoding="crepe", training=training, deep=deep)
    from charcnn.__main__ import main

    assert main(["info", str(path)]) == 0
    out = capsys.readouterr().out
    model = out.partition("\nmodel\n")[2].splitlines()
    assert max(map(len, model)) <= info.WIDE
    assert "      recipe  rate 3.14159, batch 256" in model
    assert main(["info", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["metadata"]["training"] == training


def test_help_says_nothing_twice(capsys):
    from charcnn.__main__ import parser
    from charcnn.cli import COMMANDS

    for name in COMMANDS:
        for action in parser(name)._subparsers._group_actions[0].choices[name]._action_groups:
            sentences = re.split(r"(?<=\.)\s+", action.description or "")
            assert len(sentences) == len({sentence[:30] for sentence in sentences}), (name, action.title)


@pytest.mark.parametrize("wrong", ["nan", "-1", "inf"])
def test_training_writes_checkpoints_at_some_time(capsys, wrong):
    parser = argparse.ArgumentParser()
    train_options.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--data", "a.csv", "--out", "m.safetensors", "--checkpoint-every", wrong])
    assert f"argument --checkpoint-every: {wrong}: need seconds, 0 or more" in capsys.readouterr().err
