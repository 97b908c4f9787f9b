"""Probabilities that a teacher of any kind gives rows: read, checked, learned from, credited."""

import csv

import numpy as np
import pytest
from test_training import QUICK, run, write_rows

import charcnn
from charcnn.config import Config
from charcnn.model import params
from charcnn.training import data, probabilities
from charcnn.training.recipe import Recipe

CLASSES = ("1", "2", "3")
TEXTS = [f"the {word} of today" for word in ("goal", "bank", "orbit")] * 10
LABELS = ["a", "b", "c"] * 10
SMALLEST = {"config": Config(length=123, channels=8, units=16), "device": "cpu", "epochs": 1, "valid": 0}


def drawn(rows=90, classes=3):
    return np.random.default_rng(0).dirichlet(np.ones(classes), rows).astype(np.float32)


def write(path, values, names=CLASSES):
    if path.suffix == ".npy":
        np.save(path, values)
    elif path.suffix == ".npz":
        np.savez(path, probabilities=values, classes=np.array(names))
    elif path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([names, *values.tolist()])
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table(list(values.T), names=list(names)), path)
    return path


@pytest.mark.parametrize("suffix", probabilities.SUFFIXES)
def test_every_kind_of_file_says_the_same(tmp_path, suffix):
    values = drawn()
    found = probabilities.read(write(tmp_path / f"t{suffix}", values), 90, CLASSES)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, values, atol=1e-6)
    if suffix != ".npy":
        path = write(tmp_path / f"turned{suffix}", values[:, ::-1], CLASSES[::-1])
        np.testing.assert_allclose(probabilities.read(path, 90, CLASSES), values, atol=1e-6)
        path = write(tmp_path / f"other{suffix}", values, ("1", "2", "x"))
        with pytest.raises(ValueError, match=f"other{suffix} has no column '3': need one for each class, 1, 2, 3"):
            probabilities.read(path, 90, CLASSES)
    damaged = tmp_path / f"damaged{suffix}"
    damaged.write_bytes(b"a,b\n1,\xff\n")
    with pytest.raises(ValueError, match=f"damaged{suffix}: cannot be read as {suffix}: "):
        probabilities.read(damaged, 90, CLASSES)


def test_arrays_alone_and_pickles(tmp_path):
    np.savez(tmp_path / "one.npz", drawn())
    assert probabilities.read(tmp_path / "one.npz", 90, CLASSES).shape == (90, 3)
    np.savez(tmp_path / "two.npz", a=drawn(), b=drawn())
    with pytest.raises(ValueError, match="need 'probabilities'"):
        probabilities.read(tmp_path / "two.npz", 90, CLASSES)
    np.save(tmp_path / "p.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"cannot be read as \.npy"):
        probabilities.read(tmp_path / "p.npy", 1, CLASSES)
    with pytest.raises(ValueError, match=r"need a name that ends in .npz, .npy, .csv, .parquet"):
        probabilities.read(tmp_path / "p.txt", 1, CLASSES)
    with pytest.raises(FileNotFoundError):
        probabilities.read(tmp_path / "none.npy", 1, CLASSES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v[:-1], r"has the shape \(89, 3\): need 90 rows of 3 probabilities, one a class: 1, 2, 3"),
        (lambda v: v[:, :2], r"has the shape \(90, 2\)"),
        (lambda v: v[0], r"has the shape \(3,\)"),
        (lambda v: np.where(np.arange(90)[:, None] == 7, np.nan, v), "row 8 of 90 holds a value that is not finite"),
        (lambda v: v + np.array([-1, 1, 0]), "row 1 of 90 holds a value below 0"),
        (lambda v: v * 1.01, "row 1 of 90 sums to 1.01: need probabilities, 0 or more, that sum to 1 within 0.001"),
        (lambda v: v.astype(str) + np.array("x"), "need numbers"),
    ],
)
def test_what_are_no_probabilities_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        probabilities.checked("t.npy", change(drawn()), 90, CLASSES)


def test_sums_near_1_are_made_1():
    found = probabilities.checked("t", drawn() * 1.0009, 90, CLASSES)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("cut", [0.0, 0.9])
def test_the_loss_mixes_labels_and_teacher(cut):
    """Of the loss of one step at 0 rate, by hand; of joined texts each has the share of both."""
    torch = pytest.importorskip("torch", reason="engine torch needs PyTorch")
    from charcnn.training.step import Trainer

    count, answers = 8, drawn(8)
    ids = np.random.default_rng(1).integers(0, 70, (count, 123), np.uint8)
    labels = np.arange(count) % 3
    config = Config(length=123, channels=4, units=8, classes=3)

    def losses(teaching, taught):
        still = {"dropout": 0.0, "blank_words": 0.0, "replace_characters": 0.0, "shift_left": 0, "shift_right": 0}
        recipe = Recipe(epochs=1, batch=count, teaching=teaching, smoothing=0.0, leak=0.0, cut=cut, settle=0, **still)
        part = data.Examples(ids, labels, taught=taught)
        trainer = Trainer(part, np.ones(3), config, recipe, torch.device("cpu"), torch.float32, False)
        torch.manual_seed(3)
        for whole, batch in trainer._beside:
            batch.copy_(whole)
        logits, found = trainer._losses(trainer._batch_ids, trainer._batch_labels)
        return logits.detach(), found.detach()

    logits, plain = losses(0.6, None)
    same, mixed = losses(0.6, answers)
    assert torch.equal(logits, same)
    taught = losses(1.0, answers)[1]
    torch.testing.assert_close(mixed, 0.4 * plain + 0.6 * taught)
    hard = losses(1.0, np.eye(3, dtype=np.float32)[labels])[1]
    torch.testing.assert_close(hard, plain)
    if not cut:
        torch.testing.assert_close(taught, -(torch.from_numpy(answers) * logits.log_softmax(1)).sum(1))


