"""Training steps on a CPU's cores: gradients against float64, what a step takes, and what it depends on."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numba
import numpy as np
import pytest
from conftest import quick
from hypothesis import given, settings
from hypothesis import strategies as st

from charcnn import TINY, Config, layers
from charcnn.layers import place
from charcnn.model import gradients, params
from charcnn.model.network import run
from charcnn.ops import cpu_training as training
from charcnn.ops import reference
from charcnn.ops.adamw import ParameterGroup
from charcnn.ops.common.cpu_tile import TILES, choose_tile
from charcnn.ops.conv1d.cpu_by_weights import by_weights
from charcnn.runtime.cpu_training import CpuTraining
from charcnn.runtime.mixed_plan import blocks_of

BYTES = Config(
    length=131, alphabet=255, channels=40, units=17, kernel_sizes=(5, 7, 1, 1, 1, 3), classes=9, layernorm=False
)
ODD = Config.of_widths((130, 9, 20, 7, 5, 11, 13, 6), length=150, kernel_sizes=(2, 4, 1, 2, 3, 1), classes=2)
CONFIGS = {"tiny": TINY, "bytes": BYTES, "odd": ODD, "odd, plain": replace(ODD, layernorm=False)}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
FAST = ParameterGroup(0, lr=1e-2)


def drawn(config=TINY, n=5, seed=0, multi_label=False):
    """Inputs with blanks at their ends, and targets."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, config.alphabet + 1, (n, config.length), np.uint8)
    ids[n // 2, config.length // 2 :] = config.alphabet
    if multi_label:
        return ids, rng.random((n, config.classes), np.float32)
    targets = rng.dirichlet(np.ones(config.classes), n) * rng.uniform(0.5, 2, (n, 1))
    return ids, targets.astype(np.float32)


def engine(config=TINY, rows=5, drawn_by=1, group=FAST, **more):
    return CpuTraining(config.nodes, params.init(config, drawn_by), rows, **{"group": group, "clip": 1.0, **more})


def leaky(config, slope):
    """The network with ReLU that leaks."""
    made = [layers.LeakyRelu(slope) if isinstance(of, layers.Relu) else of for of in config.layers]
    return place(made, config.in_shape)


def near(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=3e-6 * abs(array).max(), err_msg=name)


@EACH
@pytest.mark.parametrize("leak", [0.0, 0.1])
def test_gradients(config, leak):
    ids, targets = drawn(config)
    loss, found = engine(config, rows=7).loss_and_gradients(ids, targets, leak=leak)
    nodes = leaky(config, leak) if leak else config.nodes
    expected, wanted = gradients.loss_and_gradients(nodes, ids, targets, params.init(config, 1))
    assert loss == pytest.approx(expected, rel=1e-6)
    near(found, wanted)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    widths=st.tuples(*[st.integers(1, 20)] * 8), kernels=st.tuples(*[st.integers(1, 4)] * 6), layernorm=st.booleans(),
    n=st.integers(1, 4), seed=st.integers(0, 99), alphabet=st.integers(1, 255),
)  # fmt: skip
def test_gradients_of_any_sizes(widths, kernels, layernorm, n, seed, alphabet):
    sizes = {"length": 160, "kernel_sizes": kernels, "layernorm": layernorm, "alphabet": alphabet}
    config = Config.of_widths(widths, **sizes)
    ids, targets = drawn(config, n, seed)
    loss, found = engine(config, drawn_by=seed).loss_and_gradients(ids, targets, leak=0.2)
    expected, wanted = gradients.loss_and_gradients(leaky(config, 0.2), ids, targets, params.init(config, seed))
    assert loss == pytest.approx(expected, rel=1e-5)
    largest = max(abs(array).max() for array in wanted.values())  # LayerNorm of a channel leaves others that are 0
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5 * largest, err_msg=name)


@quick(lambda tile: tile != "plain")
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(
    ("n", "length", "c_in", "c_out", "taps"), [(3, 300, 7, 5, 3), (1, 9, 70, 13, 1), (9, 4, 33, 2, 4)]
)
def test_gradients_of_weights_by_each_tile(tile, n, length, c_in, c_out, taps):
    try:
        of = choose_tile(tile)
    except ValueError as error:
        pytest.skip(str(error))
    rng = np.random.default_rng(0)
    x, dy = rng.random((n, length, c_in), np.float32), rng.random((n, length - taps + 1, c_out), np.float32)
    found = np.full((c_out, taps, c_in), np.nan, np.float32)
    by_weights(dy, x, found, of)
    read = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), taps, 1)  # (N, L - K + 1, C_in, K)
    np.testing.assert_allclose(found, np.einsum("nto,ntck->okc", dy, read), rtol=1e-5)


