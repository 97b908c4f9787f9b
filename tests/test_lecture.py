"""docs/lecture.md's numbers on every technique, how its threads map, and what docs/documents.md derives.

Numbers are worked out by hand. Those that are no fractions of 2 have eight digits behind the point.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from conftest import quick, runs_here
from image_cases import IMAGE_CASES
from report import claims, levels

from charcnn.catalog import FLOAT32, LEVELS, VARIANTS, operator
from charcnn.gpu import device
from charcnn.layers import Linear, place
from charcnn.ops.common.arrays import pack
from charcnn.ops.common.folding import fold_batchnorm
from charcnn.ops.conv2d import naive

PAGE = (Path(__file__).parent.parent / "docs" / "documents.md").read_text()


def image(*rows):
    return np.array([[rows]], np.float32)


def vector(*values):
    return np.array(values, np.float32)


def row_of(*values):
    return np.array([values], np.float32)


NINE = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
SIXTEEN = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
ROW = np.arange(1, 29, dtype=np.float32).reshape(1, 1, 1, 28)
CHANNELS = np.array([[[[1, 2]], [[3, 4]]]], np.float32)
GROUPS = np.concatenate([CHANNELS, CHANNELS + 4], axis=1)
FILTERS = np.array([[[[1]], [[10]]], [[[2]], [[0]]]], np.float32)
KERNEL, NO_BIAS = image((1, 2), (3, 4)), vector(0)
ONES, ONE = image((1, 1, 1, 1, 1)), image((1,))
SMALL, LOGITS = image((-2, 0), (0.5, 1)), row_of(1, 2, 5, 2, 0)
SOFTMAX = (0.01628596, 0.04426982, 0.88918316, 0.04426982, 0.00599127)
NORM = (vector(2), vector(1), vector(3), vector(0.0615))
"""gamma, beta, mean, variance: with TensorFlow's eps the root is 1/4."""
TENSORFLOW = {"eps": 1e-3}

