"""Lowering of networks of images: each rewrite by itself, from ops to ops, without weights or a GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from charcnn.catalog import NETWORK_TECHNIQUES, network
from charcnn.layers import (
    AvgPool2d,
    BatchNorm2d,
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
    place,
)  # fmt: skip
from charcnn.networks import channels_last, fused
from charcnn.networks.between import Gathered, Summed
from charcnn.networks.calls import fused as fuses
from charcnn.networks.channels import Channels
from charcnn.networks.channels_last_layers import MmaLayers, WgmmaLayers, WinogradLayers
from charcnn.networks.lowering import Folded, Op, chain_weights, each, lower, weights_of
from charcnn.networks.lowering.channels_last import (
    choose_precisions,
    pack_channels,
    pixels_to_blocks,
    takes_epilogue,
)  # fmt: skip
from charcnn.networks.lowering.fusing import (
    SIMPLIFY,
    absorb_linear,
    absorb_pixels,
    absorb_pointwise,
    absorb_pooling,
    fold_batch_norm,
    is_chain,
    join_chains,
    plan_chains,
    relu_before_pooling,
)  # fmt: skip
from charcnn.networks.runner import command
from charcnn.ops import reference
from charcnn.ops.pixels_to_depth import Blocks

CONV, NORM = Conv2d(4, 3, bias=False, name="c"), BatchNorm2d(1e-3, name="n")
IMAGE = (3, 12, 12)
naive = partial(fuses, "naive")


def ops(*layers, shape=IMAGE):
    return Op.each(place(layers, shape))


def labels(found):
    return [op.label for op in found]


def test_ops_begin_as_layers_without_flatten():
    found = ops(Pixels(3, 12, 12, (0.5,) * 3, (0.5,) * 3), Flatten(), Linear(5, name="f"), shape=(432,))
    assert labels(found) == ["Pixels", "f"]
    assert found[1].nodes[0].flattened == IMAGE
    assert [name for name, _ in each(place([CONV], IMAGE), [fold_batch_norm, partial(join_chains)])] == [
        "layers", "fold batch norm", "join chains",
    ]  # fmt: skip


def test_batch_normalisation_goes_into_the_weights_of_a_convolution():
    before = ops(CONV, NORM, BatchNorm2d(name="m"), MaxPool2d(2), BatchNorm2d(name="o"))
    found = fold_batch_norm(before)
    assert labels(found) == ["c", "MaxPool2d", "o"], "a norm behind a pooling stays"
    (node,) = found[0].nodes
    assert isinstance(node, Folded)
    assert node.layer == replace(CONV, bias=True)
    assert [norm.layer.name for norm in node.norms] == ["n", "m"]
    assert labels(before) == ["c", "n", "m", "MaxPool2d", "o"], "what it was given stays"


def test_folded_weights_do_what_the_layers_do():
    rng = np.random.default_rng(0)
    found = fold_batch_norm(ops(CONV, NORM))
    shapes = {name: shape for op in ops(CONV, NORM) for name, shape in op.nodes[0].parameters.items()}
    params = {name: rng.uniform(0.5, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    x = rng.standard_normal((2, *IMAGE))
    want = reference.conv2d(x, params["c.weight"], np.zeros(4))
    want = reference.batchnorm2d(
        want, *(params[f"n.{of}"] for of in ("weight", "bias", "running_mean", "running_var")), eps=1e-3
    )
    weight, bias = weights_of(found[0].nodes[0], params)
    np.testing.assert_allclose(reference.conv2d(x, weight, bias), want, atol=1e-5)
    ((same, also),) = chain_weights(found[0], params)
    np.testing.assert_array_equal(same, weight)
    np.testing.assert_array_equal(also, bias)
    (plain, zeros), ((_, none),) = weights_of(ops(CONV)[0].nodes[0], params), chain_weights(ops(CONV)[0], params)
    assert plain is params["c.weight"]
    assert not zeros.any()
    assert none is None, "a chain has no bias where its layer has none"


def test_relu_comes_before_pooling():
    found = relu_before_pooling(ops(CONV, MaxPool2d(2), Relu(), Tanh(), AvgPool2d(2), Relu()))
    assert labels(found) == ["c", "Relu", "MaxPool2d", "Tanh", "AvgPool2d", "Relu"]
    assert found[1].in_shape == found[1].out_shape == (4, 10, 10)
    assert found[2].out_shape == (4, 5, 5)


def test_pointwise_functions_and_pooling_go_into_the_op_before():
    layers = CONV, Tanh(), MaxPool2d(2), Relu(), Conv2d(2, 2, name="d"), LeakyRelu(0.2), Conv2d(3, 2, name="e"), Relu()
    found = absorb_pointwise(ops(*layers), naive)
    assert labels(found) == ["c+Tanh", "MaxPool2d", "Relu", "d", "LeakyRelu", "e+Relu"]
    assert [op.epilogue for op in found] == ["tanh", "", "", "", "", "relu"]
    pooled = absorb_pooling(found, naive)
    assert labels(pooled) == ["c+Tanh+MaxPool2d", "Relu", "d", "LeakyRelu", "e+Relu"]
    assert pooled[0].pool == MaxPool2d(2)
    assert (pooled[0].in_shape, pooled[0].out_shape) == (IMAGE, (4, 5, 5))
    assert absorb_pooling(found, lambda before, op: False) == found
    padded = ops(CONV, Relu(), MaxPool2d(2, padding=1))
    assert len(absorb_pooling(absorb_pointwise(padded, naive), naive)) == 2


def test_a_linear_layer_goes_into_the_one_before():
    layers = (
        Linear(8, name="a"),
        Relu(),
        Linear(6, name="b"),
        Linear(5, name="c"),
        Relu(),
        Linear(4, name="d"),
        Softmax(),
    )
    found = absorb_pointwise(ops(*layers, shape=(7,)), naive)
    assert labels(found) == ["a+Relu", "b", "c+Relu", "d+Softmax"]
    assert labels(absorb_linear(found, naive)) == ["a+Relu+b", "c+Relu", "d+Softmax"]
    assert absorb_linear(found, lambda before, op: False) == found


def test_chains_are_joined_and_planned():
    layers = (
        CONV,
        Relu(),
        MaxPool2d(2),
        Conv2d(2, 3, name="d"),
        LocalResponseNorm(),
        Tanh(),
        Conv2d(2, 1, name="e"),
        Sigmoid(),
    )
    found = join_chains(ops(*layers))
    assert labels(found) == ["c+Relu+MaxPool2d+d", "LocalResponseNorm", "Tanh", "e", "Sigmoid"]
    made = plan_chains(found, lambda nodes: len(nodes))
    assert [op.plan for op in made] == [4, None, None, 1, None]
    assert absorb_pointwise(made, naive) == made, "a planned chain takes nothing"


def test_the_first_chain_reads_pixels():
    pixels = Pixels(3, 12, 12, (0.5,) * 3, (0.5,) * 3)
    found = plan_chains(ops(pixels, CONV, shape=(432,)), len)
    assert labels(absorb_pixels(found)) == ["Pixels+c"]
    assert absorb_pixels(found)[0].plan == 1
    without = ops(pixels, CONV, shape=(432,))
    assert absorb_pixels(without) == without, "none is planned"
    assert absorb_pixels(found[:1]) == found[:1]


def test_two_convolutions_are_one_kernel():
    pixels = Pixels(3, 12, 12, (0.5,) * 3, (0.5,) * 3)
    layers = pixels, CONV, Relu(), Conv2d(2, 3, name="d"), MaxPool2d(2), Conv2d(2, 1, name="e")
    plans = []
    found = fused.join_front(ops(*layers, shape=(432,)), "x", lambda nodes: plans.append(len(nodes)) or "plan")
    assert labels(found) == ["Pixels", "c+Relu+d+MaxPool2d", "e"]
    assert (found[1].plan, plans) == ("plan", [4])
    for bad in (layers[:3], layers[1:], (pixels, CONV, Sigmoid(), Conv2d(2, 3, name="d"))):
        with pytest.raises(ValueError, match="--fuse 2: x does not begin with that many convolutions"):
            fused.join_front(ops(*bad, shape=(432,) if bad[0] is pixels else IMAGE), "x", len)


MEANS = {"mean": (0.5,) * 3, "std": (0.5,) * 3}


@pytest.mark.parametrize(
    ("conv", "to_depth", "blocks"),
    [
        (Conv2d(8, 8, stride=4, name="c"), None, Blocks((4, 4), (6, 6))),  # 4 x 48 products for 64 x 8
        (Conv2d(8, 2, stride=2, padding=1, name="c"), None, Blocks((2, 2), (13, 13), (1, 1))),
        (Conv2d(8, 3, stride=2, name="c"), None, Blocks((2, 2), (12, 12))),
        (Conv2d(8, 3, stride=3, name="c"), False, None),
        (Conv2d(8, (1, 2), stride=(1, 3), name="c"), None, None),  # 16 channels of one tap for two of 8
        (Conv2d(8, (1, 2), stride=(1, 3), name="c"), True, Blocks((1, 3), (24, 8))),
        (Conv2d(8, 3, name="c"), True, None),
        (Conv2d(9, 3, stride=2, groups=3, name="c"), True, None),
        (Conv2d(8, 3, stride=2, dilation=2, name="c"), True, None),
    ],
)
def test_a_first_convolution_reads_blocks_of_pixels(conv, to_depth, blocks):
    before = ops(Pixels(3, 24, 24, **MEANS), conv, Relu(), shape=(1728,))
    found = pixels_to_blocks(before, MmaLayers("fp16"), to_depth)
    assert [op.blocks for op in found] == [blocks, blocks, None]
    assert [op.exact for op in found] == [None] * 3
    if blocks is not None:
        assert found[1].image == blocks.counts
    else:
        assert found == before


def test_pixels_that_one_fp16_holds():
    pixels = Pixels(3, 24, 24, **MEANS)
    before = ops(pixels, Conv2d(32, 8, stride=4, name="c"), shape=(1728,))
    assert [op.exact for op in pixels_to_blocks(before, WgmmaLayers("fp16x3"))] == [pixels] * 2
    assert [op.exact for op in pixels_to_blocks(before, WgmmaLayers("fp16"))] == [None] * 2
    odd = replace(pixels, mean=(1.5,) * 3)  # beyond any byte's value
    before = ops(odd, Conv2d(32, 8, stride=4, name="c"), shape=(1728,))
    assert [op.exact for op in pixels_to_blocks(before, WgmmaLayers("fp16x3"))] == [None] * 2


def test_before_a_linear_layer_all_pixels_are_one_block():
    found = pixels_to_blocks(
        ops(Pixels(3, 4, 5, **MEANS), Flatten(), Linear(2, name="f"), shape=(60,)), MmaLayers("fp16")
    )
    assert [op.blocks for op in found] == [Blocks((4, 5), (1, 1)), None]
    assert found[1].nodes[0].flattened


def precisions(technique, *layers, shape=IMAGE):
    return [(op.reads, op.writes) for op in choose_precisions(ops(*layers, shape=shape), technique)]


def test_the_last_product_gives_float32():
    layers = CONV, MaxPool2d(2), Flatten(), Linear(8, name="f"), Linear(4, name="g"), Softmax()
    half = ("fp16", "fp16")
    assert precisions(MmaLayers("fp16"), *layers) == [half, half, half, ("fp16", "fp32"), ("fp32", "fp32")]
    split = ("fp16x3", "fp16x3")
    assert precisions(MmaLayers("fp16x3"), *layers)[:3] == [split] * 3
    # Two terms of a pixel are no part of a row to wgmma's linear layers: float32 goes there, and is cast.
    found = precisions(WgmmaLayers("fp16x3"), *layers)
    assert found[:3] == [("fp16x3", "fp32"), ("fp32", "fp32"), ("fp32", "fp16x3")]


def test_what_ranks_add_up():
    """In the precision of features where that is 16 bits, else in float32, which the next product casts."""
    layers = Flatten(), Linear(8, name="f"), Summed(), Relu(), Linear(16, name="g"), Gathered(*[HALVES] * 3, (0, 2))
    layers = *layers, Linear(4, name="h"), Summed(), Softmax()
    half, whole = ("fp16", "fp16"), ("fp32", "fp32")
    assert precisions(MmaLayers("fp16"), *layers) == [half, half, half, half, half, ("fp16", "fp32"), whole, whole]
    found = precisions(MmaLayers("tf32"), *layers)
    assert found[:4] == [("tf32", "fp32"), whole, whole, ("fp32", "tf32")]


HALVES = range(16), range(16)
"""Of channels that each of two ranks has."""


def test_channels_of_other_ranks():
    """They lie side by side, and what is left out of a rank's own stays where it is."""
    has = range(6), range(6, 12)
    whole = Gathered(has, has, (range(12),) * 2, (1, 2))
    kept = Gathered((range(12),) * 2, (range(12),) * 2, has, (1, 2), local=True)
    layers = Conv2d(6, 3, name="a"), whole, LocalResponseNorm(), kept, Conv2d(16, 3, name="b")
    assert packed(MmaLayers("fp16"), *layers) == [(1, 8, 1), (8, 16, 1), (16, 16, 1), (16, 16, 1), (16, 16, 1)]
    found = lower(place(layers, IMAGE), channels_last.decide(MmaLayers("fp16")))
    assert [op.outputs.places for op in found[1:4]] == [tuple(range(12)), tuple(range(12)), tuple(range(6, 12))]


