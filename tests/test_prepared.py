"""Patterns of prepared convolutions: what they are read as, which techniques take them, and their former names."""

from __future__ import annotations

import numpy as np
import pytest
from spaces import Space

from charcnn import catalog
from charcnn.config import SMALL, TINY
from charcnn.gpu import device
from charcnn.layers import Conv1d, Conv2d, Flatten, Gelu, Linear, MaxPool1d, MaxPool2d, Relu
from charcnn.layers.windows import Window
from charcnn.ops.common import epilogues
from charcnn.ops.common.conv import PreparedConv
from charcnn.ops.common.cpu_conv import CpuConv
from charcnn.ops.common.epilogues import Elementwise, Epilogue
from charcnn.ops.conv1d import cpu_gemm, winograd_cpu
from charcnn.ops.conv1d import layers as layers1d
from charcnn.ops.conv1d.double_buffered_layer import DoubleBufferedConv
from charcnn.ops.conv1d.winograd import WinogradConv
from charcnn.ops.conv1d.winograd_cpu import CpuWinogradConv
from charcnn.ops.conv2d import layers as layers2d
from charcnn.ops.layers import FASTEST, fastest

CONVS = [row for row in catalog.LAYERS if row.device == "cuda" and issubclass(row.made, PreparedConv)]


@pytest.mark.parametrize(
    ("pattern", "epilogue", "kind"),
    [
        ([Linear(4)], Epilogue(), "store"),
        ([Conv1d(8, 3), Relu()], Epilogue("relu"), "relu"),
        ([Conv1d(8, 3), Relu(), MaxPool1d(3)], Epilogue("relu", Window((1, 3), (1, 3))), "pool"),
        ([Conv2d(8, 3), Gelu(), MaxPool2d(3, 2)], Epilogue("gelu", Window((3, 3), (2, 2))), "pool"),
        ([Linear(4), Elementwise("tanh")], Epilogue("tanh"), "tanh"),
    ],
)
def test_what_a_pattern_is_read_as(pattern, epilogue, kind):
    assert epilogues.read(pattern) == (pattern[0], epilogue)
    assert epilogue.kind == kind


@pytest.mark.parametrize(
    "pattern", [[], [Relu()], [Linear(4), Flatten()], [Linear(4), MaxPool1d(3)], [Conv1d(8, 3), MaxPool1d(3), Relu()]]
)
def test_what_is_no_pattern(pattern):
    with pytest.raises(ValueError, match=r"^pattern="):
        epilogues.read(pattern)


@pytest.mark.parametrize("row", CONVS, ids=lambda row: row.name)
def test_a_row_has_the_precisions_and_needs_of_its_class(row):
    assert row.precisions == row.made.precisions
    assert row.hopper == row.made.hopper
    sequences = Conv1d in row.made.products
    pattern, least = (
        [Conv1d(8, 7), Relu(), MaxPool1d(3)] if sequences else [Linear(8)],
        (9, 0) if row.hopper else (8, 9),
    )
    for precision in row.precisions:
        assert row.made.takes(pattern, precision, least)
        # Of 7.5 the technique mma has fp16 alone.
        turing = row.technique == "mma" and precision == "fp16"
        assert row.made.takes(pattern, precision, (7, 5)) == turing
        assert row.made.takes(pattern, precision, (10, 0)) != row.hopper
    assert not row.made.takes(pattern, "int8", least)
    assert not row.made.takes([Relu()], row.precisions[0], least)


def test_techniques_take_what_they_compute():
    made = {row.name: row.made for row in CONVS}

    def takes(*pattern, precision="fp16"):
        return {name for name, one in made.items() if one.takes(pattern, precision, (9, 0))}

    assert takes(Linear(8), Gelu()) == {"WgmmaConv", "MmaConv", "SplitKLinear"}
    assert takes(Linear(8)) == {"WgmmaConv", "MmaConv", "SparseConv", "SplitKLinear", "FewOutputsLinear"}
    assert takes(Linear(17), precision="fp8") == {"WgmmaConv", "MmaConv", "SparseConv"}
    assert takes(Conv2d(8, 3), Gelu(), MaxPool2d(3, 2)) == {"SmallBatchConv"}
    assert takes(Conv1d(8, 7), Relu(), MaxPool1d(3)) == {
        "WgmmaConv", "MmaConv", "SparseConv", "SmallBatchConv", "ToomCookConv",
    }  # fmt: skip
    assert takes(Conv1d(8, 9), Relu(), MaxPool1d(3)) == {"WgmmaConv", "MmaConv", "SparseConv"}
    assert takes(Conv1d(8, 3), Gelu()) == {"WgmmaConv", "MmaConv"}
    assert takes(Conv2d(8, 3), Relu(), precision="fp32") == {"WinogradConv", "DoubleBufferedConv"}
    assert takes(Conv2d(8, 3, stride=2), Relu(), precision="fp32") == {"DoubleBufferedConv"}
    assert "SmallBatchConv" not in takes(Conv2d(8, 3), precision="tf32")