EXAMPLES = {
    "conv2d": [
        ((NINE, KERNEL, NO_BIAS), {}, [[37, 47], [67, 77]]),
        ((NINE, KERNEL[..., ::-1, ::-1].copy(), NO_BIAS), {}, [[23, 33], [53, 63]]),
        ((NINE, KERNEL, NO_BIAS), {"stride": 2}, [[37]]),
        (
            (NINE, KERNEL, NO_BIAS),
            {"padding": 1},
            [[4, 11, 18, 9], [18, 37, 47, 21], [36, 67, 77, 33], [14, 23, 26, 9]],
        ),
        ((NINE, KERNEL, NO_BIAS), {"padding": "same"}, [[37, 47, 21], [67, 77, 33], [23, 26, 9]]),
        ((NINE, KERNEL, NO_BIAS), {"padding": "same", "stride": 2}, [[37, 21], [23, 9]]),
        ((NINE, KERNEL, NO_BIAS), {"dilation": 2}, [[1 * 1 + 2 * 3 + 3 * 7 + 4 * 9]]),
        ((ROW, ONES, NO_BIAS), {"padding": "same", "stride": 2}, [[*range(10, 131, 10), 81]]),
        ((ROW, ONES, NO_BIAS), {"padding": (0, 2), "stride": 2}, [[6, *range(15, 126, 10), 106]]),
        ((ROW, ONES, NO_BIAS), {"padding": "valid", "stride": 2}, [[*range(15, 126, 10)]]),
        ((CHANNELS, FILTERS, vector(100, 0)), {}, [[[131, 142]], [[2, 4]]]),
        ((GROUPS, FILTERS, vector(0, 1)), {"groups": 2}, [[[31, 42]], [[11, 13]]]),
    ],
    "conv2d_relu": [((NINE, KERNEL, vector(-50)), {}, [[0, 0], [17, 27]])],
    "conv2d_tanh": [((SMALL, ONE, NO_BIAS), {}, [[-0.96402758, 0], [0.46211716, 0.76159416]])],
    "conv2d_sigmoid": [((SMALL, ONE, NO_BIAS), {}, [[0.11920292, 0.5], [0.62245933, 0.73105858]])],
    "conv2d_leaky_relu": [((SMALL, ONE, NO_BIAS), {}, [[-0.02, 0], [0.5, 1]])],
    "conv2d_relu_maxpool2d": [
        ((NINE, KERNEL, vector(-50), 2), {}, [[27]]),
        ((NINE, KERNEL, vector(-20), 2), {"padding": 1}, [[17, 27], [47, 57]]),
    ],
    "conv2d_tanh_maxpool2d": [((SMALL, ONE, NO_BIAS, 2), {}, [[0.76159416]])],
    "conv2d_relu_global_avgpool2d": [((NINE, KERNEL, vector(-50)), {}, [[(0 + 0 + 17 + 27) / 4]])],
    "maxpool2d": [
        ((SIXTEEN, 2), {}, [[6, 8], [14, 16]]),
        ((SIXTEEN, 3), {"stride": 1}, [[11, 12], [15, 16]]),
        ((SIXTEEN, 2), {"padding": 1}, [[1, 3, 4], [9, 11, 12], [13, 15, 16]]),
        ((-SIXTEEN, 2), {"padding": 1}, [[-1, -2, -4], [-5, -6, -8], [-13, -14, -16]]),  # -inf around, not 0
    ],
    "avgpool2d": [
        ((SIXTEEN, 2), {}, [[3.5, 5.5], [11.5, 13.5]]),
        ((SIXTEEN, 2), {"padding": 1}, [[0.25, 1.25, 1], [3.5, 8.5, 5], [3.25, 7.25, 4]]),
        ((SIXTEEN, 2), {"padding": 1, "count_include_pad": False}, [[1, 2.5, 4], [7, 8.5, 10], [13, 14.5, 16]]),
    ],
    "global_avgpool2d": [((SIXTEEN,), {}, [[8.5]])],
    "batchnorm2d": [
        ((image((3.5, 3)), *NORM), TENSORFLOW, [[5, 1]]),
        ((image((3.5, 3)), *NORM), {}, [[5.03206462, 1]]),
    ],
    "batchnorm2d_relu": [((image((3.5, 2.5)), *NORM), TENSORFLOW, [[5, 0]])],
    "local_response_norm": [
        # Over the roots of 1 + 1 + 4, 1 + 1 + 4 + 9 and 1 + 4 + 9: the neighbours' squares, alpha 3 shared by three.
        (
            (vector(1, 2, 3).reshape(1, 3, 1, 1), 3),
            {"alpha": 3.0, "beta": 0.5, "k": 1.0},
            [[[0.40824829]], [[0.51639778]], [[0.80178373]]],
        ),
    ],
    "relu": [((row_of(-2, 0, 0.5),), {}, [0, 0, 0.5])],
    "tanh": [((row_of(-2, 0, 0.5),), {}, [-0.96402758, 0, 0.46211716])],
    "gelu": [((row_of(-1, 0, 1),), {}, [-0.15865525, 0, 0.84134475])],
    "sigmoid": [((row_of(-2, 0, 2),), {}, [0.11920292, 0.5, 0.88079708])],
    "leaky_relu": [
        ((row_of(-2, 0, 0.5),), {}, [-0.02, 0, 0.5]),
        ((row_of(-2, 0, 0.5),), {"negative_slope": 0.1}, [-0.2, 0, 0.5]),
    ],
    "maxout": [
        ((row_of(1, -2, 3, 4, 0, 5), 2), {}, [1, 4, 5]),
        ((row_of(1, -2, 3, 4, 0, 5), 3), {}, [3, 5]),
        ((GROUPS, 2), {}, [[3, 4], [7, 8]]),
    ],
    "softmax": [((LOGITS,), {}, SOFTMAX), ((LOGITS + 1000,), {}, SOFTMAX)],
    "argmax": [((LOGITS,), {}, [2]), ((-LOGITS,), {}, [4])],
    "collapse": [((CHANNELS,), {}, [1, 2, 3, 4])],
    "linear": [((row_of(1, 2, 3, 4), row_of(1, 10, 100, 1000), vector(5)), {}, [4326])],
    "linear_relu": [((row_of(1, 2), np.array([[1, 10], [1, -1]], np.float32), vector(0, 0)), {}, [21, 0])],
    "linear_tanh": [((row_of(1, 2), row_of(0.5, 0.25), vector(-0.5)), {}, [0.46211716])],
    "linear_gelu": [((row_of(1, 2), row_of(0.5, 0.25), vector(-2)), {}, [-0.15865525])],
    "linear_sigmoid": [((row_of(1, 2), row_of(0.5, 0.25), vector(-3)), {}, [0.11920292])],
    "linear_leaky_relu": [((row_of(1, 2), row_of(0.5, 0.25), vector(-3)), {}, [-0.02])],
    "linear_maxout": [((row_of(1, 2), np.array([[1, 10], [1, -1]], np.float32), vector(0, 30)), {}, [29])],
    "linear_gelu_linear": [((row_of(1, 2), row_of(0.5, 0.25), vector(-2), row_of(2), vector(1)), {}, [0.6826895])],
    "linear_softmax": [((LOGITS, np.eye(5, dtype=np.float32), vector(0, 0, 0, 0, 0)), {}, SOFTMAX)],
    "linear_argmax": [((LOGITS, np.eye(5, dtype=np.float32), vector(0, 0, 0, 0, 9)), {}, [4])],
    "collapse_linear": [((CHANNELS, row_of(1, 10, 100, 1000), NO_BIAS), {}, [4321])],
}
"""By operator: positional arguments, the others, and what comes out, less axes of one."""