def packed(technique, *layers, shape=IMAGE):
    found = lower(place(layers, shape), [
        partial(absorb_pointwise, takes=takes_epilogue), partial(choose_precisions, technique=technique),
        partial(pack_channels, technique=technique),
    ])  # fmt: skip
    return [(op.inputs.width, op.outputs.width, op.groups) for op in found]


def test_channels_are_padded_to_what_is_read():
    pixels, layers = (
        Pixels(3, 12, 12, **MEANS),
        (CONV, Relu(), MaxPool2d(2), Flatten(), Linear(9, name="f"), Linear(3, name="g")),
    )
    found = packed(MmaLayers("fp16"), pixels, *layers, shape=(432,))
    assert found == [(1, 8, 1), (8, 8, 1), (8, 8, 1), (8, 16, 1), (16, 3, 1)], "of the last one all are results"
    found = packed(WinogradLayers("fp32"), pixels, *layers, shape=(432,))
    assert found == [(1, 4, 1), (4, 4, 1), (4, 4, 1), (4, 12, 1), (12, 3, 1)]


def test_groups_stay_where_their_channels_lie_apart():
    grouped = Conv2d(64, 3, groups=2, name="g")
    assert packed(MmaLayers("fp16"), Conv2d(32, 3, name="a"), grouped)[1] == (32, 64, 2)
    assert packed(MmaLayers("fp16"), Conv2d(12, 3, name="a"), grouped) == [(1, 16, 1), (16, 64, 2)], "6 padded to 8"
    # Neighbours are mixed: 12 channels side by side, so that groups have zeros between them.
    mixed = Conv2d(12, 3, name="a"), LocalResponseNorm(), grouped
    assert packed(MmaLayers("fp16"), *mixed) == [(1, 16, 1), (16, 16, 1), (16, 64, 1)]


