"""Rows of the catalogue with the sizes they are tried at, which of them a GPU leaves to --all, and examples of them."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from case_kinds import Case, built
from conftest import by_turns, runs_here
from operator_cases import CASES, takes

from charcnn.catalog import CHAIN, IMAGE_CHAIN, OPERATORS, operator
from charcnn.catalog import VARIANTS as EVERY
from charcnn.gpu import device

VARIANTS = [row for row in EVERY if runs_here(row)]
CUDA = [row for row in VARIANTS if row.device == "cuda"]
CPU = [row for row in VARIANTS if row.device == "cpu"]

IN_PLACE = tuple(row.name for row in OPERATORS if row.in_place)
"""Operators that may write over what they read."""


def compiled(variant):
    return variant.device == "cpu" or not device.SIMULATED


def named(row, sizes):
    return "-".join([row.name, *(f"{name}{size}" for name, size in sizes.items())])


def sizes_of(row, kind):
    return [sizes for sizes in getattr(CASES[row.operator], kind) if takes(row.label, sizes)]


def edges_of(rows):
    return [
        pytest.param(row, sizes, id=named(row, sizes))
        for row in rows
        for sizes in sizes_of(row, "edges")[: 1 if follows(row) else None]
    ]


@cache
def shown(row):
    """Whether a GPU leaves a row to --all, with every test: others show what its kernels do.

    On tensor cores what follows a product is shown in fp16, and other precisions by one convolution: test_wgmma,
    test_mma_windows, test_wgmma_windows and levels have them with it, and all of TF32; test_direct_mma has its own. In
    float32, test_direct and test_images_fp32 have ReLU and tanh. Chains are the longest kernels: test_chain and
    test_chain2d have all methods, level 10 and a network their best.
    """
    if device.SIMULATED:
        return False
    if row.operator in (CHAIN, IMAGE_CHAIN) or (row.tensor_cores and row.precision == "tf32"):
        return True
    if row.tensor_cores and (row.precision == "bf16" or row.technique in ("mma", "wgmma")):
        return row.precision != "fp16" and row.operator != "conv1d_nlc"
    if row.technique in ("double_buffered", "winograd"):
        return row.operator in ("conv1d_relu_nlc", "conv2d_relu_nhwc")
    return row.technique in ("direct", "direct_mma") and (bool(pointwise(row)) or "tanh" in row.operator)


def more_of(row, drawn=False):
    """Marks: bf16 is one word in fp16's kernels on tensor cores; `direct` has a kernel of most sizes that are drawn.

    So have Winograd's rows on a CPU, for seconds each, of which those with ReLU differ by one flag. Rows that differ
    from a leading one by a function of each sum have its draws.
    """
    many = row.technique in ("direct", "direct_mma") and drawn and compiled(row)
    many = many or (drawn and (row.name == "conv2d_relu_winograd_rows_cpu" or bool(repeats(row) and pointwise(row))))
    if drawn and row.name == "conv2d_winograd_rows_cpu":
        return [by_turns]
    return [pytest.mark.exhaustive] if many or (row.tensor_cores and row.label.endswith("bf16")) else []


def large_of(rows):
    return [
        pytest.param(row, sizes, marks=more_of(row), id=named(row, sizes))
        for row in rows
        if compiled(row) and not follows(row)
        for sizes in sizes_of(row, "large")
    ]


@cache
def leading():
    """Rows of which a GPU tries all sizes: the first of a technique and kind of sizes, the first in a precision.

    bf16 leads nothing: it is one word in fp16's kernels. Nor does `direct`, which has a kernel of most sizes:
    test_direct has a GPU take each plan, at sizes chosen for it.
    """
    first = {}
    for row in CUDA:
        cases = CASES[row.operator]
        if row.precision == "bf16" or row.label == "direct":
            continue
        first.setdefault(row.label, row)
        other = re.search("stat|avgpool|$", row.operator)[0]  # more than an epilogue
        first.setdefault((row.technique, cases.make, id(cases.edges), other), row)
    return {row.name for row in first.values()}


COSTLY = ("double_buffered", "winograd", "mma", "wgmma", "wgmma_sparse", "direct_mma")
"""Techniques whose kernels a GPU compiles for seconds each, for many of the sizes."""


def costs(row):
    """Whether each of its sizes takes a GPU some seconds to compile, and test_tiled and leading rows show the same."""
    return row in CUDA and row.technique in COSTLY and row.name not in ("conv1d_nlc_mma_fp16", "conv1d_nlc_wgmma_fp16")


def repeats(row):
    """Whether kernels, compiled for its sizes, are those of a leading row but for an epilogue or numbers' format."""
    return row in CUDA and (row.tensor_cores or CASES[row.operator].compiled_in) and row.name not in leading()


