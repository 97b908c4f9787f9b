"""What keeps units alive and probabilities honest: schedules, leaks, joined texts, teachers, temperature."""

import argparse
import json

import numpy as np
import pytest
from conftest import by_turns, quick
from test_training import ENGINES, LEARNS, QUICK, TINY, engine, examples, run, trained, write_rows

from charcnn.cli import info
from charcnn.config import Config
from charcnn.model import network, params
from charcnn.ops.reference import softmax
from charcnn.training.measure import Measured, MultiLabelMeasured, calibration_error, fit_temperature
from charcnn.training.recipe import Recipe

torch = pytest.importorskip("torch", reason="training needs PyTorch")

from charcnn.training import augment, fit, loop, start  # noqa: E402
from charcnn.training.network import TrainableNetwork  # noqa: E402
from charcnn.training.schedule import schedule  # noqa: E402
from charcnn.training.step import Trainer  # noqa: E402

RELU_LAYERS = ["conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "fc1", "fc2"]


def test_the_schedule_begins_low_ends_low_and_fades():
    recipe = Recipe(epochs=10, rate=1.0, leak=0.2, leak_until=0.5, settle=0.3, average=2.0)
    rate, leak, changes, follow = schedule(recipe, 20).T
    assert len(rate) == 200
    assert (rate[0], rate.argmax(), rate.max()) == (np.float32(0.04), 60, 1.0)
    assert rate[-1] < 1e-3
    assert (np.diff(rate[:60]) > 0).all()
    assert (np.diff(rate[60:]) < 0).all()
    assert leak[0] == np.float32(0.2)
    assert leak[50] == np.float32(0.1)
    assert not leak[100:].any()
    assert (changes[:140] == 1).all()
    assert changes[170] == 0.5
    assert follow[0] > 0.8
    assert follow[-1] == np.float32(1 / (1 + 199 * 0 + min(40, 200 / 9)))
    plain = schedule(Recipe(epochs=1, settle=0.0, leak=0.0), 1)
    assert np.isfinite(plain).all()
    assert plain[:, 1:3].tolist() == [[0, 1]]


def test_changes_fade():
    ids = torch.randint(0, 9, (40, 60), dtype=torch.uint8)
    assert torch.equal(augment.shift(ids, 9, 5, 8, torch.tensor(0.0)), ids)
    half = augment.shift(ids, 9, 8, 8, torch.tensor(0.5))
    assert torch.equal(half[:, 4:], ids[:, :-4])
    assert torch.equal(augment.blank_words(ids, 9, torch.tensor(0.0)), ids)


def test_joined_texts_say_how_much_is_their_own():
    ids, others = torch.full((500, 40), 1, dtype=torch.uint8), torch.full((500, 40), 2, dtype=torch.uint8)
    ids[:, 20:], others[:, 30:] = 9, 9
    torch.manual_seed(0)
    joined, share = augment.join(ids, others, 9, 0.6)
    whole = (share == 1).float().mean()
    assert 0.3 < whole < 0.5
    assert torch.equal(joined[share == 1], ids[share == 1])
    for row, own in zip(joined[share < 1], share[share < 1], strict=True):
        begin = int((row == 1).sum())
        assert begin < 20
        assert (row[begin:30] == 2).all()
        assert (row[30:] == 9).all()
        assert own == pytest.approx(begin / 30)
    blank = torch.full((1, 40), 9, dtype=torch.uint8)
    assert augment.join(blank, blank, 9, 1.0)[1].tolist() == [1.0]


def test_a_leak_lets_a_dead_network_learn():
    config = Config(length=123, channels=4, units=8)
    ids, gradients = torch.randint(0, 70, (4, 123), dtype=torch.uint8), []
    for leak in (0.0, 0.1):
        model = TrainableNetwork(config, 0.0, torch.float32, leaky=True).train()
        model.load(start.initialised(config, 0))
        with torch.no_grad():
            model.conv2_bias.fill_(-100)  # all its channels are below 0 for any text
        model.leak = torch.tensor(leak)
        model(ids).sum().backward()
        gradients.append(float(model.conv2_weight.grad.abs().max()))
        assert model.firing(ids)["conv2"].any() == False  # noqa: E712 - a tensor
        left = model.eval()(ids)
        model.leak = torch.tensor(0.5)
        assert torch.equal(model(ids), left), "what is measured has no leak"
    assert gradients[0] == 0
    assert gradients[1] > 0


def test_live_channels_are_those_of_the_reference():
    config = Config(length=123, channels=6, units=8)
    weights = params.init(config, 3)
    weights["conv2.bias"][:4] -= 50
    weights["fc1.bias"][1] -= 50
    model = TrainableNetwork(config, 0.0, torch.float32)
    model.load(weights)
    part = examples(30)
    found, expected = model.live(part.ids, 7), {}
    assert engine().live(config, weights, part.ids, 7) == found
    x = part.ids
    for node in config.nodes:
        x = network.run([node], x, weights)
        if type(node.layer).__name__ in ("Conv1d", "Linear"):
            last = node.layer.name
        if type(node.layer).__name__ == "Relu":
            expected[last] = int((x > 0).any(axis=(0, *range(2, x.ndim))).sum())
    assert list(found) == RELU_LAYERS
    assert found == expected
    assert found["conv2"] <= 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ENGINES)