@pytest.mark.parametrize(
    ("layers", "label"),
    [
        ((MaxPool2d(2), Tanh()), "Tanh"),
        ((CONV, BatchNorm2d(name="n")), "n"),
        ((CONV, Sigmoid(), LocalResponseNorm()), "LocalResponseNorm"),
        ((CONV, LeakyRelu(0.2)), "LeakyRelu"),
        ((Conv2d(8, 12, name="c"), Softmax(), Linear(3, name="f")), "Softmax"),
    ],
)
def test_what_no_layer_computes(layers, label):
    if isinstance(layers[1], Softmax):
        layers = layers[0], Flatten(), *layers[1:]
    with pytest.raises(ValueError, match=f"^{label}: no layer for it here behind the one before"):
        packed(MmaLayers("fp16"), *layers)


def test_what_lies_behind_a_sigmoid():
    full = packed(MmaLayers("fp16"), Conv2d(8, 3, name="c"), Sigmoid(), LocalResponseNorm())
    assert full == [(1, 8, 1), (8, 8, 1)], "no place holds 1/2"
    packed(MmaLayers("fp16"), CONV, Sigmoid(), Conv2d(4, 3, name="d"), LocalResponseNorm())


def chosen(technique, *layers):
    found = lower(place(layers, IMAGE), [
        partial(absorb_pointwise, takes=takes_epilogue), *channels_last.decide(technique),
    ])  # fmt: skip
    return [(op.label, op.most, labels(op.many)) for op in found]


