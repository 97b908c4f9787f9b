"""Bounds of features, and the weights that they scale, against features that are made to be great."""

from __future__ import annotations

import numpy as np
import pytest

from charcnn.config import Config
from charcnn.model import calibrate, half_range, network, params
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.toom_cook.transforms import transformed_features

TINY = Config(length=132, alphabet=5, channels=8, units=16)


def weights(config=TINY, seed=0):
    made = params.init(config, seed)
    rng = np.random.default_rng(seed)
    for name, value in made.items():
        if name.startswith("norm"):
            value[...] = rng.standard_normal(value.shape) + (1 if name.endswith("weight") else 0)
    return made


def greatest(p, config, ids, eps=calibrate.EPS):
    """By layer, the greatest of what it reads of these token ids."""
    found = {}

    def seen(name, x):
        found[name] = max(found.get(name, 0), abs(x).max())
        return x

    calibrate.forward(p, config, ids, seen, eps)
    return found


@pytest.mark.parametrize("layernorm", [True, False])
def test_no_feature_passes_its_bound(layernorm):
    """Nor is a bound far from what one character among blanks makes of weights that pass all of it on."""
    config = Config(length=132, alphabet=5, channels=8, units=16, layernorm=layernorm)
    ids = np.random.default_rng(1).integers(0, 6, (40, 132), np.uint8)
    ids[20:] = 5
    ids[20:, 50] = np.arange(20) % 5  # all of LayerNorm's length in a few values
    for seed in range(3):
        p = weights(config, seed) if layernorm else params.init(config, seed)
        bounds, found = half_range.bounds(p, config), greatest(p, config, ids)
        assert set(bounds) == set(found) == {*half_range.READS} - ({"norm6"} if not layernorm else set())
        assert all(found[name] <= bounds[name] * (1 + 1e-5) for name in found)
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
    assert bounds["conv2"] == pytest.approx(root)
    assert found["conv2"] == pytest.approx(root, rel=0.01)
    assert found["conv3"] >= 0.99 * bounds["conv3"]


def test_the_scaled_network_is_the_same_one():
    """To the last bit: all units are powers of two, and those that are needed are more than 1."""
    p = weights()
    for name in ("conv3.weight", "conv5.weight"):
        p[name] *= 64
    new, eps = half_range.scaled(p, TINY)
    ids = np.random.default_rng(2).integers(0, 6, (3, 132), np.uint8)
    right, scaled = (calibrate.forward(of, TINY, ids, lambda _, x: x, e) for of, e in ((p, calibrate.EPS), (new, eps)))
    np.testing.assert_array_equal(right, scaled)
    assert eps < calibrate.EPS
    before, after = half_range.bounds(p, TINY), half_range.bounds(new, TINY)
    assert max(before.values()) > half_range.LARGEST >= max(after.values())
    assert after["conv2"] == before["conv2"]
    shipped = transformed_features(np.full((1, 12, 1), after["conv2"]) * np.tile([1, -1], 6)[None, :, None])
    assert abs(shipped).max() <= 65504


@pytest.mark.parametrize("layernorm", [True, False])
def test_logits_in_fp16_have_the_error_of_tf32(layernorm):
    """Features and weights rounded to either, all else exact."""
    config = Config(length=132, alphabet=5, channels=8, units=16, layernorm=layernorm)
    p = weights(config) if layernorm else params.init(config)
    new, eps = half_range.scaled(p, config)
    ids = np.random.default_rng(3).integers(0, 6, (20, 132), np.uint8)
    right = network.forward(ids, p, config)

    def error(of, e, rounded):
        kept = ("conv1", "norm1")
        stored = {name: rounded(v) if v.ndim > 1 and not name.startswith(kept) else v for name, v in of.items()}
        return np.linalg.norm(calibrate.forward(stored, config, ids, lambda _, x: rounded(x), e) - right)

    def tf32(x):
        bits = np.asarray(x, np.float32).view(np.uint32)
        return ((bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)

    halves, floats = error(new, eps, lambda x: x.astype(np.float16).astype(np.float32)), error(p, calibrate.EPS, tf32)
    assert halves <= 1.3 * floats
    assert floats <= TENSOR_PRECISIONS["tf32"].tolerance * 10 * np.linalg.norm(right)


@pytest.mark.parametrize(("name", "factor"), [
    ("conv4.weight", np.nan), ("norm1.weight", np.inf), ("conv2.weight", 1e30), ("conv3.weight", 1e-5),
    ("norm1.bias", 1e30), ("fc2.weight", 1e-5), ("fc3.weight", 1e7), ("norm1.weight", 1e-7),
])  # fmt: skip
def test_weights_that_fp16_has_no_room_or_no_digits_for(name, factor):
    """Or features."""
    p = weights()
    assert half_range.scaled(p, TINY)
    p[name] *= np.float32(factor)
    if name == "norm1.weight":
        p["norm1.bias"] *= np.float32(factor)
    assert half_range.scaled(p, TINY) is None
