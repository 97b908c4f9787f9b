"""Validation: what a level's logits are held to, that right ones pass, and that what is wrong does not."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import emulated
import numpy as np
import pytest
import validation as measured

from charcnn.catalog import PRECISIONS, level
from charcnn.config import TINY
from charcnn.levels.runner.report import CHECKED_INPUTS, validate
from charcnn.model import network, params, validation
from charcnn.model.plane_errors import PlaneErrors
from charcnn.model.rounding import E4M3, ROUNDINGS, TF32, Rounding, filtered_sums
from charcnn.ops.conv1d.toom_cook import transforms
from charcnn.ops.conv1d.winograd_transforms import SPAN, matrices
from charcnn.text import encodings, texts

WIDE = replace(TINY, channels=16, units=32)
"""TINY with as many channels as FP8 takes."""

PLAIN = replace(WIDE, length=130, layernorm=False)

MODELS = [(WIDE, 1), (PLAIN, 2)]


def draw(n, config):
    return measured.draw(n, config)[0]


def job(ids, weights, answers=None):
    def expected(rows, rounding):
        return validation.expected(rows, weights, weights.config, rounding)

    return SimpleNamespace(rows=ids, expected=expected, answers=answers)


@pytest.mark.parametrize(("config", "seed"), MODELS, ids=["with layernorm", "without"])
def test_the_reference_is_the_reference(config, seed):
    weights, ids = params.init(config, seed), draw(30, config)
    expected = network.forward(ids, weights, config)
    logits, sigmas = network.forward_with_sigma(ids, weights, config, list(ROUNDINGS.values()))
    np.testing.assert_allclose(logits, expected, rtol=1e-12, atol=1e-13)
    assert all((sigma > 0).all() and sigma.shape == logits.shape for sigma in sigmas)


def test_the_reference_by_pytorch():
    pytest.importorskip("torch", reason="PyTorch is not installed: no reference on a GPU")
    weights, ids = params.init(WIDE, 1), draw(30, WIDE)
    every = [*ROUNDINGS.values(), *(level("l19").rounding(name) for name in level("l19").precisions)]
    logits, sigmas = network.forward_with_sigma(ids, weights, WIDE, every)
    arrays = measured.Torch("cpu")
    by_torch, others = network.forward_with_sigma(ids, weights, WIDE, every, arrays=arrays)
    np.testing.assert_allclose(by_torch.numpy(), logits, rtol=1e-12, atol=1e-13)
    for sigma, other in zip(sigmas, others, strict=True):
        np.testing.assert_allclose(other.numpy(), sigma, rtol=1e-3)


@pytest.mark.parametrize("layer", ["conv1", "conv3", "norm1", "norm6", "fc1", "fc3"])
def test_sigma_is_the_spread_of_random_errors(layer):
    """Errors of a layer's bias, which one rounding alone would make: by the reference, and by trial."""
    if layer.startswith("norm"):
        rounding = Rounding(1.0, affine=(1e-4, 0) if layer == "norm1" else (0, 1e-4))
    else:
        rounding = Rounding(1.0, left_out=1e-8)
    weights, ids, rng = params.init(WIDE, 1), draw(4, WIDE)[:2], np.random.default_rng(0)
    base = network.forward(ids, weights, WIDE)
    nothing = network.forward_with_sigma(ids, weights, WIDE, [replace(rounding, affine=(0, 0), left_out=0)])[1][0]
    with_it = network.forward_with_sigma(ids, weights, WIDE, [rounding])[1][0]
    assert (with_it > 10 * nothing).all()
    if not layer.startswith("norm"):
        return
    trials = []
    for _ in range(200):
        moved = dict(weights)
        for part in ("weight", "bias"):
            value = weights[f"{layer}.{part}"].astype(np.float64)
            moved[f"{layer}.{part}"] = value * (1 + 1e-4 * rng.uniform(-1, 1, value.shape))
        trials.append(network.forward(ids, moved, WIDE) - base)
    spread = np.sqrt(np.square(trials).mean(axis=0))
    assert ((spread > with_it / 2) & (spread < 1.5 * with_it)).all()


