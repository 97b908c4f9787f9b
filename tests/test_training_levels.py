"""Levels that train: their steps against PyTorch's, their checks, their command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import by_turns, quick, runs_here

from charcnn import SMALL, TINY, layers
from charcnn.catalog import TRAINING_LEVELS, training_level
from charcnn.gpu import device
from charcnn.layers import place
from charcnn.levels.runner import training as runner
from charcnn.levels.runner.level_options import config_of
from charcnn.model import gradient_errors, gradients, params
from charcnn.model.rounding import ROUNDINGS
from charcnn.ops import reference
from charcnn.ops.adamw import ParameterGroup
from charcnn.runtime.training import Training, counted

ROOT = Path(__file__).parents[1]
LEVELS = [row for row in TRAINING_LEVELS if runs_here(row)]
EACH = pytest.mark.parametrize("row", LEVELS, ids=lambda row: row.name)
FEW = quick(lambda row: not row.ranks or row is LEVELS[-1])
"""Of those for several ranks, the last: on one rank they compute alike, as test_sharded_training has it."""


def drawn(config=TINY, n=5, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, config.alphabet + 1, (n, config.length), np.uint8)
    return ids, rng.dirichlet(np.ones(config.classes), n).astype(np.float32)


def mixed(row):
    """Whether it computes in bf16 here."""
    return row.tensor_cores or (row.mixed and device.sees_hopper())


def smallest(row):
    return config_of("tiny", row)


def command(name, *options):
    return subprocess.run(
        [sys.executable, "-m", f"charcnn.levels.{name}", *map(str, options)],
        capture_output=True, text=True, cwd=ROOT, timeout=300, check=False,
    )  # fmt: skip


def test_levels_are_the_modules_on_disk():
    on_disk = {path.stem for path in (ROOT / "charcnn" / "levels").glob("t[0-9]*.py")}
    assert [row.name for row in TRAINING_LEVELS] == sorted(on_disk, key=lambda name: int(name[1:]))
    assert all(row.title and row.module.__doc__ and training_level(row.name) is row for row in TRAINING_LEVELS)
    assert all(row.family == TRAINING_LEVELS for row in TRAINING_LEVELS)
    assert all((ROOT / "docs" / "levels" / f"{row.name}.md").is_file() for row in TRAINING_LEVELS)


@EACH
@FEW
def test_ten_steps_as_pytorch(row):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    from test_gradients import torch_forward

    config = smallest(row)
    weights = params.init(config, 3)
    training = row.module.build(weights, config, batch=5)
    held = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    optimiser, found, expected = torch.optim.AdamW(held.values()), [], []
    for seed in range(10):
        ids, targets = drawn(config, seed=seed)
        found.append(training.fetched(training.step(ids, targets, rate=0.5 + seed / 10)).mean())
        one_hot = torch.from_numpy(reference.one_hot(ids, config.alphabet))
        logits = torch_forward(torch, config.nodes[1:], one_hot, held)
        loss = -(torch.log_softmax(logits, 1) * torch.from_numpy(targets)).sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(held.values(), 1.0)
        optimiser.param_groups[0]["lr"] = 1e-3 * (0.5 + seed / 10)
        optimiser.step()
        expected.append(loss.item())
    np.testing.assert_allclose(found, expected, rtol=6e-2 if mixed(row) else 1e-5)  # its own bf16 is up to 2.4e-2 off
    for name, array in (
        {} if mixed(row) else training.params
    ).items():  # of few values, what bf16 picks otherwise is much
        moved = np.linalg.norm(held[name].detach().numpy() - weights[name])
        assert np.linalg.norm(array - held[name].detach().numpy()) <= 1e-3 * moved, name


@EACH
@FEW
def test_the_same_bits_twice(row):
    found = []
    for _ in range(2):
        config = smallest(row)
        training = row.module.build(params.init(config, 1), config, batch=5)
        for seed in range(3):
            training.step(*drawn(config, n=5 - seed, seed=seed))
        found.append(b"".join(array.tobytes() for array in training.params.values()))
    assert found[0] == found[1]


@EACH
@by_turns
def test_the_command(row, tmp_path):
    file = tmp_path / "report.json"
    done = command(row.name, "--config", "tiny", "--inputs", 3, "--json", file)
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert report["level"] == row.name
    assert report["inputs"] == 3
    assert len(report["losses"]) == 3
    assert report["losses"][-1] < report["losses"][0]
    held, count = report["memory_bytes"], report["memory_counted"]
    if mixed(row):  # each parameter begins at a multiple of 128 bytes
        assert all(size <= held[kind] <= 1.03 * size for kind, size in count.items() if kind != "workspace")
    elif not row.ranks:
        assert held == count == counted(TINY.nodes, 3)
    assert report["validation"]["passed"]
    assert 0 < report["validation"]["sigmas"] < 3
    assert "float64 reference, after 0 and 3 steps" in done.stdout
    assert (report["samples_per_second"] is None) == report["simulated"]


@EACH
@quick(lambda row: row is LEVELS[0])
def test_texts_without_labels(row, tmp_path, ended):
    file = tmp_path / "texts.txt"
    file.write_text("one\ntwo\n")
    done = ended(runner.main, row.module.build, ["--config", "tiny", "--text", str(file)])
    assert done.returncode == 2
    assert done.stderr.strip().endswith("has no labels: need some to train on")


def test_a_wrong_gradient_fails(monkeypatch, tmp_path):
    """One value of one weight's, off by a thousandth of the largest."""
    from charcnn.levels import t0

    right = Training.loss_and_gradients

    def wrong(self, x, targets):
        loss, found = right(self, x, targets)
        found["conv3.weight"][0, 0, 0] += 1e-3 * abs(found["conv3.weight"]).max()
        return loss, found

    monkeypatch.setattr(Training, "loss_and_gradients", wrong)
    monkeypatch.setattr(t0.build, "__module__", "charcnn.levels.t0")
    file = tmp_path / "report.json"
    with pytest.raises(SystemExit) as ended:
        runner.main(t0.build, ["--config", "tiny", "--inputs", "3", "--json", str(file)])
    assert ended.value.code == runner.FAILED
    assert json.loads(file.read_text())["validation"]["worst"] == "conv3.weight"