def test_a_few_inputs_have_kernels_of_their_own():
    layers = (
        Conv2d(16, 3, name="a"), Relu(), MaxPool2d(2), Conv2d(32, 2, name="b"), MaxPool2d(2, padding=1),
        GlobalAvgPool2d(), Linear(512, name="c"), Linear(6, name="d"),
    )  # fmt: skip
    assert chosen(WgmmaLayers("fp16"), *layers) == [
        ("a+Relu+MaxPool2d", 2, ["a+Relu", "MaxPool2d"]), ("b", 2, ["b"]), ("MaxPool2d", 0, []),
        ("GlobalAvgPool2d", 0, []), ("c", 0, []), ("d", 64, ["d"]),
    ]  # fmt: skip
    for technique in (WgmmaLayers("tf32"), MmaLayers("fp16"), WinogradLayers("fp32")):
        assert not any(most for _, most, _ in chosen(technique, *layers))
    assert chosen(WgmmaLayers("fp16"), Conv2d(16, 3, name="a")) == [("a", 0, [])], "results in float32"


def test_alexnet_by_wgmma():
    """From 22 layers to 14 ops: what runs, decided before any weight is there."""
    of = network("alexnet").architecture("2012")
    found = lower(of.nodes, channels_last.rewrites("wgmma", of, batch=1, precision="fp16"))
    assert labels(found) == [
        "pixels1", "conv1+relu1", "localresponsenorm1", "maxpool2d1", "conv2+relu2", "localresponsenorm2", "maxpool2d2",
        "conv3+relu3", "conv4+relu4", "conv5+relu5+maxpool2d3", "fc6+relu6", "fc7+relu7", "fc8", "softmax1",
    ]  # fmt: skip
    assert (found[1].image, found[1].inputs) == ((57, 57), Channels.grouped(48, 8))
    assert [op.groups for op in found] == [1, 1, 1, 1, 2, 1, 1, 1, 2, 2, 1, 1, 1, 1]
    assert [op.most for op in found] == [0, 2, 0, 0, 2, 0, 0, 2, 2, 2, 64, 64, 64, 0]
    assert [op.writes for op in found] == ["fp16"] * 12 + ["fp32"] * 2


