"""What Hopper's kernel keeps in shared memory, and its clusters where rows make an odd number of tiles."""

from __future__ import annotations

import numpy as np
import pytest
import test_ops
from conftest import quick
from numba import cuda
from prepared import of_kind, prepared
from small_gpu import one_multiprocessor

from charcnn import catalog
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.ops import conv1d_relu_maxpool1d_nlc_wgmma, reference
from charcnn.ops.common import tile_choice
from charcnn.ops.common.cast import narrow, widen
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.ops.conv1d.wgmma import few_rows, split_k
from charcnn.ops.conv1d.wgmma.config import BLOCK_N, Barrier, WgmmaTile
from charcnn.ops.conv1d.wgmma.kernel import make_kernel
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.wgmma.pack import make_pack_kernel


@pytest.mark.parametrize(("pooled", "measured"), [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("taps", [1, 2, 3, 7, 11])
@pytest.mark.parametrize("name", list(TENSOR_PRECISIONS))
def test_shared_memory_holds_the_stages(name, taps, pooled, measured):
    config = WgmmaTile.of(taps, pooled, TENSOR_PRECISIONS[name], measured=measured)
    assert config.pooled == pooled
    assert config.smem_bytes <= device.SHARED_LIMIT
    assert 8 * config.b_stages <= Barrier.B_EMPTY - Barrier.B_FULL  # mbarriers of a kind end before the next
    assert 8 * config.a_stages <= Barrier.A_EMPTY - Barrier.A_FULL
    assert 0 < config.prefetch < config.b_stages
    assert config.b_bytes % (16 * config.cluster_m) == 0  # what a block copies for all
    producer, math = config.registers or (65_536 // config.threads,) * 2
    assert 128 * (config.producer * producer + config.math_warpgroups * math) <= 65_536
    accumulators = config.block_n // 2 * (1 + TENSOR_PRECISIONS[name].promoted)
    assert math >= 32 + accumulators  # and what else a thread needs
    assert config.a_bytes % 1024 == config.b_bytes % 1024 == 0  # where the swizzle begins anew


@pytest.mark.parametrize("taps", [26, 73])
def test_pooling_of_many_taps_in_two_terms_has_a_stage_of_features_less(taps):
    config = WgmmaTile.of(taps, True, TENSOR_PRECISIONS["fp16x3"])
    assert config.a_stages == 1
    assert config.smem_bytes <= device.SHARED_LIMIT


ODD = {
    "pool": (7, [(1, 9, 64, 256), (5, 63, 80, 256), (67, 33, 320, 512)]),
    "pool of one tap": (1, [(5, 63, 80, 256), (67, 33, 320, 512)]),
    "relu": (3, [(1, 3, 64, 256), (67, 31, 320, 512), (5, 63, 64, 264)]),
    "stat": (3, [(67, 31, 320, 512), (5, 63, 64, 256)]),
    "line": (1, [(1, 1, 64, 256), (129, 1, 136, 256), (385, 1, 640, 1024), (3, 1, 64, 16384)]),
}
"""Taps, and (N, L, C_in, C_out): one tile, an odd number, and more columns than a tile has, or than fill it.

The bias of 16,384 columns has no room in shared memory; 264 of e4m3 do not make rows of whole 16 bytes.
"""


def compare_tiles(conv, features, want, name, kind, unit):
    """What the kernel gives, twice, beside what it must; the results are the same bits."""
    of, (n, c_out) = TENSOR_PRECISIONS[name], (len(want), want.shape[-1])
    made = []
    for _ in range(2):
        nothing = np.frombuffer(b"\xff" * want.size * of.size, of.dtype)  # NaN
        nothing = nothing.reshape((*want.shape[:-1], of.terms * c_out))
        y = device.to_device(nothing)
        if kind == "stat":
            _, stat = conv.with_moments(features, out=(y, device.to_device(np.full((n, 2), np.nan))))
            mean, variance = reference.stat(want / unit).T
            np.testing.assert_allclose(stat.copy_to_host()[:, 0], mean, atol=of.tolerance * np.sqrt(variance).max())
            np.testing.assert_allclose(stat.copy_to_host()[:, 1], variance, rtol=2 * of.tolerance)
        else:
            conv.apply(features, out=y)
        made.append(y)
    cuda.synchronize()
    np.testing.assert_array_equal(*(y.copy_to_host().view(np.uint8) for y in made))
    got = made[0]
    if name != "tf32":
        call = Call(None, None, want.shape, dtypes={"x": of.dtype}, x=made[0])
        widen(call, made[0], call.out, of, unit)
        got = call.out
    assert np.linalg.norm(got.copy_to_host() - want) <= of.tolerance * np.linalg.norm(want)


@pytest.mark.skipif(not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0")
@quick(
    lambda name, kind: (
        kind in {"fp16": ("pool", "relu", "stat"), "fp8": ("pool", "stat"), "fp16x3": ("pool", "stat")}.get(name, ())
        or kind == "line"
    )
)
@pytest.mark.parametrize("kind", list(ODD))
@pytest.mark.parametrize(
    "name", ["fp16", pytest.param("bf16", marks=pytest.mark.exhaustive), "tf32", "fp8", "fp8 promoted", "fp16x3"]
)
def test_an_odd_number_of_tiles(name, kind, monkeypatch):
    name, promoted = name.removesuffix(" promoted"), name.endswith(" promoted")
    of, (taps, sizes), pooled = TENSOR_PRECISIONS[name], ODD[kind], kind.startswith("pool")
    unit = 5 / 448 if name == "fp8" else 1.0
    monkeypatch.setattr(few_rows, "offered", lambda *_: ())  # test_few_rows has those that are smaller
    monkeypatch.setattr(split_k, "offered", lambda *_: None)  # and test_wgmma_split_k those of several blocks
    draw = np.random.default_rng(0)
    for n, length, c_in, c_out in sizes:
        x = draw.standard_normal((n, length, c_in), np.float32)
        weight = draw.standard_normal((taps, c_in, c_out), np.float32) / np.float32(np.sqrt(taps * c_in))
        bias = draw.standard_normal(c_out, np.float32)
        options = {"precision": name, "x_unit": unit, "y_unit": unit, "promoted": promoted}
        conv = of_kind(WgmmaConv, kind, weight, bias, **options)
        call = Call(None, None, x.shape, x=x)
        features = narrow(call, call.inputs[0], length, conv.width, of, 1 / unit)
        exact = (array.astype(np.float64) for array in (x, weight, bias))
        if pooled:
            want = reference.conv1d_relu_maxpool1d_nlc(*exact, 3)
        else:
            want = (reference.conv1d_nlc if kind == "stat" else reference.conv1d_relu_nlc)(*exact)
        compare_tiles(conv, features, want, name, kind, unit)
        with monkeypatch.context() as few:  # blocks, of many tiles each
            few.setattr(device, "multiprocessors", lambda: 2)
            compare_tiles(conv, features, want, name, kind, unit)


# The kernel's source, with TMA and tensor cores in plain Python.

simulated = pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, which runs the same by test_ops")


@pytest.fixture
def machine(monkeypatch):
    """Hopper in plain Python, and tiles of few columns; nothing where there is a GPU."""
    if not device.SIMULATED:
        yield
        return
    for made in (make_kernel, make_pack_kernel):
        made.cache_clear()  # of kernels that another machine runs
    one_multiprocessor(monkeypatch)
    for promoted in BLOCK_N:
        monkeypatch.setitem(BLOCK_N, promoted, 64)
    limit = device.shared_limit()
    monkeypatch.setattr(device, "SHARED_LIMIT", 0)  # no stage beyond those that always fit
    monkeypatch.setattr(device, "shared_limit", lambda: limit)
    monkeypatch.setattr(tile_choice, "choose", lambda *args: next(one for one in args[-1] if one.cluster_m == 1))
    monkeypatch.setattr(few_rows, "offered", lambda *_: ())  # test_few_rows has those that are smaller
    yield
    for made in (make_kernel, make_pack_kernel):
        made.cache_clear()


@simulated
def test_what_reads_weights_or_a_map_first_does_not_begin_early(machine, monkeypatch):
    early, launch = [], Call.launch

    def noted(call, kernel, *args, **options):
        early.append(options.get("early", False))
        launch(call, kernel, *args, **options)

    monkeypatch.setattr(Call, "launch", noted)
    draw = np.random.default_rng(0)
    weight, bias = draw.standard_normal((1, 8, 8), np.float32), np.zeros(8, np.float32)
    conv = prepared(WgmmaConv, weight, bias)
    x, other = (device.to_device(draw.standard_normal((3, 1, 8), np.float32).astype(np.float16)) for _ in range(2))
    assert early == [False, False], "packing, padding"
    for features in (x, x, other, x):
        conv.apply(features)
    assert early[2:] == [False, True, False, True]


@simulated
def test_out_of_eighths_begins_at_a_multiple_of_8_bytes(machine):
    conv = prepared(WgmmaConv, np.ones((1, 16, 8), np.float32), np.zeros(8, np.float32), precision="fp8")
    x, room = device.to_device(np.zeros((1, 1, 16), np.uint8)), device.to_device(np.zeros(16, np.uint8))
    behind = -device.address(room) % 8 + 3
    with pytest.raises(ValueError, match=r"^out begins 3 bytes past a multiple of 8"):
        conv.apply(x, out=room[behind : behind + 8].reshape((1, 1, 8)))


@simulated
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("conv1d_nlc_wgmma_fp16x3", np.inf),
        ("linear_nlc_wgmma_fp16x3", -np.inf),
        ("linear_nlc_wgmma_fp8", -np.inf),
        ("linear_relu_nlc_wgmma_fp8", np.nan),
        pytest.param("linear_gelu_linear_nlc_wgmma_fp16", np.nan, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_not_finite(name, value, machine):
    row = next(row for row in catalog.VARIANTS if row.name == name)
    test_ops.test_what_is_not_finite(row, value)


@pytest.mark.skipif(
    not device.SIMULATED and not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0"
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_not_finite_or_out_of_range(machine):
    draw = np.random.default_rng(1)
    x, weight = draw.standard_normal((4, 9, 8), np.float32), draw.standard_normal((2, 8, 16), np.float32)
    x[:, 4, 3] = np.inf, -np.inf, np.nan, 1e5
    x[1, 4, 4] = 3e38
    weight[0, 5, 0], weight[1, 3, 1:3], weight[1, 5, 3] = np.inf, (0, -np.inf), np.nan
    exact = [array.astype(np.float64) for array in (x, weight)]
    exact[0][abs(exact[0]) > 65_504] *= np.inf
    expected = reference.conv1d_relu_maxpool1d_nlc(*exact, np.zeros(16), 3)
    y = conv1d_relu_maxpool1d_nlc_wgmma(x, weight, np.zeros(16, np.float32), 3, precision="fp16x3")
    finite = np.isfinite(expected)
    assert 0 < np.isinf(expected).sum() < np.isnan(expected).sum() < finite.sum()
    np.testing.assert_array_equal(y[~finite], expected[~finite])
    assert np.linalg.norm(y[finite] - expected[finite]) <= 2e-6 * np.linalg.norm(expected[finite])