PIXELS = layers.Pixels(2, 9, 8, (0.4, 0.5), (0.3, 0.2))
MOVED = (
    layers.Conv2d(4, 3, padding=1, bias=False, name="conv1"), layers.Relu(), layers.MaxPool2d(3, 2, 1),
    layers.Conv2d(6, (2, 3), (2, 1), "same", groups=2, name="conv2"), layers.Relu(), layers.Flatten(),
    layers.Linear(5, name="fc1"), layers.Relu(), layers.Linear(3, name="fc2"), layers.Softmax(),
)  # fmt: skip
"""Strides, padding, groups, no bias, and probabilities last."""
OTHERS = (
    layers.Conv2d(4, 3, name="conv1"), layers.BatchNorm2d(name="norm1"), layers.Tanh(), layers.AvgPool2d(3, 2, 1),
    layers.LocalResponseNorm(3, 0.5, 0.7, 1.5), layers.Conv2d(5, 2, name="conv2"), layers.Gelu(),
    layers.GlobalAvgPool2d(), layers.Linear(4, name="fc1"), layers.Sigmoid(), layers.Linear(4, name="fc2"),
    layers.LeakyRelu(0.2), layers.Linear(3, name="fc3"),
)  # fmt: skip
"""What other networks of images have between products."""


@quick(lambda technique, follow: (technique, follow) == ("naive", MOVED))
@pytest.mark.parametrize("technique", ["loops", "naive"])
@pytest.mark.parametrize("follow", [MOVED, OTHERS], ids=["moved", "others"])
def test_images_train(technique, follow):
    """Three steps, each in sigmas."""
    nodes = place((PIXELS, *follow), (144,))
    rng = np.random.default_rng(0)
    weights = {name: (rng.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1))).astype(np.float32)
               for node in nodes for name, shape in node.parameters.items()}  # fmt: skip
    weights |= {name: abs(value) for name, value in weights.items() if name.endswith("running_var")}
    rows, targets = rng.integers(0, 256, (4, 144), np.uint8), np.eye(3, dtype=np.float32)[[0, 1, 2, 1]]
    training, losses = Training(nodes, weights, 4, technique, group=ParameterGroup(0, lr=1e-2)), []
    assert training.memory == counted(nodes, 4)
    for _ in range(3):
        loss, found = training.loss_and_gradients(rows, targets)
        exact, sigma = gradient_errors.expected(nodes, rows, targets, weights | training.params)
        errors = gradient_errors.in_sigmas({"loss": np.array(loss), **found}, exact, sigma)
        assert errors.keys() == {"loss", *(name for name in weights if "running" not in name)}
        assert max(errors.values()) <= ROUNDINGS["fp32"].bound
        losses.append(training.fetched(training.step(rows, targets)).mean())
    assert losses[2] < losses[1] < losses[0]


