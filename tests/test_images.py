"""Operators on images beside their references: TensorFlow's padding and layouts, folding, what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_cases import CASES

from charcnn import ops
from charcnn.catalog import FLOAT32
from charcnn.gpu import device
from charcnn.layers import windows
from charcnn.ops import reference
from charcnn.ops.common import shapes2d
from charcnn.ops.common.arrays import pack, unpack
from charcnn.ops.common.folding import fold_batchnorm
from charcnn.ops.conv2d import naive


def a(*shape):
    return np.ones(shape, np.float32)


# Padding.

SAME = [  # size, kernel, stride, dilation; windows and padding before and after, as tf.nn.conv2d's "SAME" has them
    (28, 5, 2, 1, 14, 1, 2),
    (28, 5, 1, 1, 28, 2, 2),
    (28, 2, 2, 1, 14, 0, 0),
    (28, 4, 1, 1, 28, 1, 2),
    (224, 7, 2, 1, 112, 2, 3),
    (227, 11, 4, 1, 57, 4, 4),
    (13, 3, 1, 2, 13, 2, 2),
    (5, 1, 3, 1, 2, 0, 0),
    (1, 3, 2, 1, 1, 1, 1),
]


@pytest.mark.parametrize(("size", "kernel", "stride", "dilation", "count", "before", "after"), SAME)
def test_same_is_tensorflows(size, kernel, stride, dilation, count, before, after):
    found = windows.window(size, size, (kernel, kernel), stride, "same", dilation)
    assert found.padding == (before, after, before, after)
    assert found.out(size, size) == (count, count)
    found = windows.window(size, 9, (kernel, 1), (stride, 2), "same", (dilation, 1))  # each axis by itself
    assert found.padding == (before, after, 0, 0)


def test_same_is_not_pytorchs_padding():
    """Of 28 pixels by 5 and stride 2 both make 14, and see other pixels: PyTorch's padding=2 is 2 before, 2 after."""
    x, bias = np.arange(28 * 28, dtype=np.float32).reshape(1, 1, 28, 28), np.zeros(1, np.float32)
    first = np.zeros((1, 1, 5, 5), np.float32)
    first[..., 0, 0] = 1  # picks each window's first pixel
    for conv2d in (reference.conv2d, ops.conv2d_loops):
        same, padded = (conv2d(x, first, bias, stride=2, padding=padding) for padding in ("same", 2))
        assert same.shape == padded.shape == (1, 1, 14, 14)
        np.testing.assert_array_equal(same[0, 0, 1:, 1:], x[0, 0, 1:-2:2, 1:-2:2])  # from pixel 2 * 1 - 1
        np.testing.assert_array_equal(padded[0, 0, 1:, 1:], x[0, 0, :-2:2, :-2:2])  # from pixel 2 * 1 - 2
        np.testing.assert_array_equal(conv2d(x, first, bias, stride=2, padding=(1, 2, 1, 2)), same)
        np.testing.assert_array_equal(conv2d(x, first, bias, padding="valid"), conv2d(x, first, bias))