def test_patterns_of_the_network():
    assert SMALL.pattern("conv2") == (Conv1d(256, 7, name="conv2"), Relu(), MaxPool1d(3, name="pool2"))
    assert SMALL.pattern("conv6") == (Conv1d(256, 3, name="conv6"),), "LayerNorm has parameters"
    assert TINY.pattern("fc2") == (Linear(8, name="fc2"), Relu())
    assert TINY.pattern("fc3") == (Linear(4, name="fc3"),)


def test_a_weight_of_another_shape():
    weight, bias = np.zeros((3, 8, 4), np.float32), np.zeros(4, np.float32)
    for pattern in ([Conv1d(8, 3)], [Conv1d(4, 2)]):
        with pytest.raises(ValueError, match=r"^weight has shape \(3, 8, 4\): need that of Conv1d\("):
            DoubleBufferedConv(pattern, {"weight": weight, "bias": bias})


def test_former_names_make_the_same():
    draw = np.random.default_rng(0)
    weight, bias = draw.standard_normal((3, 4, 8), np.float32), draw.standard_normal(8, np.float32)
    x, weights = device.to_device(draw.standard_normal((2, 11, 4), np.float32)), {"weight": weight, "bias": bias}
    with pytest.warns(DeprecationWarning, match=r"WinogradConv1d is charcnn\.ops\.conv1d\.winograd\.WinogradConv now"):
        made = layers1d.WinogradConv1d
    want = WinogradConv([Conv1d(8, 3), Relu(), MaxPool1d(3)], weights)(x, Space()).copy_to_host()
    np.testing.assert_array_equal(made(weight, bias, 3)(x, Space()).copy_to_host(), want)
    with pytest.warns(DeprecationWarning, match="WinogradConv2d is "):
        made = layers2d.WinogradConv2d
    got = made(weight[None], bias, padding=1, epilogue="gelu")
    assert (got.epilogue, got.product) == (Epilogue("gelu"), Conv2d(8, (1, 3), padding=1))
    with pytest.raises(AttributeError, match="has no attribute 'MmaConv3d'"):
        layers2d.MmaConv3d  # noqa: B018 - the access is what fails
    assert catalog.layer_name("WgmmaLinear") == "WgmmaConv"
    assert catalog.layer_name("SmallBatchLinear") == "SmallBatchLinear"


def test_former_names_of_a_cpu_make_the_same():
    draw = np.random.default_rng(0)
    weight, bias = draw.standard_normal((8, 4, 3), np.float32), draw.standard_normal(8, np.float32)
    x, weights = draw.standard_normal((2, 11, 4), np.float32), {"weight": weight.T, "bias": bias}
    for module, name, kind in ((cpu_gemm, "CpuConv1d", CpuConv), (winograd_cpu, "CpuWinogradConv1d", CpuWinogradConv)):
        with pytest.warns(DeprecationWarning, match=rf"{name} is .*\.{kind.__name__} now, which takes a pattern"):
            made = getattr(module, name)(weight, bias)
        want = kind([Conv1d(8, 3), Relu(), MaxPool1d(3)], weights)(x, np.empty((2, 3, 8), np.float32))
        got = made(x, np.empty((2, 3, 8), np.float32), pool_size=3, relu=True)
        np.testing.assert_array_equal(got, want)
    with pytest.raises(AttributeError, match="has no attribute 'CpuConv3d'"):
        cpu_gemm.CpuConv3d  # noqa: B018 - the access is what fails


def test_what_techniques_of_a_cpu_take():
    takes = [[kind.takes(pattern) for kind in (CpuConv, CpuWinogradConv)] for pattern in (
        [Conv1d(8, 3), Relu(), MaxPool1d(3)], [Conv2d(8, 3), Relu()], [Conv2d(8, 3, stride=2)], [Conv2d(8, 1)],
        [Conv2d(8, 7, groups=2)], [Linear(4)], [Linear(4), Gelu()], [Conv2d(8, 3), MaxPool2d(2)], [Relu()],
    )]  # fmt: skip
    assert takes == [
        [True, True], [True, True], [True, False], [True, False],
        [True, False], [True, False], [True, False], [False, False], [False, False],
    ]  # fmt: skip
    with pytest.raises(
        ValueError, match=r"^pattern=\[Linear.*: need Conv1d or Conv2d, ReLU or nothing, .* CpuWinograd"
    ):
        CpuWinogradConv([Linear(4)], {"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(4, np.float32)})


def test_the_tables_order_decides_where_two_fit():
    every = [*FASTEST]
    assert fastest([Conv2d(8, 3)], "fp32", every[::-1]) is WinogradConv
    assert fastest([Conv2d(8, 3, stride=2)], "fp32", every) is DoubleBufferedConv
    assert fastest([Conv2d(8, 1)], "fp32", ("winograd", "double_buffered")) is DoubleBufferedConv
    assert fastest([Conv2d(8, 3)], "fp32", ("cpu_gemm", "winograd_cpu")) is CpuWinogradConv
    assert fastest([Linear(8)], "fp32", ("cpu_gemm", "winograd_cpu")) is CpuConv
    with pytest.raises(ValueError, match=r"^pattern=\[Linear.*: none of winograd_cpu takes it in fp32$"):
        fastest([Linear(8)], "fp32", ("winograd_cpu",))
