"""Block 1 of a network that trains, forward and backward, against float64 of the weights as rounded to fp16."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from conftest import by_turns

from charcnn.gpu import device
from charcnn.ops import reference
from charcnn.ops.maxpool1d_training import BELOW
from charcnn.ops.token_conv1d.training import POOL, TokenForward
from charcnn.ops.token_conv1d.training_backward import TokenBackward

EPS = 1e-5
SIZES = [
    (1, 11, 5, 8, 7),  # a window
    (3, 24, 4, 16, 7),  # 18 positions
    (2, 25, 9, 24, 5),  # 21 positions; lanes without channels
    (5, 38, 3, 8, 1),  # 38 positions: the last two are in no window
    (2, 27, 6, 136, 3),  # two slices of channels
    (2, 16, 255, 8, 2),  # bytes
]


FACTORS = np.array([1, 0.25], np.float32)
"""Above 0, and below."""


def leaky(values):
    return np.where(values > 0, *FACTORS) * values


def float_of(bits):
    """Of bfloat16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bf16_of(values):
    """The bits of values that are cut to bfloat16."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


class Case(NamedTuple):
    """Arguments, on the host."""

    ids: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    affine: tuple[np.ndarray, np.ndarray] | None


def drawn(n, length, depth, channels, taps, layernorm=True, seed=0):
    """Ids with blanks, and a text that ends early; some gammas are 0 or negative."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, depth + 1, (n, length), dtype=np.uint8)
    ids[n // 2, length // 2 :] = depth
    weight, bias = rng.standard_normal((taps, depth, channels), np.float32), rng.standard_normal(channels, np.float32)
    affine = rng.standard_normal((2, length - taps + 1, channels), np.float32)
    affine[0, :, 0] = 0
    return Case(ids, weight / 2, bias, tuple(affine) if layernorm else None)


def results(case):
    """y, xhat and what is compared, float64 (N, L, C), and moments (N, 2)."""
    taps, depth, channels = case.weight.shape
    table = np.zeros((taps, 256, channels))
    table[:, :depth] = case.weight.astype(np.float16)
    length = case.ids.shape[1] - taps + 1
    y = case.bias + sum(table[k][case.ids[:, k : k + length]] for k in range(taps))
    if case.affine is None:
        return y, y, y, None
    mean, rate = y.mean((1, 2)), 1 / np.sqrt(y.var((1, 2)) + EPS)
    xhat = (y - mean[:, None, None]) * rate[:, None, None]
    return y, xhat, xhat * case.affine[0] + case.affine[1], np.stack([mean, rate], 1)


def windows(x):
    """(N, P, 3, C)"""
    n, length, channels = x.shape
    return x[:, : length // POOL * POOL].reshape(n, -1, POOL, channels)


def put(array):
    return None if array is None else device.to_device(np.ascontiguousarray(array))


def forward(case, more=0):
    """The block and its results on the host; `more` rows behind the valid ones hold junk."""
    (n, length), (taps, _, channels) = case.ids.shape, case.weight.shape
    made = TokenForward(case.weight.shape, case.ids.shape, layernorm=case.affine is not None, eps=EPS)
    shape, norm = (n, (length - taps + 1) // POOL, channels), case.affine is not None
    outs = [put(np.full((n, shape[1] + more, channels), 0x7FC0, np.uint16)), put(np.full(shape, 9, np.uint8))]
    if norm:
        outs += put(np.full(shape, 0x7FC0, np.uint16)), put(np.full((n, 2), np.nan, np.float32))
    else:
        outs += None, None
    ids, weight, bias = map(put, case[:3])
    made.forward(ids, weight, bias, case.affine and tuple(map(put, case.affine)), put(FACTORS), *outs)
    return made, [out if out is None else device.to_host(out) for out in outs]


@pytest.mark.parametrize(
    ("sizes", "layernorm"), [*((sizes, True) for sizes in SIZES), *((sizes, False) for sizes in SIZES[:3])]
)
def test_forward(sizes, layernorm):
    case = drawn(*sizes, layernorm)
    _, (pooled, place, normalised, moments) = forward(case)
    _, xhat, values, exact = results(case)
    compared, room = windows(values), 2e-2
    best = compared.max(2)
    np.testing.assert_allclose(float_of(pooled), leaky(best), rtol=2**-8, atol=room)
    assert ((place >= BELOW) == (best <= 0))[abs(best) > room].all()
    assert set(np.unique(place)) <= {0, 1, 2, BELOW, BELOW + 1, BELOW + 2}
    taken = (place % BELOW)[:, :, None]
    chosen = np.take_along_axis(compared, taken, 2)[:, :, 0]
    assert (chosen >= best - room).all()
    if layernorm:
        np.testing.assert_allclose(moments, exact, rtol=2e-6, atol=2e-7)
        found = np.take_along_axis(windows(xhat), taken, 2)[:, :, 0]
        np.testing.assert_allclose(float_of(normalised), found, rtol=2**-7, atol=room)


def test_of_equals_the_first_and_what_relu_makes_0():
    """Whole numbers, which fp16 adds exactly: places are those of the reference."""
    rng = np.random.default_rng(5)
    case = drawn(4, 30, 3, 16, 3, layernorm=False)
    case = case._replace(weight=rng.integers(-1, 2, (3, 3, 16)).astype(np.float32), bias=np.zeros(16, np.float32))
    _, (pooled, place, *_) = forward(case, more=2)
    y, *_ = results(case)
    best = windows(y).max(2)
    np.testing.assert_array_equal(windows(y).argmax(2) + BELOW * (best <= 0), place)
    np.testing.assert_array_equal(float_of(pooled[:, :-2]), leaky(best))
    assert (pooled[:, -2:] == 0x7FC0).all()
    assert len(np.unique(place)) == 6


def test_a_mean_far_from_zero():
    case = drawn(3, 40, 6, 8, 7)
    case.bias[:] += 50
    *_, exact = results(case)
    *_, moments = forward(case)[1]
    np.testing.assert_allclose(moments, exact, rtol=3e-4)


def expected_gradient(case, dy, place):
    """Float64 dweight and dbias, and what the sums of g gamma and of g gamma xhat are, (N, 2)."""
    y, xhat, *_ = results(case)
    g = np.zeros(y.shape)
    at = (place % BELOW)[:, :, None]
    np.put_along_axis(windows(g), at, (float_of(dy) * np.where(place < BELOW, *FACTORS))[:, :, None], 2)
    sums, dx = None, g
    if case.affine is not None:
        gamma = case.affine[0].astype(np.float64)
        sums = np.stack([(g * gamma).sum((1, 2)), (g * gamma * xhat).sum((1, 2))], 1)
        dx, *_ = reference.layernorm_backward(g, y, gamma, eps=EPS)
    weight = case.weight.astype(np.float64).transpose(2, 1, 0)
    dweight, dbias = reference.one_hot_conv1d_backward(dx.transpose(0, 2, 1), case.ids, weight)
    return dweight.transpose(2, 1, 0), dbias, sums


def backward(case, more=0, scale=1.0, taps=(4, 4)):
    """What is expected, and twice what is found, by so many taps a warp."""
    made, (_, place, _, moments) = forward(case)
    rng = np.random.default_rng(1)
    dy = bf16_of(scale * rng.standard_normal((place.shape[0], place.shape[1] + more, place.shape[2])))
    dy[:, place.shape[1] :] = 0x7FC0
    *exact, sums = expected_gradient(case, dy[:, : place.shape[1]], place)
    norm, found = (), []
    if sums is not None:
        norm = tuple(map(put, (case.affine[0], moments, sums.astype(np.float32))))
    for gradient in (TokenBackward(made, taps=each) for each in taps):
        outs = [put(np.full(array.shape, np.nan, np.float32)) for array in exact]
        gradient.backward(put(dy), put(place), *outs, put(case.bias), put(FACTORS), *norm)
        found.append([device.to_host(out) for out in outs])
    return exact, *found


def check_gradient(exact, found, again, rtol=2e-6):
    for one, other, third in zip(exact, found, again, strict=True):
        np.testing.assert_allclose(other, one, rtol=rtol, atol=rtol * abs(one).max())
        np.testing.assert_array_equal(other, third)


@pytest.mark.parametrize(
    ("sizes", "layernorm"),
    [
        *((sizes, True) for sizes in SIZES[:5]),
        *((sizes, False) for sizes in SIZES[:3]),
        pytest.param((1, 7, 255, 8, 1), True, marks=pytest.mark.exhaustive),
    ],
)
def test_backward(sizes, layernorm):
    check_gradient(*backward(drawn(*sizes, layernorm)))


@by_turns
def test_backward_of_many_stages_and_rows_behind():
    """Several groups of windows, inputs that fill no stage, gradients of several sizes, and junk behind them."""
    check_gradient(*backward(drawn(9, 34, 4, 40, 7), more=2, scale=1e-4))


def test_backward_by_fewer_taps_a_warp():
    """More warps add up the same in the same order."""
    check_gradient(*backward(drawn(2, 20, 9, 8, 7, False), taps=(4, 2)))
    check_gradient(*backward(drawn(2, 20, 9, 8, 7, False), taps=(3, 1)))
    with pytest.raises(ValueError, match=r"^taps=5: need 1 to 4$"):
        TokenBackward(TokenForward((7, 9, 8), (1, 20)), taps=5)


def test_backward_where_memory_has_few_rows(monkeypatch):
    """A warp's taps at a time; then some rows of the counts' tables."""
    monkeypatch.setattr(device, "multiprocessors", lambda: 2)
    for sizes, limit in (((3, 29, 15, 16, 7), 19_000), ((2, 20, 60, 8, 2), 26_500)):
        monkeypatch.setattr(device, "shared_limit", lambda limit=limit: limit)
        check_gradient(*backward(drawn(*sizes)))
    monkeypatch.setattr(device, "shared_limit", lambda: 10_000)
    with pytest.raises(ValueError, match="need 18304 bytes of 10000"):
        TokenBackward(TokenForward((7, 15, 8), (1, 20)))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_gradient_that_is_not_finite_shows():
    case = drawn(2, 20, 4, 8, 3)
    made, (_, place, _, moments) = forward(case)
    outs = put(np.zeros((3, 4, 8), np.float32)), put(np.zeros(8, np.float32))
    dy, sums = put(np.zeros(place.shape, np.uint16)), put(np.full((2, 2), np.inf, np.float32))
    norm = put(case.affine[0]), put(moments), sums
    TokenBackward(made).backward(dy, put(place), *outs, put(case.bias), put(FACTORS), *norm)
    assert all(np.isnan(device.to_host(out)).all() for out in outs)


def test_nothing_arrives():
    """All windows are dead: only LayerNorm's sums would remain, which are 0."""
    exact, found, again = backward(drawn(2, 20, 4, 8, 3), scale=0.0)
    check_gradient(exact, found, again)
    assert not any(array.any() for array in found)


@pytest.mark.parametrize(
    ("shape", "ids_shape", "message"),
    [
        ((7, 70, 12), (1, 30), "C_out a multiple of 8"),
        ((7, 256, 8), (1, 30), "depth at most 255"),
        ((7, 70, 8), (1, 8), "a window, 9 ids"),
        ((90, 255, 8), (1, 300), "23040 rows of 8 channels need 368640 bytes"),
    ],
)
def test_what_does_not_fit(shape, ids_shape, message):
    with pytest.raises(ValueError, match=message):
        TokenForward(shape, ids_shape)