@pytest.mark.parametrize("technique", [pytest.param("loops", marks=pytest.mark.exhaustive), "naive"])
def test_encoders_train(technique):
    """Embeddings, attention, residuals: gradients and three steps."""
    from test_gradients import drawn as drawn_of
    from test_gradients import encoder

    nodes = encoder(causal=True)
    _, targets, weights = drawn_of(nodes, 3, 1)
    ids, targets = np.random.default_rng(0).integers(0, 11, (3, 4), np.int32), targets.astype(np.float32)
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    training, losses = Training(nodes, weights, 3, technique, group=ParameterGroup(0, lr=1e-3)), []
    for _ in range(3):
        loss, found = training.loss_and_gradients(ids, targets)
        exact_loss, exact = gradients.loss_and_gradients(nodes, ids, targets, training.params)
        assert loss == pytest.approx(exact_loss, rel=1e-6)
        assert found.keys() == exact.keys()
        for name, array in found.items():
            scale = abs(exact[name]).max()
            np.testing.assert_allclose(array, exact[name], rtol=1e-4, atol=3e-6 * max(scale, 0.1), err_msg=name)
        losses.append(training.fetched(training.step(ids, targets)).mean())
    assert losses[2] < losses[1] < losses[0]


def test_sigmas_are_those_of_float32():
    """The plain operators in float32 are off by about a sigma, each array; in float16 by hundreds."""
    weights, (ids, targets) = params.init(TINY, 2), drawn()
    exact, sigma = gradient_errors.expected(TINY.nodes, ids, targets, weights)
    errors = {}
    for dtype in (np.float32, np.float16):
        loss, found = gradients.loss_and_gradients(TINY.nodes, ids, targets, weights, dtype)
        errors[dtype] = gradient_errors.in_sigmas({"loss": np.array(loss), **found}, exact, sigma)
    assert 0.01 < np.median([*errors[np.float32].values()]) < 2
    assert max(errors[np.float32].values()) < 6
    assert min(errors[np.float16].values()) > 12
    assert gradient_errors.in_sigmas({"loss": np.array(np.nan)}, exact, sigma) == {"loss": np.inf}


def test_counts():
    """Of the paper's network: 16 bytes a weight, of which none are masters'."""
    found = counted(SMALL.nodes, 1)
    assert found["weights"] + found["gradients"] + found["masters"] + found["moments"] == 16 * SMALL.parameters
    assert found["masters"] == 0


def test_what_does_not_fit():
    weights, (ids, targets) = params.init(TINY, 0), drawn()
    with pytest.raises(ValueError, match=r"^x has 5 inputs: need 1 to 2, the rows of a step$"):
        Training(TINY.nodes, weights, 2, "loops").step(ids, targets)
    nodes = place((layers.Conv2d(2, 3, name="conv"), layers.Flatten(), layers.Linear(3, name="fc")), (1, 5, 5))
    arrays = {name: np.zeros(shape, np.float32) for node in nodes for name, shape in node.parameters.items()}
    with pytest.raises(ValueError, match=r"^technique=cpu_gemm: has no operator conv2d_backward$"):
        Training(nodes, arrays, 1, "cpu_gemm")
