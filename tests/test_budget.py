"""A budget of wall time that a training keeps, and the convolutions that it begins with."""

import numpy as np
import pytest
from conftest import by_turns
from test_training import QUICK, engine, examples, run, write_rows

import charcnn
from charcnn.config import TINY, Config
from charcnn.model import params, shipped
from charcnn.text.encodings import ENCODINGS
from charcnn.training import budget as module
from charcnn.training import loop, passes, start
from charcnn.training.budget import Budget, Pace
from charcnn.training.recipe import Recipe
from charcnn.training.schedule import schedule
from charcnn.training.steps import OwnTrainer

SMALLEST = Config(length=123, channels=8, units=16, classes=3)
RECIPE = Recipe(batch=16, leak=0.0)


class Clock:
    """Time passes where a step is taken, and nowhere else."""

    def __init__(self, seconds):
        self.now, self.seconds = 0.0, seconds

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock, one = Clock(1.0), OwnTrainer._one

    def timed(self, step):
        one(self, step)
        clock.now += clock.seconds

    monkeypatch.setattr(OwnTrainer, "_one", timed)
    return clock


def trained(clock, minutes, **options):
    return loop.train(examples(), None, SMALLEST, RECIPE, budget=Budget(minutes, clock), engine=engine(), **options)


def test_passes_fill_what_is_left():
    clock = Clock(0)
    assert Budget(10, clock).passes(0, steps=30, step=1.0, measure=0.0, after=0.0) == (19, 30)
    assert Budget(10, clock).passes(19, steps=30, step=1.0, measure=30.0, after=0.0) == (9, 30)
    assert Budget(10, clock).passes(0, steps=3000, step=1.0, measure=0.0, after=0.0) == (8, 72), "less than an epoch"
    assert Budget(10, clock).passes(7, steps=3000, step=1.0, measure=0.0, after=100.0) == (1, 485)
    assert Budget(1, clock).passes(0, steps=9, step=20.0, measure=0.0, after=0.0) == (2, 1), "fewer steps than passes"
    assert Budget(1, clock).passes(0, steps=9, step=61.0, measure=0.0, after=0.0) == (0, 0)


@pytest.mark.parametrize("minutes", [0, -1, float("inf"), float("nan"), True, "1"])
def test_minutes_are_more_than_none(minutes):
    with pytest.raises(ValueError, match="need more than 0"):
        Budget(minutes)


def test_a_training_ends_with_its_budget_and_so_does_the_rate(clock):
    rows, said = examples(), []
    result = trained(clock, 2, on_epoch=lambda history, epochs: said.append(epochs))
    assert 100 < clock.now <= 120
    assert len(result.history) == said[-1] == 19, "six steps are an epoch"
    assert result.history[-1]["rate"] < 0.05 * max(row["rate"] for row in result.history)
    assert len(rows) == 90


def test_a_machine_that_becomes_slow_shortens_the_plan(clock):
    def slower(history, epochs):
        clock.seconds = 3.0 if len(history) >= 4 else 1.0

    result = trained(clock, 2, on_epoch=slower)
    assert 100 < clock.now <= 120
    assert 8 <= len(result.history) < 14
    assert result.history[-1]["rate"] < 0.2 * max(row["rate"] for row in result.history)


def test_less_than_an_epoch_is_split_and_measured(clock, monkeypatch):
    monkeypatch.setattr(module, "PASSES", 3)
    clock.seconds = 12.0
    result = loop.train(examples(), examples(30, 1), SMALLEST, RECIPE, budget=Budget(3, clock), engine=engine())
    assert [row["epoch"] for row in result.history] == [1, 2, 3]
    assert all("valid_loss" in row for row in result.history)
    with pytest.raises(ValueError, match=r"minutes=0\.1: a step takes 12 s here"):
        trained(clock, 0.1)


@by_turns
def test_a_training_by_budget_resumes_with_what_was_left(clock, tmp_path):
    path = tmp_path / "checkpoint"

    def dies(history, epochs):
        if len(history) == 6:
            raise KeyboardInterrupt

    options = {"checkpoint": path, "interval": 0.0, "settings": {}}
    with pytest.raises(KeyboardInterrupt):
        trained(clock, 2, on_epoch=dies, **options)
    kept = loop.read_checkpoint(path, {}, engine())
    left, clock.now = kept["pace"]["left"], 10_000.0  # a night
    begun = clock.now
    result = trained(clock, 2, saved=kept, **options)
    assert clock.now - begun <= left
    assert len(result.history) > 12
    assert result.history[-1]["rate"] < 0.1 * max(row["rate"] for row in result.history)


