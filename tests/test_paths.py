"""No command writes over what it reads, what another of its options names, or what somebody else made."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from commands import left, tree

from charcnn import catalog, files
from charcnn.__main__ import main, parser
from charcnn.cli import DONE, UNUSABLE, classify, evaluate, explain, inputs
from charcnn.levels import l2
from charcnn.levels.runner import command
from charcnn.levels.runner import options as of_runner
from charcnn.levels.runner.level_options import LevelCommand
from charcnn.networks.runner.command import NetworkCommand
from charcnn.networks.runner.command import main as network
from charcnn.networks.runner.encoder import EncoderCommand
from charcnn.networks.runner.encoder import main as encoder
from charcnn.offload.checkpoint import MAGIC, Checkpoint
from charcnn.runtime import timeline
from charcnn.text import output
from charcnn.training import checkpoint, loop, record

RUNNER = {"params", "tokenizer", "text", "input", "answer", "images"}, {"json", "trace", "checkpoint", "train", "out"}
"""Of levels and networks: what is read, and what is written."""

FILES = {
    "classify": ({"input", "model"}, {"output", "report", "json", "openmetrics"}),
    "evaluate": ({"input", "model"}, {"json", "png"}),
    "explain": ({"model"}, {"html"}),
    "train": (
        {"data", "valid", "test", "teachers", "teacher_probabilities", "init"},
        {"out", "metrics", "curve", "checkpoint", "openmetrics"},
    ),
    "convert": ({"input"}, {"output"}),
    "compact": ({"model", "data", "test"}, {"out"}),
    "info": ({"file", "model"}, set()),
    "show": ({"file"}, set()),
    "report": ({"source"}, {"output", "json"}),
    "profile": ({"params"}, {"trace", "json"}),
    "plan": ({"report", "path", "measured"}, set()),
}
"""Options that name files, by command: what is read, and what is written. A new option goes here or into WORDS."""

WORDS = {
    "as", "batch", "capability", "classes", "config", "delimiter", "diff", "encoding", "label", "label_column",
    "label_separator", "layer", "level", "levels", "name", "network", "networks", "precision", "repeat",
    "teacher_license", "teacher_name", "techniques", "text_columns", "types", "unsure_label", "variant",
}  # fmt: skip
"""Options that take a text and name no file."""

TEXT = {"explain": {"text"}}
"""Options whose name is a file's in another command."""


def parsers():
    """The command lines of all commands; of levels, which share one, that of l2."""
    networks = {row.name: NetworkCommand(row.name).parser(quiet=False) for row in catalog.NETWORKS}
    networks |= {row.name: EncoderCommand(row.name).parser(quiet=False) for row in catalog.ENCODERS}
    return {**COMMANDS, "l2": LevelCommand("l2", l2.build).parser(quiet=False), **networks}


COMMANDS = dict(parser()._subparsers._group_actions[0].choices)


def texts(own):
    """Options whose value is any text."""
    return [
        action for action in own._actions if action.nargs != 0 and not action.choices and action.type in (None, str)
    ]


def kinds(name):
    """What a command reads, and what it writes."""
    return FILES.get(name, (set(), set()) if name in COMMANDS else RUNNER)


def test_every_option_is_known_to_name_a_file_or_none():
    assert (set(of_runner.READS), set(of_runner.WRITES)) == RUNNER
    for name, own in parsers().items():
        reads, writes = kinds(name)
        for action in texts(own):
            known = reads | writes | WORDS | TEXT.get(name, set())
            assert action.dest in known, f"{name}: say above whether {action.dest} names a file that is written"
            assert action.metavar != "FILE" or action.dest in reads | writes, f"{name}: {action.dest} names a file"
        if writes:
            assert "--force" in own._option_string_actions, name


READ = {"in.csv": "1,stocks fell\n2,match won\n", "m.safetensors": "model", "in.json": "{}", "in.png": "picture"}

BASE = {
    "classify": "classify in.csv --model m.safetensors",
    "evaluate": "evaluate in.csv --model m.safetensors",
    "explain": "explain text --model m.safetensors",
    "train": "train --data in.csv --restart",
    "convert": "convert m.safetensors",
    "compact": "compact m.safetensors --data in.csv",
    "report": "report --from in.json",
    "profile": "profile l12 --params m.safetensors",
    "l2": "--params m.safetensors --text in.csv --offload farm",
    **{row.name: "--params m.safetensors --images in.png" for row in catalog.NETWORKS},
    **{row.name: "--params m.safetensors --text in.csv --offload farm" for row in catalog.ENCODERS},
}
"""A command that reads; what it writes comes to it."""


