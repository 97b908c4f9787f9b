"""The command `charcnn`, as a user runs it: each subcommand, what it refuses, and what it says."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import ROOT, SLOW, TEXTS, command, rows
from conftest import runs_here

from charcnn import catalog
from charcnn.__main__ import main
from charcnn.classify.classifier import ROWS
from charcnn.cli import COMMANDS, DONE, UNREADABLE, UNUSABLE, inputs, model
from charcnn.config import TINY
from charcnn.gpu import simulator
from charcnn.host import progress
from charcnn.model import params
from charcnn.text import encodings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("classify", "none.csv"), "none.csv: No such file or directory"),
        (("classify", "."), ".: is a folder with no name of its own here: name an output folder (-o)"),
        (("classify", "in.csv", "--precision", "fp8"), "no level computes in fp8 on the CPU"),
        (("classify", "in.csv", "--text-columns", "x"), "in.csv: has no column 'x'"),
        (("classify", "in.csv", "-o", "none/out.csv"), "--output none/out.csv: there is no folder none"),
        (("classify", "in.csv", "-o", "out.parquet"), "--output out.parquet: the output has INPUT's format, csv"),
        (("evaluate", "in.txt"), "plain lines have no labels"),
        (
            ("evaluate", "in.csv"),
            "row 1, line 1: label '9' is not a class of the model; no row of the first 1 can be used",
        ),
        (("evaluate", "zero.csv"), "row 2 has label '0': if that is a class, add --first-label 0"),
        (("evaluate", "four.csv", "--first-label", "0"), "row 1 has label '4': if that is a class"),
        (("evaluate", "none.jsonl"), "row 1, line 1: no label; no row of the first 1 can be used. Labels are World"),
        (("evaluate", "empty.csv"), "empty.csv holds no row"),
        (("explain", "a", "--label", "x"), "label='x'"),
    ],
)
def test_what_cannot_be_done_is_one_line(charcnn, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("9,a\n")
    Path("in.txt").write_text("a\n")
    Path("zero.csv").write_text("1,a\n0,b\n")
    Path("four.csv").write_text("4,a\n")
    Path("empty.csv").write_text("label,text\n")
    Path("none.jsonl").write_text('{"text": "a", "label": null}\n')
    status, out, err = charcnn(*words)
    assert status == UNUSABLE
    assert out == ""
    assert err.startswith(f"charcnn {words[0]}: ")
    assert message in err
    assert err.count("\n") == 1


def test_evaluate(charcnn, classifier, tmp_path):
    pytest.importorskip("matplotlib")
    predicted = classifier.predict(TEXTS)
    labels = [encodings.CLASSES[n % 4] for n in range(len(TEXTS))]
    source = tmp_path / "in.csv"
    with open(source, "w", newline="") as file:
        csv.writer(file).writerows([("label", "text"), *zip(labels, TEXTS, strict=True), ("World",)])
    status, out, err = charcnn("evaluate", source, "--json", tmp_path / "r.json", "--png", tmp_path / "r.png")
    assert status == UNREADABLE
    said = f"{source}: header; delimiter ','; text: text; label: label\n"
    left_out = f"left out 1 row:\n  row {len(TEXTS) + 1}, line {len(TEXTS) + 2}: 1 fields: need 2\n"
    assert err == said + left_out + "".join(f"wrote {tmp_path / name}\n" for name in ("r.json", "r.png"))
    report = json.loads((tmp_path / "r.json").read_text())
    right = np.mean(predicted == np.array(labels))
    assert report["accuracy"] == pytest.approx(right)
    assert report["accuracy_95"][0] < right < report["accuracy_95"][1]
    for n, label in enumerate(encodings.CLASSES):
        for m, other in enumerate(encodings.CLASSES):
            assert report["confusion"][n][m] == np.sum((np.array(labels) == label) & (predicted == other))
    assert f"accuracy {right:.2%}" in out
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_evaluate_leaves_out_and_names_rows_with_no_class(charcnn, tmp_path, monkeypatch):
    """They are counted as they are in the file, as `classify` counts; the others' figures are as without them."""
    source, clean, report = tmp_path / "in.csv", tmp_path / "clean.csv", tmp_path / "report.json"
    good = [f"{n % 4 + 1},{value}\n" for n, value in enumerate(TEXTS)]
    clean.write_text("".join(good))
    source.write_text("".join([good[0], "\n\n", "9,another\n", ",none\n", "one field\n", *good[1:], "Music,last\n"]))
    assert charcnn("evaluate", clean, "--json", report)[0] == DONE
    expected = json.loads(report.read_text())
    monkeypatch.setitem(ROWS, "cpu", 50)
    status, _, err = charcnn("evaluate", source, "--json", report)
    assert status == UNREADABLE
    assert json.loads(report.read_text()) == expected | {"left_out": 4}
    assert err.splitlines()[0].startswith(f"{source}: no header; delimiter ','; text: column 2; label: column 1")
    assert err.splitlines()[1:] == [
        "labels are numbers, which the file does not name: 1 was taken for World, 4 for Sci/Tech "
        "(--first-label 0 counts from 0)",
        "left out 4 rows:",
        "  row 2, line 4: label '9' is not a class of the model",
        "  row 3, line 5: no label",
        "  row 4, line 6: 1 fields: need 2",
        f"  row {len(TEXTS) + 4}, line {len(TEXTS) + 6}: label 'Music' is not a class of the model",
        f"wrote {report}",
    ]
    source.write_text("".join(["1,a\n", *["9,b\n"] * 30]))
    assert charcnn("evaluate", source)[2].splitlines()[-2:] == [
        "  row 11, line 11: label '9' is not a class of the model",
        "  and 20 more",
    ]


