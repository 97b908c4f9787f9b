"""Epilogues with a second operand, `epilogues.SECOND`: a residual, a scale by channel, and one of a user's own."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import compiler_installed
from numba import float32
from test_notebooks import environment, run_apart  # noqa: F401 - a fixture

from charcnn.gpu import device
from charcnn.ops import reference
from charcnn.ops.common.epilogues import SECOND, Second
from charcnn.ops.conv2d.double_buffered import convolved


def drawn(c_in=4, c_out=8, groups=1):
    draw = np.random.default_rng(0)
    x, weight = draw.standard_normal((2, 6, 7, c_in)), draw.standard_normal((3, 3, c_in // groups, c_out))
    return [array.astype(np.float32) for array in (x, weight, draw.standard_normal(c_out))]


WANTED = {
    "add": lambda y, other: y + other,
    "add_relu": lambda y, other: np.maximum(y + other, 0),
    "scale": lambda y, other: y * other,
}


@pytest.mark.parametrize("name", WANTED)
@pytest.mark.parametrize("c_out", [8, 6])  # loads of 128 and of 32 bits
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"groups": 2}], ids=str)
def test_it_is_joined_with_the_sums(name, c_out, options):
    arrays = drawn(4, c_out, options.get("groups", 1))
    plain = reference.conv2d_nhwc(*(array.astype(np.float64) for array in arrays), **options)
    shape = plain.shape[-1:] if SECOND[name].by_channel else plain.shape
    second = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    want = WANTED[name](plain, second)
    made = convolved(name, *arrays, **options, second=second)
    assert np.linalg.norm(made - want) <= 2e-6 * np.linalg.norm(want)


def test_a_residual_may_be_where_the_results_go():
    arrays = drawn()
    y = np.random.default_rng(1).standard_normal((2, 4, 5, 8)).astype(np.float32)
    want = convolved("add", *arrays, second=y.copy())
    held = device.to_device(y)
    given = [device.to_device(array) for array in arrays]
    assert convolved("add", *given, second=held, out=held) is held
    np.testing.assert_array_equal(device.to_host(held), want)


def test_one_of_a_users_own(monkeypatch):
    def gated(value, gate):
        return value if gate > float32(0) else float32(0)

    monkeypatch.setitem(SECOND, "gated", Second(gated))
    arrays, gate = drawn(), np.random.default_rng(1).standard_normal((2, 4, 5, 8)).astype(np.float32)
    plain = convolved("", *arrays)
    np.testing.assert_array_equal(convolved("gated", *arrays, second=gate), np.where(gate > 0, plain, 0))


@pytest.mark.parametrize(
    ("name", "second", "message"),
    [
        ("add", None, r"^second is None: epilogue='add' needs \(2, 4, 5, 8\)"),
        ("add", (8,), r"^second is of shape \(8,\): epilogue='add' needs \(2, 4, 5, 8\)"),
        ("scale", (2, 4, 5, 8), r"^second is of shape \(2, 4, 5, 8\): epilogue='scale' needs \(8,\)"),
        ("relu", (8,), "^second is given: epilogue='relu' takes none; need one of add, add_relu, scale"),
        ("addd", None, "^epilogue='addd': need one of relu, "),
    ],
)
def test_what_does_not_fit(name, second, message):
    with pytest.raises(ValueError, match=message):
        convolved(name, *drawn(), second=None if second is None else np.zeros(second, np.float32))


def test_scale_does_not_write_over_its_operand():
    x, weight, bias = (device.to_device(array) for array in drawn(c_out=1))
    y = device.to_device(np.zeros((2, 4, 5, 1), np.float32))
    with pytest.raises(ValueError, match=r"^out .*second"):
        convolved("scale", x, weight, bias, second=y.reshape((40,))[:1], out=y)


COMPILED = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from kernel_costs import compiled
from charcnn.compiling.stand_in import Target, standing_in
from charcnn.ops.common.epilogues import SECOND
from charcnn.ops.conv2d.double_buffered import convolved
zeros, target, found = lambda *shape: np.zeros(shape, np.float32), Target.named("sm_90a"), {}
with standing_in(target, lambda *launch: found.setdefault(launch)):
    for name, row in SECOND.items():
        second = zeros(64) if row.by_channel else zeros(2, 14, 14, 64)
        convolved(name, zeros(2, 16, 16, 64), zeros(3, 3, 64, 64), zeros(64), second=second)
print(json.dumps([compiled(kernel, kinds, target).costs["spill_stores"] for kernel, kinds in found]))
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(not compiler_installed(), reason="the CUDA compiler is not installed: pip install -e '.[cuda]'")
def test_kernels_do_not_spill(environment):  # noqa: F811
    from pathlib import Path

    assert run_apart(COMPILED, Path(__file__).parent, NUMBA_ENABLE_CUDASIM="0").splitlines()[-1] == "[0, 0, 0]"