@settings(max_examples=30)
@given(st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(1, 6), st.integers(1, 3)))
def test_same_keeps_its_promise(sizes):
    size, kernel, stride, dilation = sizes
    found = windows.window(size, size, (kernel, kernel), stride, "same", dilation)
    assert found.out(size, size)[0] == -(-size // stride)
    assert 0 <= found.padding[1] - found.padding[0] <= 1
    assert shapes2d.pool2d(a(1, 1, size, size), kernel, stride, "same")[2] == -(-size // stride)


def test_pooling_as_tensorflow():
    x = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    for launch in (ops.maxpool2d_loops, ops.maxpool2d_naive):
        np.testing.assert_array_equal(launch(x, 2, padding="same"), [[[[5, 6], [8, 9]]]])
    for launch in (ops.avgpool2d_loops, ops.avgpool2d_naive):
        options = {"padding": "same", "count_include_pad": False}
        np.testing.assert_array_equal(launch(x, 2, **options), [[[[3, 4.5], [7.5, 9]]]])
        np.testing.assert_array_equal(launch(x, 2, padding="same"), [[[[3, 2.25], [3.75, 2.25]]]])


# Layouts.


def test_tensorflows_kernels_load_as_they_are():
    rng = np.random.default_rng(0)
    hwio = rng.standard_normal((5, 3, 6, 16))
    x, bias = rng.standard_normal((2, 9, 8, 6)), rng.standard_normal(16)
    expected = reference.conv2d_nhwc(x, hwio, bias, stride=2, padding="same")
    oihw = unpack(hwio)
    assert oihw.shape == (16, 6, 5, 3)
    assert oihw.flags.c_contiguous
    assert oihw[7, 4, 3, 2] == hwio[3, 2, 4, 7]
    made = reference.conv2d(np.ascontiguousarray(x.transpose(0, 3, 1, 2)), oihw, bias, stride=2, padding="same")
    np.testing.assert_allclose(made.transpose(0, 2, 3, 1), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(5, 4), (33, 4, 3), (33, 4, 3, 2)])
def test_unpack_is_the_inverse_of_pack(shape):
    weight = np.random.default_rng(0).standard_normal(shape)
    assert pack(weight).shape == (*shape[2:], shape[1], shape[0])
    assert pack(weight).flags.c_contiguous
    np.testing.assert_array_equal(unpack(pack(weight)), weight)


def test_rows_of_a_dense_layer():
    """Its weights turn, so that it takes (N, H, W, C) as they lie: no layer flattens or turns features."""
    rng = np.random.default_rng(0)
    x, weight, bias = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((7, 60)), rng.standard_normal(7)
    turned = pack(weight.reshape(7, 3, 4, 5)).reshape(60, 7)
    rows = x.transpose(0, 2, 3, 1).reshape(2, 60)
    np.testing.assert_allclose(rows @ turned + bias, reference.collapse_linear(x, weight, bias), rtol=1e-12)
    np.testing.assert_array_equal(unpack(turned.reshape(4, 5, 3, 7)).reshape(7, 60), weight)


def test_collapse_of_images():
    x = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    for collapse in (reference.collapse, ops.collapse_loops, ops.collapse_naive):
        np.testing.assert_array_equal(collapse(x), x.reshape(2, 60))
        for wrong in (x[0, 0], x[None]):
            with pytest.raises(ValueError, match=r"^x has shape .*: need \(N, C, L\) or \(N, C, H, W\)"):
                collapse(wrong)


# Folding.


@settings(max_examples=30)
@given(st.sampled_from([(7, 5), (7, 5, 3), (7, 5, 3, 2)]), st.integers(0, 2**32 - 1), st.booleans())
def test_folded_is_unfolded(shape, seed, biased):
    rng = np.random.default_rng(seed)
    weight, gamma, beta, mean = (rng.standard_normal(size).astype(np.float32) for size in (shape, 7, 7, 7))
    bias = rng.standard_normal(7).astype(np.float32) if biased else None
    variance = (10.0 ** rng.uniform(-9, 3, 7)).astype(np.float32)  # tiny ones, too; gamma of either sign
    x = rng.standard_normal((3, 5, *(6,) * (len(shape) - 2))).astype(np.float32)
    forward = {2: reference.linear, 3: reference.conv1d, 4: reference.conv2d}[len(shape)]

    def images(y):
        return y.reshape(*y.shape[:2], -1, 1)

    double = [array.astype(np.float64) for array in (x, weight, np.zeros(7) if bias is None else bias)]
    y = forward(*double)
    parameters = (array.astype(np.float64) for array in (gamma, beta, mean, variance))
    expected = reference.batchnorm2d(images(y), *parameters, eps=1e-3).reshape(y.shape)
    folded = fold_batchnorm(weight, bias, gamma, beta, mean, variance, eps=1e-3)
    assert [array.dtype for array in folded] == [np.float32] * 2
    out = forward(double[0], *(array.astype(np.float64) for array in folded))
    for channel in range(7):  # each by itself, as of one variance they may be a thousand times another's
        error = np.linalg.norm(out[:, channel] - expected[:, channel])
        scale = abs(folded[0][channel]).max() + abs(folded[1][channel])
        assert error <= FLOAT32 * (np.linalg.norm(expected[:, channel]) + scale)
    assert np.linalg.norm(out - expected) <= FLOAT32 * np.linalg.norm(expected)


def test_folding_rounds_once():
    weight, ones = np.full((1, 1), 0.1, np.float32), np.ones(1, np.float32)
    variance = np.full(1, 0.3, np.float32)
    folded, bias = fold_batchnorm(weight, None, ones, ones, ones, variance, 1e-5)
    exact = np.float64(weight[0, 0]) / np.sqrt(np.float64(variance[0]) + 1e-5)
    assert folded[0, 0] == np.float32(exact)
    assert bias[0] == np.float32(1 - 1 / np.sqrt(np.float64(variance[0]) + 1e-5))


FOLDED = {"gamma": a(2), "beta": a(2), "mean": a(2), "variance": a(2)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": a(2)}, r"^weight has shape \(2,\): need \(C_out, C_in\)"),
        ({"bias": a(3)}, r"^bias has shape \(3,\): need \(2,\)"),
        ({"gamma": a(3)}, r"^gamma has shape \(3,\): need \(2,\)"),
        ({"variance": a(2, 1)}, r"^variance has shape \(2, 1\): need \(2,\)"),
        ({"variance": np.array([1, -0.5])}, r"^variance\[1\] is -0.5: need one of at least 0"),
        ({"eps": 0}, "^eps=0: need a positive number"),
        ({"eps": float("nan")}, "^eps=nan: need a positive number"),
        ({"precision": "int8"}, "^precision='int8': need one of fp32, fp16"),
        (
            {"gamma": np.array([1, 300]), "variance": np.zeros(2), "precision": "fp16"},
            r"^weight\[1\] folds to 94868.3 in size, fp16 ends at 65504: need a greater variance",
        ),
        ({"mean": np.array([7e4, 0]), "precision": "fp16"}, r"^bias\[0\] folds to .* fp16 ends at 65504"),
        ({"gamma": np.array([1, 3e38]), "variance": np.zeros(2)}, r"^weight\[1\] .* fp32 ends at 3.40282e\+38"),
    ],
)
def test_what_does_not_fold(changes, message):
    arguments = {"weight": a(2, 3), "bias": None, **FOLDED, **changes}
    with pytest.raises(ValueError, match=message):
        fold_batchnorm(**arguments)
    if changes.get("precision") == "fp16":  # others have the range
        for precision in ("fp32", "bf16", "fp16x3"):
            fold_batchnorm(**{**arguments, "precision": precision})