@EACH
def test_several_labels_and_weights(config):
    """Binary cross-entropies; what an input's loss is multiplied by."""
    (ids, targets), factors = drawn(config, multi_label=True), np.array([1, 0, 0.5, 2, 1], np.float32)
    made = engine(config, multi_label=True)
    loss, found = made.loss_and_gradients(ids, targets, weights=factors)
    weights, read, kept = {name: array.astype(float) for name, array in params.init(config, 1).items()}, ids, []
    for node in config.nodes:
        kept.append(read)
        read = run([node], read, weights)
    losses = factors * (np.logaddexp(0, read) - read * targets).mean(1)
    dy = (1 / (1 + np.exp(-read)) - targets) * factors[:, None] / targets.size
    assert loss == pytest.approx(losses.mean(), rel=1e-5)
    near(found, gradients.backward(config.nodes, kept, dy, weights, gradients.plain))
    np.testing.assert_allclose(made.step(ids, targets, weights=factors), losses, rtol=1e-5)
    np.testing.assert_allclose(made.logits, read, rtol=1e-4, atol=1e-5)


def test_weights_of_softmax():
    ids, targets = drawn()
    factors = np.array([1, 0, 0.5, 2, 1], np.float32)
    loss, found = engine().loss_and_gradients(ids, targets, weights=factors)
    expected, wanted = engine().loss_and_gradients(ids, targets * factors[:, None])
    assert loss == pytest.approx(expected, rel=1e-6)
    near(found, wanted)


def test_logits_beyond_what_exp_takes():
    logits = np.array([[200, -200], [-200, 0]], np.float32)
    losses, slopes = training.loss(logits, np.array([[1, 1], [0, 0]], np.float32), multi_label=True)
    np.testing.assert_allclose(losses, [100, np.log(2) / 2], rtol=1e-6)
    np.testing.assert_allclose(slopes, [[0, -0.5], [0, 0.25]], atol=1e-7)


@cache
def masks(config, dropout, seed, step, n):
    """By linear layer what dropout multiplies its input by, (N, units), in the network's order."""
    found, before = {}, None
    for at, block in enumerate(blocks_of(config.nodes)):
        if block.linear:
            ones = np.ones((n, 1, *block.node.in_shape), np.float32)
            training.drop(ones, dropout, training.key_of(seed, step, at), ones)
            mask = ones.reshape(n, -1, before) if before else ones
            found[block.name], before = mask.swapaxes(1, 2).reshape(n, -1), None
        else:
            before = block.node.out_shape[0]
    return found


@EACH
def test_dropout(config):
    """An input has its own mask, as if weights of what is dropped were 0: the mean of such networks' gradients."""
    ids, targets = drawn(config, 4)
    loss, found = engine(config, dropout=0.4, seed=1).loss_and_gradients(ids, targets)
    held, losses = params.init(config, 1), []
    wanted = {name: np.zeros(array.shape) for name, array in held.items()}
    for n in range(4):
        by = {f"{name}.weight": mask[n] for name, mask in masks(config, 0.4, 1, 0, 4).items()}
        with_masks = {name: array * by.get(name, 1.0) for name, array in held.items()}
        one, slopes = gradients.loss_and_gradients(config.nodes, ids[n : n + 1], targets[n : n + 1], with_masks)
        losses.append(one)
        for name, array in slopes.items():
            wanted[name] += array * by.get(name, 1.0) / 4
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    near(found, wanted)


def test_what_dropout_drops():
    ones = np.ones((100, 1000), np.float32)
    found = [np.empty_like(ones) for _ in range(4)]
    for out, numbers in zip(found, [(1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3)], strict=True):
        training.drop(ones, 0.25, training.key_of(*numbers), out)
    for out in found:
        assert set(np.unique(out)) == {0, np.float32(1 / 0.75)}
        assert abs((out > 0).mean() - 0.75) < 5 * np.sqrt(0.25 * 0.75 / out.size)
        assert abs((out > 0).mean(0) - 0.75).max() < 6 * np.sqrt(0.25 * 0.75 / 100)
    for other in found[1:]:
        both = ((found[0] > 0) & (other > 0)).mean()
        assert abs(both - 0.75**2) < 5 * np.sqrt(0.75**2 * (1 - 0.75**2) / ones.size)
    again = np.empty_like(ones)
    training.drop(ones, 0.25, training.key_of(1, 2, 3), again)
    assert again.tobytes() == found[0].tobytes()


def test_the_same_bits_for_any_number_of_threads():
    found = []
    for threads in (1, numba.config.NUMBA_NUM_THREADS):
        numba.set_num_threads(threads)
        try:
            made = engine(ODD, dropout=0.3), engine(CONFIGS["odd, plain"], dropout=0.3)
            for seed in range(2):
                for one, config in zip(made, (ODD, CONFIGS["odd, plain"]), strict=True):
                    one.step(*drawn(config, seed=seed), leak=0.1)
                    one.average(0.1)
        finally:
            numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
        found.append([one.weights.tobytes() + one.state()["average"].tobytes() for one in made])
    assert found[0] == found[1]


def test_resumes_to_the_same_bytes():
    made, other = (engine(drawn_by=drawn_by, dropout=0.5, seed=3) for drawn_by in (1, 8))
    for seed in range(6):
        if seed == 3:
            other.restore(made.state())
        for one in (made, other)[: 1 + (seed >= 3)]:
            one.step(*drawn(n=5 - seed % 2, seed=seed), rate=0.5, leak=0.05)
            one.average(0.2)
    states = [one.state() for one in (made, other)]
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    assert states[0]["steps"] == 6
    takes_all_or_nothing(other, engine(drawn_by=4).state())


