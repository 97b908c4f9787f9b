"""Training on rows with several labels each: what is read, split, learned and measured."""

import argparse
import csv
import json

import numpy as np
import pytest

from charcnn.cli import DONE, UNUSABLE
from charcnn.config import TINY, Config
from charcnn.model import params
from charcnn.text import encodings
from charcnn.text.layout import Layout
from charcnn.training import data
from charcnn.training.measure import MultiLabelMeasured, counts_of


def test_rows_and_their_lists(tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("label,text\nb | a,one\n,two\nb,three\n")
    read = data.read_rows(source, encodings.ENCODINGS["forward"], multi_label=True)
    assert read.labels == [("b", "a"), (), ("b",)]
    examples, bad = data.to_examples(read, {"a": 0, "b": 1}, encodings.ENCODINGS["forward"], 123, multi_label=True)
    assert examples.labels.tolist() == [[1, 1], [0, 0], [0, 1]]
    assert not bad
    examples, bad = data.to_examples(read, {"b": 0}, encodings.ENCODINGS["forward"], 123, multi_label=True)
    assert (len(examples), bad) == (2, [data.Bad(2, "label 'a' is not a class of the model")])
    semicolons = data.read_rows(source, encodings.ENCODINGS["forward"], Layout(separator=";"), multi_label=True)
    assert semicolons.labels[0] == ("b | a",)


def test_a_split_that_leaves_a_class_with_none_is_refused():
    labels = np.zeros((20, 2), np.uint8)
    labels[:, 0] = np.arange(20) % 2
    labels[3, 1] = 1
    with pytest.raises(ValueError, match=r"holds no row of class 2: both need at least one"):
        data.split(labels, 0.2, 0)
    labels[:10, 1] = 1
    first, second = data.split(labels, 0.2, 0)
    assert (len(first), len(second)) == (16, 4)
    assert sorted([*first, *second]) == list(range(20))


def test_figures():
    has = np.array([[1, 0, 1], [0, 0, 0], [1, 0, 0], [0, 0, 1]], bool)
    given = np.array([[1, 0, 0], [0, 0, 0], [1, 0, 1], [0, 0, 1]], bool)
    measured = MultiLabelMeasured(counts_of(has, given), 2, 4)
    assert measured.accuracy == 0.5
    np.testing.assert_array_equal(measured.f1, [1, np.nan, 0.5])
    assert measured.macro_f1 == 0.75
    assert measured.micro_f1 == 0.75
    assert "b     " in measured.table(("a", "b", "c"))


WORDS = ("goal match team", "bank profit market", "orbit probe rocket")


def topics(path, count=300, seed=0):
    """Rows with words of the classes that they have."""
    rng = np.random.default_rng(seed)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "text"])
        for _ in range(count):
            own = np.flatnonzero(rng.random(3) < 0.5)
            words = [rng.choice(WORDS[c].split()) for c in own]
            writer.writerow(["|".join("abc"[c] for c in own), " ".join(["the", *words])])


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A model that learned from such rows, and the folder that has them."""
    from charcnn.cli import train

    folder = tmp_path_factory.mktemp("learned")
    topics(folder / "train.csv")
    topics(folder / "test.csv", 100, 1)
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    words = ["--data", folder / "train.csv", "--test", folder / "test.csv", "--out", folder / "m.safetensors"]
    how = "--multi-label --config tiny --device cpu --no-curve --batch 16 --epochs 60 --rate 1e-2 --shift-left 0"
    how += " --shift-right 0 --dropout 0 --blank-words 0 --average 1 --replace-characters 0 --decay 0"
    assert train.run(parser.parse_args([*map(str, words), *how.split()])) == DONE
    return folder


@pytest.mark.exhaustive
def test_a_network_learns_several_labels(learned, charcnn):
    model = params.load(learned / "m.safetensors")
    assert model.config.multi_label
    assert model.classes == ("a", "b", "c")
    said = model.metadata["test"]
    assert said["macro_f1"] > 0.8
    assert "--multi-label" in model.metadata["training"]["command"]
    header = (learned / "m-metrics.csv").read_text().split("\n")[0]
    assert header.endswith(",valid_accuracy,valid_macro_f1")
    report = learned / "r.json"
    path = str(learned / "m.safetensors")
    assert charcnn("evaluate", learned / "test.csv", "--json", report, model=path)[0] == DONE
    value = json.loads(report.read_text())
    assert value["micro_f1"] == pytest.approx(said["micro_f1"], abs=0.02)
    assert value["subset_accuracy"] == pytest.approx(said["accuracy"], abs=0.02)


def test_options_that_do_not_go_together(tmp_path, capsys):
    from charcnn.cli import train
    from charcnn.training import loop
    from charcnn.training.recipe import Recipe

    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    (tmp_path / "train.csv").write_text("label,text\na;b,one\na,two\n")
    words = ["--data", str(tmp_path / "train.csv"), "--out", str(tmp_path / "x.safetensors"), "--label-separator", ";"]
    assert train.run(parser.parse_args(words)) == UNUSABLE
    assert "--label-separator ;: needs --multi-label" in capsys.readouterr().err
    examples = data.Examples(np.zeros((4, 123), np.uint8), np.ones((4, 4), np.uint8))
    with pytest.raises(ValueError, match="balance=True: classes that do not exclude each other"):
        loop.train(examples, None, Config(**TINY.to_dict(), multi_label=True), Recipe(), engine=None)