def words_of(name, *given):
    """The command with these options, pairs of an action and a path; with an output where it needs one."""
    words = BASE[name].split()
    if name in ("train", "classify") and not {"output", "out"} & {action.dest for action, _ in given}:
        words += ["--out" if name == "train" else "--output", "new.safetensors" if name == "train" else "new.csv"]
    return [*words, *(word for action, path in given for word in (*action.option_strings[-1:], path))]


CASES = [(name, action) for name, own in parsers().items() for action in texts(own) if action.dest in kinds(name)[1]]


def start(capsys, name, words):
    """A command here; its exit status, and what it says."""
    try:
        if name in COMMANDS:
            status = main(words)
        elif name == "l2":
            command.main(l2.build, words)
        elif name in (row.name for row in catalog.ENCODERS):
            encoder(name, words)
        else:
            network(name, words)
    except SystemExit as error:
        status = error.code
    return status, capsys.readouterr().err


@pytest.mark.parametrize(("name", "action"), CASES, ids=[f"{name}-{action.dest}" for name, action in CASES])
def test_what_is_read_or_foreign_is_never_written_over(capsys, tmp_path, monkeypatch, name, action):
    if name == "train":
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tree(tmp_path, READ | {"foreign": "mine", "foreign.safetensors": "mine", "foreign.bin": "mine"}))
    reads = [path for path in READ if path in BASE[name].split()]
    ending = ".safetensors" if name in ("convert", "compact") or action.dest in ("out", "train") else ""
    os.symlink(reads[0], f"soft{ending}")
    os.link(reads[-1], f"hard{ending}")
    before = {path: Path(path).read_bytes() for path in left(".")}

    def refused(path, *more, said):
        status, err = start(capsys, name, [*words_of(name, (action, path)), *more])
        assert (status, err.count("\n")) == (UNUSABLE, 1), err
        assert f" {path}: {said}" in err or f"{path} {said}" in err
        assert {path: Path(path).read_bytes() for path in left(".")} == before

    for path in (*[path for path in reads if path.endswith(ending)], f"soft{ending}", f"hard{ending}"):
        refused(path, said="is ")
        refused(path, "--force", said="is ")
    if action.dest == "checkpoint" and name != "train":
        return  # what is there is looked at when it is opened
    refused(f"foreign{ending}", said="already exists")
    refused(f"none/new{ending}", said="there is no folder none")
    os.mkdir(f"folder{ending}")
    with pytest.raises(ValueError, match="is a folder"):
        files.check_paths({}, {"--x": f"folder{ending}"}, force=True)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        (name, one, other)
        for name in dict.fromkeys(name for name, _ in CASES)
        for own in [[action for of, action in CASES if of == name]]
        for n, one in enumerate(own)
        for other in own[n + 1 :]
    ],
    ids=lambda value: value if isinstance(value, str) else value.dest,
)
def test_no_two_options_write_one_file(capsys, tmp_path, monkeypatch, name, first, second):
    if name == "train":
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tree(tmp_path, READ))
    os.symlink("both.safetensors", "link.safetensors")
    words = words_of(name, (first, "./both.safetensors"), (second, "link.safetensors"))
    status, err = start(capsys, name, [*words, "--force"])
    assert (status, err.count("\n")) == (UNUSABLE, 1), err
    assert "both.safetensors: is " in err or "link.safetensors: is " in err
    assert "both.safetensors: name another file" in err or "link.safetensors: name another file" in err
    assert left(".") == sorted([*READ, "link.safetensors"])


@pytest.mark.parametrize("name", [f"new.csv{end}" for end in (*output.PARTS, inputs.REPORT)])
def test_names_that_an_output_has_until_it_is_whole(capsys, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tree(tmp_path, {"m.safetensors": "model", name: "a\n", "in.txt": "a\n"}))
    for words in (["in.txt", "--json", name], [name]):
        words = ["classify", *words, "-o", "new.csv", "--model", "m.safetensors", "--format", "lines", "--force"]
        status, err = start(capsys, "classify", words)
        assert (status, err.count("\n")) == (UNUSABLE, 1), err
        assert "name another file" in err
        assert Path(name).read_text() == "a\n"


def test_the_model_is_no_report(charcnn, weights, tmp_path):
    source, held = tmp_path / "in.csv", Path(weights).read_bytes()
    source.write_text("1,a\n")
    status, _, err = charcnn("classify", source, "--report", weights, "--force")
    assert (status, err) == (UNUSABLE, f"charcnn classify: --report {weights}: is --model: name another file\n")
    assert Path(weights).read_bytes() == held


