"""What the launchers of the catalogue's variants refuse: dtypes, layouts, kinds, ranks, sides, and outputs."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
from case_kinds import Case
from numba import cuda
from operator_cases import CASES
from operator_rows import CPU, CUDA, IN_PLACE, PAIRED, VARIANTS, alike, arrays, each, example, outputs, poisoned
from test_ops import check

from charcnn import ops
from charcnn.catalog import operator
from charcnn.gpu.arrays import DTYPES
from charcnn.ops import reference
from charcnn.ops.common.cpu_conv import CpuConv
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.conv1d.winograd_cpu import CpuWinogradConv
from charcnn.ops.layernorm.norm_relu_pool import NormReluPool

ANY_RANK = {"collapse"} | {
    row.operator
    for row in VARIANTS
    if re.search(r"^    x: \w+ \(.*\.\.\..*\)", inspect.getdoc(getattr(ops, row.function)), re.MULTILINE)
    and len(example(row).inputs) == 1
}
"""Whose one array is said to have other axes, whatever they are; collapse takes two ranks (see test_images)."""


def names(case):
    return rf"\b({'|'.join(case.inputs)})\b"


def each_argument(rows):
    """Of a test of a variant and the name of an argument, one of each variant, which has all of its names."""

    def decorate(test):
        @each(rows)
        def of_all(variant):
            for name in CASES[variant.operator].build(CASES[variant.operator].edges[0]).inputs:
                test(variant, name)

        return of_all

    return decorate


@each_argument(VARIANTS)
def test_wrong_dtype(variant, name):
    case = example(variant)
    need = np.dtype(DTYPES.get(name, np.float32))
    for dtype in {np.float64, np.float32, np.int32, np.float16} - {need.type}:
        inputs = {**case.inputs, name: case.inputs[name].astype(dtype)}
        with pytest.raises(ValueError, match=rf"^{name} has dtype {np.dtype(dtype)}: need {need}"):
            variant.launcher(**inputs, **case.options)


@each_argument(VARIANTS)
def test_wrong_layout(variant, name):
    case = example(variant)
    strided = np.repeat(case.inputs[name], 2, axis=-1)[..., ::2]
    with pytest.raises(ValueError, match=rf"^{name} is not C-contiguous"):
        variant.launcher(**{**case.inputs, name: strided}, **case.options)
    if strided.ndim > 1:
        transposed = np.asfortranarray(case.inputs[name])
        with pytest.raises(ValueError, match=rf"^{name} is not C-contiguous"):
            variant.launcher(**{**case.inputs, name: transposed}, **case.options)


@each_argument(VARIANTS)
def test_wrong_kind(variant, name):
    case = example(variant)
    optional = inspect.signature(operator(variant.operator).reference).parameters[name].default is None
    for wrong in (case.inputs[name].tolist(), 3, None)[: 2 if optional else 3]:
        with pytest.raises(ValueError, match=rf"^{name} is a {type(wrong).__name__}: need an array"):
            variant.launcher(**{**case.inputs, name: wrong}, **case.options)


@each_argument([row for row in VARIANTS if row.operator not in ANY_RANK])
def test_wrong_rank(variant, name):
    case = example(variant)
    any_leading = re.search(rf"    {name}: float32 \((N, )?\.\.\., ", inspect.getdoc(getattr(ops, variant.function)))
    for wrong in (case.inputs[name][None], case.inputs[name][..., 0])[bool(any_leading) :]:
        with pytest.raises(ValueError, match=names(case)):
            variant.launcher(**{**case.inputs, name: np.ascontiguousarray(wrong)}, **case.options)


@each(VARIANTS)
def test_wrong_out(variant):
    case = example(variant)
    result = poisoned(variant, case.oracle(operator(variant.operator).reference))
    for i, (name, right) in enumerate(zip(outputs(variant), arrays(result), strict=False)):
        more = np.zeros((right.shape[0] + 1, *right.shape[1:]), right.dtype)
        other = np.float32 if right.dtype == np.float64 else np.float64
        for wrong, message in (
            (more, rf"^{name} has shape \({more.shape[0]},.*: need \({right.shape[0]},"),
            (right[None], rf"^{name} has shape"),
            (right.astype(other), rf"^{name} has dtype {np.dtype(other)}: need"),
            (np.repeat(right, 2, axis=-1)[..., ::2], rf"^{name} is not C-contiguous"),
            (right.tolist(), rf"^{name} is a list"),
        ):
            out = alike(result, (*arrays(result)[:i], wrong, *arrays(result)[i + 1 :]))
            with pytest.raises(ValueError, match=message):
                variant.launcher(**case.inputs, **case.options, out=out)


@each(VARIANTS)
def test_out_as_a_function(variant):
    case, asked = example(variant), []

    def too_large(shape, dtype):
        asked.append((tuple(shape), np.dtype(dtype)))
        return np.empty((*shape, 2), dtype)

    result = poisoned(variant, case.oracle(operator(variant.operator).reference))
    right, *second = arrays(result)
    with pytest.raises(ValueError, match=rf"^{outputs(variant)[0]} has shape"):
        variant.launcher(**case.inputs, **case.options, out=alike(result, (too_large, *second)))
    assert asked == [(right.shape, right.dtype)]


@each(PAIRED)
def test_out_that_is_no_pair(variant):
    case = example(variant)
    first, *others = poisoned(variant, case.oracle(operator(variant.operator).reference))
    need = ", ".join(operator(variant.operator).results or ("y", "stat"))
    for wrong in (first, (first,), (first, *others, first), 3):
        with pytest.raises(ValueError, match=rf"^out is a {type(wrong).__name__}: need a tuple \({need}\)"):
            variant.launcher(**case.inputs, **case.options, out=wrong)


@each_argument(CUDA)
def test_mixed_sides(variant, name):
    case = example(variant)
    inputs = {**case.inputs, name: cuda.to_device(case.inputs[name])}
    out = None
    if len(inputs) == 1:
        out = poisoned(variant, case.oracle(operator(variant.operator).reference))
    with pytest.raises(ValueError, match=r"\w+ is on the (device|host) and \w+ is on the (device|host)") as error:
        variant.launcher(**inputs, **case.options, out=out)
    assert name in str(error.value) or "out" in str(error.value)


@each(CUDA)
def test_out_on_the_other_side(variant):
    case = example(variant)
    result = poisoned(variant, case.oracle(operator(variant.operator).reference))
    for i, (name, array) in enumerate(zip(outputs(variant), arrays(result), strict=False)):
        out = alike(result, (*arrays(result)[:i], cuda.to_device(array), *arrays(result)[i + 1 :]))
        with pytest.raises(ValueError, match=rf"^{name} is on the device and"):
            variant.launcher(**case.inputs, **case.options, out=out)


@each(CUDA)
def test_device_arrays_are_checked_too(variant):
    case = example(variant)
    inputs = {name: cuda.to_device(array) for name, array in case.inputs.items()}
    first = next(iter(inputs))
    double = cuda.to_device(case.inputs[first].astype(np.float64))
    with pytest.raises(ValueError, match=rf"^{first} has dtype float64"):
        variant.launcher(**{**inputs, first: double}, **case.options)
    others = arrays(case.oracle(operator(variant.operator).reference))[1:]
    out = (double, *[None] * len(others)) if others else double
    with pytest.raises(ValueError, match=rf"^{outputs(variant)[0]} has (dtype|shape)"):
        variant.launcher(**inputs, **case.options, out=out)


@each_argument(CPU)
def test_cpu_variants_want_numpy(variant, name):
    case = example(variant)
    inputs = {**case.inputs, name: cuda.to_device(case.inputs[name])}
    with pytest.raises(ValueError, match=rf"^{name} is a \w+: a CPU variant needs a NumPy array"):
        variant.launcher(**inputs, **case.options)


def overlapping(first, second):
    """Arrays like these two that share memory; the first is copied there."""
    at = 16 * (first.nbytes > 16)
    memory = np.zeros(max(first.nbytes, at + second.nbytes), np.uint8)
    parts = [memory[at : at + of.nbytes].view(of.dtype).reshape(of.shape) for at, of in ((0, first), (at, second))]
    parts[0][...] = first
    return parts


@each_argument(VARIANTS)
def test_results_that_overlap_an_argument(variant, name):
    case = example(variant)
    result = poisoned(variant, case.oracle(operator(variant.operator).reference))
    for i, (of, right) in enumerate(zip(outputs(variant), arrays(result), strict=False)):
        given, out = overlapping(case.inputs[name], right)
        out = alike(result, (*arrays(result)[:i], out, *arrays(result)[i + 1 :]))
        with pytest.raises(ValueError, match=rf"^{of} shares memory with {name}: need memory of its own"):
            variant.launcher(**{**case.inputs, name: given}, **case.options, out=out)


@each([row for row in VARIANTS if row not in PAIRED and row.operator not in IN_PLACE and row.name != "softmax_loops"])
def test_an_output_that_is_an_argument(variant):
    case = example(variant)
    right = poisoned(variant, case.oracle(operator(variant.operator).reference))
    for name, array in case.inputs.items():
        if (array.shape, array.dtype) == (right.shape, right.dtype):
            with pytest.raises(ValueError, match=f"^out shares memory with {name}: need memory of its own$"):
                variant.launcher(**case.inputs, **case.options, out=array)


@each(CUDA)
def test_device_arrays_that_overlap(variant):
    case = example(variant)
    result = poisoned(variant, case.oracle(operator(variant.operator).reference))
    name, array = next((name, array) for name, array in case.inputs.items() if array.nbytes > 16)
    right, *others = arrays(result)
    memory = cuda.to_device(np.zeros(max(array.nbytes, right.nbytes) + 32, np.uint8))
    given, out = (memory[at : at + of.nbytes].view(of.dtype).reshape(of.shape) for at, of in ((0, array), (16, right)))
    inputs = {other: cuda.to_device(value) for other, value in case.inputs.items()}
    with pytest.raises(ValueError, match=rf"^{outputs(variant)[0]} shares memory with {name}: need memory of its own"):
        variant.launcher(**{**inputs, name: given}, **case.options, out=alike(result, (out, *[None] * len(others))))


@each(VARIANTS)
def test_results_that_may_not_be_written(variant):
    case = example(variant)
    result = poisoned(variant, case.oracle(operator(variant.operator).reference))
    for i, name in enumerate(outputs(variant)[: len(arrays(result))]):
        read_only = arrays(result)[i].copy()
        read_only.flags.writeable = False
        out = alike(result, (*arrays(result)[:i], read_only, *arrays(result)[i + 1 :]))
        with pytest.raises(ValueError, match=f"^{name} is read-only: need a writable array$"):
            variant.launcher(**case.inputs, **case.options, out=out)


@each_argument(VARIANTS)
def test_masked_arrays(variant, name):
    case = example(variant)
    masked = np.ma.masked_array(case.inputs[name], np.ones(case.inputs[name].shape, bool))
    with pytest.raises(ValueError, match=rf"^{name} is a MaskedArray, whose mask would not count"):
        variant.launcher(**{**case.inputs, name: masked}, **case.options)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_matrix_is_no_array():
    x = np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"^x is a matrix, whose rows have two axes: need np\.asarray of it"):
        ops.linear_cpu_gemm(np.asmatrix(x), x, np.zeros(2, np.float32))


def test_layers_of_the_cpu_write_elsewhere():
    rng = np.random.default_rng(0)
    sequence, image = rng.random((3, 4, 4), np.float32), np.zeros((3, 3, 4, 4), np.float32)
    x1d, x2d = np.ones((2, 9, 4), np.float32), np.ones((2, 9, 9, 4), np.float32)
    norm = NormReluPool(None, None, 3)

    def made(kind, weight):
        return kind(pattern_of(weight), {"weight": weight, "bias": np.zeros(4, np.float32)})

    for layer, x, shape in (
        (made(CpuConv, sequence), x1d, (2, 7, 4)),
        (made(CpuWinogradConv, sequence), x1d, (2, 7, 4)),
        (made(CpuConv, sequence[0]), x1d[:, 0].copy(), (2, 4)),
        (made(CpuConv, image), x2d, (2, 7, 7, 4)),
        (made(CpuWinogradConv, image), x2d, (2, 7, 7, 4)),
        (norm, x1d, (2, 3, 4)),
    ):
        expected = layer(x, np.empty(shape, np.float32))
        x, out = overlapping(x, expected)
        with pytest.raises(ValueError, match=r"^out shares memory with [xy]: need memory of its own$"):
            layer(x, out)


@each([row for row in VARIANTS if "stride" in inspect.signature(operator(row.operator).reference).parameters])
def test_numbers_that_are_too_large_are_named(variant):
    case, taken = example(variant), inspect.signature(variant.launcher).parameters
    for name in ("stride", "padding", "dilation"):
        for value in (1 << 31, 10**30, (1, 1 << 31))[: None if "2d" in variant.operator else 2]:
            if name in taken:
                with pytest.raises(ValueError, match=rf"\b{name}=.*: need "):
                    variant.launcher(**case.inputs, **{**case.options, name: value})
    if "padding" in taken and "2d" in variant.operator:
        with pytest.raises(ValueError, match=r"\bpadding=1000000: "):
            variant.launcher(**case.inputs, **{**case.options, "padding": 10**6})


@each(
    [
        row
        for row in CPU
        if re.match(r"(conv|maxpool|avgpool)[12]d(?!_backward)", row.operator) and "winograd" not in row.name
    ]
)
def test_a_step_beyond_the_input(variant):
    case = example(variant)
    name = "pool_stride" if "pool_stride" in inspect.signature(variant.launcher).parameters else "stride"
    if name in inspect.signature(variant.launcher).parameters:
        case.options[name] = 10**9
        expected = case.oracle(operator(variant.operator).reference)
        np.testing.assert_allclose(variant.launcher(**case.inputs, **case.options), expected, rtol=1e-5, atol=1e-5)


def test_other_ranks_are_told_what_to_pass():
    x, square, bias = np.zeros((2, 3, 4), np.float32), np.zeros((4, 4), np.float32), np.zeros(4, np.float32)
    for launcher in (ops.linear_softmax_naive, ops.linear_argmax_naive, ops.linear_maxout_naive):
        with pytest.raises(ValueError, match=r"^x has shape \(4,\): need \(N, \.\.\., C_in\)$"):
            launcher(bias, square, bias)
    for launcher in (ops.layernorm_loops, ops.layernorm_naive):
        with pytest.raises(ValueError, match=r"^gamma has shape \(4,\): need \(3, 4\), .*: x.reshape\(-1, 4\)$"):
            launcher(x, bias, bias)


@each([row for row in VARIANTS if re.fullmatch("linear(_(relu|tanh|gelu|sigmoid|leaky_relu))?", row.operator)])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 0, 4), (1, 2, 2, 4), (5, 100, 4)])
def test_linear_over_the_last_axis(variant, shape):
    rng = np.random.default_rng(0)
    case = Case({name: rng.standard_normal(of, np.float32) for name, of in
                 (("x", shape), ("weight", (3, 4)), ("bias", (3,)))})  # fmt: skip
    check(variant, variant.launcher(**case.inputs), case.oracle(operator(variant.operator).reference))


@each([row for row in VARIANTS if row.operator == "argmax"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 0, 3), (1, 2, 2, 5)])
def test_argmax_over_the_last_axis(variant, shape):
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    check(variant, variant.launcher(x), reference.argmax(x))


@each([row for row in VARIANTS if row.operator == "softmax"])
@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (2, 0, 3), (1, 2, 2, 5)])
def test_softmax_over_the_last_axis(variant, shape):
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    check(variant, variant.launcher(x), operator("softmax").reference(x.astype(np.float64)))