def test_the_schedule_goes_on_from_a_share():
    recipe = Recipe(epochs=10)
    whole = schedule(recipe, 20)
    np.testing.assert_allclose(schedule(recipe, 20, 150, 0.25, 50), whole[50:], rtol=1e-5)
    assert passes.schedule(recipe, 20, 75, 0.25, 50)[-1, 0] < 0.01 * recipe.rate


def test_the_command_takes_minutes(tmp_path, capsys, monkeypatch):
    write_rows(tmp_path / "a.csv")
    out = tmp_path / "m.safetensors"
    options = ["--data", tmp_path / "a.csv", "--out", out, *QUICK[:-2], "--minutes", 9]
    planned = Budget.passes
    monkeypatch.setattr(
        Budget, "passes", lambda self, done, *rest: (3 - done, 6) if done else planned(self, done, *rest)
    )
    assert run(*options) == 0
    said = params.load(out).metadata["training"]
    assert (said["minutes"], said["recipe"]["epochs"]) == (9, 3)
    assert run(*options, "--force", "--epochs", 2) == 2
    assert "--minutes 9: it says how many epochs; leave out --epochs" in capsys.readouterr().err
    assert run(*options, "--force", "--teachers", 2) == 2
    assert run(*options, "--force", "--minutes", 0) == 2
    assert "minutes=0.0: need more than 0" in capsys.readouterr().err


# Convolutions of another model.


def test_the_model_that_ships_is_known_by_name():
    model = start.read("accurate", ENCODINGS["forward"], None)
    assert start.sizes(model).length == 1014
    with pytest.raises(ValueError, match="no such model: need a file, or a model that ships: fast, accurate, sparse"):
        shipped.load("no such model")


def test_convolutions_are_taken_and_the_rest_is_not():
    model = params.Params(params.init(TINY, 1), TINY, ENCODINGS["forward"])
    model.metadata["name"] = "tiny"
    shorter = Config(**{**TINY.to_dict(), "length": 123, "classes": 9})
    arrays = params.init(shorter, 2)
    found = start.begun(arrays, model)
    for name, value in found.items():
        if name.startswith("conv"):
            assert np.array_equal(value, model[name])
        elif name.startswith("norm"):
            assert np.array_equal(value, model[name][:, : value.shape[1]])
        else:
            assert np.array_equal(value, arrays[name])


def test_a_training_begins_with_them(tmp_path, capsys):
    write_rows(tmp_path / "a.csv")
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    options = ["--data", tmp_path / "a.csv", *QUICK, "--force"]
    assert run(*options, "--out", first) == 0
    model = params.load(first)
    still = ["--rate", 1e-12, "--decay", 0, "--valid-part", 0, "--store", "float32", "--init", first]
    assert run(*options, "--out", second, *still) == 0
    found = params.load(second)
    np.testing.assert_allclose(found["conv3.weight"], model["conv3.weight"], atol=1e-6)
    assert not np.allclose(found["fc2.weight"], model["fc2.weight"], atol=1e-3)
    assert found.metadata["training"]["start"] == {"convolutions": str(first), "digest": params.digest(model)}
    capsys.readouterr()
    for wrong, message in (
        (["--preset", "laptop"], "it says the sizes; leave out --config"),
        (["--encoding", "bytes"], "the model has the encoding forward, not bytes"),
        (["--config", '{"length": 123, "channels": 8, "units": 16}'], "the model's convolutions have channels"),
        (["--init", "none.pt"], "No such file"),
    ):
        assert run(*options, "--out", second, *still, *wrong) == 2
        assert message in capsys.readouterr().err


def test_in_python():
    texts, labels = [f"the {word} of today" for word in ("goal", "bank", "orbit")] * 10, ["a", "b", "c"] * 10
    own = Config(length=123, channels=8, units=16)
    for wrong, message in (
        ({"minutes": 0}, "minutes=0: need more than 0"),
        ({"minutes": 1, "epochs": 2}, "minutes=1: it says how many epochs; leave out epochs=2"),
        ({"init": "accurate", "preset": "laptop"}, "preset='laptop': it says the sizes; leave it or init out"),
        ({"init": "accurate", "config": own}, r"init accurate: the model's convolutions have channels \(256"),
    ):
        with pytest.raises(ValueError, match=message):
            charcnn.train(texts, labels, **wrong)


def test_a_pace_needs_a_step(clock):
    trainer = engine().trainer(examples(), np.ones(3), SMALLEST, RECIPE, [], None)
    pace = Pace(Budget(1, clock), trainer, (90, 0, 90), None)
    assert pace.state()["step"] == 1.0
    assert clock.now == 3.0, "two hundredths of the budget are spent on that, behind a first step"
    assert pace.state()["row"] == pytest.approx(6 / 90 / 3)
