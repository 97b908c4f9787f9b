"""Training: rows read and refused, a network that learns, a kill survived, and what is written."""

import argparse
import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from charcnn.cli import train as command
from charcnn.config import TINY, Config
from charcnn.host.install import module_environment
from charcnn.model import network, params
from charcnn.text.encodings import ENCODINGS
from charcnn.text.layout import Layout
from charcnn.text.readers.open import open_reader
from charcnn.training import data, loop, measure, own, with_torch
from charcnn.training.engines import choose
from charcnn.training.measure import Measured
from charcnn.training.recipe import Recipe

FORWARD = ENCODINGS["forward"]
WORDS = ("goal match team", "bank profit market", "orbit probe rocket")
ENGINES = ("own", "torch")
QUICK = ["--config", "tiny", "--device", "cpu", "--no-curve", "--batch", "16", "--epochs", "3"]


@pytest.fixture(autouse=True)
def _one_thread():
    """The network is tiny, and PyTorch's threads that wait for each other would burn a busy machine's cores."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def engine(name="own", device="cpu"):
    if name == "torch":
        pytest.importorskip("torch", reason="engine torch needs PyTorch")
    return choose(name, device, say=print, warn=print)


def write_rows(path, count=90, seed=0, classes=3):
    """Rows that two words of their class give away."""
    rng = np.random.default_rng(seed)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        for number in range(count):
            words = WORDS[number % classes].split()
            writer.writerow([number % classes + 1, words[rng.integers(3)], f"the {words[rng.integers(3)]} of today"])


def run(*arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


# Rows.


def test_rows_of_every_kind_are_read_alike(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [("Sports", "A title", 'with "quotes", and\na line'), ("World", "", "b")]
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file).writerows([("Category", "title", "description"), *rows])
    records = [{"id": 7, "Category": label, "title": title, "description": text} for label, title, text in rows]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "a.parquet")
    for kind in ("csv", "jsonl", "parquet"):
        read = data.read_rows(tmp_path / f"a.{kind}", FORWARD)
        assert read.texts == [b'A title with "quotes", and\na line', b" b"], kind
        assert read.labels == ["Sports", "World"], kind
        assert read.bad == [], kind
        other = data.read_rows(tmp_path / f"a.{kind}", FORWARD, Layout(("description",), "title"))
        assert (other.labels, [bad.reason for bad in other.bad]) == (["A title"], ["no label"]), kind
        with pytest.raises(ValueError, match=f"a.{kind}: .*column.*title"):
            data.read_rows(tmp_path / f"a.{kind}", FORWARD, Layout(("title",), "title"))


def test_csv_with_no_header_takes_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("text,x,sports\nmore,y,world\n")
    read = data.read_rows(tmp_path / "a.csv", FORWARD, Layout(("1",), "3", header=False))
    assert (read.labels, read.texts, read.lines) == (["sports", "world"], [b"text", b"more"], [1, 2])
    (tmp_path / "b.csv").write_text("2,a,b\n1,c,d\n")
    read = data.read_rows(tmp_path / "b.csv", FORWARD)
    assert (read.labels, read.texts) == (["2", "1"], [b"a b", b"c d"])
    with pytest.raises(ValueError, match=r"a\.csv: no column is called label or class"):
        data.read_rows(tmp_path / "a.csv", FORWARD)
    with pytest.raises(ValueError, match=r"a\.txt: need a name that ends in \.csv"):
        data.read_rows(tmp_path / "a.txt", FORWARD)


@pytest.mark.parametrize(
    ("content", "layout"),
    [
        ("2,a,b\n1,c,d\n", {}),
        ("1234567890,a,b\n1,c,d\n", {}),
        ("2,a\n1,c\n", {"label": "2"}),
        ("2,a,b\n1,c,d\n", {"label": "3", "texts": ("1", "2")}),
        ("words,x,sports\nmore,y,world\n", {"label": "3", "texts": ("1",)}),
        ("text,x,sports\nmore,y,world\n", {"label": "3", "texts": ("1",)}),
        ("text,sports\nmore,world\n", {"label": "2", "header": False}),
        ("id,class,label,text\n7,a,b,c\n", {}),
        ("Label,headline\na,b\n", {}),
        ("id, stars ,review\n7,a,b\n", {"label": "stars", "texts": ("review",)}),
        ("stars,review\na,b\n", {"label": "stars"}),
        ("7,8,9\n1,a,b\n", {"header": True, "label": "2", "texts": ("9",)}),
        ("label;text\na;b,c\n", {"delimiter": ";"}),
    ],
)
def test_columns_are_those_that_evaluate_and_classify_read(tmp_path, content, layout):
    path, layout = tmp_path / "a.csv", Layout(**layout)
    path.write_text(content)
    read = data.read_rows(path, FORWARD, layout)
    with open(path, "rb", buffering=0) as file:
        kind = open_reader("csv", "a.csv", file, layout, FORWARD, rows=9, capacity=1 << 12)
        (block,) = kind.blocks()
        column = kind.texts(block)
        assert (read.labels, read.texts) == (kind.labels(block), column.tolist())


@pytest.mark.parametrize(
    ("content", "layout", "message"),
    [
        ("Nr.;Thema?\n1;a\n", {}, "no column is called label .* it has no header; .*--delimiter ';'"),
        ("a,b\nc,d\n", {}, "its first row names no known column, and has 2 fields, a, b"),
        ("label,text\n1,a\n", {"texts": ("label", "text")}, "no column is called label .* it has label, text"),
        ("label,text\n1,a\n", {"label": "text", "texts": ("2",)}, "column 'text' is both the label and a text"),
        ("1,a\n2,b\n", {"label": "3"}, "has no column '3': it has columns 1 to 2 and no names"),
    ],
)
def test_columns_that_are_not_known_are_asked_for(tmp_path, content, layout, message):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(ValueError, match=f"a.csv: {message}"):
        data.read_rows(tmp_path / "a.csv", FORWARD, Layout(**layout))


def test_bad_rows_are_named_by_line(tmp_path, capsys):
    path = tmp_path / "a.csv"
    write_rows(path)
    good = path.read_text()
    path.write_text(f'1,"a title\nof two lines",b\n,c,d\n2,e\n3, ,\n9,f,g\n{good}')
    assert run("--data", path, "--classes", "a,b,c", "--out", tmp_path / "m.safetensors", *QUICK) == 2
    error = capsys.readouterr().err
    assert "a.csv has 4 bad rows:" in error
    for line in (
        "3: no label",
        "4: 2 fields: need 3",
        "5: no text",
        "6: label '9' is not a class of the model",
    ):
        assert f"line {line}" in error
    assert "--skip-bad-rows leaves them out" in error
    skip = ["--classes", "a,b,c", "--skip-bad-rows", *QUICK]
    assert run("--data", path, "--out", tmp_path / "m.safetensors", *skip) == 0
    assert "a.csv, line 6: left out: label '9' is not a class of the model" in capsys.readouterr().err
    (tmp_path / "a.jsonl").write_text('{"label": 1, "text": "a"}\n{"label"\n[1]\n{"label": 1.5, "text": "b"}\n\n')
    bad = data.read_rows(tmp_path / "a.jsonl", FORWARD).bad
    assert [row.line for row in bad] == [2, 3, 4]
    assert [row.reason for row in bad[1:]] == [
        "an array: need a JSON object",
        "label 1.5: need a text or a whole number",
    ]
    with pytest.raises(ValueError, match=r"has 20 bad rows:\n(.*\n){10}  and 10 more"):
        data.refuse("x", [data.Bad(line, "no label") for line in range(20)])


def test_labels_and_their_names():
    assert data.find_labels(["10", "9", "9"]) == ("9", "10")
    assert data.find_labels(["b", "a", "10"]) == ("10", "a", "b")
    assert data.name_labels(["1", "2"], ["World", "Sports"]) == {"1": 0, "2": 1}
    assert data.name_labels(["World"], ["World", "Sports"]) == {"World": 0, "Sports": 1}
    with pytest.raises(ValueError, match=r"labels 'x', 'y': need a, b, or numbers from 1 to 2"):
        data.name_labels(["x", "y"], ["a", "b"])
    with pytest.raises(ValueError, match=r"holds 'a' twice: need names that differ"):
        data.name_labels(["a"], ["a", "a"])


def test_split_takes_a_share_of_every_class():
    labels = np.array([0] * 60 + [1] * 20 + [2] * 10)
    first, second = data.split(labels, 0.1, 3)
    assert np.bincount(labels[second]).tolist() == [6, 2, 1]
    assert sorted([*first, *second]) == list(range(90))
    assert np.array_equal(second, data.split(labels, 0.1, 3)[1])
    assert not np.array_equal(second, data.split(labels, 0.1, 4)[1])
    with pytest.raises(ValueError, match=r"takes 0 of the 20 rows of class 2"):
        data.split(labels, 0.01, 0)


@pytest.mark.parametrize(
    ("name", "value"), [("epochs", 0), ("batch", True), ("rate", 0.0), ("dropout", 1.0), ("decay", -1.0), ("seed", -1)]
)
def test_recipe_refuses(name, value):
    with pytest.raises(ValueError, match=f"{name}="):
        Recipe(**{name: value})


# Figures.


def test_measured_figures():
    measured = Measured(np.array([[8, 2, 0], [1, 4, 0], [0, 0, 0]]), 0.5)
    assert measured.accuracy == 0.8
    assert measured.balanced == 0.8
    low, high = measured.interval
    assert (round(low, 4), round(high, 4)) == (0.5481, 0.9295)  # Wilson's for 12 of 15
    assert "b (2)" in measured.table(("a", "b", "c"))


# Training.


def examples(count=90, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    texts = [" ".join(rng.permutation(WORDS[label].split())[:2]) for label in labels]
    return data.Examples(np.asarray(data.encode(texts, FORWARD, TINY.length)), labels.astype(np.int64))


def trained(recipe, **options):
    config = Config(length=123, channels=16, units=32, classes=3)
    return loop.train(examples(), examples(30, 1), config, recipe, **{"engine": engine(), **options})


LEARNS = Recipe(epochs=12, batch=16, rate=5e-3, shift_left=0, shift_right=20, dropout=0.1, blank_words=0.1, average=1.0)


@pytest.mark.parametrize("name", ENGINES)
def test_a_network_learns(name):
    result = trained(LEARNS, engine=engine(name))
    assert result.history[-1]["train_loss"] < 0.7 * result.history[0]["train_loss"]
    assert max(row["valid_accuracy"] for row in result.history) > 0.6
    assert [row["epoch"] for row in result.history] == list(range(1, 13))


def test_the_epoch_that_is_kept_is_the_best_and_patience_ends_training():
    recipe = Recipe(epochs=9, batch=16, rate=1e-9, patience=3, leak=0.0)  # it learns nothing
    result = trained(recipe)
    best = max(result.history, key=lambda row: (row["valid_balanced_accuracy"], -row["valid_loss"]))
    assert result.epoch == best["epoch"]
    assert len(result.history) <= min(9, result.epoch + 3)


def test_the_average_of_no_epochs_is_the_last_weights():
    a, b = (trained(Recipe(epochs=2, batch=16, average=average)).arrays for average in (0.0, 1.0))
    assert not np.array_equal(a["conv2.weight"], b["conv2.weight"])


def test_a_class_with_no_example_is_named():
    with pytest.raises(ValueError, match="class 2 has no example"):
        loop.train(examples().part(np.r_[0:90:3]), None, TINY, Recipe(), engine=engine())


def test_a_loss_that_is_no_number_ends_training():
    with pytest.raises(ValueError, match=r"epoch \d: the loss is (nan|inf); try a lower rate"):
        trained(Recipe(epochs=4, batch=16, rate=1e30))


# The command.


def test_command_writes_model_metrics_and_curve(tmp_path, capsys):
    write_rows(tmp_path / "a.csv")
    write_rows(tmp_path / "t.csv", 30, 1)
    pytest.importorskip("matplotlib")
    out = tmp_path / "m.safetensors"
    options = [option for option in QUICK if option != "--no-curve"]
    status = run(
        "--data", tmp_path / "a.csv", "--test", tmp_path / "t.csv", "--classes", "x,y,z", "--out", out, *options
    )
    assert status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.csv",
        "m-curve.png",
        "m-metrics.csv",
        "m.safetensors",
        "t.csv",
    ]
    assert (tmp_path / "m-curve.png").read_bytes().startswith(b"\x89PNG")
    with open(tmp_path / "m-metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert all(0 <= float(row["valid_accuracy"]) <= 1 for row in rows)
    model = params.load(out)
    assert model.classes == ("x", "y", "z")
    assert model.encoding == FORWARD
    assert model.config.classes == 3
    # The accuracy is that of the weights as stored, by the reference network.
    read = data.read_rows(tmp_path / "t.csv", FORWARD)
    ids = data.encode(read.texts, FORWARD, TINY.length)
    right = network.forward(ids, model, model.config).argmax(1) == [int(label) - 1 for label in read.labels]
    assert model.metadata["accuracy"] == model.metadata["test"]["accuracy"] == right.mean()
    assert "test, 30 rows" in capsys.readouterr().out
    assert run("--data", tmp_path / "a.csv", "--out", out, *QUICK) == 2
    assert "already exists: name another output, or add --force" in capsys.readouterr().err


def test_the_model_holds_the_command():
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    words = "--data /a/b.csv --out /c/d.safetensors --classes x,y --decay 0.1 --no-balance --compile --force"
    assert command.spelled(parser.parse_args(words.split())) == (
        "charcnn train --data b.csv --classes x,y --compile --decay 0.1 --no-balance"
    )
    words = "--data b.csv --out d.safetensors --no-header --text-columns 2"
    assert command.spelled(parser.parse_args(words.split())).endswith("--data b.csv --text-columns 2 --no-header")


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    write_rows(tmp_path / "a.csv")
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert run("--data", tmp_path / "a.csv", "--out", tmp_path / f"{name}.safetensors", *QUICK, "--seed", seed) == 0
    a, b, c = ((tmp_path / f"{name}.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c


@pytest.mark.parametrize("name", ["own", pytest.param("torch", marks=pytest.mark.exhaustive)])
def test_killed_training_goes_on_to_the_same_bytes(tmp_path, name):
    write_rows(tmp_path / "a.csv")
    missing = {"own": "torch", "torch": "none"}[name]
    if name == "torch":
        pytest.importorskip("torch", reason="engine torch needs PyTorch")
    whole, killed = tmp_path / "whole.safetensors", tmp_path / "killed.safetensors"

    def start(out, *more):
        """In a process of its own each time, so that nothing that other tests left is part of the arithmetic."""
        options = [
            *QUICK[:-1],
            "8",
            {"own": "--cut", "torch": "--mixup"}[name],
            "0.3",
            "--checkpoint-every",
            "0",
            *more,
        ]
        words = ["train", "--data", tmp_path / "a.csv", "--out", out, *options]
        return subprocess.Popen(
            [sys.executable, Path(__file__).with_name("without.py"), missing, *words],
            env={**module_environment(), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(process):
        out, err = process.communicate()
        return process.returncode, out, err

    undisturbed = start(whole)
    process = start(killed)
    for line in process.stdout:
        if line.startswith("epoch 3/"):
            process.send_signal(signal.SIGKILL)
            break
    process.stdout.close()
    process.stderr.close()
    process.wait()
    checkpoint = tmp_path / "killed.safetensors.checkpoint"
    assert checkpoint.exists()
    assert not killed.exists()
    status, _, err = end(start(killed, "--rate", "0.1"))
    assert status == 2
    assert "rate was 0.001, now 0.1; --restart starts over" in err
    status, out, err = end(start(killed))
    assert status == 0, err
    assert "resumes after epoch" in out
    assert end(undisturbed)[0] == 0
    assert killed.read_bytes() == whole.read_bytes()
    assert not checkpoint.exists()


def test_a_checkpoint_is_of_what_the_options_come_to(tmp_path):
    """Not of what was typed: a default may be named at the second start."""
    write_rows(tmp_path / "a.csv")

    def settings(*more):
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        words = ["--data", tmp_path / "a.csv", "--out", tmp_path / "m.safetensors", "--config", "tiny", "--no-curve"]
        return command._Job(parser.parse_args([str(word) for word in (*words, *more)])).settings

    named = ["--encoding", "forward", "--classes", "1,2,3", "--text-columns", "2,3", "--label-column", "1"]
    named += ["--no-header", "--valid-part", "0.10", "--rate", "1e-3", "--mixup", "0"]
    if own.gpu() is None:
        named += ["--device", "cpu", "--precision", "float32"]
    assert settings(*named) == settings()
    for other in (["--config", "small"], ["--encoding", "crepe"], ["--classes", "a,b,c"], ["--text-columns", "2"]):
        assert settings("--device", "cpu", *other) != settings("--device", "cpu")


@pytest.mark.parametrize("name", ENGINES)
def test_a_checkpoint_with_one_other_bit_is_refused(tmp_path, name):
    path, values, of = tmp_path / "a.checkpoint", np.arange(1000, dtype=np.float32), engine(name)
    best = {"score": [1.0, -0.1], "epoch": 3, "weights": {"a": values}}
    whole = {"format": loop.FORMAT, "settings": {}, "trainer": {"steps": 7}, "history": [{"rate": 0.1}], "best": best}
    path.write_bytes(of.packed(whole))
    found = loop.read_checkpoint(path, {}, of)
    assert np.array_equal(found["best"]["weights"]["a"], values)
    assert (found["trainer"], found["history"]) == (whole["trainer"], whole["history"])
    data = bytearray(path.read_bytes())
    data[data.index(values.tobytes()) + 40] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.checkpoint: not a whole checkpoint \((BadZipFile|ValueError)\)"):
        loop.read_checkpoint(path, {}, of)
    for version in (1.0, 2.0, True, 1, loop.FORMAT):  # of this version, but what else it holds is missing
        path.write_bytes(of.packed({"format": version, "settings": {}, "best": None}))
        with pytest.raises(ValueError, match="not a checkpoint of this version"):
            loop.read_checkpoint(path, {}, of)


def test_a_checkpoint_of_the_other_engine_is_named(tmp_path):
    pytest.importorskip("torch", reason="engine torch needs PyTorch")
    path = tmp_path / "a.checkpoint"
    for name, other in (ENGINES, ENGINES[::-1]):
        state = {"format": loop.FORMAT, "settings": {}, "trainer": {}, "history": [], "best": None}
        path.write_bytes(engine(name).packed(state))
        with pytest.raises(ValueError, match=f"is from engine {name}, not {other}: --engine {name} resumes it"):
            loop.read_checkpoint(path, {}, engine(other))


def test_labels_that_a_terminal_would_trip_over_are_bad_rows(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("good,text\nevil\x1b[2J,text\nalso good,text\n")
    layout = Layout(("2",), "1", False, None)
    found = data.read_rows(path, FORWARD, layout)
    assert found.labels == ["good", "also good"]
    assert [(bad.line, bad.reason.isprintable()) for bad in found.bad] == [(2, True)]
    assert r"label 'evil\x1b[2J' holds a control character" in found.bad[0].reason


@pytest.mark.parametrize("name", ENGINES)
def test_logits_that_are_not_finite_end_a_measurement(name):
    ids, labels, weights = np.full((2, TINY.length), 25, np.uint8), np.zeros(2, np.int64), params.init(TINY)
    found = measure.measured(engine(name).answers(TINY, weights, ids, 1), labels, multi_label=False)
    assert np.isfinite(found.loss)
    weights["fc3.weight"][:] = 3e38
    with pytest.raises(ValueError, match="the network's logits are not finite"):
        measure.measured(engine(name).answers(TINY, weights, ids, 1), labels, multi_label=False)


def test_a_damaged_checkpoint_is_refused(tmp_path, capsys):
    write_rows(tmp_path / "a.csv")
    out = tmp_path / "m.safetensors"
    (tmp_path / "m.safetensors.checkpoint").write_bytes(b"x" * 100)
    assert run("--data", tmp_path / "a.csv", "--out", out, *QUICK) == 2
    assert "not a whole checkpoint" in capsys.readouterr().err
    assert run("--data", tmp_path / "a.csv", "--out", out, *QUICK, "--restart", "--force") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "m.bin"], "need a name that ends in .safetensors"),
        (["--valid-part", "1"], "--valid-part 1"),
        (["--valid-part", "0.001"], "both parts need at least one"),
        (["--epochs", "0"], "epochs=0"),
        (["--out", "nowhere/m.safetensors"], "there is no folder nowhere"),
        (["--label-column", "stars"], "has no column 'stars'"),
        (["--valid", "missing.csv"], "missing.csv"),
        (["--classes", "a"], "at least two"),
    ],
)
def test_command_refuses_before_it_trains(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    write_rows("a.csv")
    assert run("--data", "a.csv", "--out", "m.safetensors", *QUICK, *options) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize(("missing", "extra"), [("torch", "torch"), ("matplotlib", "train")])
def test_a_package_that_is_asked_for_is_named(tmp_path, monkeypatch, capsys, missing, extra):
    write_rows(tmp_path / "a.csv")
    for module in (command, with_torch):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name == missing else True)
    words = ["--data", tmp_path / "a.csv", "--out", tmp_path / "m.safetensors", "--config", "tiny", "--engine", "torch"]
    assert run(*words, "--curve", tmp_path / "c.png") == 2
    assert command.pip_install(extra) in capsys.readouterr().err


def test_the_options_need_no_torch():
    code = (
        "import argparse, sys; from charcnn.cli import train; train.add_arguments(argparse.ArgumentParser());"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent, check=False).returncode == 0


def test_the_model_that_ships_is_whole_and_says_what_it_is():
    path = Path(__file__).parent.parent / "charcnn" / "model" / "weights" / "ag_news.safetensors"
    model = params.load(path)
    assert model.config == Config()
    assert model.encoding == FORWARD
    assert model.classes == ("World", "Sports", "Business", "Sci/Tech")
    assert path.stat().st_size < 24.5e6
    part = "test" if "test" in model.metadata else "validation"
    assert model.metadata["accuracy"] == Measured(np.array(model.metadata[part]["confusion"]), 0.0).accuracy