def test_the_command_learns_from_a_file_and_credits_the_teacher(tmp_path, capsys):
    write_rows(tmp_path / "a.csv")
    with open(tmp_path / "a.csv", "a") as file:
        file.write('"4","no","such class"\n')
    path = write(tmp_path / "t.npy", drawn(91))
    out = tmp_path / "m.safetensors"
    options = ["--data", tmp_path / "a.csv", "--out", out, *QUICK, "--classes", "1,2,3", "--skip-bad-rows", "--force"]
    assert run(*options) == 0
    alone = params.load(out)
    credit = ["--teacher-name", "MiniLM", "--teacher-license", "Apache-2.0"]
    assert run(*options, "--teacher-probabilities", path, *credit, "--teaching", 0.5) == 0
    taught = params.load(out)
    assert not np.array_equal(alone["fc3.weight"], taught["fc3.weight"])
    said = taught.metadata["training"]["teachers"]
    assert len(said["probabilities"].pop("digest")) == 16
    assert said == {
        "probabilities": {"file": "t.npy"}, "teaching": 0.5, "name": "MiniLM", "license": "Apache-2.0"
    }  # fmt: skip
    assert "--teacher-probabilities t.npy --teacher-name MiniLM" in taught.metadata["training"]["command"]
    capsys.readouterr()
    for wrong, message in (
        (
            ["--teacher-probabilities", write(tmp_path / "short.npy", drawn(90))],
            "short.npy has the shape (90, 3): need 91",
        ),
        (["--teacher-name", "x"], "--teacher-name x: needs --teacher-probabilities or --teachers"),
        (["--teacher-probabilities", path, "--multi-label"], "--teacher-probabilities: teach one label a text"),
        (["--teacher-probabilities", tmp_path / "none.npy"], "No such file"),
    ):
        assert run(*options, *wrong) == 2
        assert message in capsys.readouterr().err


def test_rows_that_are_left_out_take_their_probabilities_along(tmp_path):
    rows = data.TrainingRows([b"a", b"b", b"c"], ["1", "9", "2"], [1, 4, 5], [data.Bad(2, "no label")])
    _, unknown = data.to_examples(rows, {"1": 0, "2": 1}, charcnn.text.encodings.ENCODINGS["forward"], 20)
    assert data.kept(rows, unknown).tolist() == [True, False, False, True]


def test_in_python_an_array_or_a_table():
    values = drawn(30)
    table = {name: values[:, number] for number, name in reversed(list(enumerate("abc")))}
    found = [
        charcnn.train(TEXTS, LABELS, teacher_probabilities=given, teacher_name="t", **SMALLEST)
        for given in (None, values, table)
        if given is not None
    ]
    assert np.array_equal(found[0].params["fc3.weight"], found[1].params["fc3.weight"])
    said = found[0].metadata["training"]["teachers"]
    assert (said["name"], said["teaching"]) == ("t", 0.7)
    for wrong, message in (
        ({"teacher_probabilities": values[:9]}, r"teacher_probabilities has the shape \(9, 3\): need 30 rows of 3"),
        ({"teacher_probabilities": {**table, "d": table["a"]}}, "has a column 'd'"),
        ({"teacher_probabilities": {"a": [1.0]}}, "need 30 values in each column"),
        ({"teacher_license": "MIT"}, "teacher license: there is no teacher to say it of"),
    ):
        with pytest.raises(ValueError, match=message):
            charcnn.train(TEXTS, LABELS, **{**SMALLEST, **wrong})


def test_ngrams_are_weighed_by_the_teacher_too():
    """With all weight on a teacher who turns every label round, so does the network."""
    turned = np.eye(3)[[(("a", "b", "c").index(label) + 1) % 3 for label in LABELS]]
    how = {"device": "cpu", "preset": "laptop", "valid": 0}
    own = charcnn.train(TEXTS, LABELS, **how)
    other = charcnn.train(TEXTS, LABELS, teacher_probabilities=turned, teaching=1.0, **how)
    assert own.predict(TEXTS[:3]).tolist() == ["a", "b", "c"]
    assert other.predict(TEXTS[:3]).tolist() == ["b", "c", "a"]


def test_the_estimator_hands_them_on():
    pytest.importorskip("sklearn")
    from charcnn.sklearn import CharCNNClassifier

    turned = np.eye(3)[[(("a", "b", "c").index(label) + 1) % 3 for label in LABELS]]
    model = CharCNNClassifier(preset="laptop", device="cpu", valid=0, recipe={"teaching": 1.0}, random_state=0)
    model.fit(TEXTS, LABELS, teacher_probabilities=turned, teacher_name="t", teacher_license="MIT")
    assert model.predict(TEXTS[:3]).tolist() == ["b", "c", "a"]
    assert model.classifier_.metadata["training"]["teachers"]["license"] == "MIT"