# Values.


def test_alexnets_normalisation():
    """Its paper's alpha is 1e-4 a channel, PyTorch's is shared out among the five."""
    x = np.random.default_rng(0).standard_normal((1, 9, 2, 2)) * 30
    sums = np.array([(x[:, max(c - 2, 0) : c + 3] ** 2).sum(axis=1) for c in range(9)]).swapaxes(0, 1)
    made = reference.local_response_norm(x, 5, alpha=5e-4, beta=0.75, k=2.0)
    np.testing.assert_allclose(made, x / (2 + 1e-4 * sums) ** 0.75, rtol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 4, 5, 8, 10])
def test_the_normalisation_on_the_cpu_is_as_exact_as_float32(size):
    """Its roots by Newton's method, too, for values of any size."""
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 37)).astype(np.float32)
    x *= np.geomspace(1e-15, 1e18, 37).astype(np.float32)
    made = ops.local_response_norm_nhwc_cpu_vector(x, size, alpha=5e-4, beta=0.75, k=2.0)
    expected = reference.local_response_norm_nhwc(x.astype(np.float64), size, alpha=5e-4, beta=0.75, k=2.0)
    np.testing.assert_allclose(made, expected, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_not_finite_as_in_the_reference_on_the_cpu():
    for value in (np.nan, np.inf, -np.inf, 1e30):
        x = np.ones((1, 2, 2, 20), np.float32)
        x[0, 1, 0, 9] = value
        made = ops.local_response_norm_nhwc_cpu_vector(x, 5)
        np.testing.assert_allclose(made, reference.local_response_norm_nhwc(x, 5), rtol=1e-6)


@pytest.mark.parametrize("name", ["conv2d", "maxpool2d", "avgpool2d", "gelu", "tanh", "local_response_norm"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_not_finite_as_in_pytorch(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no second oracle")
    f = torch.nn.functional
    oracle = {"maxpool2d": "max_pool2d", "avgpool2d": "avg_pool2d"}.get(name, name)
    case = CASES[name].build({**CASES[name].edges[0], **({"kh": 2, "kw": 2} if "pool" in name else {})})
    for value in (np.nan, np.inf, -np.inf):
        x = case.inputs["x"].astype(np.float64)
        x.reshape(-1)[x.size // 2] = value
        rest = [array.astype(np.float64) for key, array in case.inputs.items() if key != "x"]
        options = {key: option for key, option in case.options.items() if key != "padding"}
        expected = getattr(f, oracle)(*map(torch.from_numpy, (x, *rest)), **options).numpy()
        made = getattr(reference, name)(x, *rest, **options)
        assert np.array_equal(np.isnan(made), np.isnan(expected))
        np.testing.assert_allclose(made, expected, rtol=1e-12)


def test_labels_of_a_byte():
    x = np.random.default_rng(0).integers(-3, 4, (5, 6)).astype(np.float32)
    weight, bias = np.random.default_rng(1).integers(-3, 4, (256, 6)).astype(np.float32), np.zeros(256, np.float32)
    out = np.empty(5, np.uint8)
    assert ops.linear_argmax_naive(x, weight, bias, out=out) is out
    np.testing.assert_array_equal(out, reference.linear_argmax(x, weight, bias))
    with pytest.raises(ValueError, match=r"^out has dtype uint8: need int64 for 257 classes"):
        ops.linear_argmax_naive(x, a(257, 6), a(257), out=out)


def test_first_of_equal_logits_and_first_nan():
    """Over more classes than a block has threads; a bias alone makes the logits."""
    nan, classes = np.nan, 70
    for logits, label in (({40: 2, 33: 2, 65: 1}, 33), ({1: 5, 66: nan, 35: nan}, 35), ({69: nan, 37: nan}, 37)):
        bias = np.zeros(classes, np.float32)
        bias[list(logits)] = list(logits.values())
        for values in (bias, np.where(bias == 0, -np.inf, bias).astype(np.float32)):
            assert ops.linear_argmax_naive(a(1, 1), np.zeros((classes, 1), np.float32), values)[0] == label
    all_least = np.full(classes, -np.inf, np.float32)
    assert ops.linear_argmax_naive(a(1, 1), np.zeros((classes, 1), np.float32), all_least)[0] == 0


def test_more_columns_than_a_grid_has_blocks(monkeypatch):
    monkeypatch.setattr(naive, "GRID_Y", 1)
    for name in ("conv2d", "conv2d_relu_maxpool2d"):
        case = CASES[name].build({**CASES[name].edges[0], "w": 40 if device.SIMULATED else 200})
        out = getattr(ops, f"{name}_naive")(**case.inputs, **case.options)
        expected = case.oracle(getattr(reference, name))
        assert np.linalg.norm(out - expected) <= FLOAT32 * np.linalg.norm(expected)


# What does not fit.

X, W = a(1, 4, 5, 6), a(8, 4, 3, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f.conv2d(a(4, 5, 6), W, a(8)), r"x has shape \(4, 5, 6\): need \(N, C_in, H, W\)"),
        (lambda f: f.conv2d(X, a(8, 4, 3), a(8)), r"weight has shape .*: need \(C_out, C_in/groups, KH, KW\)"),
        (lambda f: f.conv2d(X, a(8, 2, 3, 3), a(8)), r"weight has shape \(8, 2, 3, 3\): need C_in/groups=4, as in x"),
        (lambda f: f.conv2d(X, a(3, 3, 4, 8), a(8)), r"need C_in/groups=4.*; weight.transpose\(3, 2, 0, 1\) has it"),
        (lambda f: f.conv2d(X, W, a(4)), r"bias has shape \(4,\): need \(8,\)"),
        (lambda f: f.conv2d(X, W, a(8), groups=3), "groups=3: need a divisor of C_in=4"),
        (lambda f: f.conv2d(X, a(3, 2, 3, 3), a(3), groups=2), "groups=2: need a divisor of C_out=3"),
        (lambda f: f.conv2d(X, W, a(8), groups=0), "groups=0: need an int of at least 1"),
        (lambda f: f.conv2d(X, W, a(8), stride=0), "stride=0: need an int of at least 1"),
        (lambda f: f.conv2d(X, W, a(8), stride=(1, 2, 3)), r"stride=\(1, 2, 3\): need an int, or \(vertical, hori"),
        (lambda f: f.conv2d(X, W, a(8), dilation=1.5), "dilation=1.5: need an int of at least 1"),
        (lambda f: f.conv2d(X, W, a(8), padding=-1), "padding=-1: need an int of at least 0"),
        (lambda f: f.conv2d(X, W, a(8), padding=(1, 1, -2, 0)), "padding=-2: need an int of at least 0"),
        (lambda f: f.conv2d(X, W, a(8), padding="full"), "padding='full': need an int, .*, valid or same"),
        (lambda f: f.conv2d(X, W, a(8), padding=(1, 2, 3)), r"padding=\(1, 2, 3\): need an int, or"),
        (
            lambda f: f.conv2d(X, W, a(8), dilation=3, padding=(0, 1, 0, 0)),
            r"x has 5 x 6 pixels, 6 x 6 with padding=\(0, 1, 0, 0\): need at least 7 x 7 for a kernel of 3 x 3",
        ),
        (lambda f: f.conv2d(X, a(8, 4, 0, 3), a(8)), "weight has a kernel of 0 x 3: need at least 1 x 1"),
        (
            lambda f: f.conv2d_relu_maxpool2d(X, W, a(8), 4),
            "x convolves to 3 x 4 pixels: need at least 4 x 4 for pool_",
        ),
        (lambda f: f.conv2d_tanh_maxpool2d(X, W, a(8), (0, 1)), "pool_size=0: need an int of at least 1"),
        (lambda f: f.conv2d_tanh_maxpool2d(X, W, a(8), 2, pool_stride=0), "pool_stride=0: need an int"),
        (lambda f: f.maxpool2d(a(4, 5, 6), 2), r"x has shape \(4, 5, 6\): need \(N, C, H, W\)"),
        (lambda f: f.maxpool2d(X, 0), "kernel_size=0: need an int of at least 1"),
        (lambda f: f.maxpool2d(X, (2, 7)), "need at least 2 x 7 for a kernel of 2 x 7"),
        (lambda f: f.maxpool2d(X, 3, padding=2), "padding=2: need at most half of kernel_size=3"),
        (lambda f: f.avgpool2d(X, (4, 2), padding=(2, 2, 1, 2)), r"padding=\(2, 2, 1, 2\): need at most half of kern"),
        (lambda f: f.avgpool2d(X, 3, stride=(0, 1)), "stride=0: need an int of at least 1"),
        (lambda f: f.global_avgpool2d(a(1, 4, 0, 6)), r"x has shape \(1, 4, 0, 6\): need at least one pixel"),
        (lambda f: f.batchnorm2d(X, a(4), a(4), a(5), a(4)), r"mean has shape \(5,\): need \(4,\)"),
        (lambda f: f.batchnorm2d(X, a(4), a(4), a(4), a(4), eps=0), "eps=0: need a positive number"),
        (lambda f: f.batchnorm2d_relu(X, a(4), a(4), a(4), a(4, 1)), r"variance has shape \(4, 1\): need \(4,\)"),
        (lambda f: f.local_response_norm(X, 0), "size=0: need an int of at least 1"),
        (lambda f: f.local_response_norm(X, 5, k=0), "k=0: need a positive number"),
        (lambda f: f.local_response_norm(X, 5, alpha=-1), "alpha=-1: need a number of at least 0"),
        (lambda f: f.local_response_norm(X, 5, beta=float("nan")), "beta=nan: need a number"),
        (lambda f: f.collapse_linear(a(2, 3, 4), a(5, 11), a(5)), r"weight .* need C_in=12, as x of shape \(2, 3, 4\)"),
        (lambda f: f.linear_softmax(a(2, 3), a(0, 3), a(0)), r"weight has shape \(0, 3\): need at least one class"),
        (lambda f: f.linear_argmax(a(2, 3), a(0, 3), a(0)), r"weight has shape \(0, 3\): need at least one class"),
    ],
)
def test_what_does_not_fit(call, message):
    for family in (reference, Naive):
        with pytest.raises(ValueError, match=message):
            call(family)


class Naive:
    """The naive kernels under the references' names."""


for name in CASES:
    if hasattr(ops, f"{name}_naive"):
        setattr(Naive, name, staticmethod(getattr(ops, f"{name}_naive")))


def test_the_other_layouts_weights():
    with pytest.raises(ValueError, match=r"need C_in/groups=4.*; weight.transpose\(2, 3, 1, 0\) has it"):
        reference.conv2d_nhwc(a(1, 5, 6, 4), W, a(8))
    for wrong in (a(3), a(1, 2, 3, 4, 5)):
        with pytest.raises(ValueError, match=r"^weight has shape .*: need"):
            pack(wrong)
        with pytest.raises(ValueError, match=r"^packed has shape .*: need"):
            unpack(wrong)
