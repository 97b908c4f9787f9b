"""The engine of training in mixed precision: a step against float64, and what `charcnn train` asks of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numba import cuda
from small_gpu import fresh_kernels

from charcnn import layers
from charcnn.config import TINY, TINY_MATRICES, Config
from charcnn.gpu import device
from charcnn.layers import place
from charcnn.model import gradient_errors, params
from charcnn.ops import moving_average
from charcnn.ops.adamw import ParameterGroup
from charcnn.runtime import mixed_training
from charcnn.runtime.mixed_plan import Layout, blocks_of, counted, sizes_of
from charcnn.runtime.mixed_step import MixedStep
from charcnn.runtime.mixed_training import MixedTraining

HERE = device.has_tensor_cores(hopper=True)

needs_hopper = pytest.mark.skipif(not HERE, reason="needs a GPU of compute capability 9.0: emulated, it takes minutes")

CONFIG = Config(length=123, channels=8, units=8, classes=3) if device.SIMULATED else replace(TINY_MATRICES, classes=3)
"""As small as products can be, where they are emulated."""

BOUND = gradient_errors.BOUNDS["bf16"]


def drawn(n, config=CONFIG, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, config.alphabet + 1, (n, config.length), np.uint8)
    return ids, rng.random((n, config.classes), np.float32)  # whose sum is not 1


def leaking(config, slope):
    """A network's layers, with leaky ReLU but in block 1."""
    rest = list(config.layers)
    for at in [at for at, layer in enumerate(rest) if isinstance(layer, layers.Relu)][1:]:
        rest[at] = layers.LeakyRelu(slope)
    return place(rest, (config.length,))


def test_a_step(monkeypatch):
    """Leaky ReLU, weights of rows, fewer inputs than rows: the loss and all gradients within what rounding allows."""
    if not (HERE or device.SIMULATED):
        pytest.skip("needs a GPU of compute capability 9.0")
    if device.SIMULATED:
        fresh_kernels(monkeypatch)
        monkeypatch.setattr(device, "multiprocessors", lambda: 2)
    weights, slope, n = params.init(CONFIG, 1), 0.25, 2 if device.SIMULATED else 5
    counts = np.linspace(0.5, 1.5, n).astype(np.float32)
    ids, targets = drawn(n)
    training = MixedTraining(CONFIG.nodes, weights, n + (not device.SIMULATED))
    loss, found = training.loss_and_gradients(ids, targets, leak=slope, weights=counts)
    weighted = targets * counts[:, None]  # the loss is linear in them
    exact, sigma = gradient_errors.expected(leaking(CONFIG, slope), ids, weighted, weights, "bf16")
    errors = gradient_errors.in_sigmas({"loss": np.array(loss), **found}, exact, sigma)
    assert errors.keys() == {"loss", *weights}
    assert max(errors.values()) <= BOUND, errors
    assert training.fetched(training.logits).shape == (n, CONFIG.classes)