CHANNELS_FIRST = [row for row in VARIANTS if row.operator in EXAMPLES and row.precision is None and runs_here(row)]


def agree(out, expected):
    expected = np.array(expected)
    np.testing.assert_allclose(np.asarray(out).reshape(expected.shape), expected, FLOAT32, 1e-8)


def test_every_operator_on_images_has_an_example():
    chains = {row.operator for row in VARIANTS if row.technique in ("whole", "tiles", "rolling")}
    assert {name for name in IMAGE_CASES if not name.endswith("_nhwc")} - chains - {"pixels"} <= set(EXAMPLES)


@quick(lambda variant: variant.technique != "direct")  # of which a GPU compiles a kernel for each window: test_direct
@pytest.mark.parametrize("variant", CHANNELS_FIRST, ids=lambda row: row.name)
def test_worked_numbers(variant):
    for inputs, options, expected in EXAMPLES[variant.operator]:
        rows = variant.technique == "winograd_rows_cpu"
        if rows and ({"stride", "dilation", "groups"} & options.keys() or inputs[1].shape[3] == 1):
            with pytest.raises(ValueError, match="the technique winograd_rows_cpu needs"):
                variant.launcher(*inputs, **options)
        elif variant.technique.endswith("direct") and options.get("groups", 1) > 1:
            with pytest.raises(ValueError, match=f"groups=2: the technique {variant.technique} needs 1"):
                variant.launcher(*inputs, **options)
        else:
            agree(variant.launcher(*inputs, **options), expected)


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_numbers_of_the_reference(name):
    for inputs, options, expected in EXAMPLES[name]:
        inputs = [value.astype(np.float64) if isinstance(value, np.ndarray) else value for value in inputs]
        agree(operator(name).reference(*inputs, **options), expected)


def test_a_fold_by_hand():
    weight, bias = fold_batchnorm(KERNEL, None, *NORM, **TENSORFLOW)
    agree(weight, [[8, 16], [24, 32]])
    agree(bias, [1 - 3 * 8])
    for row in (row for row in CHANNELS_FIRST if row.operator == "conv2d"):
        agree(row.launcher(NINE, weight, bias), [[273, 353], [513, 593]])


