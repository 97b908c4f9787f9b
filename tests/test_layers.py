"""A network as data: shapes, parameters, work and bytes by hand, and the same network in NumPy and PyTorch."""

from itertools import pairwise

import numpy as np
import pytest

from charcnn import ops
from charcnn.config import SMALL, TINY, Config
from charcnn.layers import (
    AvgPool2d,
    BatchNorm2d,
    Conv1d,
    Conv2d,
    Flatten,
    Gelu,
    GlobalAvgPool2d,
    Layer,
    LayerNorm,
    LeakyRelu,
    Linear,
    LocalResponseNorm,
    MaxPool1d,
    MaxPool2d,
    Network,
    OneHot,
    Pixels,
    Relu,
    Sigmoid,
    Softmax,
    Tanh,
    place,
)  # fmt: skip
from charcnn.model import network, params
from charcnn.networks import cuda
from charcnn.networks.calls import arguments, launcher, operator
from charcnn.networks.lowering import lower
from charcnn.ops.chain import plan

OTHER = (
    Conv1d(8, 4, name="a"), LayerNorm(1e-3, name="b"), Conv1d(6, 2, name="c"), Relu(), MaxPool1d(2), Flatten(),
    Linear(5, name="d"), Relu(), Linear(3, name="e"),
)  # fmt: skip
"""Of features (3, 16): no CharCNN."""

IMAGES = (
    Pixels(2, 11, 13, (0.4, 0.5), (0.2, 0.3)), Conv2d(6, (3, 2), stride=(2, 1), padding="same", name="a"), Relu(),
    LocalResponseNorm(3, alpha=0.5, k=2.0), MaxPool2d(3, 2, 1), BatchNorm2d(1e-3, name="b"), Tanh(),
    Conv2d(4, 3, padding=(1, 0, 2, 1), groups=2, bias=False, name="c"), AvgPool2d(2, 1, 1), Gelu(),
    Sigmoid(), Conv2d(5, 2, dilation=2, name="d"), LeakyRelu(0.2), GlobalAvgPool2d(), Linear(3, name="e"), Softmax(),
)  # fmt: skip
"""Every layer of images, of bytes (286,)."""

SMALL_BY_HAND = [
    ("OneHot", (70, 1014), 0),
    ("conv1", (256, 1008), 252_887_040),
    ("norm1", (256, 1008), 0),
    ("Relu", (256, 1008), 0),
    ("pool1", (256, 336), 0),
    ("conv2", (256, 330), 302_776_320),
    ("Relu", (256, 330), 0),
    ("pool2", (256, 110), 0),
    ("conv3", (256, 108), 42_467_328),
    ("Relu", (256, 108), 0),
    ("conv4", (256, 106), 41_680_896),
    ("Relu", (256, 106), 0),
    ("conv5", (256, 104), 40_894_464),
    ("Relu", (256, 104), 0),
    ("conv6", (256, 102), 40_108_032),
    ("norm6", (256, 102), 0),
    ("Relu", (256, 102), 0),
    ("pool6", (256, 34), 0),
    ("Flatten", (8704,), 0),
    ("fc1", (1024,), 17_825_792),
    ("Relu", (1024,), 0),
    ("fc2", (1024,), 2_097_152),
    ("Relu", (1024,), 0),
    ("fc3", (4,), 8_192),
]


def drawn(nodes, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(of, np.float32) for node in nodes for name, of in node.parameters.items()}


def node_of(config, label):
    return next(node for node in config.nodes if node.layer.label == label)


def test_charcnn_by_hand():
    assert [(node.layer.label, node.out_shape, node.flops) for node in SMALL.nodes] == SMALL_BY_HAND
    assert SMALL.flops == 740_745_216
    assert SMALL.nodes[0].in_shape == (1014,)
    assert all(one.out_shape == other.in_shape for one, other in pairwise(SMALL.nodes))
    plain = [row for row in SMALL_BY_HAND if row[0][:4] != "norm"]
    assert [(node.layer.label, node.out_shape, node.flops) for node in Config(layernorm=False).nodes] == plain


