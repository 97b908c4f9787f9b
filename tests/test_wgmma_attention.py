"""Attention on Hopper's tensor cores: of heads apart and of a projection's rows, beside float64 on rounded inputs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from conftest import by_turns, quick
from small_gpu import one_multiprocessor

from charcnn import ops
from charcnn.gpu import device, ptx
from charcnn.gpu.launch import Call
from charcnn.gpu.ptx.simulated import E4M3
from charcnn.ops import reference
from charcnn.ops.attention.wgmma_layer import WgmmaAttention
from charcnn.ops.attention.wgmma_rows import POWERS
from charcnn.ops.attention.wgmma_tile import BARRIER_BYTES, MOST_STAGES, TILES, AttentionBarrier, choose

if device.SIMULATED:
    from charcnn.gpu import emulator

pytestmark = pytest.mark.skipif(
    not device.SIMULATED and not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0"
)

TOLERANCE = {"fp16": 1e-3, "bf16": 8e-3, "fp8": 4e-2}
"""Weights and results are rounded, to 11 and 8 bits; of fp8 results to 4."""


@pytest.fixture(autouse=True)
def _machine(monkeypatch):
    if device.SIMULATED:
        one_multiprocessor(monkeypatch)


def rounded(values, precision):
    """(numbers of the precision, their values in float64)"""
    if precision == "fp16":
        halves = values.astype(np.float16)
        return halves, halves.astype(np.float64)
    words = np.ascontiguousarray(values).view(np.uint32) >> 16
    return words.astype(np.uint16), (words << 16).view(np.float32).astype(np.float64)


def widened(made, precision):
    return made.astype(np.float64) if precision == "fp16" else (made.astype(np.uint32) << 16).view(np.float32)


def check(made, want, precision):
    assert np.isfinite(made).all()
    assert np.linalg.norm(made - want) <= TOLERANCE[precision] * np.linalg.norm(want)


def drawn(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


@pytest.mark.parametrize("tile", [tile for tiles in TILES.values() for tile in tiles], ids=str)
def test_shared_memory_and_registers(tile):
    assert tile.smem_bytes <= device.SHARED_LIMIT
    assert max(tile.stages, tile.q_stages) <= MOST_STAGES
    assert tile.q_bytes % 1024 == tile.kv_bytes % 1024 == 0  # where the swizzle begins anew
    producer, others = tile.registers
    assert 128 * (producer + tile.warpgroups * others) <= 65_536


def test_barriers_of_a_kind_end_before_the_next():
    assert [*AttentionBarrier] == list(range(0, BARRIER_BYTES, 8 * MOST_STAGES))


@pytest.mark.parametrize(("positions", "warpgroups"), [(1, 2), (128, 2), (256, 2), (384, 3), (512, 3), (1024, 3)])
def test_more_warpgroups_where_few_rows_are_empty(positions, warpgroups):
    assert choose(64, positions).warpgroups == warpgroups


def test_a_polynomial_is_near_powers_of_2():
    x = np.linspace(-0.5, 0.5, 1001)
    made = sum(float(c) * x**i for i, c in enumerate(POWERS))
    assert np.abs(made / 2**x - 1).max() < 2**-13


@pytest.mark.parametrize(
    ("shape", "lengths", "causal", "precision"),
    [
        ((1, 1, 1, 32), None, False, "fp16"),
        pytest.param((2, 2, 128, 64), None, False, "bf16", marks=pytest.mark.exhaustive),
        pytest.param((1, 2, 300, 64), None, False, "fp16", marks=pytest.mark.exhaustive),
        ((3, 1, 130, 32), [130, 0, 65], False, "fp16"),
        pytest.param((2, 1, 150, 128), [129, -1], False, "bf16", marks=by_turns),
        ((2, 1, 270, 64), [257, 5], True, "fp16"),
        pytest.param((1, 1, 330, 64), [310], False, "fp16", marks=pytest.mark.exhaustive),
        pytest.param((1, 1, 260, 128), None, True, "fp16", marks=pytest.mark.exhaustive),
    ],
)
def test_heads_apart(shape, lengths, causal, precision):
    (q, k, v), (q64, k64, v64) = zip(*(rounded(one, precision) for one in drawn(3, *shape)), strict=True)
    counts = None if lengths is None else np.array(lengths, np.int32)
    want = reference.attention(q64, k64, v64, counts, causal)
    for n, length in enumerate(lengths or ()):
        for array in (q, k, v):
            array[n, :, length if length >= 0 else shape[2] :] = 0x7C00 if precision == "fp16" else 0x7F80  # not seen
    layer = WgmmaAttention(shape[1], shape[3], causal=causal, precision=precision)
    check(widened(layer.apply(q, k, v, counts), precision), want, precision)


def of_rows(qkv, heads, depth):
    """q, k and v (1, heads, rows, d) of a projection's rows."""
    return qkv.reshape(1, len(qkv), 3, heads, depth).transpose(2, 0, 3, 1, 4)


