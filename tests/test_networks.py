"""Networks of images: every technique gives what the reference and PyTorch give, and the command says what is wrong."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from conftest import quick

from charcnn.catalog import NETWORK_TECHNIQUES, NETWORKS, network_technique
from charcnn.catalog import network as catalog_row
from charcnn.gpu import device
from charcnn.layers import BatchNorm2d, Conv2d, Flatten, Gelu, Linear, MaxPool2d, Relu, Softmax, place
from charcnn.levels.runner.options import serves
from charcnn.model import network as forms
from charcnn.model import params
from charcnn.model.rounding import FP32, ROUNDINGS
from charcnn.model.validation import in_sigmas
from charcnn.networks import cuda, weights
from charcnn.networks.calls import operator
from charcnn.networks.lowering import chain_weights, lower
from charcnn.networks.lowering.fusing import SIMPLIFY
from charcnn.networks.reference import expected
from charcnn.networks.runner import command, tables
from charcnn.ops.linear.linear_relu_linear import SHARED_FLOATS
from charcnn.training.images import OwnSteps, train

TITLES = [row.name for row in NETWORKS]


def architecture(name, variant="tiny"):
    return catalog_row(name).architecture(variant)


def drawn(network, n=3, seed=0):
    """Weights, batch normalisation's gamma of either sign and one tiny variance, and images."""
    weights, rng = params.init(network, seed), np.random.default_rng(seed)
    for node in network.nodes:
        if isinstance(node.layer, BatchNorm2d):
            weights[f"{node.layer.name}.weight"][::2] *= -1
            weights[f"{node.layer.name}.running_var"][0] = 1e-6
    return weights, rng.integers(0, 256, (n, network.length), np.uint8)


@pytest.mark.parametrize(
    ("name", "variant", "flops", "parameters"),
    [
        ("mnist", "stride1", 433_600, 119_075),
        ("mnist", "stride2", 110_200, 30_875),
        ("ece408", "64", 7_356_080, 1_518_340),
        ("fused4", "28", 1_223_120, 8_010),
        ("alexnet", "2012", 1_448_813_632, 60_965_224),
        ("alexnet", "torchvision", 1_428_376_960, 61_100_840),
        ("ffn", "768", 16 * 768**2, 2 * 4 * 768**2 + 5 * 768),
        ("ffn", "1024-relu", 16 * 1024**2, 2 * 4 * 1024**2 + 5 * 1024),
    ],
)
def test_sizes(name, variant, flops, parameters):
    network = architecture(name, variant)
    assert (network.flops, network.parameters) == (flops, parameters)


@pytest.mark.parametrize("name", TITLES)
def test_every_variant_is_laid_out(name):
    page = next(row for row in NETWORKS if row.name == name).module
    for variant in page.VARIANTS:
        network = architecture(name, variant)
        assert network.nodes[0].out_shape == network.image
        labels = [node.layer.label for node in network.nodes]
        assert len({*labels}) == len(labels)
    assert page.VARIANTS[-1] == "tiny"
    assert page.__doc__.startswith(f"{name}: ")


def taken(name, technique):
    """Whether a GPU runs it by default: each technique has some networks, its parts have others in test_parallel."""
    row = next(row for row in NETWORK_TECHNIQUES if row.name == technique)
    costly = technique in ("direct", "strong", "strong_mma", "winograd", "mma", "wgmma")
    if (name, technique) in (("ece408", "direct"), ("ffn", "direct")):  # half a minute each: test_direct has plans
        return False
    return not costly or (TITLES.index(name) + NETWORK_TECHNIQUES.index(row)) % 3 == 1


SLOW = ("alexnet", "direct"), ("alexnet", "strong"), ("alexnet", "winograd"), ("fused4", "strong")


