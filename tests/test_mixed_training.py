"""The engine of training in mixed precision: a step against float64, and what `charcnn train` asks of it."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import by_turns
from numba import cuda
from small_gpu import fresh_kernels
from test_cpu_training import takes_all_or_nothing

from charcnn import layers
from charcnn.config import SMALL, Config
from charcnn.gpu import device
from charcnn.layers import place
from charcnn.model import gradient_errors, params
from charcnn.model.network import run
from charcnn.ops.adamw import ParameterGroup
from charcnn.ops.conv1d.products import BY_FEATURES, FORWARD
from charcnn.ops.moving_average import follow
from charcnn.runtime import mixed_training
from charcnn.runtime.mixed_plan import FlatParams, blocks_of, counted
from charcnn.runtime.mixed_training import MixedTraining

HERE = device.has_tensor_cores(hopper=True)

pytestmark = pytest.mark.skipif(not (HERE or device.SIMULATED), reason="needs a GPU of compute capability 9.0")

CONFIG = Config(length=123, alphabet=6, channels=8, units=8, classes=3)
"""The smallest that products take."""

BOUND = gradient_errors.BOUNDS["bf16"]


def drawn(n, config=CONFIG, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, config.alphabet + 1, (n, config.length), np.uint8)
    return ids, rng.random((n, config.classes), np.float32)  # whose sum is not 1


def leaking(config, slope):
    """A network's layers, with leaky ReLU."""
    rest = list(config.layers)
    for at in [at for at, layer in enumerate(rest) if isinstance(layer, layers.Relu)]:
        rest[at] = layers.LeakyRelu(slope)
    return place(rest, (config.length,))


@by_turns
def test_a_step(monkeypatch):
    """Leaky ReLU, weights of rows, fewer inputs than rows: the loss and all gradients within what rounding allows.

    Of few values one that pooling picks otherwise is more than that: with these inputs rounding changes none.
    """
    if device.SIMULATED:
        fresh_kernels(monkeypatch)
        monkeypatch.setattr(device, "multiprocessors", lambda: 2)
    weights, slope, n = params.init(CONFIG, 1), 0.25, 2
    counts = np.linspace(0.5, 1.5, n).astype(np.float32)
    ids, targets = drawn(n, seed=1)
    training = MixedTraining(CONFIG.nodes, weights, n + (not device.SIMULATED))
    loss, found = training.loss_and_gradients(ids, targets, leak=slope, weights=counts)
    weighted = targets * counts[:, None]  # the loss is linear in them
    exact, sigma = gradient_errors.expected(leaking(CONFIG, slope), ids, weighted, weights, "bf16")
    errors = gradient_errors.in_sigmas({"loss": np.array(loss), **found}, exact, sigma)
    assert errors.keys() == {"loss", *weights}
    assert max(errors.values()) <= BOUND, errors
    assert training.fetched(training.logits).shape == (n, CONFIG.classes)


class PlainProduct:
    """A product by NumPy, in place of one that is emulated for seconds."""

    partial, nbytes = None, 0

    def __init__(self, kind, a, b, out, of, *, taps=1, bias=None, rectified=False, mask=None, factors=None):
        self._kind, self._taps, self._rectified, self._of = kind, taps, rectified, of.name
        self._a, self._b, self._out, self._bias, self._mask, self._factors = a, b, out, bias, mask, factors

    @staticmethod
    def require():
        """Nothing."""

    def start(self, stream):
        a, b, taps = self._floats(self._a), self._floats(self._b), self._taps
        rows, behind = len(a), np.zeros((self._taps, a.shape[1]))
        if self._kind not in (FORWARD, BY_FEATURES):
            after = np.concatenate([a, behind])
            self._out.copy_to_device(
                np.stack([after[tap : tap + rows].T @ b for tap in range(taps)]).astype(np.float32)
            )
            return
        weights, step = b.reshape(taps, len(b) // taps, -1), self._kind.step
        whole = np.concatenate([behind, a, behind])
        parts = (whole[taps + step * tap :][:rows] for tap in range(taps))
        sums = sum(part @ (weight if step > 0 else weight.T) for part, weight in zip(parts, weights, strict=True))
        above, below = (1, 0) if self._factors is None else self._factors.copy_to_host()
        if self._bias is not None:
            sums = sums + self._bias.copy_to_host()
        if self._rectified:
            sums = np.where(sums > 0, sums, below * sums)
        if self._mask is not None:
            mask = self._floats(self._mask)
            sums = sums * np.where(mask > 0, above, np.where(mask < 0, below, 0))
        self._out.copy_to_device(self._words(sums))

    def _words(self, values):
        """The numbers in 16 bits, to the nearest."""
        if self._of == "fp16":
            return values.astype(np.float16).view(np.uint16)
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)

    def _floats(self, array):
        words = array.copy_to_host()
        values = words.view(np.float16) if self._of == "fp16" else (words.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float64)


