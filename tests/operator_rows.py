"""Rows of the catalogue with the sizes they are tried at, and which of them a GPU leaves to --all."""

from __future__ import annotations

import re
from functools import cache

import pytest
from conftest import runs_here
from operator_cases import CASES, takes

from charcnn.catalog import VARIANTS as EVERY
from charcnn.gpu import device

VARIANTS = [row for row in EVERY if runs_here(row)]
CUDA = [row for row in VARIANTS if row.device == "cuda"]
CPU = [row for row in VARIANTS if row.device == "cpu"]


def compiled(variant):
    return variant.device == "cpu" or not device.SIMULATED


def named(row, sizes):
    return "-".join([row.name, *(f"{name}{size}" for name, size in sizes.items())])


def edges_of(rows):
    return [
        pytest.param(row, sizes, id=named(row, sizes))
        for row in rows
        for sizes in CASES[row.operator].edges
        if takes(row.label, sizes)
    ]


def more_of(row, drawn=False):
    """Marks: bf16 is one word in fp16's kernels on tensor cores; `direct` has a kernel of most sizes that are drawn."""
    many = row.label == "direct" and drawn and compiled(row)
    return [pytest.mark.exhaustive] if many or (row.tensor_cores and row.label.endswith("bf16")) else []


def large_of(rows):
    return [
        pytest.param(row, sizes, marks=more_of(row), id=named(row, sizes))
        for row in rows
        if compiled(row)
        for sizes in CASES[row.operator].large
        if takes(row.label, sizes)
    ]


@cache
def leading():
    """Rows of which a GPU tries all sizes: the first of a technique and kind of sizes, the first in a precision."""
    first = {}
    for row in CUDA:
        cases = CASES[row.operator]
        first.setdefault(row.label, row)
        other = re.search("stat|avgpool|$", row.operator)[0]  # more than an epilogue
        first.setdefault((row.technique, cases.make, id(cases.edges), other), row)
    return {row.name for row in first.values()}


def repeats(row):
    """Whether kernels, compiled for its sizes, are those of a leading row but for an epilogue or numbers' format."""
    return row in CUDA and (row.tensor_cores or CASES[row.operator].compiled_in) and row.name not in leading()


def tried(row, sizes, kind):
    """Whether a GPU tries these sizes by default: of a row that repeats another, the example's, one large by turns."""
    of = [one for one in getattr(CASES[row.operator], kind) if takes(row.label, one)]
    return not repeats(row) or sizes == of[0 if kind == "edges" else CUDA.index(row) % len(of)]