# What is slow in the simulator. By `direct` test_parallel has alexnet, exhaustive as well; by `winograd`
# test_channels_last has a network of groups and steps, as it has; chains are test_chain2d's.
@quick(lambda name, technique: (name, technique) not in SLOW)
@quick(taken)
@pytest.mark.parametrize("technique", [row.name for row in NETWORK_TECHNIQUES])
@pytest.mark.parametrize("name", TITLES)
@pytest.mark.parametrize(
    "every", [True] if device.SIMULATED else [False, pytest.param(True, marks=pytest.mark.exhaustive)]
)
def test_techniques(name, technique, every):
    """In every precision; by default on a GPU, which compiles for each, networks take them by turns."""
    row = next(row for row in NETWORK_TECHNIQUES if row.name == technique)
    if not serves(row, None):
        pytest.skip("needs tensor cores")
    network = architecture(name)
    if not row.computes(name):
        pytest.skip("test_networks_that_it_leaves")
    n = 2 if row.device == "cuda" and device.SIMULATED else 5
    weights, images = drawn(network, n)
    turn = TITLES.index(name) % len(row.precisions)
    for precision in row.precisions if every else row.precisions[turn : turn + 1]:
        found = row.build(technique, weights, network, batch=2, **row.build_options(precision))(images)
        assert (found.shape, found.dtype) == ((n, network.classes), np.float32)
        exact, sigma = expected(images, weights, network, row.rounding(precision))
        errors = in_sigmas(found, exact, sigma)
        assert errors.max() < row.rounding(precision).bound
        assert in_sigmas(np.roll(found, 1, 0), exact, sigma).min() > row.rounding(precision).bound


@pytest.mark.parametrize("name", TITLES)
def test_pytorch_agrees(name):
    torch = pytest.importorskip("torch")
    from charcnn.model import pytorch

    network = architecture(name)
    weights, images = drawn(network)
    y = torch.from_numpy(images).double()
    for node in network.nodes:
        y = pytorch.function(node.layer, False)(y, *(torch.from_numpy(weights[of]).double() for of in node.parameters))
    np.testing.assert_allclose(y.numpy(), forms.run(network.nodes, images, weights), rtol=1e-5, atol=1e-7)


def lowered(layers, in_shape, technique):
    nodes = place(layers, in_shape)
    return lower(nodes, cuda.rewrites(technique, None, batch=1))


def test_simplified_is_the_same_network():
    network = architecture("mnist", "stride2")
    weights, images = drawn(network)
    ops = lower(network.nodes, SIMPLIFY)
    kinds = [type(op.layer) for op in ops]
    assert kinds[1:4] == [Conv2d, Relu, MaxPool2d]
    assert BatchNorm2d not in kinds
    ((weight, bias),) = chain_weights(ops[1], weights)
    held = {**weights, "conv.weight": weight, "conv.bias": bias}
    nodes = place([Flatten() if op.nodes[0].flattened else op.layer for op in ops[:4]], (network.length,))
    expected_, found = forms.run(network.nodes[:5], images, weights), forms.run(nodes, images, held)
    assert np.linalg.norm(found - expected_) <= 2e-6 * np.linalg.norm(expected_)
    assert weights.keys() == network.parameter_shapes.keys()  # the given ones stay


def test_the_longest_fusions_are_taken():
    def names(layers, in_shape, technique):
        return [operator(op.nodes) for op in lowered(layers, in_shape, technique)]

    mnist, ece408 = architecture("mnist"), architecture("ece408")
    assert names(mnist.layers, (mnist.length,), "weak") == [
        "pixels", "conv2d_relu_maxpool2d", "linear_relu", "linear_softmax"
    ]  # fmt: skip
    assert names(ece408.layers, (ece408.length,), "weak")[1:3] == ["conv2d_tanh_maxpool2d", "conv2d"]
    assert names(mnist.layers, (mnist.length,), "naive")[1:5] == ["conv2d", "batchnorm2d", "maxpool2d", "relu"]
    padded = Conv2d(2, 3, name="a"), Relu(), MaxPool2d(3, 2, 1)
    assert names(padded, (1, 9, 9), "weak") == ["conv2d_relu", "maxpool2d"]
    with pytest.raises(ValueError, match="a has no operator of technique pairs"):
        cuda.OperatorLayer(lowered(padded, (1, 9, 9), "naive")[0], {}, "pairs")