@pytest.fixture
def products(monkeypatch):
    """On a GPU its own."""
    if device.SIMULATED:
        monkeypatch.setitem(mixed_training.PRODUCTS, "wgmma", PlainProduct)


GROUP = ParameterGroup(0, lr=1e-2)


@by_turns
@pytest.mark.usefixtures("products")
def test_a_training_resumes_to_the_same_bytes():
    """Dropout, several labels, a leak that changes and weights of rows; the average, too."""
    how = {"group": GROUP, "dropout": 0.25, "seed": 7, "multi_label": True}

    def step(training, seed):
        ids, targets = drawn(2, seed=seed)
        losses = training.step(ids, targets, 1 / (1 + seed), leak=seed / 8, weights=targets[:, 0])
        training.average(0.25)
        logits = training.fetched(training.logits).astype(np.float64)
        exact = (np.logaddexp(0, logits) - targets * logits).mean(axis=1) * targets[:, 0]
        np.testing.assert_allclose(training.fetched(losses), exact, rtol=1e-5, atol=1e-6)

    first = MixedTraining(CONFIG.nodes, params.init(CONFIG, 1), 3, **how)
    step(first, 1)
    state = first.state()
    step(first, 2)
    second = MixedTraining(CONFIG.nodes, params.init(CONFIG, 2), 3, **how)
    second.restore(state)
    step(second, 2)
    assert all(isinstance(saved, np.ndarray | int) for saved in state.values())
    for name, saved in first.state().items():
        assert np.array_equal(saved, second.state()[name]), name
    assert not np.array_equal(state["weights"], first.state()["weights"])
    assert not np.array_equal(first.state()["average"], first.state()["weights"])
    takes_all_or_nothing(second, state)


@by_turns
@pytest.mark.usefixtures("products")
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
def test_fp16_leaves_out_a_step_that_overflows():
    """And halves the loss scale, from which a saved training goes on; gradients are those of float64."""
    rest = (layers.Relu(), layers.MaxPool1d(3))
    blocks = [layer for block in (1, 2) for layer in (
        layers.Conv1d(8, 3, name=f"conv{block}"), layers.LayerNorm(name=f"norm{block}"), *rest)]  # fmt: skip
    linear = layers.Flatten(), layers.Linear(8, name="fc1"), layers.Relu(), layers.Linear(3, name="fc2")
    nodes = place((layers.OneHot(6), *blocks, layers.Conv1d(8, 1, name="conv3"), *rest, *linear), (38,))
    rng = np.random.default_rng(0)
    weights = {name: (rng.standard_normal(shape) / 4).astype(np.float32)
               for node in nodes for name, shape in node.parameters.items()}  # fmt: skip
    ids, targets = rng.integers(0, 7, (2, 38), np.uint8), rng.random((2, 3), np.float32)
    how = {"group": GROUP, "precision": "fp16"}
    first, second = (MixedTraining(nodes, weights, 2, **how) for _ in range(2))
    loss, found = first.loss_and_gradients(ids, targets)
    exact, sigma = gradient_errors.expected(nodes, ids, targets, weights, "fp16")
    errors = gradient_errors.in_sigmas({"loss": np.array(loss), **found}, exact, sigma)
    assert max(errors.values()) <= BOUND, errors
    first.step(ids, targets)
    before = first.state()
    first.step(ids, targets, weights=np.array([1, 1e30], np.float32))
    after = first.state()
    assert after.pop("loss_scale") == {"scale": 2.0**15, "made": 0, "left_out": 1}
    assert before.pop("loss_scale") == {"scale": 2.0**16, "made": 1, "left_out": 0}
    assert all(np.array_equal(saved, after[name]) for name, saved in before.items())
    assert (before["steps"], first.left_out) == (1, 1)
    second.restore(first.state())
    for training in (first, second):
        training.step(ids, targets)
    assert first.state()["loss_scale"] == second.state()["loss_scale"]
    assert first.params["conv1.weight"].tobytes() == second.params["conv1.weight"].tobytes()
    assert not np.array_equal(first.state()["weights"], before["weights"])
    with pytest.raises(ValueError, match=r"^state\['loss_scale'\] is None"):
        second.restore({**first.state(), "loss_scale": None})