def test_parameters_and_what_a_flatten_read():
    assert node_of(SMALL, "conv2").parameters == {"conv2.weight": (256, 256, 7), "conv2.bias": (256,)}
    assert node_of(SMALL, "norm6").parameters == {"norm6.weight": (256, 102), "norm6.bias": (256, 102)}
    assert node_of(SMALL, "fc1").parameters == {"fc1.weight": (1024, 8704), "fc1.bias": (1024,)}
    assert [node.flattened for node in SMALL.nodes if node.flattened] == [(256, 34)]
    assert node_of(SMALL, "fc1").flattened
    assert not SMALL.nodes[0].parameters


@pytest.mark.parametrize(
    ("label", "n", "itemsize", "moved"),
    [
        ("OneHot", 1, 4, 1014 + 4 * 70 * 1014),  # a token id is a byte
        ("OneHot", 3, 2, 3 * (1014 + 2 * 70 * 1014)),
        ("conv2", 1, 4, 4 * (256 * 336 + 256 * 330) + 4 * (256 * 256 * 7 + 256)),
        ("conv2", 8, 2, 8 * 2 * (256 * 336 + 256 * 330) + 2 * (256 * 256 * 7 + 256)),
        ("norm1", 2, 4, 2 * 4 * 2 * 256 * 1008 + 4 * 2 * 256 * 1008),
        ("pool6", 1, 4, 4 * (256 * 102 + 256 * 34)),
        ("fc3", 10, 4, 10 * 4 * (1024 + 4) + 4 * (4 * 1024 + 4)),
    ],
)
def test_bytes_by_hand(label, n, itemsize, moved):
    assert node_of(SMALL, label).bytes(n, itemsize) == moved


def test_a_layer_is_read_by_position_and_compared_by_value():
    assert Conv1d(8, 3, name="a") == Conv1d(8, 3, name="a") != Conv1d(8, 3, name="b")
    assert (repr(Relu()), repr(Conv1d(8, 3))) == ("Relu()", "Conv1d(channels=8, kernel_size=3)")
    assert hash(SMALL.nodes) == hash(Config().nodes)


def test_any_network_of_layers_has_a_reference():
    nodes, x = place(OTHER, (3, 16)), np.random.default_rng(1).standard_normal((2, 3, 16))
    assert [node.out_shape for node in nodes] == [
        (8, 13), (8, 13), (6, 12), (6, 12), (6, 6), (36,), (5,), (5,), (3,)
    ]  # fmt: skip
    p = drawn(nodes)
    found = network.run(nodes, x, p)
    one = np.stack([np.tensordot(p["a.weight"], x[0][:, t : t + 4], 2) for t in range(13)], 1) + p["a.bias"][:, None]
    one = (one - one.mean()) / np.sqrt(one.var() + 1e-3) * p["b.weight"] + p["b.bias"]
    one = np.stack([np.tensordot(p["c.weight"], one[:, t : t + 2], 2) for t in range(12)], 1) + p["c.bias"][:, None]
    one = np.maximum(one, 0).reshape(6, 6, 2).max(2).ravel()
    one = p["e.weight"] @ np.maximum(p["d.weight"] @ one + p["d.bias"], 0) + p["e.bias"]
    np.testing.assert_allclose(found[0], one, rtol=1e-12)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("charcnn", [False, True])
def test_pytorch_is_derived(channels_last, charcnn):
    torch = pytest.importorskip("torch")
    from charcnn.model import pytorch

    nodes = TINY.nodes[1:] if charcnn else place(OTHER, (3, 16))
    p, x = drawn(nodes), np.random.default_rng(1).standard_normal((2, *nodes[0].in_shape))
    y = torch.from_numpy(x).unsqueeze(2) if channels_last else torch.from_numpy(x)
    for node in nodes:
        weights = {name: torch.from_numpy(p[name]).double() for name in node.parameters}
        for name, weight in weights.items():
            assert torch.equal(pytorch.outward(node, name, pytorch.inward(node, weight)), weight)
        laid = [pytorch.inward(node, weight) if channels_last else weight for weight in weights.values()]
        y = pytorch.function(node.layer, channels_last)(y, *laid)
    np.testing.assert_allclose(y.numpy(), network.run(nodes, x, p), rtol=1e-10)


