"""The catalogue against what is on disk: nothing missing, nothing extra, one set of arguments an operator."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from functools import wraps
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from operator_cases import CASES
from report import matrix
from report.matrix import MATRIX, STRONG
from report.schema import ReportError

import charcnn
from charcnn import catalog, ops
from charcnn.catalog import (
    LAYERS,
    LEVELS,
    NETWORK_TECHNIQUES,
    OPERATORS,
    PRECISIONS,
    TECHNIQUES,
    VARIANTS,
    level,
    level_ranges,
    operator,
)
from charcnn.model.rounding import ROUNDINGS
from charcnn.ops import functions, reference
from charcnn.ops.common.precision import SPARSE_PRECISIONS, TENSOR_PRECISIONS
from charcnn.ops.table import IMAGES, STEPPING

PACKAGE = Path(charcnn.__file__).parent
KEYWORDS = {"cpu": ("out",), "cuda": ("out", "stream")}

MOVES, SEQUENCES = ("stride", "padding", "dilation"), ("conv1d_nlc", "conv1d_relu_nlc")

GRADIENTS = ("gradients", "gradients_images", "gradients_transformer")
REFERENCES = [f"charcnn.ops.reference.{name}" for name in ("values", "sequences", "images", *GRADIENTS)]


def defined_in(module):
    """The module's own public functions, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == module.__name__
    }


def test_launches_are_those_on_disk():
    """Of modules that the table names, all that are called so and defined there; no function spells a row's name."""
    named = {row.launch for row in VARIANTS}
    modules = {name: import_module(f"charcnn.ops.{name}") for name in {launch.partition(":")[0] for launch in named}}
    chains = {"chain.blocks", "chain.blocks2d"}
    on_disk = {
        f"{home}:{name}"
        for home, module in modules.items()
        for name, function in defined_in(module).items()
        if name.startswith("launch") or home in chains
    }
    on_disk |= {name for name in named if callable(getattr(modules[name.partition(":")[0]], name.partition(":")[2]))}
    assert named == on_disk
    functions = {row.function for row in VARIANTS}
    assert not any(functions & defined_in(module).keys() for module in modules.values())


def test_operators_are_the_references():
    parts = {"stat"}  # of fused operators: no kernel takes only that
    defined = {name: function for home in REFERENCES for name, function in defined_in(import_module(home)).items()}
    references = {name: function for name, function in defined.items() if name not in parts}
    assert all(getattr(reference, name) is function for name, function in defined.items())
    assert {row.name: row.reference for row in OPERATORS} == references


def test_names_are_unique():
    for rows in (OPERATORS, VARIANTS, LAYERS, LEVELS):
        assert len({row.name for row in rows}) == len(rows)


def test_matrix():
    names = {row.name for row in VARIANTS}
    channels_first = {row.name for row in OPERATORS if row.layout == "channels_first"}
    fusions = {name for fused in MATRIX.values() for part in fused for name in part}
    assert fusions <= channels_first
    for name in channels_first - fusions:
        fused = MATRIX.get(name, ([], []))
        assert operator(name).reference is getattr(reference, name)
        assert {f"{name}_loops", f"{name}_naive"} <= names
        for weak in fused[0]:
            assert f"{weak}_naive" in names
        for strong in fused[1]:
            assert {f"{strong}_{technique}" for technique in STRONG[strong]} <= names
        assert all(f"_{name}_" in f"_{chain}_" for chain in (*fused[0], *fused[1])), "a fused name spells its chain"
    assert MATRIX.keys() <= channels_first - fusions


def test_no_cell_of_the_matrix_is_blank(monkeypatch):
    assert all(cell.strip() for row in matrix.matrix(PACKAGE).splitlines() for cell in row.strip("|").split("|"))
    beside = {**matrix.NOTES, ("rownorm", "naive"): "none"}
    for notes, message in (({}, "weak: nothing, and no note"), (beside, "a note beside `rownorm_naive`")):
        monkeypatch.setattr(matrix, "NOTES", notes)
        with pytest.raises(ReportError, match=message):
            matrix.matrix(PACKAGE)


