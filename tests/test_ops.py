"""Every variant of the catalogue against its reference, and what its launcher takes and gives."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
from case_kinds import Case, built
from conftest import quick
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from operator_cases import CASES, takes
from operator_rows import (
    CUDA,
    IN_PLACE,
    PAIRED,
    VARIANTS,
    alike,
    arrays,
    compiled,
    costs,
    each,
    edges_of,
    example,
    follows,
    large_of,
    more_of,
    poisoned,
    repeats,
    shown,
    tried,
)
from streams import launched_on, numbered

from charcnn.catalog import operator
from charcnn.catalog import tolerance as tolerance_of
from charcnn.gpu import device
from charcnn.ops import reference


def fitted(variant, sizes):
    """Drawn sizes as the variant takes them."""
    by_one = {"groups": 1, "sh": 1, "sw": 1, "dh": 1, "dw": 1}
    for new in ({"pool_size": 3}, {"c": 2}, {"k": 7}, {"c_in": 2}, by_one, {"kw": 2}):
        if not takes(variant.label, sizes) and new.keys() <= sizes.keys():
            sizes = {**sizes, **new}
    return sizes


def put(result):
    """A result on the device."""
    return alike(result, map(cuda.to_device, arrays(result)))


def fetch(result):
    """A result on the host."""
    return alike(result, (array.copy_to_host() for array in arrays(result)))


def same_objects(result, expected):
    return all(one is other for one, other in zip(arrays(result), arrays(expected), strict=True))


def check(variant, out, expected):
    """At the operator's tolerance, over the finite values; NaN and infinities stand where the reference has them."""
    if operator(variant.operator).results:
        for one, right in zip(arrays(out), arrays(expected), strict=True):
            check_array(variant, one, right)
    elif isinstance(expected, tuple):
        (y, stat), (expected_y, expected_stat) = out, expected
        check_array(variant, y, expected_y)
        check_stat(variant, stat, expected_stat, y, expected_y)
    else:
        check_array(variant, out, expected)


def check_array(variant, out, expected):
    """One array of a result."""
    assert out.shape == expected.shape
    assert out.dtype == (np.int64 if expected.dtype == np.int64 else CASES[variant.operator].dtype)
    tolerance = tolerance_of(variant)
    if tolerance == 0:
        np.testing.assert_array_equal(out, expected)
        return
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(out[~finite], expected[~finite])
    error = np.linalg.norm(out[finite].astype(np.float64) - expected[finite])
    assert error <= tolerance * np.linalg.norm(expected[finite])


def check_stat(variant, stat, expected, y, expected_y):
    """Mean and variance against those of the y that was written, and, as far off as that y is, the reference's."""
    assert stat.shape == expected.shape
    assert stat.dtype == np.float64
    assert (stat[:, 1] >= 0).sum() == np.isfinite(expected[:, 1]).sum()
    tolerance, y = tolerance_of(variant), y.astype(np.float64)
    bits = {"fp16": 11, "bf16": 8, "tf32": 11, "fp16x3": 22, "fp8": 4}.get(variant.precision, 53)  # summed before
    for exact, moves in ((expected, y - expected_y), (reference.stat(y), 0.5**bits * y)):
        finite = np.isfinite(exact).all(axis=1)
        np.testing.assert_array_equal(np.isfinite(stat).all(axis=1), finite)
        mean, variance = exact[finite].T
        size = (deviation := np.sqrt(variance)) + abs(mean)
        # An error of y of this size moves the mean by no more, and the deviation.
        moved = np.sqrt(np.square(moves[finite]).mean(axis=tuple(range(1, y.ndim))))
        assert (abs(stat[finite, 0] - mean) <= tolerance * size + moved).all()
        unequal = 1e-14 * size**2  # where float32 holds no difference, float64 leaves some
        allowed = tolerance * variance + moved * (2 * deviation + moved) + unequal
        assert (abs(stat[finite, 1] - variance) <= allowed).all()


def run(variant, case: Case, taken: Case | None = None):
    """The launcher on host arrays, into a poisoned output, against the reference, of what it is `taken` for."""
    expected = (taken or case).oracle(operator(variant.operator).reference)
    out = poisoned(variant, expected)
    assert same_objects(variant.launcher(**case.inputs, **case.options, out=out), out)
    check(variant, out, expected)


