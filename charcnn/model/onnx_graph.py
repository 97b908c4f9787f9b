"""The network as an ONNX graph, for ONNX Runtime, OpenVINO and whatever else reads one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from charcnn.config import NORMALISED_BLOCKS, POOL_SIZE, POOLED_BLOCKS, Config

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

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name


def graph(
    params: Mapping[str, np.ndarray],
    config: Config,
    batch: int | None,
    conv1: str = "dense",
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """The graph as an ONNX file: `ids` (batch, L) uint8 -> `logits` (batch, classes) float32.

    Args:
        params: name -> float32 array.
        config: the sizes.
        batch: N; any where None.
        conv1: "dense" on one-hot columns, or "gather": a sum of rows of a table of (tap, id).
        metadata: what else the file says.
    """
    size = "N" if batch is None else batch
    g = _Graph()
    p = {name: g.constant(name, value) for name, value in params.items() if conv1 == "dense" or name[:5] != "conv1"}
    ids = g.add("Cast", "ids", to=TensorProto.INT32)

    def convolved(x: str, block: int) -> str:
        return g.add(
            "Conv", x, p[f"conv{block}.weight"], p[f"conv{block}.bias"], kernel_shape=[config.kernel_sizes[block - 1]]
        )

    def gathered() -> str:
        table = np.pad(params["conv1.weight"].transpose(2, 1, 0), ((0, 0), (0, 1), (0, 0)))  # (K, alphabet + 1, C)
        length, axis, total = config.conv_lengths[0], g.constant("axis", np.array([1])), ""
        table[0] += params["conv1.bias"]
        for tap, rows in enumerate(table):
            window = g.constant(f"start{tap}", np.array([tap])), g.constant(f"end{tap}", np.array([tap + length]))
            y = g.add("Gather", g.constant(f"table{tap}", rows), g.add("Slice", ids, *window, axis))
            total = g.add("Add", total, y) if total else y
        return g.add("Transpose", total, perm=[0, 2, 1])

    for block in range(1, 7):
        if block == 1 and conv1 == "gather":
            x = gathered()
        elif block == 1:
            one_hot = g.constant("one_hot", np.eye(config.alphabet + 1, config.alphabet, dtype=np.float32))
            x = convolved(g.add("Transpose", g.add("Gather", one_hot, ids), perm=[0, 2, 1]), 1)
        else:
            x = convolved(x, block)
        if config.layernorm and block in NORMALISED_BLOCKS:
            x = g.add("LayerNormalization", x, p[f"norm{block}.weight"], p[f"norm{block}.bias"], axis=1, epsilon=1e-5)
        x = g.add("Relu", x)
        if block in POOLED_BLOCKS:
            x = g.add("MaxPool", x, kernel_shape=[POOL_SIZE], strides=[POOL_SIZE])
    x = g.add("Flatten", x)
    for block in (1, 2, 3):
        x = g.add("Gemm", x, p[f"fc{block}.weight"], p[f"fc{block}.bias"], transB=1)
        if block < 3:
            x = g.add("Relu", x)
    g.nodes[-1].output[0] = "logits"
    ends = (
        [helper.make_tensor_value_info("ids", TensorProto.UINT8, [size, config.length])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [size, config.classes])],
    )
    made = helper.make_graph(g.nodes, "charcnn", *ends, initializer=g.constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    helper.set_model_props(model, dict(metadata or {}))
    onnx.checker.check_model(model)
    return model.SerializeToString()