def test_filtering_grows_errors_as_its_matrices_say():
    rng = np.random.default_rng(0)
    a, g, b = matrices(3)
    w, x = rng.standard_normal((3, 20000)), rng.standard_normal((len(b), 20000))
    products = np.square(g @ w) * np.square(b @ x)
    growth = (np.square(a) @ products).mean() / 3
    channels = 1 << 20  # so that the transforms' own roundings count for nothing
    assert filtered_sums(channels, 3) == pytest.approx(growth * channels / 2, rel=0.05)
    assert filtered_sums(channels, 3) > channels * 3 / 2
    assert filtered_sums(channels, 7) > channels * 7 / 2
    assert SPAN == 4


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("config", "seed"), MODELS, ids=["with layernorm", "without"])
def test_right_results_pass(precision, config, seed):
    weights, ids = params.init(config, seed), draw(200, config)
    right = measured._emulated(ids, weights, config, precision)
    rounding = ROUNDINGS[precision]
    errors = validation.in_sigmas(right, *validation.expected(ids, weights, config, rounding))
    assert errors.max() <= rounding.bound
    assert errors.max() >= rounding.bound / 20, "the bound is not too wide to say anything"


@pytest.mark.parametrize("precision", level("l19").precisions)
@pytest.mark.parametrize(("config", "seed"), MODELS, ids=["with layernorm", "without"])
def test_right_results_of_toom_cook_pass(precision, config, seed):
    """They are as far off, in sigmas of their own, as direct sums are in theirs."""
    weights, ids = params.init(config, seed), draw(100, config)
    rounding, rms = level("l19").rounding(precision), []
    for of in (replace(rounding, toom_cook=False), rounding):
        right = emulated.logits(ids, weights, config, precision, toom_cook=of.toom_cook)
        errors = validation.in_sigmas(right, *validation.expected(ids, weights, config, of))
        assert errors.max() <= of.bound
        rms.append(np.sqrt(np.square(errors).mean()))
    assert 0.6 < rms[1] / rms[0] < 1.5


def test_errors_of_planes_are_those_of_all_products():
    draw = np.random.default_rng(0)
    x, weight, g = draw.standard_normal((2, 3, 14)), draw.standard_normal((4, 3, 7)), draw.standard_normal((2, 5, 4, 8))
    found = PlaneErrors(network.Arrays(), x, weight)
    planes = transforms.transformed_features(x.swapaxes(1, 2))  # (N, W + 1, points, C)
    weights, a = transforms.transformed_weights(weight.transpose(2, 1, 0)), np.array(transforms.OUTPUTS, np.float64)
    products = np.einsum("qp,nwpc,pco->nwqopc", a, planes[:, :-1], weights[:, 0])
    others = np.einsum("qp,nwpc,pco->nwqopc", a, planes[:, 1:], weights[:, 1])
    y = (products + others).sum((4, 5)).transpose(0, 3, 1, 2).reshape(2, 4, 6)
    np.testing.assert_allclose(y, network.Arrays().conv1d(x, weight)[..., :6], atol=1e-12)
    squares = (products**2 + others**2).sum((4, 5)).transpose(0, 3, 1, 2).reshape(2, 4, 6)
    np.testing.assert_allclose(found.squares()[..., :6], squares)
    assert not found.squares()[..., 6:].any()
    # Results are linear in planes: so what goes back by g has the same product with planes as g with results.
    flat = planes.transpose(0, 2, 3, 1).reshape(2, 1, 18, -1)
    np.testing.assert_allclose((found.back(g) * flat).sum((2, 3)), (g[..., :6] * y[:, None]).sum((2, 3)))
    unit = TF32.unit**2 / 3
    np.testing.assert_allclose(found.of_planes(TF32), unit * flat[:, 0] ** 2, atol=1e-60)
    in_eighths = found.of_planes(E4M3)  # 8 times as coarse where a plane is small
    np.testing.assert_allclose(in_eighths, E4M3.unit**2 / 3 * flat[:, 0] ** 2 + (8 * E4M3.tiny) ** 2 / 3)