def answered(config, ids, weights):
    return run(config.nodes, ids, {name: np.asarray(array, np.float64) for name, array in weights.items()})


@by_turns
@pytest.mark.usefixtures("products")
def test_answers_have_neither_dropout_nor_leak():
    weights, (ids, targets) = params.init(CONFIG, 1), drawn(3)
    training = MixedTraining(CONFIG.nodes, weights, 2, dropout=0.5)
    training.step(ids[:2], targets[:2], rate=0.0, leak=0.5)
    before, other = training.state(), params.init(CONFIG, 2)
    for found, held in ((training.answers(ids), weights), (training.answers(ids, other), other)):
        exact = answered(CONFIG, ids, held)
        assert found.shape == exact.shape
        assert np.linalg.norm(found - exact) < 0.03 * np.linalg.norm(exact)
    assert training.answers(ids[:0]).shape == (0, CONFIG.classes)
    assert all(np.array_equal(saved, training.state()[name]) for name, saved in before.items())
    given = []
    other_way = MixedTraining(
        CONFIG.nodes, weights, 2, answering=lambda held: lambda x: given.append((held, x)) or len(x)
    )
    assert other_way.answers(ids, other) == 3
    assert given[0][0] is other
    assert other_way.answers(ids) == 3
    assert all(np.array_equal(given[1][0][name], weights[name]) for name in weights)


@pytest.mark.usefixtures("products")
def test_what_is_alive():
    weights, (ids, _) = params.init(CONFIG, 1), drawn(3)
    for name, at in (("norm1.bias", 2), ("conv2.bias", 3), ("conv4.bias", 0), ("norm6.bias", 5), ("fc1.bias", 1)):
        weights[name][at] = -99
    training = MixedTraining(CONFIG.nodes, weights, 2)
    found, x, name, expected = training.live(ids), ids, "", {}
    for node in CONFIG.nodes[:-1]:
        x = run([node], x, weights)
        if isinstance(node.layer, layers.Conv1d | layers.Linear):
            name = node.layer.name
        elif isinstance(node.layer, layers.Relu):
            expected[name] = (x > 0).any(axis=(0, 2) if x.ndim == 3 else 0)
    assert found.keys() == expected.keys() == {*(f"conv{block}" for block in range(1, 7)), "fc1", "fc2"}
    for name, alive in expected.items():
        assert (found[name] == alive).all(), name
    for name, at in (("conv1", 2), ("conv2", 3), ("conv4", 0), ("conv6", 5), ("fc1", 1)):
        assert not found[name][at]


@by_turns
@pytest.mark.usefixtures("products")
def test_an_average_begins_with_the_first_weights():
    weights, (ids, targets) = params.init(CONFIG, 1), drawn(2)
    training = MixedTraining(CONFIG.nodes, weights, 2, group=GROUP)
    training.step(ids, targets)
    assert all(np.array_equal(array, weights[name]) for name, array in training.averaged.items())
    held = sum(training.memory.values())
    training.average(0.25)
    assert sum(training.memory.values()) == held + training.weights.nbytes
    moved = training.params
    for name, array in training.averaged.items():
        np.testing.assert_allclose(array, 0.75 * weights[name] + 0.25 * moved[name], rtol=1e-5, atol=1e-7)
    training.average(1)
    assert all(np.array_equal(array, moved[name]) for name, array in training.averaged.items())
    training.load(weights)
    assert all(np.array_equal(array, weights[name]) for name, array in training.params.items())
    flat = training.averaged  # on the GPU
    assert flat.keys() == moved.keys()
    before, found = training.state(), training.answers(ids, flat)
    assert all(np.array_equal(saved, training.state()[name]) for name, saved in before.items())
    training.average(0.5)  # of a copy nothing is seen
    assert all(np.array_equal(array, moved[name]) for name, array in flat.items())
    assert np.array_equal(found, training.answers(ids, dict(flat)))
    assert not np.array_equal(found, training.answers(ids))