@pytest.mark.parametrize("conv1", ["dense", "gather"])
def test_onnx_is_derived(conv1):
    onnx = pytest.importorskip("onnx")
    from charcnn.model import onnx_graph

    graph = onnx.load_from_string(onnx_graph.graph(params.init(TINY, seed=0), TINY, None, conv1)).graph
    operators = [node.op_type for node in graph.node]
    for kind, count in (("Conv", 6 - (conv1 == "gather")), ("MaxPool", 3), ("LayerNormalization", 2), ("Gemm", 3)):
        assert operators.count(kind) == count
    assert [axis.dim_param or axis.dim_value for axis in graph.input[0].type.tensor_type.shape.dim] == ["N", 123]
    assert [axis.dim_param or axis.dim_value for axis in graph.output[0].type.tensor_type.shape.dim] == ["N", 4]
    held = {one.name: tuple(one.dims) for one in graph.initializer}
    first = {"conv1.weight", "conv1.bias"} if conv1 == "gather" else set()  # they are in the tables
    assert {name: held[name] for name in held if "." in name} == {
        name: shape for name, shape in TINY.parameter_shapes.items() if name not in first
    }


def drawn_images(nodes):
    p = drawn(nodes)
    return p | {name: abs(value) + 0.1 for name, value in p.items() if name.endswith("running_var")}


def test_images_by_hand():
    nodes = place(IMAGES, (286,))
    assert [node.out_shape for node in nodes] == [
        (2, 11, 13), (6, 6, 13), (6, 6, 13), (6, 6, 13), (6, 3, 7), (6, 3, 7), (6, 3, 7), (4, 2, 8), (4, 3, 9),
        (4, 3, 9), (4, 3, 9), (5, 1, 7), (5, 1, 7), (5,), (3,), (3,),
    ]  # fmt: skip
    flops = [node.flops for node in nodes if node.flops]
    assert flops == [2 * 12 * 6 * 6 * 13, 2 * 27 * 4 * 2 * 8, 2 * 16 * 5 * 7, 2 * 15]
    assert nodes[7].parameters == {"c.weight": (4, 3, 3, 3)}
    assert nodes[0].bytes(2) == 2 * (286 + 4 * 286)


@pytest.mark.parametrize("channels_last", [False, True])
def test_images_in_pytorch(channels_last):
    torch = pytest.importorskip("torch")
    from charcnn.model import pytorch

    nodes = place(IMAGES, (286,))
    p, x = drawn_images(nodes), np.random.default_rng(1).integers(0, 256, (3, 286), np.uint8)
    y = torch.from_numpy(x).double()
    for node in nodes:
        weights = [torch.from_numpy(p[name]).double() for name in node.parameters]
        y = pytorch.function(node.layer, channels_last)(y, *weights)
        if channels_last and y.ndim == 4:
            y = y.contiguous(memory_format=torch.channels_last)
    np.testing.assert_allclose(y.numpy(), network.run(nodes, x, p), rtol=1e-6)  # pixels' bytes are float32 in PyTorch


def test_images_in_onnx():
    runtime = pytest.importorskip("onnxruntime")
    from charcnn.model import onnx_graph

    class Images(Network):
        layers, in_shape, length, classes = IMAGES, (286,), 286, 3

    of = Images()
    p, x = drawn_images(of.nodes), np.random.default_rng(1).integers(0, 256, (3, 286), np.uint8)
    session = runtime.InferenceSession(onnx_graph.graph(p, of, None), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"ids": x})[0], network.run(of.nodes, x, p), rtol=1e-4)


class Unknown(Layer):
    pass


def test_a_layer_that_a_form_lacks_is_told():
    nodes = place([Unknown(name="strange")], (3, 5))
    with pytest.raises(TypeError, match="Unknown"):
        network.run(nodes, np.zeros((1, 3, 5)), {})
    pytest.importorskip("torch")
    from charcnn.model import pytorch

    with pytest.raises(TypeError, match="Unknown"):
        pytorch.function(nodes[0].layer, True)


