"""The emulator finds nothing in the project's own kernels, by any schedule."""

from __future__ import annotations

import numpy as np
import pytest
from test_toom_cook import TILES, TINY, check, drawn, machine  # noqa: F401 - a fixture

from charcnn import ops
from charcnn.gpu import device
from charcnn.gpu.ptx import examples
from charcnn.ops import reference

pytestmark = pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: nothing to emulate")

if device.SIMULATED:
    from charcnn.gpu import emulator

SEEDS = range(20)
FEW = 6

TOOM_COOK = [("one tile", "all runs"), ("more", "clustered"), ("one k block", "not staggered")]
"""Sizes and tiles of conv2's kernels in l19, whose small batches run others."""

QUICK = [("one tile", 3), ("one k block", 4)]
"""Sizes and seeds that every run tries."""


@pytest.mark.parametrize(
    "seed", [seed if seed < FEW else pytest.param(seed, marks=pytest.mark.exhaustive) for seed in SEEDS]
)
def test_the_example_of_a_product(seed):
    a, b = np.random.default_rng(0).standard_normal((2, examples.ROWS, examples.COLUMNS)).astype(np.float16)
    with emulator.checking(seed) as findings:
        made = examples.run_product(a, b)
    assert findings == []
    np.testing.assert_allclose(made, a.astype(np.float64) @ b.astype(np.float64).T, atol=1e-4)


@pytest.mark.parametrize(
    ("technique", "seed"),
    [
        pytest.param(technique, seed, marks=() if seed == first else pytest.mark.exhaustive)
        for first, technique in enumerate(("mma", "wgmma"), 1)
        for seed in SEEDS
    ],
)
def test_a_convolution(technique, seed):
    draw = np.random.default_rng(0)
    x, weight = draw.standard_normal((2, 20, 16), np.float32), draw.standard_normal((3, 16, 16), np.float32) / 7
    bias = np.zeros(16, np.float32)
    with emulator.checking(seed) as findings:
        made = getattr(ops, f"conv1d_relu_nlc_{technique}")(x, weight, bias)
    assert findings == []
    np.testing.assert_allclose(made, reference.conv1d_relu_nlc(x, weight, bias), atol=2e-2)


@pytest.mark.parametrize(
    ("size", "tile", "seed"),
    [
        pytest.param(*case, seed, marks=() if (case[0], seed) in QUICK else pytest.mark.exhaustive)
        for case in TOOM_COOK
        for seed in SEEDS
    ],
)
def test_toom_cook(size, tile, seed, machine):  # noqa: F811 - a fixture
    with emulator.checking(seed) as findings:
        check(*drawn(*TINY[size]), TILES[tile])
    assert findings == []