def test_a_student_learns_from_its_teachers(name):
    """It learns with no label of its own: all of its loss is what they answer."""
    teacher = trained(LEARNS).arrays
    config = Config(length=123, channels=16, units=32, classes=3)
    cpu = {"engine": engine(name)}
    recipe = Recipe(**{**LEARNS.to_dict(), "teaching": 1.0, "seed": 9})
    unlabelled = examples()
    unlabelled.labels[:] = np.random.default_rng(0).permutation(unlabelled.labels)
    alone = loop.train(unlabelled, examples(30, 1), config, recipe, **cpu)
    taught = loop.train(unlabelled, examples(30, 1), config, recipe, teachers=[teacher], **cpu)
    best = [max(row["valid_accuracy"] for row in of.history) for of in (alone, taught)]
    assert best[1] > max(0.6, best[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_a_replayed_step_is_the_step_as_written(compiled):
    still = {
        "dropout": 0.0,
        "blank_words": 0.0,
        "replace_characters": 0.0,
        "shift_left": 0,
        "shift_right": 0,
        "cut": 0.0,
    }
    recipe, part = Recipe(**{**LEARNS.to_dict(), **still}), examples()
    config, found = Config(length=123, channels=16, units=32, classes=3), []
    for eager in (False, True):
        trainer = Trainer(part, np.ones(3), config, recipe, torch.device("cuda"), torch.float32, compiled)
        if eager:
            trainer._eager = 10**6
        losses = [trainer.epoch(number)[0] for number in range(1, 4)]
        assert (trainer._graph is None) == eager
        found.append((losses, trainer.average.arrays()["fc1.weight"]))
    (losses, weights), (expected, written) = found
    assert losses == pytest.approx(expected, rel=1e-3)
    assert np.abs(weights - written).max() < 1e-3 * np.abs(written).max()


def test_temperature_and_calibration_error():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (20_000, 4))
    labels = (softmax(logits).cumsum(1) < rng.random((20_000, 1))).sum(1)
    assert fit_temperature(logits, labels) == pytest.approx(1, abs=0.03)
    assert fit_temperature(3 * logits, labels) == pytest.approx(3, abs=0.1)
    assert calibration_error(logits, labels) < 0.015
    assert calibration_error(3 * logits, labels) > 0.1
    sure = np.array([[100.0, 0], [100.0, 0]])
    assert calibration_error(sure, np.array([0, 1])) == pytest.approx(0.5)


def test_a_prior_holds_the_temperature_where_rows_tell_little():
    sure, right = np.tile([[100.0, 0]], (30, 1)), np.zeros(30, np.int64)
    assert fit_temperature(sure, right) == pytest.approx(1, abs=0.01), "all are right: no temperature is likelier"
    assert 0.1 < fit_temperature(sure / 100, right) < 0.5, "nor does a low one make them certain"
    assert fit_temperature(sure[:19], right[:19]) is None, "too few"
    assert fit_temperature(sure, 1 - right) is None, "none is right"


@by_turns
def test_no_temperature_is_said_and_none_is_published(tmp_path, capsys, monkeypatch):
    write_rows(tmp_path / "a.csv")
    out = tmp_path / "m.safetensors"
    monkeypatch.setattr(fit, "fit_temperature", lambda logits, labels: None)
    assert run("--data", tmp_path / "a.csv", "--out", out, *QUICK) == 0
    said = capsys.readouterr()
    assert "warning: fewer than 20 validation rows tell no temperature" in said.err
    assert ", not calibrated" in said.out
    assert "calibration error" not in said.out
    metadata = params.load(out).metadata
    assert "calibration" not in metadata
    assert "calibration_error" not in metadata["validation"]


def test_the_command_trains_teachers_calibrates_and_counts(tmp_path, capsys, monkeypatch):
    write_rows(tmp_path / "a.csv")
    monkeypatch.setattr(fit, "fit_temperature", lambda logits, labels: 2.0)  # of so few rows it would be none
    out, plain, kept = (tmp_path / f"{name}.safetensors" for name in ("m", "plain", "kept"))
    assert run("--data", tmp_path / "a.csv", "--out", out, *QUICK, "--teachers", 2, "--teacher-epochs", 2) == 0
    shown = capsys.readouterr().out
    assert "teacher 2/2: epoch 2/2" in shown
    assert "temperature" in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "m-metrics.csv", "m.safetensors"]
    model = params.load(out)
    assert model.metadata["training"]["teachers"] == {"count": 2, "epochs": 2}
    assert list(model.metadata["live"]) == ["rows", *RELU_LAYERS]
    assert 0 <= model.metadata["validation"]["calibration_error"] <= 1
    assert run("--data", tmp_path / "a.csv", "--out", plain, *QUICK, "--no-calibration") == 0
    assert "calibration" not in params.load(plain).metadata
    options = ["--data", tmp_path / "a.csv", "--out", kept, *QUICK]
    assert run(*options, "--teachers", 1, "--keep-teachers") == 0
    first = tmp_path / "kept-teacher-1.safetensors"
    assert run("--data", tmp_path / "a.csv", "--out", tmp_path / "b.safetensors", *QUICK, "--teachers", first) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        out.rename("n-teacher-1.safetensors")
        assert run("--data", "a.csv", "--out", "n.safetensors", *QUICK, "--teachers", 1) == 2
        assert "n-teacher-1.safetensors already exists, and no interrupted training" in capsys.readouterr().err
        (tmp_path / "n-teacher-1.safetensors").rename(out)
    parser = argparse.ArgumentParser()
    info.add_arguments(parser)
    capsys.readouterr()
    assert info.run(parser.parse_args([str(out)])) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("live"))
    assert f"conv2 {model.metadata['live']['conv2']} of {TINY.channels}" in line
    assert info.run(parser.parse_args([str(first), "--json"])) == 0
    assert json.loads(capsys.readouterr().out)["model"]["config"]["channels"] == TINY.channels