@pytest.mark.parametrize(
    ("layers", "width", "operators"),
    [
        ((Linear(64, name="a"), Gelu(), Linear(8, name="b")), 8, ["linear_gelu_linear"]),
        ((Linear(64, name="a"), Relu(), Linear(8, name="b")), 8, ["linear_relu_linear"]),
        ((Linear(64, name="a"), Relu(), Linear(8, name="b"), Softmax()), 8, ["linear_relu", "linear_softmax"]),
        ((Linear(64, name="a"), Relu(), Linear(8, name="b"), Relu()), 8, ["linear_relu", "linear_relu"]),
        ((Linear(SHARED_FLOATS + 1, name="a"), Gelu(), Linear(1, name="b")), 1, ["linear_gelu", "linear"]),
        ((Linear(8000, name="a"), Gelu(), Linear(700, name="b")), 700, ["linear_gelu", "linear"]),  # 45 MB of weights
    ],
)
def test_two_linear_layers_are_one_kernel_where_they_fit(layers, width, operators):
    assert [operator(op.nodes) for op in lowered(layers, (width,), "strong")] == operators
    assert "linear_gelu_linear" not in [operator(op.nodes) for op in lowered(layers, (width,), "weak")]


def noted(made):
    """In place of an operator as a layer: its name is noted."""
    return lambda op, params, technique="naive": made.append(f"{operator(op.nodes)}_{technique}")


@pytest.mark.parametrize("variant", catalog_row("ffn").module.VARIANTS)
def test_the_feed_forward_block_is_two_kernels_by_strong(variant, monkeypatch):
    made, row = [], network_technique("strong")
    monkeypatch.setattr(cuda, "OperatorLayer", noted(made))
    monkeypatch.setattr(cuda, "on_gpus", lambda stages, *_, **__: [*stages()])
    whole = architecture("ffn", variant)
    unnamed = {name: np.zeros(shape, np.float32) for name, shape in whole.parameter_shapes.items()}
    stages = row.build("strong", unnamed, whole)
    between = "relu" if variant.endswith("relu") else "gelu"
    assert made == ["pixels_naive", f"linear_{between}_linear_naive"]
    assert [label for label, _ in stages] == ["pixels1", f"fc1+{between}1+fc2"]


@pytest.mark.parametrize(("taps", "pool", "apart"), [
    (9, MaxPool2d(2), False), (10, MaxPool2d(2), True), (6, MaxPool2d(3, stride=2), False),
    (7, MaxPool2d(3, stride=2), True),
])  # fmt: skip
def test_direct_pools_apart_where_a_result_has_many_products(taps, pool, apart, monkeypatch):
    names = ["conv2d_relu_direct", "maxpool2d_naive"] if apart else ["conv2d_relu_maxpool2d_direct"]
    made = []
    monkeypatch.setattr(cuda, "OperatorLayer", noted(made))
    for op in lowered([Conv2d(4, (taps, taps), name="a"), Relu(), pool], (3, 16, 16), "direct"):
        cuda.direct(op, {})
    assert made == names


def rounded(x, grid):
    """To numbers of so many digits; of none of them is the exponent too small or too large."""
    scale = 2.0 ** np.floor(np.log2(np.abs(x) + 1e-300)) * (2 * grid.unit)
    return np.round(x / scale) * scale


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_sigma_is_the_size_of_rounding_and_mistakes_are_larger(precision):
    """Results of rounded operands are within the bound; those of a wrong network are not."""
    network, rounding = architecture("fused4"), ROUNDINGS[precision]
    weights, images = drawn(network, 8)
    exact, sigma = expected(images, weights, network, rounding)
    grid, y = rounding.operands or FP32, images
    for node in network.nodes:
        y = forms.run([node], y, {name: rounded(weights[name].astype(np.float64), grid) for name in node.parameters})
        if not isinstance(node.layer, Linear):
            y = rounded(y, grid)
    assert in_sigmas(y, exact, sigma).max() < rounding.bound
    for name, change in (("conv2.weight", lambda w: np.roll(w, 1, 3)), ("conv3.bias", lambda b: b * 0)):
        wrong = forms.run(network.nodes, images, {**weights, name: change(weights[name])})
        assert in_sigmas(wrong, exact, sigma).min() > rounding.bound


