"""Bounds of features, and the weights that they scale, against features that are made to be great."""

from __future__ import annotations

import numpy as np
import pytest

from charcnn.config import Config
from charcnn.model import calibrate, half_range, network, params
from charcnn.ops.conv1d.toom_cook.transforms import transformed_features

TINY = Config(length=132, alphabet=5, channels=8, units=16)
PLAIN = Config(length=132, alphabet=5, channels=8, units=16, layernorm=False)


def weights(config=TINY, seed=0):
    made = params.init(config, seed)
    rng = np.random.default_rng(seed)
    for name, value in made.items():
        if name.startswith("norm"):
            value[...] = rng.standard_normal(value.shape) + (1 if name.endswith("weight") else 0)
    return made


def greatest(p, config, ids):
    """By layer, the greatest of what it reads of these token ids."""
    found = {}

    def seen(name, x):
        found[name] = abs(x).max()
        return x

    calibrate.forward(p, config, ids, seen)
    return found


def in_parts(p, layer, reader, exponent):
    """The network, whose layer gives the first half of its channels so much smaller."""
    factor, half = np.float32(2.0**exponent), len(p[f"{layer}.weight"]) // 2
    for part in ("weight", "bias"):
        p[f"{layer}.{part}"][:half] *= factor
    p[f"{reader}.weight"][:, : p[f"{reader}.weight"].shape[1] // 2] /= factor
    return p


@pytest.mark.parametrize("config", [TINY, PLAIN])
def test_no_feature_passes_its_bound(config):
    """Nor is a bound far from what one character among blanks makes of LayerNorm's length."""
    ids = np.random.default_rng(1).integers(0, 6, (40, 132), np.uint8)
    ids[20:] = 5
    ids[20:, 50] = np.arange(20) % 5  # all of LayerNorm's length in a few values
    for seed in range(3):
        p = weights(config, seed)
        bounds, found = half_range.bounds(p, config), greatest(p, config, ids)
        assert set(bounds) == {*calibrate.LAYERS} <= set(found)
        assert all(found[name] <= bounds[name] * (1 + 1e-5) for name in bounds)
        assert bounds["conv2"] < 40 * found["conv2"]


def test_weights_that_repeat_a_feature_reach_the_bound():
    """One value has LayerNorm's whole length, and each layer hands it on as it is."""
    config = Config(length=132, alphabet=1, channels=1, units=1, classes=1)
    p = params.init(config)
    for name, value in p.items():
        value[...] = 1 if name.startswith("norm") and name.endswith("weight") else 0
        if name.endswith("weight") and not name.startswith("norm"):
            value.reshape(-1)[0] = 1
    ids = np.ones((1, 132), np.uint8)
    ids[0, 63] = 0
    bounds, found = half_range.bounds(p, config), greatest(p, config, ids)
    root = np.sqrt(126)
    assert root <= bounds["conv2"] <= 1.03 * root  # with what block 1's table is off by
    assert found["conv2"] == pytest.approx(root, rel=0.01)
    assert found["conv3"] >= 0.96 * bounds["conv3"]


def test_a_text_of_one_character_whose_sums_are_all_alike():
    """LayerNorm divides what the table's steps leave of nothing by the root of eps."""
    p = weights()
    before = half_range.bounds(p, TINY)["conv2"]
    p["conv1.weight"][0, :, 0] *= 1e7
    assert half_range.bounds(p, TINY)["conv2"] > 1e3 * before


def test_a_matrix_makes_no_vector_longer():
    rng = np.random.default_rng(0)
    for rows in (rng.standard_normal((8, 30)), rng.standard_normal((30, 8)), np.ones((5, 5)), np.zeros((3, 4)),
                 1e150 * rng.standard_normal((4, 6))):  # fmt: skip
        longest = np.linalg.norm(rows, 2)
        assert longest <= half_range._longest(rows) * (1 + 1e-12) <= 1.3 * longest * (1 + 1e-12)


def test_the_scaled_network_is_the_same_one():
    """To the last bit: all units are powers of two, and those that are needed are more than 1."""
    p = weights()
    for name in ("conv3.weight", "conv5.weight"):
        p[name] *= 64
    new = half_range.scaled(p, TINY)
    ids = np.random.default_rng(2).integers(0, 6, (3, 132), np.uint8)
    read = {name: [] for name in ("right", "scaled")}
    for which, of in (("right", p), ("scaled", new)):
        read[which] = calibrate.forward(of, TINY, ids, lambda _, x: x)
    np.testing.assert_array_equal(read["right"], read["scaled"])
    before, after = half_range.bounds(p, TINY), half_range.bounds(new, TINY)
    assert max(before.values()) > half_range.LARGEST >= max(after.values())
    assert after["conv2"] == before["conv2"]
    planes = transformed_features(np.full((1, 12, 1), after["conv2"]) * np.tile([1, -1], 6)[None, :, None])
    assert abs(planes).max() <= 65504


def rounded_logits(p, config, ids, rounded):
    """Features and weights that are multiplied rounded, all else float32."""
    stored = {name: rounded(v) if name[:-7] in calibrate.LAYERS else v for name, v in p.items()}
    read = calibrate.forward(
        stored, config, ids, lambda name, x: rounded(x) if name in calibrate.LAYERS else x
    )  # fmt: skip
    return np.asarray(read, np.float64)


def as_tf32(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)


def as_fp16(x):
    return x.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("config", [TINY, PLAIN])
def test_logits_in_fp16_are_those_of_tf32(config):
    """Where no number is small: of the same digits."""
    p, ids = weights(config), np.random.default_rng(3).integers(0, 6, (20, 132), np.uint8)
    p["conv6.bias"] += 1000  # which LayerNorm takes off
    new = half_range.scaled(p, config)
    right = network.forward(ids, p, config)
    halves, floats = (rounded_logits(of, config, ids, by) - right for of, by in ((new, as_fp16), (p, as_tf32)))
    assert np.linalg.norm(halves) <= 1.1 * np.linalg.norm(floats) < 1e-2 * np.linalg.norm(right)


@pytest.mark.parametrize(("layer", "reader"), [("fc2", "fc3"), ("fc1", "fc2"), ("norm6", "fc1"), ("conv4", "conv5")])
def test_halves_of_a_layer_that_are_small(layer, reader):
    """Either fp16 is not taken, or its logits are as good; and of ever smaller ones it is not."""
    ids, taken = np.random.default_rng(3).integers(0, 6, (20, 132), np.uint8), []
    right = network.forward(ids, weights(), TINY)
    floats = np.linalg.norm(rounded_logits(weights(), TINY, ids, as_tf32) - right)
    for exponent in range(-20, 1, 2):
        new = half_range.scaled(in_parts(weights(), layer, reader, exponent), TINY)
        taken.append(new is not None)
        if new is not None:
            assert np.linalg.norm(rounded_logits(new, TINY, ids, as_fp16) - right) <= 1.3 * floats
    assert taken == sorted(taken)
    assert taken[-1]
    assert not taken[0]


@pytest.mark.parametrize(("name", "factor"), [
    ("conv4.weight", np.nan), ("norm1.weight", np.inf), ("conv2.weight", 1e38), ("fc3.weight", 1e8),
    ("conv1.weight", 1e38), ("norm6.bias", 1e38),
])  # fmt: skip
def test_weights_that_fp16_has_no_room_for(name, factor):
    p = weights()
    assert half_range.held(p, TINY, "tf32")[1] == "fp16"
    with np.errstate(over="ignore", invalid="ignore"):
        p[name] *= np.float32(factor)
    given, of = half_range.held(p, TINY, "tf32")
    assert given is p
    assert of == "tf32"


def test_other_precisions_are_held_as_they_are():
    p = weights()
    for of in ("fp16", "fp16x3", "fp8"):
        given, held_as = half_range.held(p, TINY, of)
        assert given is p
        assert held_as == of


def test_many_classes_take_no_more_than_a_few(monkeypatch):
    """Of the sigmas, whose gradients have all features for each logit."""
    config, seen = Config(length=132, alphabet=5, channels=8, units=16, classes=300), []
    forward = half_range.forward_with_sigma
    monkeypatch.setattr(half_range, "forward_with_sigma", lambda *given: seen.append(forward(*given)) or seen[-1])
    assert half_range.held(weights(config), config, "tf32")[1] == "fp16"
    assert [sigma.shape for _, sigmas in seen for sigma in sigmas] == [(half_range.TEXTS, half_range.LOGITS)] * 2


def test_planes_are_of_seven_taps_alone():
    config = Config(length=384, channels=8, units=8, kernel_sizes=(7, 3, 3, 3, 3, 3))
    assert half_range.held(params.init(config), config, "tf32")[1] == "tf32"
