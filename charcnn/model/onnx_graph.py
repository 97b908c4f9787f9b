"""The network as an ONNX graph, for ONNX Runtime, OpenVINO and whatever else reads one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from charcnn import layers
from charcnn.aliases import Record
from charcnn.layers import Network, Node
from charcnn.text.encodings import Encoding, byte_table

OPSET = 17
"""The first with LayerNormalization."""


class _Graph:
    """Nodes one after the other, each with one output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def scalar(self, value: float) -> str:
        return self.constant(f"scalar{len(self.constants)}", np.array(value, np.float32))

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name


def graph(
    params: Mapping[str, np.ndarray],
    config: Network,
    batch: int | None,
    conv1: str = "dense",
    metadata: Mapping[str, str] | None = None,
    encoding: Encoding | None = None,
    exact: bool = False,
) -> bytes:
    """The graph as an ONNX file: `ids` (batch, L) uint8 -> `logits` (batch, classes) float32.

    Args:
        params: name -> float32 array.
        config: the sizes.
        batch: N; any where None.
        conv1: "dense" on one-hot columns, or "gather": a sum of rows of a table of (tap, id).
        metadata: what else the file says.
        encoding: with it the graph encodes, and takes `text` (batch, any) uint8 in place of ids: the bytes of each text
            in UTF-8, and zeros behind it.
        exact: whether LayerNorm adds up rows, then their sums. ONNX Runtime's LayerNormalization adds up 258,048
            float32 values one by one, which puts logits ten times as far off.
    """
    g = _Graph()
    p = {name: g.constant(name, value) for name, value in params.items() if conv1 == "dense" or name[:5] != "conv1"}
    x = _encoded(g, encoding, config.length) if encoding else g.add("Cast", "ids", to=TensorProto.INT32)
    nodes = config.nodes
    if conv1 == "gather":
        x, nodes = _gathered(g, x, params, nodes[1]), nodes[2:]
    for node in nodes:
        weights = [p[name] for name in node.parameters]
        match node.layer:
            case layers.Relu() | layers.Tanh() | layers.Sigmoid() | layers.Flatten() as of:
                x = g.add(type(of).__name__, x)
            case layers.OneHot(depth):
                rows = g.constant("one_hot", np.eye(depth + 1, depth, dtype=np.float32))
                x = g.add("Transpose", g.add("Gather", rows, x), perm=[0, 2, 1])
            case layers.Conv1d(_, size):
                x = g.add("Conv", x, *weights, kernel_shape=[size])
            case layers.LayerNorm(eps):
                if exact:
                    x = _layernorm(g, x, weights, eps)
                else:
                    x = g.add("LayerNormalization", x, *weights, axis=1, epsilon=eps)
            case layers.MaxPool1d(size):
                x = g.add("MaxPool", x, kernel_shape=[size], strides=[size])
            case layers.Linear():
                x = g.add("Gemm", x, *weights, transB=1)
            case layers.Pixels():
                x = _pixels(g, x, node)
            case layers.Conv2d() as of:
                x = g.add("Conv", x, *weights, **_moves(node), group=of.groups)
            case layers.MaxPool2d():
                x = g.add("MaxPool", x, **_moves(node))
            case layers.AvgPool2d():
                x = g.add("AveragePool", x, **_moves(node), count_include_pad=1)
            case layers.GlobalAvgPool2d():
                x = g.add("Flatten", g.add("GlobalAveragePool", x))
            case layers.BatchNorm2d(eps):
                x = g.add("BatchNormalization", x, *weights, epsilon=eps)
            case layers.LocalResponseNorm(size, alpha, beta, k):
                x = g.add("LRN", x, size=size, alpha=alpha, beta=beta, bias=k)
            case layers.LeakyRelu(slope):
                x = g.add("LeakyRelu", x, alpha=slope)
            case layers.Gelu():
                half, root = g.scalar(0.5), g.scalar(0.5**0.5)
                erf = g.add("Add", g.add("Erf", g.add("Mul", x, root)), g.scalar(1.0))
                x = g.add("Mul", g.add("Mul", x, erf), half)
            case layers.Softmax():
                x = g.add("Softmax", x, axis=1)
            case other:
                raise TypeError(f"{other!r} has no ONNX operator here")
    g.nodes[-1].output[0] = "logits"
    n = "N" if batch is None else batch
    takes: tuple[str, int | str] = ("text", "bytes") if encoding else ("ids", config.length)
    ends = (
        [helper.make_tensor_value_info(takes[0], TensorProto.UINT8, [n, takes[1]])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [n, config.classes])],
    )
    graph = helper.make_graph(g.nodes, "charcnn", *ends, initializer=g.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    helper.set_model_props(model, dict(metadata or {}))
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _moves(node: Node) -> Record:
    """How a window moves, as ONNX says it."""
    window = node.layer.window(node.in_shape)  # type: ignore[attr-defined]
    top, bottom, left, right = window.padding
    found = {"kernel_shape": [*window.kernel], "strides": [*window.stride], "pads": [top, left, bottom, right]}
    return found if isinstance(node.layer, layers.AvgPool2d) else {**found, "dilations": [*window.dilation]}


def _encoded(g: _Graph, encoding: Encoding, length: int) -> str:
    """`text` as token ids (N, length), as `charcnn.encode` gives them, but int32."""
    zero, one, most = (g.constant(f"count{value}", np.array(value)) for value in (0, 1, length))
    text = g.add("Pad", "text", g.constant("column", np.array([0, 0, 0, 1])))  # a batch of empty texts has no bytes
    size = g.add("Gather", g.add("Shape", text), one)
    # The end of a text is behind its last byte that is not zero.
    counts = g.add("Add", g.add("Range", zero, size, one), one)
    some = g.add("Cast", g.add("Cast", text, to=TensorProto.BOOL), to=TensorProto.INT64)
    end = g.add("ReduceMax", g.add("Mul", some, counts), axes=[1])
    kept = g.add("Min", end, most)
    columns = g.constant("columns", np.arange(length))
    place = g.add("Sub", g.add("Sub", kept, one), columns) if encoding.reverse else columns
    if encoding.keep == "tail":
        place = g.add("Add", place, g.add("Sub", end, kept))
    there = g.add("Less", columns, kept)
    taken = g.add("GatherElements", text, g.add("Where", there, place, zero), axis=1)
    ids = g.constant("ids", byte_table(encoding).astype(np.int32))
    blank = g.constant("blank", np.array(encoding.blank, np.int32))
    return g.add("Where", there, g.add("Gather", ids, g.add("Cast", taken, to=TensorProto.INT32)), blank)


def _layernorm(g: _Graph, x: str, weights: list[str], eps: float) -> str:
    def mean(x: str) -> str:
        return g.add("ReduceMean", g.add("ReduceMean", x, axes=[2]), axes=[1])

    x = g.add("Sub", x, mean(x))
    deviation = g.add("Sqrt", g.add("Add", mean(g.add("Mul", x, x)), g.scalar(eps)))
    return g.add("Add", g.add("Mul", g.add("Div", x, deviation), weights[0]), weights[1])


def _pixels(g: _Graph, ids: str, node: Node) -> str:
    """Bytes as integers (N, C * H * W) -> features (N, C, H, W)."""
    of = node.layer
    assert isinstance(of, layers.Pixels)
    std, mean = (np.array(values, np.float32)[:, None, None] for values in (of.std, of.mean))
    shape = g.constant("image", np.array([0, *node.out_shape]))
    x = g.add("Reshape", g.add("Cast", ids, to=TensorProto.FLOAT), shape)
    x = g.add("Sub", g.add("Div", x, g.scalar(255.0)), g.constant("mean", mean))
    return g.add("Div", x, g.constant("std", std))


def _gathered(g: _Graph, ids: str, params: Mapping[str, np.ndarray], node: Node) -> str:
    """The first convolution's node on one-hot columns as a sum of rows of a table: ids (N, L) -> (N, C, L - K + 1)."""
    weight, bias = (params[name] for name in node.parameters)
    table = np.pad(weight.transpose(2, 1, 0), ((0, 0), (0, 1), (0, 0)))  # (K, depth + 1, C)
    table[0] += bias
    length, axis, total = node.out_shape[1], g.constant("axis", np.array([1])), ""
    for tap, rows in enumerate(table):
        window = g.constant(f"start{tap}", np.array([tap])), g.constant(f"end{tap}", np.array([tap + length]))
        y = g.add("Gather", g.constant(f"table{tap}", rows), g.add("Slice", ids, *window, axis))
        total = g.add("Add", total, y) if total else y
    return g.add("Transpose", total, perm=[0, 2, 1])