def test_channels_last():
    names = {row.name for row in OPERATORS}
    tokens = {name for name in names if name.startswith("one_hot_conv1d_")}  # fused with what follows only here
    tokens.add("layernorm_relu_maxpool1d_backward_nlc")
    assert {name.removesuffix("_nlc").removesuffix("_nhwc") for name in names - tokens} <= names
    steps = [row.label for row in VARIANTS if row.operator == "conv1d_nlc"]
    assert steps == [
        "coalesced",
        "tiled",
        "register_tiled",
        "vectorized",
        "double_buffered",
        "winograd",
        "winograd_cpu",
        *(f"mma_{name}" for name in TENSOR_PRECISIONS),
        *(f"wgmma_{name}" for name in TENSOR_PRECISIONS),
        *(f"wgmma_sparse_{name}" for name in SPARSE_PRECISIONS),
        *(f"small_batch_{name}" for name in TENSOR_PRECISIONS),
    ]


def test_every_technique_is_used_and_explained():
    assert {row.technique for row in VARIANTS} == set(TECHNIQUES)
    assert all(TECHNIQUES.values())


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda row: row.name)
def test_variant(variant):
    launcher = getattr(ops, variant.function)
    assert launcher.__name__ == variant.function
    assert inspect.getdoc(launcher)
    assert variant.launcher is launcher if variant.precision is None else variant.launcher.func is launcher
    expected = [
        (name, parameter.kind, parameter.default)
        for name, parameter in inspect.signature(operator(variant.operator).reference).parameters.items()
        if name != "dtype"  # launchers give float32
        and not (name in MOVES and variant.operator in SEQUENCES and variant.technique in STEPPING)
    ]
    more = [("precision", "fp16")] if variant.precision else []
    more += [(name, None) for name in KEYWORDS[variant.device]]
    expected += [(name, inspect.Parameter.KEYWORD_ONLY, default) for name, default in more]
    given = inspect.signature(launcher).parameters
    assert [(name, parameter.kind, parameter.default) for name, parameter in given.items()] == expected


@pytest.mark.parametrize("name", dict.fromkeys(row.function for row in VARIANTS))
def test_docstrings_say_each_parameter(name):
    said, source = inspect.getdoc(getattr(ops, name)), inspect.getsource(getattr(ops, name))
    assert source.startswith(f"def {name}(")
    arguments = said.partition("\nArgs:\n")[2].partition("\n\nReturns:\n")[0]
    found = re.findall(r"^    (\w+): (.+)", arguments, re.MULTILINE)
    assert [each for each, _ in found] == list(inspect.signature(getattr(ops, name)).parameters)
    assert all(len(meaning) > 12 for _, meaning in found)
    assert re.search(r"\nReturns:\n    \w+ \(.*\nRaises:\n    ValueError: ", said, re.DOTALL)


@pytest.mark.parametrize("rows", functions.FUNCTIONS.values(), ids=functions.FUNCTIONS)
def test_launches_get_what_the_caller_gave(rows, monkeypatch):
    """Also of rows that only a GPU runs: arrays in order, then options, and what the row says."""
    row, real = rows[-1], functions.launch_of(rows[0])
    given = []

    @wraps(real)
    def launch(*arguments, **options):
        given.append((arguments, options))

    monkeypatch.setattr(functions, "launch_of", lambda row: launch)
    case, of = CASES[row.operator].build(CASES[row.operator].edges[0]), operator(row.operator)
    signature = inspect.signature(of.reference).parameters
    parameters = [name for name in signature if name != "dtype" and name not in row.left_out]
    options = {name: value for name, value in case.options.items() if name not in row.left_out}
    if row.precision:
        options["precision"] = row.precision
    functions.make(row.function)(**case.inputs, **options)
    ((found, said),) = given
    if of.shape_check is not None:
        found = found[1:]
        assert said == {
            **({"precision": row.precision} if row.precision else {}),
            **({"epilogue": of.epilogue} if "epilogue" in inspect.signature(real).parameters else {}),
        }
    for name, value in zip(parameters, found, strict=True):
        if name in case.inputs:
            np.testing.assert_array_equal(value if isinstance(value, np.ndarray) else value.copy_to_host(),
                                          case.inputs[name])  # fmt: skip
        else:
            assert value == options.get(name, signature[name].default)


