"""The catalogue against what is on disk: nothing missing, nothing extra, one set of arguments an operator."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest

import charcnn
from charcnn import catalog, ops
from charcnn.catalog import LEVELS, OPERATORS, TECHNIQUES, VARIANTS, level, operator
from charcnn.ops import reference

PACKAGE = Path(charcnn.__file__).parent
KEYWORDS = {"cpu": ("out",), "cuda": ("out", "stream")}

MATRIX = ["conv1d", "layernorm", "relu", "maxpool1d", "linear", "one_hot", "collapse", "softmax", "argmax"]
FUSED_SO_FAR = ["conv1d_relu_naive", "linear_relu_naive"]


def defined_in(module):
    """The module's own public functions, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == module.__name__
    }


def modules_on_disk():
    for path in sorted((PACKAGE / "ops").rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield import_module(".".join(("charcnn", *parts)).removesuffix(".__init__"))


def test_variants_are_the_launchers_on_disk():
    on_disk = {
        name: function
        for module in modules_on_disk()
        for name, function in defined_in(module).items()
        if name.rpartition("_")[2] in TECHNIQUES
    }
    assert {row.name: row.launcher for row in VARIANTS} == on_disk


def test_every_public_function_of_an_operators_module_is_a_variant():
    helpers = {"charcnn.ops.reference", "charcnn.ops.shapes", "charcnn.ops.arrays"}
    names = {name for module in modules_on_disk() if module.__name__ not in helpers for name in defined_in(module)}
    assert names == {row.name for row in VARIANTS}


def test_operators_are_the_references():
    assert {row.name: row.reference for row in OPERATORS} == defined_in(reference)


def test_names_are_unique():
    for rows in (OPERATORS, VARIANTS, LEVELS):
        assert len({row.name for row in rows}) == len(rows)


def test_matrix():
    names = {row.name for row in VARIANTS}
    for name in MATRIX:
        assert operator(name).reference is getattr(reference, name)
        assert {f"{name}_loops", f"{name}_naive"} <= names
    assert names >= set(FUSED_SO_FAR)


def test_every_technique_is_used_and_explained():
    assert {row.technique for row in VARIANTS} == set(TECHNIQUES)
    assert all(TECHNIQUES.values())


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda row: row.name)
def test_variant(variant):
    assert variant.launcher.__name__ == variant.name
    assert getattr(ops, variant.name) is variant.launcher
    assert inspect.getdoc(variant.launcher)
    expected = [
        (name, parameter.kind, parameter.default)
        for name, parameter in inspect.signature(operator(variant.operator).reference).parameters.items()
        if name != "dtype"  # launchers give float32
    ]
    expected += [(name, inspect.Parameter.KEYWORD_ONLY, None) for name in KEYWORDS[variant.device]]
    given = inspect.signature(variant.launcher).parameters
    assert [(name, parameter.kind, parameter.default) for name, parameter in given.items()] == expected


def test_ops_export_every_launcher():
    assert sorted(ops.__all__) == sorted([*(row.name for row in VARIANTS), "reference"])


def test_tolerances():
    for row in OPERATORS:
        assert row.tolerance in (catalog.EXACT, catalog.FLOAT32)


def test_levels_are_the_modules_on_disk():
    on_disk = {path.stem for path in (PACKAGE / "levels").glob("l[0-9]*.py")}
    assert [row.name for row in LEVELS] == sorted(on_disk, key=lambda name: int(name[1:]))


@pytest.mark.parametrize("row", LEVELS, ids=lambda row: row.name)
def test_level(row):
    assert level(row.name) is row
    assert row.device in KEYWORDS
    assert row.title
    assert inspect.getdoc(row.module)
    assert callable(row.module.build)
