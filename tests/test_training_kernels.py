"""What a training step on tensor cores does between its products, against float64: pools, norms, sums, the head."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import quick
from numba import cuda

from charcnn import ops
from charcnn.ops import maxpool1d_training as pools
from charcnn.ops import reference
from charcnn.ops.common import columns
from charcnn.ops.layernorm import training, training_backward
from charcnn.ops.linear.head import CLASSES, head

ONE_WARP, MORE = pytest.param(None, id="one warp"), pytest.param(64, id="two warps")


@pytest.fixture(params=[ONE_WARP, MORE], autouse=True)
def threads(request, monkeypatch):
    """The simulator's blocks have a warp: here also more, as on a GPU."""
    if request.param and columns.device.SIMULATED:
        monkeypatch.setattr(columns, "THREADS", request.param)


def bf16(values):
    """Rounded to nearest, as uint16."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def wide(array):
    """The float64 of an array of bf16."""
    return (np.asarray(array).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def drawn(rng, *shape):
    """Few different values, so that some are equal."""
    return bf16(rng.integers(-6, 7, shape) / 4)


def filled(shape, dtype):
    """What is to be written, poisoned."""
    bits = np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, 0xFF, np.uint8)
    return cuda.to_device(bits.view(dtype).reshape(shape))


def poisoned(array, valid):
    """Rows behind the valid ones hold NaN."""
    array[:, valid:] = 0x7FC0
    return array


def fetched(*arrays):
    found = [array.copy_to_host() for array in arrays]
    return found[0] if len(found) == 1 else found


def ncl(array):
    return np.ascontiguousarray(array.transpose(0, 2, 1))


def places_of(y):
    """By windows of three along axis 1: where y's maximum is, of equals the first, BELOW where it is not positive."""
    windows = y[:, : y.shape[1] // 3 * 3].reshape(len(y), -1, 3, y.shape[2])
    best = windows.max(axis=2)
    return (windows.argmax(axis=2) | np.where(best <= 0, pools.BELOW, 0)).astype(np.uint8), best


def taken(dy, place, slope):
    """dy at its place, times the slope where the maximum is not positive: (N, 3 P, C)."""
    dy = np.where(place & pools.BELOW, slope * dy, dy)
    windows = np.where((place & 3)[:, :, None] == np.arange(3)[:, None], dy[:, :, None], 0)
    return windows.reshape(len(dy), -1, dy.shape[2])


def leaky(values, slope):
    return np.where(values > 0, values, slope * values)


SLOPES = pytest.mark.parametrize("slope", [0.0, 0.25])
"""ReLU, and one that is exact in bf16."""


def factors_of(slope, above=1.0):
    return cuda.to_device(np.array([above, slope], np.float32))


SIZES = [(1, 3, 3, 8), (2, 11, 13, 24), (3, 12, 12, 64), (2, 10, 10, 264)]
"""N, L, S, C: one window; rows that are in none, or are not valid; octets that do not fill a warp, or fill more."""


@SLOPES
@pytest.mark.parametrize(("n", "length", "rows", "channels"), SIZES)
def test_pools(n, length, rows, channels, slope):
    rng = np.random.default_rng(length)
    y = wide(drawn(rng, n, rows, channels))
    y[:, :3, 0], y[:, :3, 1] = 0, -1
    y = bf16(leaky(y, slope))
    windows = length // 3
    pooled, place = filled((n, windows + 2, channels), np.uint16), filled((n, windows, channels), np.uint8)
    pools.pool_forward(cuda.to_device(poisoned(y, length)), length, pooled, place)
    expected_place, expected = places_of(wide(y[:, :length]))
    assert (fetched(place) == expected_place).all()
    assert (wide(fetched(pooled))[:, :windows] == expected).all()
    assert (fetched(pooled)[:, windows:] == 0xFFFF).all(), "what is not valid is left as it was"
    dy = poisoned(drawn(rng, n, windows + 2, channels), windows)
    parts = 3
    dx, partial = filled((n, rows, channels), np.uint16), filled((parts, channels), np.float32)
    pools.pool_backward(cuda.to_device(dy), place, factors_of(slope), dx, partial)
    x, given = wide(y[:, : windows * 3]), wide(dy[:, :windows])
    exact = reference.maxpool1d_backward(ncl(given), ncl(x), 3).transpose(0, 2, 1)
    exact = np.where(x <= 0, slope * exact, exact)
    found = wide(fetched(dx))
    assert (found[:, : windows * 3] == exact).all()
    assert (fetched(dx)[:, : windows * 3] != 0x8000)[exact == 0].all(), "no -0"
    assert (found[:, windows * 3 :] == 0).all()
    assert (fetched(partial).sum(axis=0) == exact.sum(axis=(0, 1))).all()  # quarters add up exactly


def test_pools_as_an_operator():
    """float32 in and out, channels that are no octet; gradients that bf16 has are moved as they are."""
    rng = np.random.default_rng(0)
    x, dy = (wide(drawn(rng, 2, length, 5)).astype(np.float32) for length in (11, 3))
    found = ops.relu_maxpool1d_backward_nlc_vectorized(dy, x, 3)
    np.testing.assert_array_equal(found, reference.relu_maxpool1d_backward_nlc(dy, x, 3))
    assert ops.relu_maxpool1d_backward_nlc_vectorized(dy[:0], x[:0], 3).shape == (0, 11, 5)
    with pytest.raises(ValueError, match=r"^pool_size=2: need 3$"):
        ops.relu_maxpool1d_backward_nlc_vectorized(np.repeat(dy, 5, 1)[:, :5].copy(), x, 2)


def test_norms_as_an_operator():
    rng = np.random.default_rng(0)
    x, dy, gamma, beta = (wide(drawn(rng, *shape, 16)).astype(np.float32) for shape in ((2, 11), (2, 3), (11,), (11,)))
    found = ops.layernorm_relu_maxpool1d_backward_nlc_vectorized(dy, x, gamma, beta, 3)
    exact = reference.layernorm_relu_maxpool1d_backward_nlc(*map(np.float64, (dy, x, gamma, beta)), 3)
    for got, want in zip(found, exact, strict=True):
        assert np.linalg.norm(got - want) <= 5e-3 * np.linalg.norm(want)
    _, *none = ops.layernorm_relu_maxpool1d_backward_nlc_vectorized(dy[:0], x[:0], gamma, beta, 3)
    assert all(array.shape == gamma.shape and not array.any() for array in none)


def test_tokens_as_an_operator():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 6, (2, 12), np.uint8)
    weight, bias = (rng.integers(-20, 30, shape).astype(np.float32) / 8 for shape in ((3, 5, 8), (8,)))
    dy = wide(drawn(rng, 2, 3, 8)).astype(np.float32)
    found = ops.one_hot_conv1d_relu_maxpool1d_backward_nlc_warp_gather(dy, ids, weight, bias, 3)
    exact = reference.one_hot_conv1d_relu_maxpool1d_backward_nlc(dy, ids, weight, bias, 3)
    for got, want in zip(found, exact, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    none = ops.one_hot_conv1d_relu_maxpool1d_backward_nlc_warp_gather(dy[:0], ids[:0], weight, bias, 3)
    assert not any(array.any() for array in none)


def test_nan_stays():
    y = np.zeros((1, 3, 8), np.uint16)
    y[0, 1] = 0x7FC0
    pooled, place = filled((1, 1, 8), np.uint16), filled((1, 1, 8), np.uint8)
    pools.pool_forward(cuda.to_device(y), 3, pooled, place)
    assert np.isnan(wide(fetched(pooled))).all()
    assert (fetched(place) < pools.BELOW).all()


@pytest.mark.parametrize(("rows", "channels"), [(1, 8), (37, 40), (9, 512)])
@pytest.mark.parametrize("parts", [1, 5])
def test_column_sums(rows, channels, parts):
    dy = drawn(np.random.default_rng(rows), rows, channels)
    partial, out = filled((parts, channels), np.float32), filled((channels,), np.float32)
    columns.column_sums(cuda.to_device(dy), partial)
    columns.Sums([(partial, out)]).start()
    assert (fetched(out) == wide(dy).sum(axis=0)).all()


def test_sums_of_any_size_in_one_launch():
    rng, flat = np.random.default_rng(5), filled((2000,), np.float32)
    sizes = [(1, 8), (3, 5), (32, 300), (33, 1), (70, 12), (4, 516), (6, 4)]
    begins = np.cumsum([0, *(size for _, size in sizes)])
    partials = [rng.integers(-9, 10, size).astype(np.float32) for size in sizes]
    outs = [flat[begin : begin + size] for begin, (_, size) in zip(begins, sizes, strict=False)]
    pairs = [(cuda.to_device(partial), out) for partial, out in zip(partials, outs, strict=True)]
    columns.Sums(pairs).start()
    columns.Sums([]).start()
    found = fetched(flat)
    for begin, partial in zip(begins, partials, strict=False):
        assert (found[begin : begin + partial.shape[1]] == partial.sum(axis=0)).all()
    assert np.isnan(found[begins[-1] :]).all()


def added(partial, shape):
    out = filled(shape, np.float32)
    columns.Sums([(partial, out)]).start()
    return fetched(out)


@SLOPES
@quick(lambda threads, slope: (threads is None) == (slope == 0))
@pytest.mark.parametrize(("n", "length", "rows", "channels"), SIZES)
def test_norm(monkeypatch, n, length, rows, channels, slope):
    monkeypatch.setattr(training_backward, "INPUTS", 2)  # so that three inputs are split
    rng, windows, eps = np.random.default_rng(length), length // 3, 1e-3
    y, dy = poisoned(drawn(rng, n, rows, channels), length), poisoned(drawn(rng, n, windows + 1, channels), windows)
    gamma, beta = (rng.integers(-2, 3, (length, channels)).astype(np.float32) for _ in range(2))
    gamma[1], beta[:3, 1] = 0, -9  # ties by beta alone; a channel of which nothing is left
    on = {name: cuda.to_device(array) for name, array in (("y", y), ("dy", dy), ("gamma", gamma), ("beta", beta))}
    pooled, place = filled((n, windows + 1, channels), np.uint16), filled((n, windows, channels), np.uint8)
    normalised, moments = filled((n, windows, channels), np.uint16), filled((n, 2), np.float32)
    factors = factors_of(slope)
    training.norm_pool_forward(on["y"], on["gamma"], on["beta"], factors, pooled, place, normalised, moments, eps)

    x = wide(y[:, :length])
    mean = x.mean(axis=(1, 2), keepdims=True)
    rate = 1 / np.sqrt(x.var(axis=(1, 2), keepdims=True) + eps)
    normal = (x - mean) * rate
    affine = normal * gamma + beta
    expected_place, maxima = places_of(affine)
    found_place = fetched(place)
    assert np.mean(found_place != expected_place) < 0.02, "all but numbers that are nearly equal"
    np.testing.assert_allclose(fetched(moments), np.stack([mean, rate], 1)[..., 0, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(wide(fetched(pooled))[:, :windows], leaky(maxima, slope), rtol=2**-8, atol=1e-5)
    at = (found_place & 3).astype(np.int64)
    held = np.take_along_axis(normal[:, : 3 * windows].reshape(n, windows, 3, channels), at[:, :, None], 2)[:, :, 0]
    np.testing.assert_allclose(wide(fetched(normalised)), held, rtol=2**-8, atol=1e-5)
    assert (fetched(pooled)[:, windows:] == 0xFFFF).all()

    part_shape, input_shape = training_backward.columns_shapes(n, length, channels)
    partial, inputs = filled(part_shape, np.float32), filled(input_shape, np.float32)
    sums = filled((n, 2), np.float32)
    training_backward.norm_columns(on["dy"], place, factors, normalised, on["gamma"], inputs, partial, sums)
    g = np.zeros_like(x)
    g[:, : 3 * windows] = taken(wide(dy[:, :windows]), found_place, slope)
    dx, dgamma, dbeta = reference.layernorm_backward(g, x, gamma.astype(np.float64), eps=eps)
    for part, expected in ((partial[0], dgamma), (partial[1], dbeta)):
        np.testing.assert_allclose(added(part, gamma.shape), expected, atol=2e-2)
        assert (added(part, gamma.shape)[3 * windows :] == 0).all()
    scaled = g * gamma
    exact = np.stack([scaled.sum(axis=(1, 2)), (scaled * normal).sum(axis=(1, 2))], 1)
    np.testing.assert_allclose(fetched(sums), exact, rtol=1e-2, atol=0.02 * np.sqrt(channels * length))

    got, parts = filled(y.shape, np.uint16), training_backward.backward_parts(n, rows, channels)
    partial = filled((parts, channels), np.float32)
    exact_sums = cuda.to_device(exact.astype(np.float32))
    read = on["y"], moments, exact_sums, on["gamma"]
    training_backward.norm_pool_backward(on["dy"], place, factors, *read, got, partial)
    np.testing.assert_allclose(wide(fetched(got))[:, :length], dx, rtol=2**-8, atol=2e-5)
    assert (fetched(got)[:, length:] == 0).all()
    np.testing.assert_allclose(added(partial, (channels,)), dx.sum(axis=(0, 1)), atol=1e-4)


def binary(logits, targets):
    """Losses of several labels, and their gradients by the logits."""
    losses = np.logaddexp(0, logits) - targets * logits
    return losses.mean(axis=1), (1 / (1 + np.exp(-logits)) - targets) / targets.shape[1]


@quick(lambda threads, n, classes, multi_label: (threads is None) == (multi_label == (classes in (1, 4, 20))))
@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize(
    ("n", "units", "classes"), [(1, 8, 1), (5, 40, 2), (3, 264, 4), (4, 72, 14), (2, 520, 20), (2, 16, 62), (1, 8, 64)]
)
def test_head(n, units, classes, multi_label):
    rng, parts, share, (above, slope) = np.random.default_rng(classes), 2, 0.375, (1.25, 0.5)
    h = drawn(rng, n, units)
    weight = rng.standard_normal((units, classes), np.float32)
    bias, weights = rng.standard_normal(classes, np.float32), rng.random(n, np.float32)
    targets = rng.random((n, classes), np.float32)  # whose sum is not 1
    losses, dh, dlogits = filled((n,), np.float32), filled((n, units), np.uint16), filled((n, classes), np.float32)
    dweight, dbias = filled((parts, units, classes), np.float32), filled((parts, classes), np.float32)
    found_logits = filled((n, classes), np.float32)
    parts_of_share = np.array([share / 4], np.float32), np.array([4, 0, 0], np.float32)
    given = map(cuda.to_device, (h, weight, bias, targets, weights, *parts_of_share))
    written = losses, found_logits, dh, dlogits, dweight, dbias
    head(*given, factors_of(slope, above), *written, multi_label=multi_label)

    x, w, t = wide(h), weight.astype(np.float64), targets.astype(np.float64)
    logits = x @ w + bias
    np.testing.assert_allclose(fetched(found_logits), logits, rtol=1e-5, atol=1e-4)
    if multi_label:
        exact, d = binary(logits, t)
        d *= share * weights[:, None]
    else:
        exact = -(t * np.log(reference.softmax(logits))).sum(axis=1)
        d = share * weights[:, None] * (t.sum(axis=1, keepdims=True) * reference.softmax(logits) - t)
    exact_h, exact_weight, exact_bias = reference.linear_backward(d, x, np.ascontiguousarray(w.T))
    np.testing.assert_allclose(fetched(losses), weights * exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(fetched(dlogits), d, rtol=1e-4, atol=1e-5)
    factor = np.where(x > 0, above, np.where(x < 0, slope, 0))
    np.testing.assert_allclose(wide(fetched(dh)), factor * exact_h, rtol=2**-7, atol=1e-4)
    np.testing.assert_allclose(added(dweight, weight.shape), exact_weight.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(added(dbias, bias.shape), exact_bias, rtol=1e-4, atol=1e-5)


def test_several_labels_of_large_logits():
    """Neither overflows nor loses what is small: logits of +-100 and +-1000, right and wrong."""
    logits = np.array([[100, -100, 1000, -1000]], np.float32)
    for targets in (np.array([[1, 0, 1, 0]], np.float32), np.array([[0, 1, 0, 1]], np.float32)):
        shapes = (1,), (1, 4), (1, 4), (1, 8, 4), (1, 4)
        losses, found, dlogits, dweight, dbias = (filled(shape, np.float32) for shape in shapes)
        h, one = np.zeros((1, 8), np.uint16), np.ones(1, np.float32)
        given = map(cuda.to_device, (h, np.zeros((8, 4), np.float32), logits[0], targets, one, one, one))
        written = losses, found, filled(h.shape, np.uint16), dlogits, dweight, dbias
        head(*given, factors_of(0), *written, multi_label=True)
        exact = np.where(targets == (logits > 0), 0, abs(logits)).mean()
        np.testing.assert_allclose(fetched(losses), exact, rtol=1e-6, atol=1e-30)
        np.testing.assert_allclose(fetched(dlogits), ((logits > 0) - targets) / 4, rtol=1e-6, atol=1e-30)


def test_what_does_not_fit():
    def on(*shape, dtype=np.uint16):
        return cuda.to_device(np.zeros(shape, dtype))

    y, pooled, place = on(2, 6, 16), on(2, 2, 16), on(2, 2, 16, dtype=np.uint8)
    with pytest.raises(ValueError, match=r"^length=7: need 3 to S=6$"):
        pools.pool_forward(y, 7, pooled, place)
    with pytest.raises(ValueError, match=r"^pooled has shape \(2, 1, 16\): need \(N, Q, C\) with Q >= 2$"):
        pools.pool_forward(y, 6, on(2, 1, 16), place)
    with pytest.raises(ValueError, match=r"^rows have C=12 channels: need a multiple of 8$"):
        pools.pool_forward(on(2, 6, 12), 6, on(2, 2, 12), on(2, 2, 12, dtype=np.uint8))
    with pytest.raises(ValueError, match=r"^place has dtype uint16: need uint8$"):
        pools.pool_forward(y, 6, pooled, pooled)
    with pytest.raises(ValueError, match=r"^y begins at 0x[0-9a-f]+: need a multiple of 16 bytes$"):
        pools.pool_forward(on(200)[1:193].reshape(2, 6, 16), 6, pooled, place)
    with pytest.raises(ValueError, match=r"^partial has shape \(2, 16\): need \(parts, 15\), or 15 in axes$"):
        columns.Sums([(on(2, 16, dtype=np.float32), on(15, dtype=np.float32))])
    with pytest.raises(ValueError, match=r"^factors has shape \(3,\): need \(2,\)$"):
        pools.pool_backward(pooled, place, on(3, dtype=np.float32), y, on(1, 16, dtype=np.float32))
    gamma, wide_y = on(1000, 256, dtype=np.float32), np.broadcast_to(np.uint16(0), (1, 1000, 256))
    with pytest.raises(ValueError, match=r"^y has length=1000 positions of C=256: need at most [\d,]+ values$"):
        training.norm_pool_forward(wide_y, gamma, gamma, gamma, on(1, 333, 256), place, pooled, gamma, 1e-5)
    with pytest.raises(ValueError, match=rf"^weight has 65 classes: need 1 to {CLASSES}$"):
        head(y[0], on(16, 65, dtype=np.float32), *[gamma] * 12)