def test_paths_that_are_not_there_yet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def check(one, other, **options):
        files.check_paths({}, {"--one": one, "--other": other}, force=False, **options)

    for other in ("a", "./a", "../" + tmp_path.name + "/a", str(tmp_path / "a")):
        with pytest.raises(ValueError, match=r"--other .*: is --one"):
            check("a", other)
    check("a", "A")
    with pytest.raises(ValueError, match=r"--other new/a: is --one new/../new/a"):
        check("new/../new/a", "new/a", made=["--one", "--other"])
    asked = []
    monkeypatch.setattr(files, "_ignores_case", lambda path: not asked.append(path))
    check("a", "b")
    assert asked == []
    for one, other in (("ä", "Ä"), ("\u00e4", "a\u0308"), ("folder", "FOLDER")):
        with pytest.raises(ValueError, match=f"--other {other}: is --one {one}: name another file"):
            check(one, other)
    assert left(".") == []


def test_whether_names_that_differ_in_case_are_one_is_found_out(tmp_path):
    assert files._ignores_case(str(tmp_path / "none" / "a")) == (tmp_path.parent / tmp_path.name.upper()).exists()
    assert left(tmp_path) == []


def test_pipes_devices_and_standard_streams(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for path in ("pipe", os.devnull):
        files.check_paths({"in": path}, {"--one": path, "--other": path}, force=False)
    Path("a").write_text("mine")
    with open("a", "r+") as file:
        for number in (0, 1):
            stat = os.fstat(file.fileno())
            fstat = os.fstat
            with monkeypatch.context() as patch:
                patch.setattr(os, "fstat", lambda asked: stat if asked == number else fstat(asked))  # noqa: B023
                reads, writes = ({"in": "-"}, {"--one": "a"}) if number == 0 else ({"in": "a"}, {"--one": "-"})
                with pytest.raises(ValueError, match=r"--one .: is in"):
                    files.check_paths(reads, writes, force=True)


def test_files_of_a_folder_that_is_read_are_kept(tmp_path):
    tree(tmp_path, {"folder/a.bin": "weights"})
    for force in (False, True):
        with pytest.raises(ValueError, match=r"is in --params .*folder, which is read"):
            files.check_paths({"--params": tmp_path / "folder"}, {"--json": tmp_path / "folder" / "a.bin"}, force=force)
    files.check_paths({"--params": tmp_path / "folder"}, {"--json": tmp_path / "folder" / "new"}, force=False)


def test_reports_of_ours_are_known(tmp_path):
    pytest.importorskip("matplotlib")
    history = [dict.fromkeys(loop.COLUMNS, 1)]
    path = tmp_path / "report"
    for _ in range(2):
        record.write_metrics(path, history, loop.COLUMNS, force=False)
    assert files.is_free(path, record.METRICS)
    assert not files.is_free(path, files.PNG)
    path.unlink()
    for _ in range(2):
        record.draw_curve(path, history, 1, force=False)
    assert files.is_free(path, files.PNG)
    path.unlink()
    for _ in range(2):
        timeline.write(path, [[timeline.Span("a", "b", "c", 1, 0.0, 1.0)]], force=False)
    assert files.is_free(path, timeline.TRACE)
    for mark in (classify.JSON, evaluate.JSON, explain.HTML, of_runner.JSON, output.NOTES, record.CHECKPOINT):
        assert not files.is_free(path, mark)
    path.write_text("")
    assert files.is_free(path), "there is nothing to lose"


def test_a_checkpoint_of_ours_is_known(tmp_path):
    (tmp_path / "own").write_bytes(checkpoint.packed({"format": 4}))
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    assert files.is_free(tmp_path / "own", record.CHECKPOINT)
    assert not files.is_free(tmp_path / "other.npz", record.CHECKPOINT)
    torch = pytest.importorskip("torch")
    with open(tmp_path / "a", "wb") as file:
        torch.save({"format": 2, "settings": {}, "trainer": {}}, file)
    with open(tmp_path / "b", "wb") as file:
        torch.save({"conv1.weight": torch.zeros(3)}, file)
    assert files.is_free(tmp_path / "a", record.CHECKPOINT)
    assert not files.is_free(tmp_path / "b", record.CHECKPOINT)


def test_a_second_start_replaces_reports_of_the_first(charcnn, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("1,a\n2,b\n3\n")
    for _ in range(2):
        words = ("--report", tmp_path / "r.csv", "--json", tmp_path / "r.json")
        assert charcnn("classify", source, "-o", tmp_path / "o.csv", *words)[0] == 3
        assert charcnn("explain", "text", "--html", tmp_path / "e.html")[0] == DONE
        (tmp_path / "o.csv").unlink()
    assert json.loads((tmp_path / "r.json").read_text())["rows"] == 3
    status, _, err = charcnn("evaluate", source, "--json", tmp_path / "r.json")
    assert status == UNUSABLE
    assert "r.json: already exists, and was not written by this command" in err


def test_a_foreign_report_of_unreadable_rows_stays(charcnn, tmp_path):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    foreign = Path(f"{out}.unreadable.csv")
    source.write_text("1,a\n")
    foreign.write_text("mine\n")
    status, _, err = charcnn("classify", source, "-o", out)
    assert (status, err.count("\n")) == (UNUSABLE, 1)
    assert not out.exists()
    assert charcnn("classify", source, "-o", out, "--force")[0] == DONE
    assert foreign.read_text() == "mine\n", "no row is unreadable, so that there is no report to write"
    status, _, err = charcnn("classify", source, tmp_path / "in.csv", "-o", f"{tmp_path}{os.sep}")
    assert status == UNUSABLE
    data = tree(tmp_path / "data", {"x.csv": "1,a\n"})
    tree(tmp_path / "out", {"x.csv.unreadable.csv": "mine\n"})
    status, _, err = charcnn("classify", data, "-o", tmp_path / "out")
    assert status == UNUSABLE
    assert "is not a report of unreadable rows: name another output, or add --force" in err
    assert left(tmp_path / "out") == ["x.csv.unreadable.csv"]


def test_a_file_that_another_program_makes_meanwhile_is_kept(tmp_path):
    path, mark = tmp_path / "a.txt", rb"ours"

    def write(text, **options):
        with files.replacing(path, force=False, **options) as file:
            file.write("ours")
            path.write_text(text)

    for number in (2, 3):
        with pytest.raises(FileExistsError, match=f"it is kept: what was to be there is .*a-{number}.txt") as caught:
            write("theirs")
        assert caught.value.filename == str(path)
        assert (path.read_text(), (tmp_path / f"a-{number}.txt").read_text()) == ("theirs", "ours")
    write("ours, of before", mark=mark)
    assert path.read_text() == "ours"
    with pytest.raises(FileExistsError), files.placing(path, force=False) as place:
        Path(place).write_text("new")
    with files.placing(path, force=True) as place:
        Path(place).write_text("new")
    assert path.read_text() == "new"
    assert left(tmp_path) == ["a-2.txt", "a-3.txt", "a-4.txt", "a.txt"]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_system_without_hard_links(tmp_path, monkeypatch, links):
    def none(*paths):
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", none)
    (tmp_path / "a").write_text("new")
    (tmp_path / "there").write_text("theirs")
    assert not files.put(tmp_path / "a", tmp_path / "there", force=False)
    assert files.put(tmp_path / "a", tmp_path / "b", force=False)
    assert (tmp_path / "b").read_text() == "new"
    assert left(tmp_path) == ["b", "there"]


def test_devices_are_never_removed(charcnn, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("1,a\n")
    os.mkfifo(tmp_path / "pipe")
    status, _, err = charcnn("classify", source, "--report", tmp_path / "pipe")
    assert (status, err.count("\n")) == (UNUSABLE, 1)
    assert "pipe is not a file: name one for the report" in err
    files.remove_own(tmp_path / "pipe", rb"")
    assert "pipe" in left(tmp_path)


def test_a_levels_checkpoint_is_begun_anew_only_where_it_is_one(tmp_path):
    path, run = tmp_path / "results", {"level": "l2", "precision": "fp32"}
    Checkpoint(path, run, 4).close()
    for theirs, said in (
        (b'{"level": "l10", "precision": "fp32"}', "of another run: its level is 'l10', this one's 'l2'"),
        (b"[1]", "a damaged checkpoint"),
        (b'{"level', "a damaged checkpoint"),
        (b"\xff", "a damaged checkpoint"),
    ):
        path.write_bytes(MAGIC + theirs + b"\n")
        with pytest.raises(ValueError, match=f"is {said}; name another file, or add --force to start over"):
            Checkpoint(path, run, 4)
        assert path.read_bytes() == MAGIC + theirs + b"\n"
        Checkpoint(path, run, 4, force=True).close()
        Checkpoint(path, run, 4).close()
    path.write_text("mine")
    for force in (False, True):
        with pytest.raises(ValueError, match="is not a charcnn checkpoint: name another file"):
            Checkpoint(path, run, 4, force=force)
    assert path.read_text() == "mine"