def run(*words, module="mnist", **options):
    started = [sys.executable, "-m", f"charcnn.networks.{module}", *map(str, words)]
    return subprocess.run(started, capture_output=True, text=True, timeout=300, **options)


def test_command(tmp_path):
    done = run("--as", "cpu_gemm", "--inputs", "30", "--layers", "--json", tmp_path / "r.json")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["network"], report["technique"], report["inputs"]) == ("mnist", "cpu_gemm", 30)
    assert report["validation"]["passed"]
    assert report["config"]["variant"] == "stride1"
    assert "conv+relu1  1x28x28 > 5x28x28  196,000" in done.stdout
    assert "roofline: " in done.stdout


@quick(lambda: False, everywhere=False)  # a GPU compiles every technique for it, which test_techniques has
def test_compare(ended):
    done = ended(command.main, "mnist", ["--compare", "--inputs", "20", "--variant", "stride2"])
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert [row.split()[0] for row in rows[1:]][:3] == ["loops", "cpu_gemm", "winograd_cpu"]
    assert all("passed" in row for row in rows[1:4])


def test_stages_are_the_layers():
    network = architecture("mnist")
    found = tables.staged(network, ["pixels1", "conv+relu1+maxpool2d1", "fc1+relu2", "fc2+softmax1"])
    assert [len(nodes) for _, nodes in found] == [1, 3, 2, 2]
    with pytest.raises(ValueError, match="are not the layers of mnist"):
        tables.staged(network, ["pixels1", "fc1"])
    found = tables.staged(network, ["pixels1", "conv+relu1", "fc1+relu2", "fc2+softmax1"])  # pooled in the same kernel
    assert [len(nodes) for _, nodes in found] == [1, 3, 2, 2]


@pytest.mark.parametrize("layout", weights.LAYOUTS)
def test_raw_arrays(layout, tmp_path):
    """The lecture's nine files, in either library's order, give the network that a state_dict gives."""
    page = importlib.import_module("charcnn.networks.mnist")
    network = architecture("mnist", "stride2")
    held, _ = drawn(network)
    for file, name in page.RAW.items():
        array = held[name]
        if layout == "tensorflow" and name == "conv.weight":
            array = array.transpose(2, 3, 1, 0)
        elif layout == "tensorflow" and name == "fc1.weight":  # its rows in the order H, W, C
            array = array.reshape(-1, 5, 7, 7).transpose(2, 3, 1, 0)
        elif layout == "tensorflow" and name == "fc2.weight":
            array = array.T
        np.ascontiguousarray(array, "<f4").tofile(tmp_path / file)
    found = weights.load(tmp_path, network, page.RAW, layout)
    assert found.keys() == held.keys()
    assert all(np.array_equal(found[name], held[name]) for name in held)
    (tmp_path / "W1").write_bytes(b"\0" * 12)
    with pytest.raises(ValueError, match=r"W1 has 12 bytes: need 117600, 29400 float32 values, for fc1.weight"):
        weights.load(tmp_path, network, page.RAW, layout)
    with pytest.raises(ValueError, match="ece408 has no raw arrays"):
        weights.load(tmp_path, architecture("ece408"), {}, layout)


def test_weights_have_a_card(tmp_path):
    network, path = architecture("ece408"), tmp_path / "w.safetensors"
    held, _ = drawn(network)
    names = tuple("abcdefghij")
    weights.save(path, network, held, classes=names, accuracy=0.5)
    found = weights.load(path, network, {}, "pytorch")
    assert (found.classes, found.metadata["accuracy"], found.metadata["variant"]) == (names, 0.5, "tiny")
    assert all(np.array_equal(found[name], held[name]) for name in held)
    with pytest.raises(ValueError, match=r"conv\.weight, norm\.bias, .* are missing"):
        weights.load(path, architecture("mnist"), {}, "pytorch")
    with pytest.raises(ValueError, match=r"need a name that ends in \.safetensors"):
        weights.save(tmp_path / "w.pt", network, held)