def test_functions_pickle():
    assert pickle.loads(pickle.dumps(ops.conv1d_loops)) is ops.conv1d_loops


def test_the_stub_is_what_the_table_gives():
    stub = (PACKAGE / "ops" / "__init__.pyi").read_text()
    assert stub == functions.stub(), "run python bench/report.py"
    assert {node.name for node in ast.parse(stub).body if isinstance(node, ast.FunctionDef)} == set(functions.FUNCTIONS)


def test_ops_export_every_launcher():
    assert sorted(ops.__all__) == sorted([*{row.function for row in VARIANTS}, "chain", "prepare", "reference"])


LAZY = """
import sys
import charcnn.ops
assert charcnn.ops.conv1d_loops.__name__ == "conv1d_loops"
assert "charcnn.ops.conv1d.naive" not in sys.modules and "numba.cuda" not in sys.modules
assert charcnn.ops.conv1d_naive.__name__ == "conv1d_naive"
"""


def test_a_file_of_a_package_loads_without_the_others():
    done = subprocess.run(
        [sys.executable, "-c", LAZY], capture_output=True, text=True, check=False, cwd=Path(charcnn.__file__).parents[1]
    )
    assert done.returncode == 0, done.stderr


def test_names_load_when_they_are_used():
    assert dir(ops) == sorted(ops.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        ops.nothing  # noqa: B018


def test_tolerances():
    for row in OPERATORS:
        assert row.tolerance in (catalog.EXACT, catalog.FLOAT32)
    for row in VARIANTS:
        rounded = row.operator.endswith("maxpool1d_backward_nlc") and row.device == "cuda"  # maxima are of bf16
        own = TENSOR_PRECISIONS.get("bf16" if rounded else row.label.rpartition("_")[2])
        filtered = 2 * catalog.FLOAT32 if row.operator in IMAGES and row.technique == "winograd" else None
        assert catalog.tolerance(row) == (filtered or (own.tolerance if own else operator(row.operator).tolerance))


def test_precisions():
    assert set(PRECISIONS) == {"fp32", "int8", *TENSOR_PRECISIONS}
    for row in LEVELS:
        given = inspect.signature(row.module.build).parameters.get("precision")
        assert row.build_options() == ({} if given is None else {"precision": given.default})
        assert [row.precision(name) for name in (None, *row.precisions)] == [row.precisions[0], *row.precisions]
        assert row.number_format() is PRECISIONS[row.precision()]
        assert [row.number_format(name).name for name in row.precisions] == [
            PRECISIONS[name].name for name in row.precisions
        ]
    assert level("l13").rounding() == replace(ROUNDINGS["fp32"], filtered=True)
    single, fp8 = ([row for row in LEVELS if name in row.precisions] for name in ("fp32", "fp8"))
    with pytest.raises(ValueError, match=f"^precision='fp32': l15 has fp16, .*; fp32 is in {level_ranges(single)}$"):
        level("l15").number_format("fp32")
    with pytest.raises(ValueError, match=f"^precision='fp8': l15 has .*; fp8 is in {level_ranges(fp8)}$"):
        level("l15").build_options("fp8")
    with pytest.raises(ValueError, match=r"^precision='int4': need one of fp32, tf32, fp16x3, fp16, bf16, fp8, int8$"):
        level("l0").number_format("int4")
    assert level_ranges([level(name) for name in ("l0", "l1", "l13", "l15", "l16")]) == "l0, l1, l13, l15 and l16"


def test_layers_on_a_cpu_are_those_that_levels_and_networks_call():
    """What their modules take from `charcnn.ops`, and no linter calls unused."""
    pages = [row.module for row in LEVELS if row.device == "cpu"]
    pages += [import_module(f"charcnn.networks.{row.home}") for row in NETWORK_TECHNIQUES if row.device == "cpu"]
    classes = {one for page in pages for one in vars(page).values() if inspect.isclass(one)}
    used = {one for one in classes if one.__module__.startswith("charcnn.ops.")}
    assert {row.made for row in LAYERS if row.device == "cpu"} == used


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