def takes_all_or_nothing(training, state):
    """Whatever of another state does not fit, nothing of it is taken."""
    before = training.state()
    for name, value in state.items():
        for other in (None, -1, *([value[1:], value.astype(np.float64)] if name != "steps" else [1.5])):
            with pytest.raises(ValueError, match=rf"^state\['{name}'\]"):
                training.restore({**state, name: other})
    assert all(np.array_equal(value, training.state()[name]) for name, value in before.items())


def test_averages_and_other_weights():
    made, first, other = engine(), params.init(TINY, 1), params.init(TINY, 2)
    near(made.params, first)
    near(made.averaged, first)
    made.load(other)
    made.average(0.25)
    near(made.averaged, {name: array + 0.25 * (other[name] - array) for name, array in first.items()})
    assert all(made.params[name].tobytes() == other[name].tobytes() for name in other)
    ids, _ = drawn(n=12)
    expected = run(TINY.nodes, ids, {name: array.astype(float) for name, array in other.items()})
    np.testing.assert_allclose(made.answers(ids), expected, rtol=1e-4, atol=1e-5)
    assert made.answers(ids).tobytes() == engine().answers(ids, other).tobytes()
    assert made.answers(ids[:0]).shape == (0, TINY.classes)


@EACH
def test_what_is_live(config):
    ids, _ = drawn(config, 12)
    held, expected, last = params.init(config, 1), {}, ""
    held["conv3.bias"][2], held["fc2.bias"][1] = -1e3, -1e3
    read = ids
    for node in config.nodes:
        read = run([node], read, held)
        if isinstance(node.layer, layers.Conv1d | layers.Linear):
            last = node.layer.name
        elif isinstance(node.layer, layers.Relu | layers.MaxPool1d):
            expected[last] = (read > 0).any(axis=(0, *range(2, read.ndim)))
    found = CpuTraining(config.nodes, held, 5, group=FAST, clip=1.0).live(ids)
    assert found.keys() == expected.keys()
    assert not found["conv3"][2]
    assert not found["fc2"][1]
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_not_a_number_is_seen():
    held = params.init(BYTES, 1)
    held["conv1.weight"][3, 65] = np.nan
    ids, targets = drawn(BYTES)
    ids[:] = 255
    ids[2, 40] = 65
    losses = CpuTraining(BYTES.nodes, held, 5, group=FAST, clip=1.0).step(ids, targets)
    np.testing.assert_array_equal(np.isnan(losses), [False, False, True, False, False])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": np.zeros((6, TINY.length), np.uint8)}, "x has 6 inputs: need 1 to 5"),
        ({"x": np.zeros((2, 9), np.uint8)}, "x has shape"),
        ({"x": np.zeros((2, TINY.length), np.int64)}, "x has dtype int64"),
        ({"targets": np.zeros((3, 4), np.float32)}, "targets has shape"),
        ({"weights": np.zeros(3, np.float32)}, "weights has shape"),
    ],
)
def test_arguments_that_do_not_fit(change, said):
    ids, targets = drawn(n=2)
    with pytest.raises(ValueError, match=said):
        engine().step(**{"x": ids, "targets": targets, **change})


def test_engines_that_cannot_be_made():
    with pytest.raises(ValueError, match=r"dropout=1\.0: need at least 0"):
        engine(dropout=1.0)
    with pytest.raises(ValueError, match="weight has shape"):
        CpuTraining(TINY.nodes, params.init(ODD), 5, group=FAST, clip=1.0)
    with pytest.raises(ValueError, match=r"params lack fc3\.bias"):
        engine().load({name: array for name, array in params.init(TINY).items() if name != "fc3.bias"})
    with pytest.raises(ValueError, match="rows=0: need 1 or more"):
        engine(rows=0)


@EACH
def test_ten_steps_as_pytorch(config):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    from test_gradients import torch_forward

    made = engine(config, group=ParameterGroup(0, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1))
    held = {name: torch.tensor(array, requires_grad=True) for name, array in params.init(config, 1).items()}
    optimiser = torch.optim.AdamW(held.values(), betas=(0.9, 0.99), weight_decay=0.1)
    found, expected = [], []
    for seed in range(10):
        ids, targets = drawn(config, seed=seed)
        found.append(made.fetched(made.step(ids, targets, rate=0.5 + seed / 10, leak=0.1 - seed / 100)).mean())
        one_hot = torch.from_numpy(reference.one_hot(ids, config.alphabet))
        logits = torch_forward(torch, leaky(config, 0.1 - seed / 100)[1:], one_hot, held)
        loss = -(torch.log_softmax(logits, 1) * torch.from_numpy(targets)).sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(held.values(), 1.0)
        optimiser.param_groups[0]["lr"] = 1e-3 * (0.5 + seed / 10)
        optimiser.step()
        expected.append(loss.item())
    np.testing.assert_allclose(found, expected, rtol=1e-5)