def back(y):
    return y[0].transpose(1, 0, 2).reshape(y.shape[2], y.shape[1] * y.shape[3])


@pytest.mark.parametrize(("heads", "depth", "results"), [pytest.param(2, 32, "fp16", marks=by_turns), (1, 64, "fp8")])
def test_packed_inputs(heads, depth, results):
    lengths = [5, 0, 130, 1]
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    qkv, exact = rounded(drawn(offsets[-1], 3 * heads * depth), "fp16")
    want = [back(reference.attention(*of_rows(exact[a:b], heads, depth))) for a, b in pairwise(offsets)]
    made = WgmmaAttention(heads, depth, results=results).of_rows(qkv, offsets=offsets, most=max(lengths))
    check(E4M3[made] if results == "fp8" else made, np.concatenate(want), results)


def test_results_of_8_bits_are_of_fp16():
    with pytest.raises(ValueError, match="results='fp8': need bf16"):
        WgmmaAttention(1, 64, precision="bf16", results="fp8")


def test_an_infinite_value_of_the_next_input_is_not_seen():
    qkv, exact = rounded(drawn(150, 3 * 64), "fp16")
    qkv[20:] = np.inf
    made = WgmmaAttention(1, 64).of_rows(qkv, offsets=np.array([0, 20, 150], np.int32), most=130)
    check(made[:20], back(reference.attention(*of_rows(exact[:20], 1, 64))), "fp16")
    assert np.isnan(made[20:]).all()


@pytest.mark.parametrize("lengths", [pytest.param(None, marks=pytest.mark.exhaustive), [40, 7]])
def test_inputs_of_as_many_rows(lengths):
    qkv, exact = rounded(drawn(2, 40, 3 * 2 * 32), "fp16")
    counts = None if lengths is None else np.array(lengths, np.int32)
    q, k, v = exact.reshape(2, 40, 3, 2, 32).transpose(2, 0, 3, 1, 4)
    want = reference.attention(q, k, v, counts).transpose(0, 2, 1, 3).reshape(2, 40, 64)
    check(WgmmaAttention(2, 32).of_rows(qkv, lengths=counts), want, "fp16")


def test_nan_and_infinity_are_not_hidden():
    q, k, v = (np.ones((1, 1, 140, 64), np.float16) for _ in range(3))
    q[0, 0, 3], k[0, 0, 135, 0], v[0, 0, 7, 5] = np.nan, -np.inf, np.inf
    made = WgmmaAttention(1, 64).apply(q, k, v)[0, 0]
    assert np.isnan(made[3]).all()
    others = np.delete(made, 3, 0)  # one key has no weight, one value is infinite
    assert np.isposinf(others[:, 5]).all()
    np.testing.assert_allclose(np.delete(others, 5, 1), 1, rtol=2e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 48}, "depth=48: need one of 32, 64, 128"),
        ({"precision": "tf32"}, "need one of fp16, bf16"),
        ({"heads": 3}, "need 3 heads of 32"),
        ({"lengths": np.zeros(2, np.int32)}, "lengths has shape"),
    ],
)
def test_refuses(change, message):
    q = np.zeros((1, 2, 8, 32), np.float16)
    given = {"heads": 2, "depth": 32, "precision": "fp16", "lengths": None} | change
    with pytest.raises(ValueError, match=message):
        WgmmaAttention(given["heads"], given["depth"], precision=given["precision"]).apply(q, q, q, given["lengths"])