@pytest.mark.parametrize("precision", [name for name in PRECISIONS if name not in ("fp8", "int8")])
def test_what_is_wrong_fails(precision):
    weights, ids = params.init(WIDE, 1), draw(100, WIDE)
    rounding = ROUNDINGS[precision]
    expected, sigma = validation.expected(ids, weights, WIDE, rounding)
    right = measured._emulated(ids, weights, WIDE, precision)
    bound = rounding.bound
    wrong = measured.mutants(right, expected, sigma, ids, bound)
    assert wrong["zeroed"]["above"] == 1
    assert wrong["swapped"]["above"] >= 0.95
    assert wrong["constant"]["samples_above"] == 1
    fp8 = emulated.logits(ids, weights, WIDE, "fp8")
    assert measured.caught(validation.in_sigmas(fp8, expected, sigma), bound)["samples_above"] > 0.95
    moved = [
        (kind, layer, network.forward(ids, bad, WIDE) - expected)
        for kind, layer, bad in measured.spoiled(weights, WIDE)
        if layer in ("conv2", "conv6")
    ]
    found = measured.mistakes(right, expected, sigma, bound, moved)
    assert found["tap shifted"]["samples_above"] > 0.9
    if precision != "bf16":  # whose rounding is as much, in so small a network
        assert found["bias dropped"]["samples_above"] > 0.9


def test_nothing_is_right_to_the_bit_alone_where_all_weights_are_zero():
    weights = {name: np.zeros_like(value) for name, value in params.init(TINY, 0).items()}
    expected, sigma = validation.expected(draw(3, TINY), weights, TINY, ROUNDINGS["fp32"])
    assert (sigma == 0).all()
    assert (validation.in_sigmas(np.zeros((3, 4), np.float32), expected, sigma) == 0).all()
    assert (validation.in_sigmas(np.full((3, 4), 1e-30, np.float32), expected, sigma) == np.inf).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_infinitely_wrong(value):
    one = np.ones((2, 3))
    spoiled = one.copy()
    spoiled[1, 2] = value
    for given in ((spoiled, one, one), (one, spoiled, one), (one, one, spoiled), (spoiled, spoiled, one)):
        assert validation.in_sigmas(*given).tolist() == [0, np.inf]


def test_inputs_are_drawn_at_random_and_at_borders():
    borders = [range(100, 1000, 100), range(0)]
    drawn = [validation.drawn(1000, 12, borders, seed) for seed in range(100)]
    for sample in drawn:
        assert len(sample) == len(set(sample)) == 12
        assert sample[0] == 0
        assert sample[-1] == 999
        assert any(border - 1 in sample and border in sample for border in borders[0])
    assert len(set(np.concatenate(drawn))) > 500
    np.testing.assert_array_equal(drawn[7], validation.drawn(1000, 12, borders, 7))
    assert validation.drawn(5, 12, [range(1, 5)], 0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["l0", "l11", "l18"])
@pytest.mark.parametrize("seed", [0, 6])
def test_levels_pass(name, seed):
    weights = params.init(TINY, seed)
    ids = encodings.encode(texts.sample().texts, "crepe", TINY.length)
    logits = level(name).module.build(weights, TINY)(ids)
    result = validate(job(ids, weights), logits, level(name).rounding(), [], 1)
    assert result["passed"]
    assert (result["checked"], result["inputs"], result["seed"]) == (CHECKED_INPUTS, len(ids), 1)
    assert 0 < result["sigmas"] <= result["bound"]
    json.dumps(result, allow_nan=False)


def test_one_input_that_is_not_finite_fails_wherever_it_is():
    weights, ids = params.init(TINY, 0), draw(400, TINY)
    logits = network.forward(ids, weights, TINY)
    assert validate(job(ids, weights), logits, ROUNDINGS["fp32"], [], 1)["passed"]
    checked = validation.drawn(len(ids), CHECKED_INPUTS, [], 1)
    unseen = next(index for index in range(len(ids)) if index not in checked)
    for index in (unseen, int(checked[3])):
        spoiled = logits.copy()
        spoiled[index, 2] = np.nan
        result = validate(job(ids, weights), spoiled, ROUNDINGS["fp32"], [], 1)
        assert not result["passed"]
        assert (result["not_finite"], result["first_not_finite"]) == (1, index)
        json.dumps(result, allow_nan=False)