@pytest.mark.parametrize(("name", "variant", "least"), [("mnist", "stride1", 0.97), ("fused4", "28", 0.87)])
def test_what_ships(name, variant, least):
    network = architecture(name, variant)
    found = weights.load(weights.shipped(network), network, {}, "pytorch")
    accuracy = found.metadata["accuracy"]
    assert accuracy["right"] / accuracy["of"] > least
    assert len(found.classes) == 10
    card = (weights.shipped(network).parent / "README.md").read_text()
    assert (
        f"{accuracy['right']:,} of {accuracy['of']:,}: {accuracy['right'] / accuracy['of']:.2%}".replace("%", " %")
        in card
    )
    assert weights.shipped(network).stat().st_size < 1 << 20


@pytest.mark.parametrize("engine", ["own", "torch"])
def test_training(engine):
    """Images of two kinds are told apart after a few epochs, by weights that normalise by what they saw."""
    if engine == "torch":
        pytest.importorskip("torch")
    network = architecture("mnist")
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    images = rng.integers(0, 100, (200, 12, 12), np.uint8)
    images[labels == 1, :, 4:8] += 120
    losses = []
    rows, told = images.reshape(200, -1), lambda _, loss: losses.append(loss)
    found = train(network, params.init(network, 0), rows, labels, epochs=25, engine=engine, told=told)
    assert losses[-1] < 0.3 < losses[0]
    y = forms.run(network.nodes, images.reshape(200, -1), found)
    assert (y.argmax(axis=1) == labels).mean() > 0.95
    params.check(found, network)
    assert found["norm.running_mean"].any()


@pytest.mark.parametrize("name", ["mnist", "ece408"])
def test_own_steps_are_those_of_pytorch(name):
    """Losses, weights and running statistics of ten steps."""
    pytest.importorskip("torch")
    from charcnn.training.images_torch import TorchSteps

    network, rng = architecture(name), np.random.default_rng(0)
    held = params.init(network, 1)
    own, other = OwnSteps(network, held), TorchSteps(network, held)
    size, losses = math.prod(network.nodes[0].out_shape), []
    for step in range(10):
        x, labels = rng.integers(0, 256, (6 - step % 2, size), np.uint8), rng.integers(0, 10, 6 - step % 2)
        losses.append([made.step(x, labels, 1e-3) for made in (own, other)])
    np.testing.assert_allclose(*np.transpose(losses), rtol=1e-5)
    found, expected = own.weights(), other.weights()
    assert found.keys() == expected.keys()
    for part, array in expected.items():
        moved = np.linalg.norm(array - held[part])
        assert np.linalg.norm(found[part] - array) <= 1e-3 * moved, part


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--train", "x.safetensors", "--images", "faces"],
            "--images faces: to train, need one of digits, fashion-mnist",
        ),
        (["--train", "x.pt"], "--train x.pt: need a name that ends in .safetensors"),
        (["--as", "wgmmaa"], "argument --as: wgmmaa: is not a technique: need one of loops, cpu_gemm"),
        (["--invert", "--plan"], "--invert: needs a run"),
        (["--variant", "stride3"], "argument --variant: invalid choice: 'stride3'"),
        (["--as", "loops", "--precision", "fp16"], "precision='fp16': loops has fp32; fp16 is in"),
        (["--as", "loops", "--gpus", "1"], "--gpus 1: loops runs on the CPU"),
        (["--images", "none.png"], "none.png"),
        (["--params", "none.safetensors"], "none.safetensors"),
        (["--as", "loops", "--gpu-direct"], "--gpu-direct: needs"),
    ],
)
def test_bad_options(words, message, ended):
    done = ended(command.main, "mnist", words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU")
def test_the_simulator_takes_no_large_network(ended):
    done = ended(command.main, "alexnet", ["--as", "naive", "--variant", "2012"])
    assert done.returncode == 2
    assert "1,448,813,632 FLOP an image would take the simulator hours: run with --variant tiny" in done.stderr