def _evaluated(charcnn, folder, content):
    source = folder / ("in.jsonl" if content.startswith("{") else "in.csv")
    source.write_text(content if content.startswith("{") else f"label,text\n{content},a\n")
    return charcnn("evaluate", source)[2]


def test_evaluate_with_numbers(charcnn, classifier, tmp_path):
    """Also as pandas writes a column that lacks one; which was counted is said where nobody asked for it."""
    predicted = [encodings.CLASSES.index(label) for label in classifier.predict(TEXTS)]
    floats = tmp_path / "floats.csv"
    lines = [f'{n + 1}.0,"{value}"\n' for value, n in zip(TEXTS, predicted, strict=True)]
    floats.write_text("".join(["label,text\n", *lines, ",none\n"]))
    status, out, err = charcnn("evaluate", floats)
    assert (status, out.split(" (")[0]) == (UNREADABLE, "accuracy 100.00%")
    assert "\nlabels are numbers, which the file does not name: 1 was taken for World, 4 for Sci/Tech" in err
    assert "row 1 has label '0.0': if that is a class, add --first-label 0" in _evaluated(charcnn, tmp_path, "0.0")
    nan = '{"text": "a", "label": NaN}\n{"text": "b", "label": 2.0}\n'
    assert "row 1, line 1: no label" in _evaluated(charcnn, tmp_path, nan)
    for first, options in ((1, ()), (0, ("--first-label", 0))):
        source = tmp_path / "in.jsonl"
        objects = [{"text": value, "label": n + first} for value, n in zip(TEXTS, predicted, strict=True)]
        source.write_text("".join(json.dumps(value) + "\n" for value in objects))
        status, out, err = charcnn("evaluate", source, *options)
        assert status == DONE
        assert out.startswith("accuracy 100.00%")
        assert ("labels are numbers" in err) != bool(options)


@pytest.mark.parametrize(("names", "first"), [("1234", 0), ("0123", 1)])
def test_evaluate_counts_numbers_or_takes_them_for_names_never_both(charcnn, tmp_path, monkeypatch, names, first):
    """A model whose classes are called by numbers: those of a file that counts from another one are not mixed."""
    monkeypatch.chdir(tmp_path)
    weights = params.init(TINY, seed=0)
    weights["fc3.bias"][:] = [0, 100, 0, 0]
    params.save("numbers.safetensors", weights, TINY, encoding="crepe", classes=tuple(names))
    Path("own.csv").write_text(f"label,text\n{names[1]},a\n")
    Path("other.csv").write_text(f"label,text\n{first + 1},a\n")
    Path("last.csv").write_text("label,text\n4,a\n0,a\n")
    for source, options in (("own.csv", ()), ("other.csv", ("--first-label", first))):
        status, out, _ = charcnn("evaluate", source, *options, model="numbers.safetensors")
        assert (status, out.split(" (")[0]) == (DONE, "accuracy 100.00%")
    hint = f"has label '{4 * first}': if that is a class, add --first-label {first}"
    assert hint in charcnn("evaluate", "last.csv", model="numbers.safetensors")[2]