def test_teachers_from_files(tmp_path, capsys):
    write_rows(tmp_path / "a.csv")
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    assert run("--data", tmp_path / "a.csv", "--out", one, *QUICK) == 0
    assert run("--data", tmp_path / "a.csv", "--out", two, *QUICK, "--teachers", one, "--seed", 1) == 0
    assert params.load(two).metadata["training"]["teachers"]["files"] == ["one.safetensors"]
    other = tmp_path / "other.safetensors"
    params.save(
        other, params.init(Config(length=130, channels=4, units=8, classes=3)), Config(130, 70, 4, units=8, classes=3)
    )
    capsys.readouterr()
    for teachers, message in (
        (other, "is for Config(length=130"),
        (f"{one},", "need a number, or files with commas"),
        (tmp_path / "none.safetensors", "No such file"),
    ):
        assert run("--data", tmp_path / "a.csv", "--out", two, "--force", *QUICK, "--teachers", teachers) == 2
        assert message in capsys.readouterr().err


@quick(lambda: False, everywhere=False)  # files and processes: a machine without a GPU sees them, in half a minute less
def test_a_teacher_that_is_there_since_before_a_kill_is_not_trained_anew(tmp_path, capsys, monkeypatch):
    write_rows(tmp_path / "a.csv")
    whole, killed = tmp_path / "whole.safetensors", tmp_path / "killed.safetensors"
    options = ["--data", tmp_path / "a.csv", *QUICK, "--teachers", 2, "--checkpoint-every", 0]
    assert run(*options, "--out", whole) == 0
    fit, calls = loop.train, []

    def dies(*args, **kwargs):
        calls.append(kwargs["checkpoint"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return fit(*args, **kwargs)

    monkeypatch.setattr(loop, "train", dies)
    with pytest.raises(KeyboardInterrupt):  # the command says what is kept, in `main`
        run(*options, "--out", killed)
    capsys.readouterr()
    assert run(*options, "--out", killed) == 0
    assert "teacher 1/2: read from" in capsys.readouterr().out
    assert len(calls) == 4
    assert killed.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*teacher*"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"leak": 1.0}, "leak=1.0: need at least 0 and less than 1"),
        ({"settle": 1.5}, "settle=1.5: need a number from 0 to 1"),
        ({"clip": -1.0}, "clip=-1.0: need 0 or more"),
        ({"mixup": 0.2, "cut": 0.5}, "need one of them to be 0"),
    ],
)
def test_the_recipe_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**fields)


@pytest.mark.parametrize("options", [(), ("--multi-label",), ("--valid-part", "0")])
def test_what_learned_nothing_says_so(tmp_path, capsys, options):
    write_rows(tmp_path / "a.csv")
    out, still = tmp_path / "m.safetensors", ("--epochs", 1, "--rate", 1e-9, "--force")
    assert run("--data", tmp_path / "a.csv", "--out", out, *QUICK, *still, *options) == 0
    err = capsys.readouterr().err
    few = "9 validation rows are too few to tell whether anything was learned: "
    assert f"charcnn train: warning: {few if not options else 'nothing was learned: '}" in err
    assert "may need other options: --batch 16" in err
    assert ("always naming 1 would make it 33.33 %" in err) == ("--multi-label" not in options)


def test_more_right_answers_than_by_chance():
    assert Measured(np.diag([5, 5]), 0.0).learned
    assert not Measured(np.array([[9, 0, 0], [5, 0, 0], [6, 0, 0]]), 0.0).learned, "one class for all"
    assert not Measured(np.array([[5, 4], [4, 5]]), 0.0).learned
    assert Measured(np.array([[850, 100], [10, 40]]), 0.0).learned, "fewer than the first class alone"
    has, none = np.array([5, 5]), np.array([0, 0])
    assert MultiLabelMeasured(np.array([has, has, has]), 10, 10).learned
    assert not MultiLabelMeasured(np.array([has, none, none]), 0, 10).learned
