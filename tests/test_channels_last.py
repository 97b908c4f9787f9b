"""Networks of images channels last: where channels lie, what is refused, and tensor cores in plain Python."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import test_mma
import test_wgmma
from conftest import quick
from prepared import prepared
from small_gpu import one_multiprocessor
from test_mma import simulated
from test_networks import architecture, drawn, rounded

from charcnn.catalog import NETWORK_TECHNIQUES, NETWORKS, network, network_technique
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.layers import (
    AvgPool2d,
    Conv2d,
    Flatten,
    GlobalAvgPool2d,
    LeakyRelu,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Pixels,
    Relu,
    Sigmoid,
    Softmax,
    Tanh,
)  # fmt: skip
from charcnn.layers.windows import window
from charcnn.model import network as forms
from charcnn.model import params
from charcnn.model.validation import in_sigmas
from charcnn.networks import channels_last
from charcnn.networks.architecture import Architecture
from charcnn.networks.channels import Channels, filters, rows
from charcnn.networks.channels_last_layers import WinogradLayers, ask_ahead
from charcnn.networks.lowering import lower, weights_of
from charcnn.networks.lowering.fusing import SIMPLIFY
from charcnn.networks.reference import expected
from charcnn.networks.runner import tables
from charcnn.networks.runner.command import NetworkCommand
from charcnn.ops import reference
from charcnn.ops.common.layer import by_batch, held_bytes
from charcnn.ops.common.pixel_tables import exact_tables, pixel_tables
from charcnn.ops.conv1d.double_buffered_layer import DoubleBufferedConv
from charcnn.ops.conv1d.small_batch import SmallBatchConv
from charcnn.ops.conv1d.wgmma.windows import WgmmaWindows
from charcnn.ops.conv1d.winograd import WinogradConv
from charcnn.ops.linear.split_k import SplitKLinear
from charcnn.ops.pixels_to_depth import to_depth

mma, wgmma = test_mma.machine, test_wgmma.machine

draw = np.random.default_rng(0).standard_normal


def test_places_of_channels():
    assert Channels.grouped(3, 8) == Channels((0, 1, 2), 8)
    assert Channels.grouped(6, 4, 2) == Channels((0, 1, 2, 4, 5, 6), 8)
    assert Channels.grouped(5, 1) == Channels((0, 1, 2, 3, 4), 5)
    assert Channels.grouped(256, 32, 2).together
    assert not Channels.grouped(6, 4, 2).together
    assert Channels.grouped(6, 4, 2).split(2, 4)
    assert not Channels.grouped(6, 4, 2).split(2, 8)
    assert not Channels.grouped(6, 4).split(2, 4), "channels 3 to 5 are of the second group"
    np.testing.assert_array_equal(Channels((0, 2), 3).spread(np.array([[5, 6]]), 1), [[5, 0, 6]])


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dense", [False, True])
def test_filters_give_the_same_values_at_other_places(groups, dense):
    x, weight = draw((2, 6, 5, 5)), draw((4, 6 // groups, 3, 3))
    inputs, outputs = Channels.grouped(6, 4, 2), Channels.grouped(4, 8, 2)
    spread = filters(weight, groups, inputs, outputs, dense=dense)
    left = 1 if dense else groups
    assert spread.shape == (16, 8 // left, 3, 3)
    y = reference.conv2d(inputs.spread(x, 1), spread, np.zeros(16), groups=left)
    expected_ = outputs.spread(reference.conv2d(x, weight, np.zeros(4), groups=groups), 1)
    np.testing.assert_allclose(y, expected_, atol=1e-12)


@pytest.mark.parametrize(("kernel", "stride"), [((11, 11), (4, 4)), ((3, 5), (2, 3)), ((2, 2), (2, 2))])
def test_blocks_of_pixels_give_the_same_convolution(kernel, stride):
    moves = window(14, 17, kernel, stride)
    weight, x = draw((2, 3, *kernel)), draw((1, 3, 14, 17))
    turned = to_depth(weight, moves)
    down, across = -(-14 // stride[0]), -(-17 // stride[1])
    padded = np.zeros((1, 3, down * stride[0], across * stride[1]))
    padded[:, :, :14, :17] = x
    blocks = padded.reshape(1, 3, down, stride[0], across, stride[1]).transpose(0, 1, 3, 5, 2, 4)
    y = reference.conv2d(blocks.reshape(1, -1, down, across), turned, np.zeros(2))
    want = reference.conv2d(x, weight, np.zeros(2), stride=stride)
    np.testing.assert_allclose(y[:, :, : want.shape[2], : want.shape[3]], want, atol=1e-12)


def test_rows_of_a_linear_layer_follow_the_features():
    x, weight = draw((2, 3, 4, 5)), draw((6, 60))
    inputs, outputs = Channels.grouped(3, 8), Channels.grouped(6, 8)
    packed = rows(weight, 20, inputs, outputs)
    flat = inputs.spread(x, 1).transpose(0, 2, 3, 1).reshape(2, -1)
    np.testing.assert_allclose(flat @ packed, outputs.spread(x.reshape(2, -1) @ weight.T, 1), atol=1e-12)


def test_weights_of_exact_pixels():
    """Entries of one fp16 and their weights give what pixels and theirs do, with what stands for zero around them."""
    mean, std = (0.485, 0.4, 0.0), (0.229, 0.25, 1.0)
    of, images = exact_tables(mean, std), np.random.default_rng(0).integers(0, 256, (2, 3 * 6 * 5), np.uint8)
    weight, bias = draw((4, 3, 3, 2)), draw(4)
    want = reference.conv2d(reference.pixels(images, pixel_tables(mean, std), 6, 5), weight, bias, padding=1)
    x = reference.pixels(images, of.tables[:, :256].astype(np.float64), 6, 5)
    padded = np.broadcast_to(of.tables[:, 256, None, None].astype(np.float64), (2, 3, 8, 7)).copy()
    padded[:, :, 1:-1, 1:-1] = x
    got = reference.conv2d(padded, *channels_last._of_entries(weight, bias, of))
    np.testing.assert_allclose(got, want, atol=1e-6 * np.abs(want).max())


MIXED = (
    Pixels(3, 11, 9, (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)),
    Conv2d(10, (5, 4), stride=(2, 3), padding=(1, 2), name="a"),
    Tanh(),
    AvgPool2d(2, 1),
    Conv2d(6, 3, padding=1, groups=2, name="b"),
    Relu(),
    LocalResponseNorm(),
    Conv2d(12, 2, dilation=(1, 2), padding=1, groups=2, name="c"),
    LeakyRelu(),
    Conv2d(9, 1, groups=3, name="d"),
    GlobalAvgPool2d(),
    Linear(5, name="e"),
    Sigmoid(),
    Linear(4, name="f"),
    Softmax(),
)
"""What the networks have not: channels by other numbers than eight, groups that change, means, dilation."""


def errors(technique, of, precision, n=1):
    """In sigmas, and the bound."""
    row = network_technique(technique)
    weights, images = drawn(of, n)
    how = {"precision": precision, "batch": n, "streams": 1}
    found = row.build(technique, weights, of, **how)(images)
    rounding = row.rounding(precision)
    exact, sigma = expected(images, weights, of, rounding)
    assert (found.shape, found.dtype) == (exact.shape, np.float32)
    return in_sigmas(found, exact, sigma), rounding.bound


@quick(lambda: False, everywhere=False)  # half a minute; test_ops has what it computes, test_networks a network
def test_other_layers_by_winograd():
    found, bound = errors("winograd", Architecture("mixed", "", MIXED), "fp32", 2)
    assert found.max() < bound


EMULATED = [
    ("mnist", "fp16x3"), ("ffn", "fp16x3"), ("mixed", "tf32"),
    *(
        pytest.param(name, precision, marks=pytest.mark.exhaustive)
        for name, precision in [
            ("alexnet", "fp16"), ("alexnet", "fp16x3"), ("alexnet", "tf32"), ("fused4", "fp16x3"), ("fused4", "bf16"),
            ("ece408", "fp16x3"),
            ("ece408", "tf32"), ("mnist", "bf16"), ("ffn", "tf32"), ("mixed", "fp16x3"),
        ]
    ),
]  # fmt: skip
"""Emulation is slow: each precision, and what only one of them does, once."""


def named(name):
    return Architecture(name, "", MIXED) if name == "mixed" else architecture(name)


@simulated
@pytest.mark.parametrize(("name", "precision"), EMULATED)
@quick(lambda name: name == "mixed")
def test_wgmma_in_plain_python(name, precision, wgmma, monkeypatch):
    every, exact = WgmmaWindows.candidates, []

    def few_threads(self, x):
        exact.append(self.exact)
        tiles = every(self, x) if self.exact else self.im2col_tiles
        return {next(tile for tile in tiles if tile.math_warpgroups == 2): 1.0}

    monkeypatch.setattr(WgmmaWindows, "candidates", few_threads)
    found, bound = errors("wgmma", named(name), precision)
    assert found.max() < bound
    assert any(exact) == (precision == "fp16x3" and name in ("alexnet", "mixed"))


def test_what_layers_hold_counts_once():
    few, many, more = (SimpleNamespace(nbytes=nbytes) for nbytes in (1, 10, 100))
    first = by_batch([by_batch([few], [many], upto=1)], [many], upto=8)
    assert held_bytes([first, more, by_batch([], [more], upto=2)]) == 111


@simulated
def test_a_linear_layers_weights_are_asked_for_by_the_convolutions_before_it(monkeypatch):
    one_multiprocessor(monkeypatch)
    monkeypatch.setattr(Call, "launch", lambda *_, **__: None)
    linear = [prepared(SplitKLinear, np.zeros((2048, 64), np.float32), np.zeros(64, np.float32)) for _ in range(2)]
    weight, bias = np.zeros((3, 3, 8, 16), np.float32), np.zeros(16, np.float32)
    few = [prepared(SmallBatchConv, weight, bias) for _ in range(3)]
    many = few.pop()
    first, pooled = by_batch([few[0]], [many], upto=4), by_batch([], [many], upto=4)
    ask_ahead([first, pooled, few[1], by_batch([linear[0]], [], upto=64), linear[1]])
    begin, size = device.address(linear[0].words), linear[0].words.nbytes
    assert [conv._ahead for conv in (*few, many)] == [(begin, size // 2), (begin + size // 2, size // 2), (0, 0)]


@simulated
@pytest.mark.exhaustive
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_few_images_in_plain_python(precision, monkeypatch):
    one_multiprocessor(monkeypatch)
    monkeypatch.setattr(device, "multiprocessors", lambda: 132)
    taken = []
    call = SmallBatchConv.__call__
    monkeypatch.setattr(SmallBatchConv, "__call__", lambda *given: taken.append(given) or call(*given))
    found, bound = errors("wgmma", architecture("alexnet"), precision, 1)
    assert len(taken) == 5, "all of its convolutions"
    assert found.max() < bound


@simulated
@pytest.mark.parametrize(("name", "precision"), EMULATED)
@quick(lambda name: name == "mixed")
def test_mma_in_plain_python(name, precision, mma):
    found, bound = errors("mma", named(name), precision)
    assert found.max() < bound


@quick(
    lambda technique, precision, name: (
        (technique, precision, name) in {("mma", "fp16x3", "mnist"), ("wgmma", "fp16", "mixed")}
    )
)
@pytest.mark.parametrize("technique", ["mma", "wgmma"])
@pytest.mark.parametrize("precision", ["fp16", "fp16x3"])
@pytest.mark.parametrize("name", ["mixed", "mnist"])
def test_tensor_cores_on_a_gpu(technique, precision, name):
    if not device.has_tensor_cores(hopper=technique == "wgmma"):
        pytest.skip("needs tensor cores")
    of, n = (named(name), 5) if name == "mixed" else (architecture(name, "stride2"), 70)
    found, bound = errors(technique, of, precision, n)
    assert found.max() < bound


@pytest.mark.exhaustive  # test_small_batch_conv2d has its layers
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_few_images_on_a_gpu(precision):
    if not device.has_tensor_cores(hopper=True):
        pytest.skip("needs tensor cores")
    for of in (Architecture("mixed", "", MIXED), architecture("alexnet", "tiny"), architecture("fused4", "28")):
        found, bound = errors("wgmma", of, precision, SmallBatchConv.most)
        assert found.max() < bound


@quick(lambda name, precision: name != "alexnet" or precision == "bf16")
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp16x3"])
@pytest.mark.parametrize("name", [row.name for row in NETWORKS])
def test_sigma_is_the_size_of_rounding_between_layers(name, precision):
    """Weights folded, then rounded; features rounded where they are stored, once a layer; all else exact."""
    of, rounding = architecture(name), network_technique("wgmma").rounding(precision)
    weights, images = drawn(of, 12)
    exact, sigma = expected(images, weights, of, rounding)
    y, rest = images, [op.nodes[0] for op in lower(of.nodes, SIMPLIFY)]
    for place, node in enumerate(rest):
        given = zip(node.parameters, weights_of(node, weights), strict=False)
        mine = {key: value.astype(np.float64) for key, value in given}
        y = forms.run([node], y.reshape(len(y), *node.in_shape), {
            key: rounded(value, rounding.operands) if key.endswith("weight") else value for key, value in mine.items()
        })  # fmt: skip
        fused = place + 1 < len(rest) and rest[place + 1].layer.epilogue
        if not fused and any(isinstance(after.layer, Conv2d | Linear) for after in rest[place + 1 :]):
            y = rounded(y, rounding.operands)
    found = in_sigmas(y, exact, sigma)
    assert found.max() < rounding.bound
    assert found.mean() > 0.02, "sigma is that of other errors"
    wrong = forms.run(of.nodes, images, {**weights, f"{last(of)}.weight": weights[f"{last(of)}.weight"][::-1]})
    assert in_sigmas(wrong, exact, sigma).min() > rounding.bound


def last(of):
    return next(node.layer.name for node in reversed(of.nodes) if isinstance(node.layer, Linear))


@simulated
@pytest.mark.parametrize("as_blocks", [None, False, True])
def test_a_first_convolution_with_steps_reads_blocks_of_pixels_or_pixels(as_blocks):
    of = architecture("alexnet")
    ops = lower(of.nodes, channels_last.rewrites("winograd", of, batch=1, to_depth=as_blocks))
    stages = channels_last.stages(ops, params.init(of, 0), WinogradLayers("fp32"))
    (_, (pixels,)), (label, (conv, *_)), *_ = stages
    assert label == "conv1+relu1"
    assert type(conv) is (DoubleBufferedConv if as_blocks is False else WinogradConv)
    (features,) = pixels.writes((1, of.length))
    assert features.shape == ((1, 67, 67, 4) if as_blocks is False else (1, 17, 17, 48))
    assert conv.writes(features.shape)[-1].shape == (1, 15, 15, 4)


@simulated
def test_a_network_that_it_cannot_compute():
    of = Architecture("odd", "", (Pixels(1, 4, 4), MaxPool2d(2), Tanh(), Flatten(), Linear(3, name="fc")))
    with pytest.raises(ValueError, match=r"^odd: winograd cannot compute it: tanh1: .*; loops, .*naive, weak, .* can$"):
        network_technique("winograd").build("winograd", params.init(of, 0), of)
    layers = Conv2d(3, 1, name="c"), Sigmoid(), LocalResponseNorm(), Flatten(), Linear(3, name="fc")
    of = Architecture("halves", "", (Pixels(1, 4, 4), *layers))  # of channels that pad, the sigmoid makes 1/2
    with pytest.raises(ValueError, match=r"^halves: winograd cannot compute it: localresponsenorm1: .* can$"):
        network_technique("winograd").build("winograd", params.init(of, 0), of)
    with pytest.raises(ValueError, match=r"^precision='fp16': winograd has fp32; fp16 is in strong_mma, mma, wgmma"):
        network_technique("winograd").build("winograd", params.init(of, 0), of, precision="fp16")


@simulated
def test_both_ways_of_a_first_convolution_give_the_same():
    of = Architecture(
        "strides", "",
        (Pixels(2, 13, 11, (0.4, 0.5), (0.2, 0.3)), Conv2d(4, 5, stride=3, padding=1), Relu(), Flatten(), Linear(3)),
    )  # fmt: skip
    weights, images = drawn(of, 2)
    row = network_technique("winograd")
    made = [row.build("winograd", weights, of, batch=2, to_depth=way)(images) for way in (False, True)]
    np.testing.assert_allclose(*made, rtol=2e-5, atol=1e-6)
    assert not np.array_equal(*made), "the same sums, in the same order"


@pytest.mark.parametrize(
    ("name", "capability", "precision", "expected_"),
    [
        ("alexnet", (9, 0), None, "wgmma"), ("alexnet", (8, 0), None, "mma"), ("alexnet", (12, 0), "tf32", "mma"),
        ("ffn", (7, 5), None, "weak"), ("alexnet", (9, 0), "fp32", "weak"), ("mnist", (8, 6), None, "strong_mma"),
        ("ece408", (8, 6), None, "direct"), ("ece408", (9, 0), None, "strong_mma"),
        ("ffn", (9, 0), "fp8", "wgmma"), ("mnist", (7, 5), None, "weak"), ("mnist", (9, 0), "fp32", "direct"),
        ("mnist", (9, 0), "fp16", "strong_mma"), ("mnist", (9, 0), "tf32", "wgmma"),
    ],
)  # fmt: skip
def test_the_technique_where_none_is_asked_for(name, capability, precision, expected_, monkeypatch):
    def has_tensor_cores(*, hopper=False, turing=False):
        return capability[0] == 9 if hopper else capability[0] >= 8

    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(device, "has_tensor_cores", has_tensor_cores)
    monkeypatch.setattr(device, "has_capability", lambda least: capability >= least)
    monkeypatch.setattr(device, "shared_limit", lambda: (99 if capability == (8, 6) else 227) << 10)
    subject = NetworkCommand(name)
    words = [] if precision is None else ["--precision", precision]
    chosen = subject.parser(quiet=True).parse_args([*words, "--layers"])
    program, build = subject.program(chosen)
    assert program.name == expected_
    assert build.keywords == ({} if expected_ == "weak" else {"graph": False}), "a graph is timed as a whole"
    assert subject.program(subject.parser(quiet=True).parse_args(words))[1].keywords == {}


def test_the_roofline_of_tensor_cores(monkeypatch):
    monkeypatch.setattr(device, "peaks", lambda *, tensor_cores=False: (900e12 if tensor_cores else 60e12, 4e12))
    of = network_technique("wgmma")
    found = {name: tables.Peaks.of(of, name) for name in of.precisions}
    assert {name: peaks.flops for name, peaks in found.items()} == {
        "fp16": 900e12, "bf16": 900e12, "tf32": 450e12, "fp16x3": 300e12
    }  # fmt: skip
    assert [peaks.size for peaks in found.values()] == [2, 2, 4, 4]
    assert "GPU's tensor cores" in found["fp16"].source
    lines = tables.layers(
        architecture("ffn"), dict.fromkeys(["pixels1", "fc1+gelu1", "fc2"], 1e-3), 10, 5, found["fp16"]
    )
    moved = 16 * 2 + 64 * 2 + (64 * 16 + 64) * 2 / 5
    assert lines[2].split()[:4] == ["fc1+gelu1", "16", ">", "64"]
    assert f"{moved:,.0f}" in lines[2].split()


def test_techniques_are_the_catalogues():
    rows_ = [row.name for row in NETWORK_TECHNIQUES if row.home == "channels_last"]
    assert sorted(rows_) == sorted(channels_last.TECHNIQUES)
    for row in NETWORKS:
        assert row.on_gpu[-1] == "weak"
        assert {*row.on_gpu} <= {each.name for each in NETWORK_TECHNIQUES}
    assert network("alexnet").on_gpu[0] == "wgmma"
    assert network("mnist").on_gpu[:2] == ("strong_mma", "direct")