def test_evaluate_takes_a_number_between_the_classes_for_none(charcnn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params.save("stars.safetensors", params.init(TINY, seed=0), TINY, encoding="crepe", classes=tuple("1245"))
    Path("stars.csv").write_text("label,text\n2,a\n3,a\n")
    status, _, err = charcnn("evaluate", "stars.csv", model="stars.safetensors")
    assert status == UNREADABLE
    assert "row 2, line 3: label '3' is not a class of the model" in err


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory):
    """A model that two z side by side are too much for."""
    path = tmp_path_factory.mktemp("model") / "large.safetensors"
    weights = params.init(TINY, seed=3)
    weights["conv1.weight"][:, 25] = 3e38
    params.save(path, weights, TINY, encoding="crepe", classes=encodings.CLASSES)
    return str(path)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "txt", "parquet"])
def test_a_row_whose_logits_are_not_finite_has_no_label(charcnn, overflowing, tmp_path, suffix):
    source, out = tmp_path / f"in.{suffix}", tmp_path / f"in.labelled.{suffix}"
    given = ["good", "zzzz", "also good"]
    if suffix == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pyarrow.parquet = pytest.importorskip("pyarrow.parquet")
        pyarrow.parquet.write_table(pyarrow.table({"text": given}), source)
    else:
        write = {"csv": str, "txt": str, "jsonl": lambda value: json.dumps({"text": value})}[suffix]
        source.write_text("".join(f"{write(value)}\n" for value in (["text"] if suffix == "csv" else []) + given))
    status, _, err = charcnn("classify", source, model=overflowing)
    assert status == UNREADABLE
    reason = "the logits are not finite: a number outgrew fp32; the weights are too large"
    assert reason in err
    assert "1 row is unreadable and has no label" in err
    note = rows(tmp_path / f"in.labelled.{suffix}.unreadable.csv")
    assert [note[1][0], note[1][2]] == ["2", reason]
    assert len(note) == 2
    if suffix == "parquet":
        found = pyarrow.parquet.read_table(out).to_pylist()
    elif suffix == "jsonl":
        found = [json.loads(line) for line in out.read_text().splitlines()]
    elif suffix == "csv":
        found = [dict(zip(("text", "label", "probability"), row, strict=True)) for row in rows(out)[1:]]
    else:
        found = [
            dict(zip(("label", "probability", "text"), line.split("\t"), strict=True))
            for line in out.read_text().splitlines()
        ]
    assert [row["text"] for row in found] == given
    assert [bool(row["label"]) for row in found] == [True, False, True]
    assert not found[1]["probability"]


def test_evaluate_names_rows_whose_logits_are_not_finite(charcnn, overflowing, tmp_path):
    (tmp_path / "in.csv").write_text("1,good\n2,zzzz\n3,better\n")
    status, out, err = charcnn("evaluate", tmp_path / "in.csv", "--json", tmp_path / "r.json", model=overflowing)
    assert status == UNREADABLE
    assert "of 2 rows" in out
    assert "left out 1 row:\n  row 2, line 2: the logits are not finite" in err
    report = json.loads((tmp_path / "r.json").read_text(), parse_constant=pytest.fail)
    assert (report["rows"], report["left_out"]) == (2, 1)
    (tmp_path / "all.csv").write_text("2,zzzz\n")
    status, out, err = charcnn("evaluate", tmp_path / "all.csv", model=overflowing)
    assert (status, out) == (UNUSABLE, "")
    assert err.rstrip().endswith("the weights are too large; no row of the first 1 can be used")


def test_explain_writes_no_number_that_is_none(charcnn, overflowing):
    status, out, err = charcnn("explain", "zzzz", "--json", model=overflowing)
    assert (status, out) == (UNUSABLE, "")
    assert err.startswith("charcnn explain: text: the logits are not finite")


def test_info_escapes_what_a_model_says_beside(charcnn, tmp_path):
    path = tmp_path / "a.safetensors"
    params.save(path, params.init(TINY), TINY, classes=encodings.CLASSES, note="a\x9b2J\ud800")
    status, out, _ = charcnn("info", "--model", path, model=None)
    assert status == DONE
    assert "2J" in out
    assert out.replace("\n", "").isprintable()


def test_explain(charcnn, classifier, tmp_path):
    status, out, _ = charcnn("explain", "some text", "--json")
    assert status == DONE
    assert len(json.loads(out)["scores"]) == 9
    assert json.loads(out)["label"] == classifier.predict("some text")
    assert charcnn("explain", "some text")[1].endswith("\nsome text\n")
    charcnn("explain", "some text", "--html", tmp_path / "why.html")
    assert (tmp_path / "why.html").read_text().startswith("<!doctype html>")


def test_info(charcnn, weights):
    status, out, _ = charcnn("info", model=None)
    assert status == DONE
    assert "what runs by default, and in each precision" in out
    status = main(["info", "--json", "--model", weights])
    assert status == DONE


