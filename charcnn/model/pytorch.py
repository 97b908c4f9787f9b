"""A network's layers in PyTorch, channels first or last.

Channels last, features are (N, C, 1, L) and lie as (N, L, C), convolutions are conv2d of height 1, and parameters lie
to fit: nothing is transposed in between.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from charcnn.model.layers import Conv1d, Flatten, Layer, LayerNorm, Linear, MaxPool1d, Node, Relu

Tensor = torch.Tensor


def attribute(name: str) -> str:
    """What a module calls the parameter: its names hold no dot."""
    return name.replace(".", "_")


def function(layer: Layer, channels_last: bool) -> Callable[..., Tensor]:
    """What the layer computes of features and its parameters; torch.compile traces through it.

    Raises:
        TypeError: PyTorch has it not here.
    """
    match layer:
        case Conv1d():
            return F.conv2d if channels_last else F.conv1d
        case LayerNorm(eps):
            return partial(_norm_last if channels_last else _norm, eps=eps)
        case Relu():
            return F.relu
        case MaxPool1d(size):
            return (
                partial(F.max_pool2d, kernel_size=(1, size))
                if channels_last
                else partial(F.max_pool1d, kernel_size=size)
            )
        case Flatten():
            return _flat_last if channels_last else partial(torch.flatten, start_dim=1)
        case Linear():
            return F.linear
    raise TypeError(f"{layer!r} is not written in PyTorch")


def inward(node: Node, value: Tensor) -> Tensor:
    """A parameter of the node as it lies channels last."""
    match node.layer:
        case Conv1d() if value.ndim == 3:
            return value.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        case LayerNorm():
            return value.T.contiguous()
        case Linear() if value.ndim == 2 and node.flattened:
            return value.unflatten(1, node.flattened).transpose(1, 2).flatten(1).contiguous()
    return value


def outward(node: Node, name: str, value: Tensor) -> Tensor:
    """The parameter that `inward` gave, as `Node.parameters` shapes it."""
    match node.layer:
        case LayerNorm():
            value = value.T
        case Linear() if value.ndim == 2 and node.flattened:
            value = value.unflatten(1, node.flattened[::-1]).transpose(1, 2)
    return value.reshape(node.parameters[name])


def _norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def _norm_last(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    rows = x.squeeze(2).transpose(1, 2)  # (N, L, C), contiguous
    return F.layer_norm(rows, weight.shape, weight, bias, eps).transpose(1, 2).unsqueeze(2)


def _flat_last(x: Tensor) -> Tensor:
    return x.squeeze(2).transpose(1, 2).flatten(1)
