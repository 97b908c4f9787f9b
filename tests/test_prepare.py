"""Layers prepared once, then called, against the references: every row of the table that runs here."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import runs_here
from numba import cuda

from charcnn import catalog, ops
from charcnn.catalog import VARIANTS, operator
from charcnn.gpu import device
from charcnn.layers import (
    AvgPool2d,
    BatchNorm2d,
    Conv1d,
    Conv2d,
    Flatten,
    Gelu,
    GlobalAvgPool2d,
    LayerNorm,
    LeakyRelu,
    Linear,
    LocalResponseNorm,
    MaxPool1d,
    MaxPool2d,
    OneHot,
    Relu,
    Sigmoid,
    Softmax,
    Tanh,
)
from charcnn.ops.functions import arrays_of
from charcnn.ops.patterns import operator_name, options

SEQUENCE, IMAGE, ROW, IDS = (2, 4, 11), (2, 3, 7, 6), (3, 8), (2, 9)
PATTERNS = [
    (SEQUENCE, [Conv1d(5, 3)]),
    (SEQUENCE, [Conv1d(5, 3), Relu()]),
    (SEQUENCE, [Conv1d(5, 3), Relu(), MaxPool1d(3)]),
    (SEQUENCE, [LayerNorm()]),
    (SEQUENCE, [MaxPool1d(2)]),
    (SEQUENCE, [Relu(), MaxPool1d(2)]),
    (SEQUENCE, [Flatten()]),
    (SEQUENCE, [Flatten(), Linear(5)]),
    (IDS, [OneHot(6)]),
    (IDS, [OneHot(6), Conv1d(5, 3)]),
    (IDS, [OneHot(6), Conv1d(5, 3), Relu(), MaxPool1d(3)]),
    (ROW, [Linear(5)]),
    *((ROW, [Linear(5), follows]) for follows in (Relu(), Tanh(), Gelu(), Sigmoid(), LeakyRelu(), Softmax())),
    (ROW, [Linear(5, name="one"), Relu(), Linear(4, name="two")]),
    *((ROW, [one]) for one in (Relu(), Tanh(), Gelu(), Sigmoid(), LeakyRelu(0.3), Softmax())),
    (IMAGE, [Conv2d(4, 3, padding=1)]),
    (IMAGE, [Conv2d(4, (2, 3), padding=(1, 0), bias=False), Relu()]),
    (IMAGE, [Conv2d(4, 3), Tanh(), MaxPool2d(2)]),
    (IMAGE, [Conv2d(4, 3), Relu(), GlobalAvgPool2d()]),
    (IMAGE, [BatchNorm2d(1e-3), Relu()]),
    (IMAGE, [MaxPool2d(3, 2, 1)]),
    (IMAGE, [AvgPool2d(2)]),
    (IMAGE, [LocalResponseNorm(3, 5e-4, 0.75, 2.0)]),
]


def drawn(shape, pattern):
    """x, and weights as PyTorch has them."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 8, shape).astype(np.uint8) if shape is IDS else rng.standard_normal(shape, np.float32)
    weights, of = {}, shape[1:]
    for layer in pattern:
        prefix = f"{layer.name}." if layer.name else ""
        for part, size in layer.parameters(of).items():
            weights[prefix + part] = rng.uniform(0.5, 1, size).astype(np.float32)
        of = layer.out_shape(of)
    return x, weights


def expected(x, pattern, weights):
    """By the reference of the layers' operator, channels first."""
    name = operator_name(pattern) + "_nlc" * (len(pattern) > 2 and isinstance(pattern[0], OneHot))
    arrays = [array.astype(np.float64) for array in weights.values()]
    if isinstance(pattern[0], Conv2d) and not pattern[0].bias:
        arrays.append(np.zeros(pattern[0].channels))
    if name.endswith("_nlc"):
        arrays = [array.transpose(2, 1, 0) if array.ndim == 3 else array for array in arrays]
    x = x if x.dtype == np.uint8 else x.astype(np.float64)
    y = operator(name).reference(x, *arrays, **options(pattern))
    return np.moveaxis(y, -1, 1) if name.endswith("_nlc") else y


def cases():
    for shape, pattern in PATTERNS:
        for row in VARIANTS:
            same = operator(row.operator).computes == operator_name(pattern)
            if same and runs_here(row) and row.precision != "fp8":
                yield pytest.param(row, shape, pattern, id=f"{row.name}-{len(shape)}")


@pytest.mark.parametrize(("row", "shape", "pattern"), cases())
def test_rows(row, shape, pattern):
    x, weights = drawn(shape, pattern)
    if arrays_of(row) != 1 + len(weights) + (isinstance(pattern[0], Conv2d) and not pattern[0].bias):
        pytest.skip("takes statistics, which no layer gives")
    last = row.layout == "channels_last"
    how = {"technique": row.technique, "precision": row.precision or "fp32", "layout": row.layout}
    try:
        made = ops.prepare(pattern, weights, **how)
    except ValueError as error:
        assert "needs" in str(error), "the technique refuses the window"  # noqa: PT017
        return
    assert (made.technique, made.layout, made.precision) == (how["technique"], how["layout"], how["precision"])
    is_features = x.ndim > 2
    given = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if last and is_features else x
    need = expected(x, pattern, weights)
    need = np.moveaxis(need, 1, -1) if last and need.ndim > 2 else need
    for _ in range(2):  # weights stay
        y = made(given)
        assert isinstance(y, np.ndarray)
        error = np.linalg.norm(y - need)
        assert error <= 2 * max(catalog.tolerance(row), 1e-6) * np.linalg.norm(need)
    out = np.full(need.shape, np.nan, np.float32)
    assert made(given, out=out) is out
    np.testing.assert_array_equal(out, y)
    if row.device == "cuda":
        stream = cuda.stream()  # which outlives what is computed on it
        on_device = made(cuda.to_device(given), stream=stream)
        cuda.synchronize()
        np.testing.assert_array_equal(on_device.copy_to_host(), y)