def test_what_a_level_changed(charcnn):
    status, out, _ = charcnn("levels", "--diff", "l15", model=None)
    assert status == DONE
    assert out.startswith("--- l14.py\n+++ l15.py\n")
    assert charcnn("levels", "--diff", "l0", model=None)[1] == "l0 is the first level\n"
    status, _, err = charcnn("levels", "--diff", "l99", model=None)
    assert status == UNUSABLE
    assert "--diff l99: need one of l0, l1" in err


def test_levels(charcnn):
    status, out, _ = charcnn("levels", "--json", model=None)
    assert status == DONE
    assert [row["level"] for row in json.loads(out)] == [row.name for row in catalog.LEVELS]
    assert catalog.LEVELS[0].title in charcnn("levels", model=None)[1]
    if not simulator.gpu_present():
        said = {row["level"]: row["runs here"] for row in json.loads(out)}
        for row in catalog.LEVELS:
            on_a_gpu = "emulated" if row.tensor_cores else "simulated"
            assert said[row.name] == (on_a_gpu if row.device == "cuda" else "yes" if runs_here(row) else "no")


def test_completion(charcnn):
    pytest.importorskip("shtab")
    status, out, _ = charcnn("completion", "bash", model=None)
    assert status == DONE
    assert "--probabilities" in out
    assert subprocess.run(["bash", "-n"], input=out.encode(), check=False).returncode == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_and_exit_statuses(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"  charcnn {name}" in out or f"charcnn {name} " in out
    assert "exit status: 0" in out


def test_help_is_quick():
    check = (
        "import charcnn.__main__ as m, sys; m.parser(''); sys.exit('numba' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0
    for name in (
        "classify",
        "evaluate",
        "explain",
        "convert",
        "info",
        "levels",
        "profile",
        "show",
        "tune",
        "compile",
        "completion",
    ):
        check = f"import charcnn.__main__ as m, sys; m.parser('{name}'); sys.exit('numba' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0, name


@pytest.mark.parametrize("level", ["l18", pytest.param("l11", marks=pytest.mark.exhaustive)])
def test_a_first_label_on_the_cpu_waits_for_nothing_that_it_does_not_need(weights, level):
    unneeded = ["numba.cuda", "charcnn.gpu.device", "pyarrow", "mpi4py", "torch"]
    code = f"import atexit; atexit.register(lambda: print(sorted(sys.modules.keys() & {set(unneeded)})))"
    process = command(
        "classify", "-", "--model", weights, "--device", "cpu", "--level", level,
        code=code, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    out, _ = process.communicate(b"a text\n")
    assert process.returncode == DONE
    assert out.splitlines()[0].endswith(b"\ta text")
    assert out.splitlines()[1:] == [b"[]"]


def test_wrong_options_are_unusable(capsys):
    for words in ([], ["classify"], ["nothing"], ["classify", "a", "--batch", "0"], ["classify", "a", "--device", "x"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == UNUSABLE
    capsys.readouterr()


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == DONE
    assert capsys.readouterr().out.startswith("charcnn")


def test_choices_of_options_are_those_of_the_package():
    assert tuple(catalog.PRECISIONS) == model.PRECISIONS


def test_commands_are_the_modules_on_disk():
    shared = {"__init__", "classes", "errors", "evaluate_lists", "inputs", "model", "ranks"}
    shared |= {"sizes", "train_options"}
    assert {path.stem for path in (ROOT / "charcnn" / "cli").glob("*.py")} - shared == set(COMMANDS)


def test_interrupted(weights, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("text\n" * 100_000)
    process = command("classify", source, "--model", weights, code=SLOW, stderr=subprocess.PIPE)
    journal, limit = tmp_path / "in.labelled.txt.part.json", time.monotonic() + 300
    while not journal.exists() and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith(b"charcnn classify: interrupted; ")
    state = json.loads(journal.read_text())["state"]
    assert os.path.getsize(str(journal).removesuffix(".json")) >= state["output"]


@pytest.mark.parametrize("quiet", [False, True])
def test_a_slow_start_is_told_on_a_terminal(monkeypatch, capsys, quiet):
    monkeypatch.setattr(progress, "SLOW", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.told_where_slow(quiet):
        time.sleep(0.2)
    assert ("compiles code for it" in capsys.readouterr().err) == (not quiet)


def test_default_names_of_outputs():
    assert inputs.default_output("a/b.csv") == "a/b.labelled.csv"
    assert inputs.default_output("-") == "-"
