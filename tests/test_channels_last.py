"""Networks of images channels last: what lies where, and tensor cores in plain Python, beside the reference."""

from __future__ import annotations

import numpy as np
import pytest
import test_mma
import test_wgmma
from test_mma import simulated
from test_networks import architecture, drawn

from charcnn.catalog import network_technique
from charcnn.model.validation import in_sigmas
from charcnn.networks.reference import expected
from charcnn.ops.conv1d.wgmma.windows import WgmmaConv2dWeights

mma, wgmma = test_mma.machine, test_wgmma.machine


def errors(technique, name, precision, n=1, **how):
    """In sigmas, and the bound."""
    row = network_technique(technique)
    network = architecture(name)
    weights, images = drawn(network, n)
    found = row.build(technique, weights, network, batch=n, streams=1, precision=precision, **how)(images)
    rounding = row.rounding(precision)
    exact, sigma = expected(images, weights, network, rounding)
    assert (found.shape, found.dtype) == (exact.shape, np.float32)
    return in_sigmas(found, exact, sigma), rounding.bound


EMULATED = [
    (name, precision) for name in ("mnist", "ece408", "fused4", "alexnet", "ffn") for precision in ("fp16", "fp16x3")
]


@simulated
@pytest.mark.parametrize(("name", "precision"), EMULATED)
def test_wgmma(name, precision, wgmma, monkeypatch):
    def few_threads(self, x):
        return {next(tile for tile in self._tiles if tile.math_warpgroups == 2): 1.0}

    monkeypatch.setattr(WgmmaConv2dWeights, "_candidates", few_threads)
    found, bound = errors("wgmma", name, precision)
    print(found)
    assert found.max() < bound


@simulated
@pytest.mark.parametrize(("name", "precision"), EMULATED)
def test_mma(name, precision, mma, monkeypatch):
    found, bound = errors("mma", name, precision)
    print(found)
    assert found.max() < bound