def test_what_an_average_cannot_follow():
    average, weights = (cuda.to_device(np.zeros(size, np.float32)) for size in (8, 12))
    with pytest.raises(ValueError, match=r"^share=1.5: need 0 to 1$"):
        follow(average, average, 1.5)
    with pytest.raises(ValueError, match=r"^weights has shape \(12,\): need \(8,\)$"):
        follow(average, weights, 0.5)


def test_a_layout_gives_back_what_it_took():
    weights, layout = params.init(CONFIG, 1), FlatParams(CONFIG.nodes)
    flat = layout.flat(weights)
    assert all(np.array_equal(array, weights[name]) for name, array in layout.named(flat).items())
    parts = layout.parts(flat)
    assert np.array_equal(parts["conv2.weight"], weights["conv2.weight"].transpose(2, 1, 0))
    channels = CONFIG.block_channels[-1]
    by_position = weights["fc1.weight"].reshape(len(weights["fc1.bias"]), channels, -1)
    assert np.array_equal(parts["fc1.weight"], by_position.transpose(2, 1, 0).reshape(-1, len(by_position)))
    with pytest.raises(ValueError, match=r"^fc3.bias has shape \(2,\): need \(3,\)$"):
        layout.flat({**weights, "fc3.bias": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match=r"^params lack conv1.weight: need float32 \(8, 70, 7\)$"):
        FlatParams(Config(length=123, channels=8, units=8).nodes).flat({})


def test_counts():
    """18 bytes a weight, 4 of them masters' and 2 those of the copy that products read."""
    found = counted(SMALL.nodes, 1)
    weights = sum(found[kind] for kind in ("weights", "gradients", "masters", "moments"))
    assert weights == 18 * SMALL.parameters
    assert counted(SMALL.nodes, 2)["features"] == 2 * found["features"]


@pytest.mark.usefixtures("products")
def test_what_does_not_fit():
    weights, (ids, targets) = params.init(CONFIG, 1), drawn(3)
    training = MixedTraining(CONFIG.nodes, weights, 2)
    with pytest.raises(ValueError, match=r"^x has 3 inputs: need 1 to 2, the rows of a step$"):
        training.step(ids, targets)
    with pytest.raises(ValueError, match=r"^targets has shape \(3, 3\): need \(2, 3\)$"):
        training.step(ids[:2], targets)
    with pytest.raises(ValueError, match=r"^x has dtype int64: need uint8$"):
        training.step(ids[:2].astype(np.int64), targets[:2])
    with pytest.raises(ValueError, match=r"^weights has shape \(3,\): need \(2,\)$"):
        training.step(ids[:2], targets[:2], weights=np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r"^x has shape \(2, 122\): need \(2, 123\)$"):
        training.answers(np.ascontiguousarray(ids[:2, 1:]))
    nodes = place((layers.OneHot(5), layers.Conv1d(8, 3, name="conv"), layers.MaxPool1d(2), layers.Flatten()), (20,))
    with pytest.raises(ValueError, match=r"need windows of 3$"):
        blocks_of(nodes)
    first = layers.OneHot(5), layers.Conv1d(8, 3, name="conv1"), layers.Relu(), layers.MaxPool1d(3)
    rest = layers.Conv1d(8, 3, name="conv2"), layers.Relu(), layers.Flatten(), layers.Linear(8, name="fc1")
    with pytest.raises(ValueError, match=r"^fc1: need pooling behind conv2"):
        blocks_of(place((*first, *rest, layers.Relu(), layers.Linear(2, name="fc2")), (20,)))
    for wrong in ({"rows": 0}, {"dropout": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            MixedTraining(CONFIG.nodes, weights, **({"rows": 2} | wrong))
    with pytest.raises(ValueError, match=r"^leak=1: need at least 0 and less than 1$"):
        training.step(ids[:2], targets[:2], leak=1)