def test_every_pattern_has_a_row():
    ran = {operator(case.values[0].operator).computes for case in cases()}
    assert {operator_name(pattern) for _, pattern in PATTERNS} <= ran | {"conv2d"}


def test_what_is_chosen():
    x, weights = drawn(SEQUENCE, [Conv1d(5, 3), Relu()])
    pattern = [Conv1d(5, 3), Relu()]
    assert ops.prepare(pattern, weights, device="cpu").technique == "cpu_gemm"
    assert ops.prepare(pattern, weights, device="cpu", layout="channels_last").technique == "winograd_cpu"
    chosen = ops.prepare(pattern, weights, device="cuda")
    assert (chosen.technique, chosen.layout, chosen.precision) == ("naive", "channels_first", "fp32")
    assert ops.prepare(pattern, weights, technique="double_buffered").layout == "channels_last"
    np.testing.assert_allclose(chosen(x), expected(x, pattern, weights), rtol=1e-4, atol=1e-5)
    _, few = drawn(IMAGE, [Conv2d(4, 3)])
    assert ops.prepare([Conv2d(4, 3)], few, device="cpu").technique == "winograd_rows_cpu"
    _, many = drawn((1, 9, 7, 7), [Conv2d(4, 3)])
    assert ops.prepare([Conv2d(4, 3)], many, device="cpu").technique == "cpu_gemm"
    assert ops.prepare([Conv2d(4, 3)], many, device="cuda").technique == "naive"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pattern": []}, r"^pattern=\[\]: need at least one layer of charcnn.layers"),
        ({"pattern": ["conv"]}, r"^pattern=\['conv'\]: need at least one layer"),
        ({"pattern": [Conv1d(5, 3), Softmax()]}, r"^pattern=\[Conv1d\(.*: no operator computes it"),
        ({"pattern": [Conv1d(5, 4)]}, r"^weight has shape \(5, 4, 3\): need \(5, any, 4\), of Conv1d\("),
        ({"weights": {"weight": np.zeros((5, 4, 3), np.float32)}}, r"^weights has weight: need bias, of Conv1d\("),
        ({"weights": None}, r"^weights has nothing: need weight, of Conv1d\("),
        ({"more": {"gamma": np.zeros(3, np.float32)}}, r"^weights has gamma: no layer of the pattern has such"),
        ({"more": {"bias": np.zeros(5)}}, r"^bias has dtype float64: need float32"),
        (
            {"technique": "winograd_gpu"},
            r"^technique='winograd_gpu': nothing takes \[Conv1d\(.*need one of loops ",
        ),
        (
            {"technique": "naive", "precision": "bf16"},
            r"^precision='bf16': nothing takes .* need one of naive ",
        ),
        (
            {"technique": "loops", "device": "cuda"},
            r"^device='cuda': nothing takes .* need one of loops ",
        ),
        ({"technique": "wgmma", "layout": "channels_first"}, r"^layout='channels_first': nothing takes"),
        ({"technique": "mma", "precision": "fp8"}, r"^precision='fp8': features need scales"),
    ],
)
def test_what_is_refused(change, message):
    _, weights = drawn(SEQUENCE, [Conv1d(5, 3)])
    given = {"pattern": [Conv1d(5, 3)], "weights": weights, **change}
    given["weights"] = {**(given["weights"] or {}), **given.pop("more", {})} or None
    with pytest.raises(ValueError, match=message):
        ops.prepare(**given)


def test_calls_are_checked():
    x, weights = drawn(SEQUENCE, [Conv1d(5, 3)])
    for technique, kind in (("loops", "cpu"), ("naive", "cuda")):
        made = ops.prepare([Conv1d(5, 3)], weights, technique=technique)
        with pytest.raises(ValueError, match=r"^weight has shape \(5, 4, 3\): need C_in=3"):
            made(x[:, :3].copy())
        with pytest.raises(ValueError, match=r"^x has dtype float64"):
            made(x.astype(np.float64))
        with pytest.raises(ValueError, match=r"^out has shape"):
            made(x, out=np.zeros((2, 5, 8), np.float32))
        if kind == "cpu":
            with pytest.raises(ValueError, match=r"^stream is given: the technique loops runs on the CPU"):
                made(x, stream=0)


def test_tensor_cores_are_needed(monkeypatch):
    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(device, "capability", lambda: (8, 9))
    _, weights = drawn(SEQUENCE, [Conv1d(5, 3)])
    with pytest.raises(
        device.DeviceError, match=r"wgmma needs tensor cores of compute capability 9\.0, this GPU has 8\.9"
    ):
        ops.prepare([Conv1d(5, 3)], weights, technique="wgmma", precision="fp16")
