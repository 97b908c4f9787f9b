"""What others wrote reaches no terminal raw, and a command survives standard streams that are closed, full or ASCII."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import by_turns

from charcnn.__main__ import main
from charcnn.catalog import LEVELS
from charcnn.cli import COMMANDS, DONE, FAILED, UNUSABLE
from charcnn.config import TINY
from charcnn.host import terminal
from charcnn.model import params
from charcnn.text import encodings

ROOT = Path(__file__).parent.parent

EVIL = "a\x1b[31m\x07\x9b2J\u202e\u2066\u2028\u200b\x00b\ud800"
HARMLESS = "a\\x1b[31m\\x07\\x9b2J\\u202e\\u2066\\u2028\\u200b\\x00b\\ud800"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    params.save(path, params.init(TINY, seed=3), TINY, encoding="crepe", classes=encodings.CLASSES)
    return str(path)


def shell(line, weights, **environment):
    """A line of shell, in which `charcnn` is the command and $M names a model on the CPU: status, output, errors."""
    line = f'charcnn() {{ "{sys.executable}" -m charcnn "$@"; }}; M="--model {weights} --device cpu"; {line}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, timeout=300, check=False)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_text_that_a_terminal_would_obey_is_escaped():
    assert terminal.printable(EVIL) == HARMLESS
    assert terminal.printable("caf\u00e9 \u4e2d\u6587 \U0001f469\u200d\U0001f4bb \u00a0\u3000") == (
        "caf\u00e9 \u4e2d\u6587 \U0001f469\u200d\U0001f4bb \u00a0\u3000"
    )
    assert terminal.printable("a\tb\nc\x1b", keep="\n") == "a\\tb\nc\\x1b"
    assert terminal.printable(b"\xff.csv".decode("utf-8", "surrogateescape")) == "\\xff.csv"


def test_a_list_of_names_ends():
    assert terminal.listed(["a", "b"]) == "a, b"
    assert terminal.listed([str(n) for n in range(10**6)]).endswith(", 18, 19, and 999,980 more")


@pytest.mark.parametrize(
    ("name", "data", "options"),
    [
        ("in.csv", "{}x,y\nb,c\n", ("--text-columns", "no")),
        ("in.jsonl", '{{"{}x": "a", "y": "b"}}\n', ()),
        ("in.jsonl", '{{"label": "{}", "text": "a"}}\n', ("evaluate",)),
        ("\x1b[31m\u202e.csv", "a\n", ("--text-columns", "no")),
        ("in.csv", "a\n", ("--text-columns", "\x1b[31m\u202e")),
        ("in.csv", "a\n", ("--format", "\x1b[31m\u202e")),
        ("in.csv", "a\n", ("--\x1b[31m\u202e",)),
    ],
)
def test_no_error_tells_the_terminal_what_to_do(weights, tmp_path, capsys, name, data, options):
    source = tmp_path / name
    evil = "\\u001b[31m\\u202e" if name.endswith("jsonl") else "\x1b[31m\u202e"
    source.write_text(data.format(evil))
    command, options = ("evaluate", options[1:]) if options[:1] == ("evaluate",) else ("classify", options)
    try:
        status = main([command, str(source), *options, "--model", weights, "--device", "cpu"])
    except SystemExit as ended:
        status = ended.code
    err = capsys.readouterr().err
    assert status == UNUSABLE
    assert "\\x1b[31m\\u202e" in err or "\\x1b[31m\\\\u202e" in err
    assert not any(mark in err for mark in "\x1b\u202e")


def test_explain_shows_no_escape(weights, capsys):
    assert main(["explain", "some \x1b[31mred\u202e\n\x9btext", "--model", weights, "--device", "cpu"]) == DONE
    assert capsys.readouterr().out.endswith("\nsome \\x1b[31mred\\u202e\n\\x9btext\n")


@by_turns
def test_explain_takes_bytes_as_predict_does(weights, tmp_path):
    from charcnn.classify.classifier import Classifier

    classifier = Classifier.load(weights, device="cpu")
    broken = b"caf\xe9 \xff?".decode("utf-8", "surrogateescape")
    expected = classifier.predict_proba(broken).max()
    assert classifier.explain(broken).probability == pytest.approx(float(expected), abs=1e-6)
    page = tmp_path / "why.html"
    for words in (f"$'caf\\xe9' --html {page}", "- < <(printf 'caf\\xe9')"):
        assert shell(f"charcnn explain {words} $M", weights)[0] == DONE
    assert page.read_text(encoding="utf-8").count("caf?") + page.read_text(encoding="utf-8").count(">?<")


@by_turns
def test_rows_on_a_terminal_are_printable_and_elsewhere_as_they_were(weights, tmp_path):
    source = tmp_path / "in.txt"
    source.write_bytes(b"a\x1b[31m\tb\r\n")
    words = [sys.executable, "-m", "charcnn", "classify", str(source), "-o", "-", "--model", weights, "--device", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=environment, capture_output=True, check=True, timeout=300)
    assert done.stdout.endswith(b"\ta\x1b[31m\tb\r\n")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(words, env=environment, stdout=theirs, stderr=subprocess.PIPE)
    process.communicate(timeout=300)
    os.close(theirs)
    shown = os.read(ours, 1000)
    os.close(ours)
    assert process.returncode == DONE
    shown = shown.removesuffix(b"\x1b[0m")  # of colorama, which Numba starts where it is installed
    assert shown.endswith(b"\ta\\x1b[31m\tb\r\n")


@pytest.mark.exhaustive
def test_standard_streams_that_are_closed(weights, tmp_path):
    (tmp_path / "in.txt").write_text("a\n")
    here = f"cd {tmp_path}; "
    closed_in = (UNUSABLE, "", "standard input: is closed")
    closed_out = (UNUSABLE, "", "standard output: is closed")
    for line, (status, out, err) in {
        "charcnn classify - $M <&-": closed_in,
        "charcnn explain - $M <&-": closed_in,
        "echo a | charcnn classify - $M >&-": closed_out,
        "charcnn levels >&-": closed_out,
        "charcnn classify in.txt $M <&- >&-": (DONE, "", "1 row in"),
        "charcnn classify in.txt $M --force 2>&-": (DONE, "", ""),
        "charcnn classify in.txt $M --force <&- >&- 2>&-": (DONE, "", ""),
        "charcnn classify none.txt $M 2>&-": (UNUSABLE, "", ""),
    }.items():
        found = shell(here + line, weights)
        assert found[:2] == (status, out), (line, found)
        assert err in found[2], (line, found)
        assert found[2].count("\n") == bool(err), (line, found)
        if status == DONE:
            assert (tmp_path / "in.labelled.txt").read_bytes().endswith(b"\ta\n"), "nothing else was written into it"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.exhaustive
def test_standard_streams_that_are_full(weights, tmp_path):
    (tmp_path / "in.txt").write_text("a\n")
    here = f"cd {tmp_path}; "
    no_room = "standard output: No space left on device\n"
    assert shell("charcnn levels > /dev/full", weights) == (FAILED, "", f"charcnn levels: {no_room}")
    line = "echo a | charcnn classify - $M > /dev/full"
    assert shell(line, weights) == (FAILED, "", f"charcnn classify: {no_room}")
    assert shell(f"{here} charcnn classify in.txt $M 2> /dev/full", weights) == (DONE, "", "")
    assert (tmp_path / "in.labelled.txt").exists()


ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@by_turns
def test_help_of_every_command_and_level_where_the_terminal_is_ascii():
    modules = ["charcnn", *(f"charcnn {name}" for name in COMMANDS), *(f"charcnn.levels.{row.name}" for row in LEVELS)]
    code = (
        "import runpy, sys\n"
        "for words in sys.argv[1].split(','):\n"
        "    sys.argv = words.split() + ['--help']\n"
        "    try:\n"
        "        runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
        "    except SystemExit as ended:\n"
        "        assert ended.code == 0, words\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **ASCII}
    words = [sys.executable, "-W", "ignore", "-c", code, ",".join(modules)]
    done = subprocess.run(words, env=environment, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode("ascii").count("usage: ") == len(modules)


@by_turns
def test_texts_of_other_locales_are_taken_as_utf_8(weights):
    line = "charcnn explain 'caf\u00e9 \u4e2d' --json $M"
    assert shell(line, weights, **ASCII)[1] == shell(line, weights)[1]