@pytest.mark.parametrize(
    ("shape", "options"),
    [((8, 3 * 64), {}), ((2, 8, 64), {}), ((2, 8, 3 * 64), {"offsets": np.zeros(3, np.int32)}),
     ((2, 8, 3 * 64), {"lengths": np.zeros(3, np.int32)})],
)  # fmt: skip
def test_rows_are_refused(shape, options):
    with pytest.raises(ValueError, match="has shape"):
        WgmmaAttention(2, 32).of_rows(np.zeros(shape, np.float16), **options)


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: nothing to emulate")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 6))])
@pytest.mark.parametrize(("shape", "lengths"), [((1, 1, 300, 64), None), ((2, 1, 140, 32), [135, 3])])
def test_no_schedule_makes_a_race(shape, lengths, seed):
    q, k, v = drawn(3, *shape).astype(np.float16)
    counts = None if lengths is None else np.array(lengths, np.int32)
    want = reference.attention(*(x.astype(np.float64) for x in (q, k, v)), counts)
    with emulator.checking(seed) as findings:
        made = WgmmaAttention(shape[1], shape[3]).apply(q, k, v, counts)
    assert findings == []
    check(made, want, "fp16")


@by_turns
@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: nothing to emulate")
@pytest.mark.parametrize("waits", [True, False])
def test_what_knows_its_maps_begins_early_and_waits_for_what_it_reads(monkeypatch, waits):
    early, launch = [], Call.launch

    def noted(call, *args, **options):
        early.append(options["early"])
        launch(call, *args, **options)

    monkeypatch.setattr(Call, "launch", noted)
    if not waits:
        monkeypatch.setattr(ptx, "griddepcontrol_wait", lambda: None)
    qkv = device.to_device(drawn(2, 40, 3 * 32).astype(np.float16))
    first, then = (device.empty((2, 40, 32), np.float16) for _ in range(2))
    lengths, layer = device.to_device(np.array([40, 7], np.int32)), WgmmaAttention(1, 32)

    def both():
        layer.of_rows(qkv, lengths=lengths, out=first)
        q = first.reshape((2, 1, 40, 32))
        layer.apply(q, q, q, out=then.reshape(q.shape))

    both()
    with emulator.checking() as findings:
        both()
    assert early == [False, False, True, True]
    assert {one.kind for one in findings} == (set() if waits else {"missing grid wait"})


@quick(lambda technique, shape: technique == "wgmma" or shape[2] < 100)
@pytest.mark.parametrize("technique", ["mma", "wgmma"])
@pytest.mark.parametrize(
    ("shape", "lengths", "causal", "precision"),
    [
        ((1, 2, 1, 32), None, False, "fp16"),
        ((2, 1, 130, 64), [129, 0], False, "bf16"),
        ((1, 1, 150, 128), None, True, "fp16"),
        ((2, 1, 70, 32), [66, -1], True, "fp16"),
        ((0, 2, 5, 64), None, False, "fp16"),
    ],
)
def test_float32_in_and_out(technique, shape, lengths, causal, precision):
    exact = [rounded(one, precision)[1] for one in drawn(3, *shape)]
    q, k, v = (one.astype(np.float32) for one in exact)
    counts = None if lengths is None else np.array(lengths, np.int32)
    want = reference.attention(*exact, counts, causal)
    for n, length in enumerate(lengths or ()):
        for array in (q, k, v):
            array[n, :, length if length >= 0 else shape[2] :] = np.inf  # not seen
    made = getattr(ops, f"attention_{technique}")(q, k, v, counts, causal, precision=precision)
    check(made, want, precision)


@pytest.mark.parametrize("technique", ["mma", "wgmma"])
def test_other_heads_are_refused(technique):
    q = np.zeros((1, 2, 8, 48), np.float32)
    with pytest.raises(ValueError, match=r"need .*32, 64, 128"):
        getattr(ops, f"attention_{technique}")(q, q, q)