@quick(lambda variant, sizes: tried(variant, sizes, "edges"), everywhere=False)
@pytest.mark.parametrize(("variant", "sizes"), edges_of(VARIANTS))
def test_edges(variant, sizes):
    run(variant, built(variant, CASES[variant.operator], sizes))


@quick(lambda variant, sizes: tried(variant, sizes, "large"), everywhere=False)
@pytest.mark.parametrize(("variant", "sizes"), large_of(VARIANTS))
def test_large(variant, sizes):
    run(variant, built(variant, CASES[variant.operator], sizes, normal=True))


@quick(
    lambda variant, share: share > 1 and not repeats(variant) and not costs(variant) and not shown(variant),
    everywhere=False,
)
@pytest.mark.parametrize(
    "share",
    [1] if device.SIMULATED else [pytest.param(3, marks=pytest.mark.sample), 1],
    ids=lambda share: f"1 in {share}",
)
@pytest.mark.parametrize(
    "variant", [pytest.param(row, id=row.name, marks=more_of(row, True)) for row in VARIANTS if not follows(row)]
)
def test_drawn_sizes(variant, share):
    cases = CASES[variant.operator]
    drawn = cases.sizes(compiled(variant), gpu=variant.device == "cuda")

    share = max(share, 4) if repeats(variant) and not device.SIMULATED else share  # each is compiled

    @settings(max_examples=cases.examples // share if compiled(variant) else min(8, cases.examples))
    @given(drawn.map(partial(fitted, variant)).filter(cases.fit), st.integers(0, 2**32 - 1))
    def try_one(sizes, seed):
        run(variant, built(variant, cases, sizes, seed))

    try_one()


@each(VARIANTS)
def test_inputs_stay_as_they_are(variant):
    case = example(variant)
    before = {name: array.copy() for name, array in case.inputs.items()}
    variant.launcher(**case.inputs, **case.options)
    for name, array in case.inputs.items():
        np.testing.assert_array_equal(array, before[name])


@each([row for row in VARIANTS if row.operator in IN_PLACE])
def test_in_place(variant):
    case = example(variant)
    expected = case.oracle(operator(variant.operator).reference)
    assert variant.launcher(**case.inputs, **case.options, out=case.inputs["x"]) is case.inputs["x"]
    check(variant, case.inputs["x"], expected)


# What the values are.

with_x = [row for row in VARIANTS if "x" in example(row).inputs]


# Winograd's filtering makes more positions NaN, products of training more taps, and sparse weights fewer sums: see
# test_winograd, test_cpu_gemm, test_gradients and test_wgmma_sparse.
@each([r for r in with_x if not (r.label.startswith("winograd") or r.sparse or "backward_nlc" in r.operator)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's: of the reference, and of the simulator's scalars
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite(variant, value):
    case = example(variant)
    x = case.inputs["x"]
    x.reshape(-1)[x.size // 2] = value
    if variant.label.endswith("fp8"):  # e4m3 has NaN, but no infinity: that becomes its greatest, as x's does
        greatest = abs(x[np.isfinite(x)]).max()
        run(variant, case, Case({**case.inputs, "x": x.clip(-greatest, greatest)}, case.options))
    else:
        run(variant, case)


@each([row for row in VARIANTS if row.operator == "argmax" or re.fullmatch("(relu_)?maxpool.*", row.operator)])
def test_all_alike(variant):
    special = "backward_nlc" in variant.operator  # of whose windows NaN takes the last position
    for value in (*[np.nan] * (not special), -np.inf, np.inf, 0.0, -0.0):
        case = example(variant)
        case.inputs["x"][...] = value
        run(variant, case)


@each([row for row in VARIANTS if row.operator == "argmax"])
def test_first_of_equals_and_first_nan(variant):
    nan = np.nan
    x = np.array([[1, 2, 2, 0], [nan, 3, nan, 5], [3, nan, 5, nan], [-np.inf] * 4, [0.0, -0.0, 0, 0]], np.float32)
    np.testing.assert_array_equal(variant.launcher(x), [1, 0, 1, 0, 0])


@each([row for row in VARIANTS if row.operator == "one_hot"])
def test_every_token_id(variant):
    ids = np.arange(256, dtype=np.uint8)[None]
    out = variant.launcher(ids, 3)
    np.testing.assert_array_equal(out[0], np.eye(256, dtype=np.float32)[:3])


@each([row for row in with_x if "argmax" not in row.operator])
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_magnitudes(variant, scale):
    if variant.operator.endswith("pool1d_backward_nlc"):  # which picks among numbers of bf16
        scale = {1e-12: 2.0**-40, 1e12: 2.0**40}[scale]
    if "fp16" in variant.label:  # 6e-5 to 65,504; results of two terms have no digit below 6e-8
        scale = {1e-12: 2.0 ** -(2 if variant.label == "vectorized_fp16x3" else 6), 1e12: 2.0**6}[scale]
    case = example(variant)
    for name, array in case.inputs.items():
        if name == "x" or name.startswith("bias"):
            array *= np.float32(scale)
        if name == "stat":
            array *= [scale, scale**2]
    run(variant, case)


@each([row for row in with_x if re.search("layernorm|rownorm", row.operator) and not (row.precision or row.ampere)])
@pytest.mark.parametrize("mean", [8, -1e4])
def test_layernorm_far_from_zero(variant, mean):
    """In deviations. Of 16 bits, of which 8 or 11 are digits, x keeps nothing at such a distance."""
    case = example(variant)
    x = case.inputs["x"]
    x[...] = mean + np.random.default_rng(0).standard_normal(x.shape)
    if "stat" in case.inputs:
        case.inputs["stat"][...] = reference.stat(x.astype(np.float64))
    run(variant, case)


@each([row for row in with_x if re.search("layernorm|rownorm", row.operator)])
@pytest.mark.parametrize("eps", [1e-12, 1.0])
def test_layernorm_eps(variant, eps):
    case = example(variant)
    case.inputs["x"][0] = 3  # its variance is 0: eps alone is under the root
    if "stat" in case.inputs:
        case.inputs["stat"][0] = 3, 0
    case.options["eps"] = eps
    run(variant, case)


@each([row for row in VARIANTS if re.search("layernorm|rownorm", row.operator)])
def test_gamma_of_either_sign(variant):
    case = example(variant)
    gamma = case.inputs["gamma"]
    gamma *= np.where(np.arange(gamma.size).reshape(gamma.shape) % 2, -1, 1).astype(np.float32)  # within a window, too
    run(variant, case)


CONV1D_STAT = [row for row in VARIANTS if row.operator == "conv1d_stat"]
LAYERNORM_RELU = [row for row in VARIANTS if row.operator == "layernorm_relu"]


@each(CONV1D_STAT)
@pytest.mark.parametrize("mean", [0, 1e2, 1e4])
def test_statistics_are_accurate_where_the_mean_is_large(variant, mean):
    rng = np.random.default_rng(5)
    # Values of deviation 1 around the mean; the convolution passes them through: only statistics can be wrong.
    c, length = 8, 30 if device.SIMULATED else 1000
    x = (mean + rng.standard_normal((2, c, length))).astype(np.float32)
    y, stat = variant.launcher(x, np.eye(c, dtype=np.float32)[:, :, None], np.zeros(c, np.float32))
    np.testing.assert_array_equal(y, x)
    exact = reference.stat(x.astype(np.float64))
    assert abs(stat[:, 0] - exact[:, 0]).max() <= 5e-7, "in standard deviations"
    np.testing.assert_allclose(stat[:, 1], exact[:, 1], rtol=2e-6)
    if mean == 1e4:  # what a sum of squares in float32 would give
        squares = np.square(x).mean(axis=(1, 2)) - np.square(x.mean(axis=(1, 2)))
        assert abs(squares / exact[:, 1] - 1).max() > 0.1
    gamma = rng.standard_normal((c, length), np.float32)
    beta = rng.standard_normal((c, length), np.float32)
    expected = reference.layernorm_relu(*(array.astype(np.float64) for array in (x, exact, gamma, beta)))
    for row in LAYERNORM_RELU:
        check(row, row.launcher(y, stat, gamma, beta), expected)


@each(CONV1D_STAT)
def test_statistics_of_equal_values(variant):
    x = np.full((1, 1, 40), 0.1, np.float32)
    _, stat = variant.launcher(x, np.ones((3, 1, 1), np.float32), np.zeros(3, np.float32))
    assert stat[0, 0] == pytest.approx(float(np.float32(0.1)), rel=1e-15)
    assert 0 <= stat[0, 1] <= 1e-30


@each([row for row in VARIANTS if row.operator == "softmax"])
def test_softmax_of_great_logits(variant):
    x = np.array([[1e30, -1e30, 0, 1e30], [-1e4, -1e4, -1e4 - 1, -np.inf]], np.float32)
    expected = operator("softmax").reference(x.astype(np.float64))
    out = variant.launcher(x)
    check(variant, out, expected)
    np.testing.assert_allclose(out.sum(axis=1), 1, rtol=1e-6)


# What a launcher returns, and where.


@each(VARIANTS)
def test_numpy_in_numpy_out(variant):
    case = example(variant)
    out = variant.launcher(**case.inputs, **case.options)
    assert all(type(array) is np.ndarray for array in arrays(out))
    check(variant, out, case.oracle(operator(variant.operator).reference))


@each(CUDA)
@quick(lambda given_out, given_stream: given_out == given_stream)
@pytest.mark.parametrize("given_out", [False, True], ids=["made", "given"])
@pytest.mark.parametrize("given_stream", [False, True], ids=["default", "stream"])
def test_device_in_device_out(variant, given_out, given_stream, stream, monkeypatch):
    case = example(variant)
    expected = case.oracle(operator(variant.operator).reference)
    inputs = {name: cuda.to_device(array) for name, array in case.inputs.items()}
    options = dict(case.options)
    if given_out:
        options["out"] = put(poisoned(variant, expected))
    if given_stream:
        options["stream"] = stream
    cuda.synchronize()

    to_device, given = device.to_device, {(array.shape, array.dtype) for array in case.inputs.values()}

    def copied(array, stream=0):  # a tensor map may be
        assert (array.shape, array.dtype) not in given, "copied to the device"
        return to_device(array, stream)

    monkeypatch.setattr(device, "to_device", copied)
    streams = launched_on(monkeypatch)
    out = variant.launcher(**inputs, **options)
    assert all(map(device.is_cuda_ndarray, arrays(out)))
    assert not given_out or same_objects(out, options["out"])
    assert streams == {numbered(stream) if given_stream else 0}
    cuda.synchronize()
    check(variant, fetch(out), expected)


@each(CUDA)
def test_numpy_on_a_stream(variant, stream, monkeypatch):
    case = example(variant)
    streams = launched_on(monkeypatch)
    out = variant.launcher(**case.inputs, **case.options, stream=stream)
    check(variant, out, case.oracle(operator(variant.operator).reference))  # which the launcher has waited for
    assert streams == {numbered(stream)}


@each(CUDA[: 1 if device.SIMULATED else None])
@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.skipif(device.SIMULATED, reason="the simulator has no __cuda_array_interface__: needs a GPU")
def test_other_libraries_arrays(variant, library):
    module = pytest.importorskip(library)
    if library == "torch" and not module.cuda.is_available():
        pytest.skip("this PyTorch is built without CUDA")

    def given(array):
        return module.from_numpy(array).cuda() if library == "torch" else module.asarray(array)

    def taken(array):
        return array.cpu().numpy() if library == "torch" else array.get()

    case = example(variant)
    expected = case.oracle(operator(variant.operator).reference)
    inputs = {name: given(array) for name, array in case.inputs.items()}
    out = alike(expected, map(given, arrays(poisoned(variant, expected))))
    for stream in (None, module.cuda.Stream()):
        for array in arrays(out):
            array[...] = -7
        cuda.synchronize()
        assert same_objects(variant.launcher(**inputs, **case.options, out=out, stream=stream), out)
        cuda.synchronize()
        check(variant, alike(expected, map(taken, arrays(out))), expected)


@each([row for row in PAIRED if row in CUDA])
def test_some_of_several_results(variant):
    case = example(variant)
    expected = case.oracle(operator(variant.operator).reference)
    given = poisoned(variant, expected)
    for which in range(len(given)):
        out = tuple(array if i == which else None for i, array in enumerate(given))
        result = variant.launcher(**case.inputs, **case.options, out=out)
        assert all(array is None or got is array for got, array in zip(result, out, strict=True))
        check(variant, result, expected)