def test_a_dense_layer_after_channels_last():
    weight = row_of(1, 10, 100, 1000)
    turned = pack(weight.reshape(1, 2, 1, 2)).reshape(4, 1)
    agree(turned, [[1], [100], [10], [1000]])
    last = np.ascontiguousarray(CHANNELS.transpose(0, 2, 3, 1)).reshape(1, 4)
    agree(last @ turned, [4321])
    agree(last @ weight.T, [4231])


def test_threads_of_a_convolution():
    """Two neighbours of each of 2 x 2 blocks: rows of outputs are N * P, columns M * Q, and blocks SIDE apart."""
    size = 3 * naive.SIDE // 4  # as drawn on the page, where SIDE is 4
    x, weight, bias = np.ones((2, 1, size, size), np.float32), np.ones((2, 1, 1, 1), np.float32), vector(0, 0)
    y = device.to_device(np.full((2, 2, size, size), np.nan, np.float32))
    kernel = naive._conv2d_naive_kernel(1, 1, "")
    kernel[(2, 2), (2, 1)](*map(device.to_device, (x, weight, bias)), y, (1, 1), (0, 0, 0, 0), (1, 1), 1)
    matrix = y.copy_to_host().transpose(0, 2, 1, 3).reshape(2 * size, 2 * size)  # (N * P, M * Q)
    expected = product((0, naive.SIDE), (0, 1, naive.SIDE, naive.SIDE + 1))
    assert list(map(tuple, np.argwhere(~np.isnan(matrix)))) == list(expected)


# What docs/documents.md derives.


def test_work_of_the_course_projects_convolutions():
    work = [node.flops // 2 for node in claims.STUDENT]
    assert work == [60 * 60 * 6 * 25, 26 * 26 * 16 * 6 * 25]
    assert f"both do {work[0]:,} and {work[1]:,} multiply-adds" in PAGE
    (few, many) = (claims.OP_TIMES[images] for images in (10, 10_000))
    growth = [[many[conv][unit] / few[conv][unit] for conv in (0, 1)] for unit in (0, 1)]
    said = [f"{first:,.0f} and {second:,.0f} times" for first, second in growth]
    assert f"{said[0]} as long on the CPU, {said[1]} on the GPU" in PAGE


@pytest.mark.parametrize(("length", "width", "heads"), [(8, 12, 3), (24, 12, 1), (512, 768, 12)])
def test_what_layers_cost(length, width, heads):
    """The formulas of the page, and attention's products as linear layers whose weights are features."""
    parameters, multiplications, moved = claims.attention(length, width, heads)
    depth = width // heads
    (scores,), (sums,) = place((Linear(length, name="k"),), (depth,)), place((Linear(depth, name="v"),), (length,))
    products = heads * length * (scores.flops + sums.flops) // 2
    assert parameters == 4 * width**2 + 4 * width
    assert multiplications == 4 * length * width**2 + products == 4 * length * width**2 + 2 * length**2 * width
    assert moved == 4 * (12 * length * width + 4 * heads * length**2 + parameters)
    found = claims._cost(claims.ffn(width), length)
    of_ffn = 8 * width**2 + 5 * width, 8 * length * width**2
    assert found == (*of_ffn, 4 * (10 * length * width + of_ffn[0]))
    assert (multiplications == of_ffn[1]) == (length == 2 * width)


def test_the_originals_steps(tmp_path):
    told = levels.history(tmp_path / "page.md")
    lines = [line for line in told.splitlines() if line.startswith("| [l")]
    assert [line.split("](")[0].removeprefix("| [") for line in lines] == [row.name for row in LEVELS if row.original]
    assert "| 8.33 | 3.93 |" in lines[1]
    assert "| 2.12 | 1 |" in lines[0]