@pytest.mark.parametrize(
    ("layers", "shape", "message"),
    [
        ([Conv1d(4, 3, name="c"), Conv1d(4, 3, name="d")], (2, 4), "d gets 2 positions: need at least 3"),
        ([Conv1d(4, 3, name="c"), MaxPool1d(3)], (2, 4), "MaxPool1d gets 2 positions: need at least 3"),
        ([Conv2d(4, 5, name="c")], (1, 4, 9), "c: x has 4 x 9 pixels"),
        ([Conv2d(4, 3, groups=2, name="c")], (3, 9, 9), "c: groups=2: need a divisor of 3 and 4 channels"),
        ([Conv2d(4, 3, padding="around", name="c")], (3, 9, 9), "c: padding='around': need"),
        ([MaxPool2d(2, name="p")], (9, 9), r"p reads shape \(9, 9\): need \(C, H, W\)"),
        ([Pixels(2, 3, 4, (0.0,), (1.0,))], (24,), r"Pixels: mean=\(0.0,\): need 2, one a channel"),
        ([Pixels(1, 3, 4)], (13,), r"Pixels reads shape \(13,\): need \(12,\)"),
        ([Conv1d(4, 3, name="c")], (9,), r"c reads shape \(9,\): need \(C, L\)"),
        ([OneHot(5)], (2, 9), r"OneHot reads shape \(2, 9\): need \(L\)"),
        ([Linear(4, name="f")], (2, 9), r"f reads shape \(2, 9\): need \(C\)"),
        ([MaxPool1d(2, name="p")], (9,), r"p reads shape \(9,\): need \(C, L\)"),
        ([Flatten(), Linear(4)], (2, 9), r"layers\[1\] is Linear\(units=4\), name='': need a name"),
        ([Linear(4, name="f"), Linear(4, name="f")], (2,), r"layers\[1\] is .*, name='f': need a name"),
    ],
)
def test_layers_that_do_not_follow_are_named(layers, shape, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        place(layers, shape)


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        (Conv1d, (0, 3), "x: channels=0"),
        (Conv1d, (4, True), "x: kernel_size=True"),
        (Conv1d, (4, 2.0), "x: kernel_size=2.0"),
        (MaxPool1d, (-1,), "x: size=-1"),
        (OneHot, ("70",), "x: depth='70'"),
        (Linear, (None,), "x: units=None"),
    ],
)
def test_sizes_that_are_none_are_named(kind, sizes, message):
    with pytest.raises(ValueError, match=f"^{message}: need an int of at least 1"):
        kind(*sizes, name="x")


def test_leaky_relu_of_another_slope_is_a_kernel_of_its_own():
    layers = [Conv2d(2, 1, name="a"), LeakyRelu(), Conv2d(2, 1, name="b"), LeakyRelu(0.2), Flatten(),
              Linear(2, name="c"), Sigmoid()]  # fmt: skip
    nodes, rng = place(layers, (1, 3, 3)), np.random.default_rng(0)
    weights = {name: rng.standard_normal(of, np.float32) for node in nodes for name, of in node.parameters.items()}
    found = lower(nodes, cuda.rewrites("weak", None, batch=1))
    assert [operator(op.nodes) for op in found] == ["conv2d_leaky_relu", "conv2d", "leaky_relu", "linear_sigmoid"]
    x = y = rng.standard_normal((2, 1, 3, 3), np.float32)
    for op in found:
        given, options = arguments(op, weights)
        y = launcher(op, "naive")(y.reshape(2, *op.in_shape), *given, **options)
    np.testing.assert_allclose(y, network.run(nodes, x.astype(np.float64), weights), 1e-5)
    with pytest.raises(ValueError, match=r"^layers\[1\] is LeakyRelu\(negative_slope=0.2\): need"):
        plan([node.layer for node in nodes[2:4]], in_shape=(2, 3, 3))
    with pytest.raises(ValueError, match=r"^LeakyRelu: negative_slope=2: need a number from 0 to 1"):
        LeakyRelu(2)
    with pytest.raises(ValueError, match=r"^negative_slope='0.1': need a number from 0 to 1"):
        ops.leaky_relu_loops(x, "0.1")
