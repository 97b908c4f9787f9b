"""bench/conv2d.py: each layer gets features as it takes them, and its results are read as it gives them."""

from __future__ import annotations

import conv2d
import numpy as np
import pytest
from conftest import quick
from prepared import prepared
from spaces import Space
from test_mma import machine as mma_in_plain_python  # noqa: F401 - a fixture
from test_wgmma import machine as wgmma_in_plain_python  # noqa: F401 - a fixture

from charcnn import catalog
from charcnn.gpu import device
from charcnn.ops import reference
from charcnn.ops.conv1d.wgmma.windows import WgmmaWindows

LAYERS = {layer.name: layer for layer in catalog.LAYERS}


def few_threads(self, x):
    return {next(tile for tile in self.im2col_tiles if tile.math_warpgroups == 2): 1.0}


# Others than these take float32, or have one of these layers' kernels.
@quick(lambda precision, name: (precision, name[:3]) in {("fp8", "Wgm"), ("fp16x3", "Mma")})
@pytest.mark.parametrize(
    ("precision", "name"), [(precision, name) for precision, names in conv2d.OWN.items() for name in names]
)
def test_a_sequence_through_each_layer(precision, name, request, monkeypatch):
    technique = "wgmma" if name == "WgmmaConv" else "mma"
    if device.SIMULATED and precision != "fp32":
        request.getfixturevalue(f"{technique}_in_plain_python")
        monkeypatch.setattr(WgmmaWindows, "candidates", few_threads)
    elif precision != "fp32" and not device.has_tensor_cores(hopper=technique == "wgmma"):
        pytest.skip("the GPU has no such tensor cores")
    draw = np.random.default_rng(0)
    x, weight = (draw.standard_normal(shape).astype(np.float32) for shape in ((2, 1, 11, 32), (1, 7, 32, 32)))
    weight, bias = weight / np.float32(weight[..., 0].size ** 0.5), draw.standard_normal(32).astype(np.float32)
    moves = {"padding": (0, 0, 3, 3)}
    unit = float(abs(x).max()) / 448 if precision == "fp8" else 1.0
    options = {} if precision == "fp32" else {"precision": precision}
    options |= {"results": "float32", "x_unit": unit} if precision == "fp8" else {}
    layer = prepared(LAYERS[name].made, weight, bias, "relu", **moves, **options)
    features = conv2d.laid_out(layer, x, precision, unit)
    got = conv2d.values(layer, layer(features, Space()), precision)
    exact = (one.astype(np.float64) for one in (x, weight, bias))
    want = reference.relu(reference.conv2d_nhwc(*exact, **moves))
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= conv2d.TOLERANCES[precision] * np.linalg.norm(want)
