"""Layers as operators: what the operator that computes some is called, and what it takes beside arrays."""

from __future__ import annotations

from collections.abc import Sequence

from charcnn import layers
from charcnn.aliases import Record
from charcnn.layers.layer import Layer

OPERATORS: dict[type[Layer], str] = {
    layers.OneHot: "one_hot",
    layers.Conv1d: "conv1d",
    layers.LayerNorm: "layernorm",
    layers.MaxPool1d: "maxpool1d",
    layers.Flatten: "collapse",
    layers.Pixels: "pixels",
    layers.Conv2d: "conv2d",
    layers.BatchNorm2d: "batchnorm2d",
    layers.Relu: "relu",
    layers.Tanh: "tanh",
    layers.Gelu: "gelu",
    layers.Sigmoid: "sigmoid",
    layers.LeakyRelu: "leaky_relu",
    layers.MaxPool2d: "maxpool2d",
    layers.AvgPool2d: "avgpool2d",
    layers.GlobalAvgPool2d: "global_avgpool2d",
    layers.LocalResponseNorm: "local_response_norm",
    layers.Linear: "linear",
    layers.Softmax: "softmax",
}
"""What an operator that computes the layer is called. A fused one is called as its layers in order."""


def operator_name(pattern: Sequence[Layer]) -> str:
    """The operator's, which may be none; with ? for a layer that none computes."""
    return "_".join(OPERATORS.get(type(layer), "?") for layer in pattern)


def fits(pattern: Sequence[Layer]) -> bool:
    """Whether a fused operator is told all of it: its pooling pads nothing, leaky ReLU has an epilogue's slope."""
    return not any(
        (isinstance(layer, layers.MaxPool2d) and layer.padding)
        or (isinstance(layer, layers.LeakyRelu) and not layer.epilogue)
        for layer in pattern[1:]
    )


def options(pattern: Sequence[Layer]) -> Record:
    """What the pattern's operator takes beside arrays, by the names of its parameters."""
    found: Record = {}
    pool = "pool_size" if isinstance(pattern[0], (layers.OneHot, layers.Conv1d, layers.Conv2d)) else "kernel_size"
    for layer in pattern:
        match layer:
            case layers.OneHot(depth) if len(pattern) == 1:
                found["depth"] = depth
            case layers.Conv2d():
                found |= layer.moves
            case layers.BatchNorm2d(eps) | layers.LayerNorm(eps):
                found["eps"] = eps
            case layers.MaxPool1d(size):
                found[pool] = size
            case layers.MaxPool2d(size, stride, padding) | layers.AvgPool2d(size, stride, padding):
                found[pool] = size
                found |= {"pool_stride": stride} if pool == "pool_size" else {"stride": stride, "padding": padding}
            case layers.LeakyRelu(slope) if len(pattern) == 1:
                found["negative_slope"] = slope
            case layers.LocalResponseNorm(size, alpha, beta, k):
                found |= {"size": size, "alpha": alpha, "beta": beta, "k": k}
    return found