def plan(name, *words):
    with pytest.raises(SystemExit) as ended:
        command.main(name, ["--plan", *words])
    return ended.value.code


def test_plan(capsys):
    assert plan("alexnet", "--variant", "2012", "--batch", "256") == 0
    told = capsys.readouterr().out
    assert told.count("launches ") == 3  # normalisation parts its chains
    assert "by the tile of 13x13: 1: 5.44x, 2: 3.01x, 4: 2.44x, 7: 1.48x, 13: 1.00x" in told
    assert "fold batch norm" not in told
    assert plan("ffn") == 2
    assert "--plan: ffn has no convolutions to fuse" in capsys.readouterr().err


@pytest.mark.parametrize("technique", [row.name for row in NETWORK_TECHNIQUES])
def test_plan_shows_each_step(technique, capsys):
    assert plan("mnist", "--as", technique) == 0
    told = capsys.readouterr().out
    assert told.startswith("layers: 9 ops\n  pixels1  784 > 1x28x28\n  conv  1x28x28 > 5x28x28\n")
    if technique not in ("loops", "naive"):
        folded = "fold batch norm: 8 ops\n  conv  1x28x28 > 5x28x28  norm norm folded\nrelu before pooling: 8 ops\n"
        assert folded in told
    assert ("one plan" in told) == technique.startswith("strong")
    assert ("pack channels: 6 ops\n" in told) == (technique in ("winograd", "mma", "wgmma"))


def test_chains_are_as_long_as_they_can_be():
    def labels(name):
        ops = lower(network(name).architecture("tiny").nodes, (*SIMPLIFY, join_chains))
        return [len(op.nodes) for op in ops], [is_chain(op) for op in ops]

    assert labels("fused4") == ([1, 8, 1], [False, True, False])
    counts, chains = labels("alexnet")
    assert counts == [1, 2, 1, 1, 2, 1, 1, 7, 1, 1, 1, 1, 1, 1]
    assert [count for count, chain in zip(counts, chains, strict=True) if chain] == [2, 2, 7]
    assert labels("ffn") == ([1] * 4, [False] * 4)