def pointwise(row):
    """Whether what it has beyond a product is a function of each accumulator: the same for large sizes as for small."""
    return re.fullmatch(r"(conv1d|conv2d|linear)_(relu|tanh|gelu|sigmoid|leaky_relu)(_nlc|_nhwc)?", row.operator)


def follows(row):
    """Whether a GPU has a row at its example's sizes alone: it repeats another one, which has the others."""
    return not device.SIMULATED and repeats(row) and bool(pointwise(row))


def tried(row, sizes, kind):
    """Whether a GPU tries these sizes by default: of a row that repeats another, the example's, and one large.

    Which one goes by turns. Of one that leads, but whose kernels are costly, the example's, no input, on tensor cores
    another small, and one large: the network's.
    """
    of = sizes_of(row, kind)
    if shown(row):
        return False
    if not repeats(row):
        if not costs(row):
            return True
        if kind == "edges":
            others = [one for one in of[1:] if one["n"] and row.tensor_cores] or of[:1]
            return sizes["n"] == 0 or sizes in (of[0], others[CUDA.index(row) % len(others)])
        networks = [one for one in of if one.get("c_in") == 256] or of
        if row.technique == "double_buffered" and "maxpool" not in row.operator:  # ten seconds each
            return False
        return not pointwise(row) and sizes == networks[CUDA.index(row) % len(networks)]
    if kind == "edges" or row.label == "direct":  # test_direct has large ones
        return sizes == of[0] and kind == "edges"
    return sizes == of[CUDA.index(row) % len(of)]


def each(rows):
    marked = [pytest.param(row, id=row.name, marks=[pytest.mark.exhaustive] * shown(row)) for row in rows]
    return pytest.mark.parametrize("variant", marked)


def example(variant) -> Case:
    cases = CASES[variant.operator]
    return built(variant, cases, next(s for s in cases.edges if takes(variant.label, s)))


def arrays(result) -> tuple:
    """The arrays of a result: itself, or those of a tuple."""
    return result if isinstance(result, tuple) else (result,)


def alike(like, made):
    """A result of the same kind, from its arrays."""
    made = tuple(made)
    return made if isinstance(like, tuple) else made[0]


def poisoned(variant, like):
    """An output of the oracle's shape that no result looks like: NaN, or a number that no index has."""
    if isinstance(like, tuple):
        rest = np.float64 if operator(variant.operator).stat else np.float32
        return poisoned(variant, like[0]), *(np.full(array.shape, np.nan, rest) for array in like[1:])
    if like.dtype == np.int64:
        return np.full(like.shape, -7, np.int64)
    return np.full(like.shape, np.nan, CASES[variant.operator].dtype)


PAIRED = [row for row in VARIANTS if isinstance(example(row).oracle(operator(row.operator).reference), tuple)]
"""Whose result is a tuple: a pair (y, stat), or gradients."""


def outputs(variant) -> tuple[str, ...]:
    """What errors call its results."""
    return operator(variant.operator).results or ("out", "stat")
