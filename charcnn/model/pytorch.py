"""A network's layers in PyTorch, channels first or last.

Channels last, features of sequences are (N, C, 1, L) and lie as (N, L, C), convolutions are conv2d of height 1, and
parameters lie to fit: nothing is transposed in between. Images are (N, C, H, W) in PyTorch's own memory format.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from charcnn import layers
from charcnn.layers import Layer, Node

Tensor = torch.Tensor

PLAIN: dict[type, Callable[..., Tensor]] = {
    layers.Linear: F.linear, layers.Relu: F.relu, layers.Tanh: torch.tanh, layers.Gelu: F.gelu,
    layers.Sigmoid: torch.sigmoid,
}  # fmt: skip
"""Functions of layers that have no arguments but features and parameters."""


def attribute(name: str) -> str:
    """What a module calls the parameter: its names hold no dot."""
    return name.replace(".", "_")


def function(layer: Layer, channels_last: bool) -> Callable[..., Tensor]:
    """What the layer computes of features and its parameters; torch.compile traces through it.

    Raises:
        TypeError: PyTorch has it not here.
    """
    match layer:
        case plain if type(plain) in PLAIN:
            return PLAIN[type(plain)]
        case layers.Conv1d():
            return F.conv2d if channels_last else F.conv1d
        case layers.LayerNorm(eps):
            return partial(_norm_last if channels_last else _norm, eps=eps)
        case layers.MaxPool1d(size):
            pool, window = (F.max_pool2d, (1, size)) if channels_last else (F.max_pool1d, size)
            return partial(pool, kernel_size=window)
        case layers.Flatten():
            return _flat_last if channels_last else partial(torch.flatten, start_dim=1)
        case layers.Pixels():
            return partial(_pixels, of=layer)
        case layers.Conv2d(stride=stride, dilation=dilation, groups=groups):
            return partial(_padded, layer, partial(F.conv2d, stride=stride, dilation=dilation, groups=groups))
        case layers.MaxPool2d(size, stride):
            return partial(_padded, layer, partial(F.max_pool2d, kernel_size=size, stride=stride))
        case layers.AvgPool2d(size, stride):
            return partial(_padded, layer, partial(F.avg_pool2d, kernel_size=size, stride=stride))
        case layers.GlobalAvgPool2d():
            return partial(torch.mean, dim=(2, 3))
        case layers.BatchNorm2d(eps):
            return partial(_batch_norm, eps=eps)
        case layers.LocalResponseNorm(size, alpha, beta, k):
            return partial(F.local_response_norm, size=size, alpha=alpha, beta=beta, k=k)
        case layers.LeakyRelu(slope):
            return partial(F.leaky_relu, negative_slope=slope)
        case layers.Softmax():
            return partial(F.softmax, dim=1)
    raise TypeError(f"{layer!r} is not written in PyTorch")


def _pixels(x: Tensor, *, of: layers.Pixels) -> Tensor:
    x = x.reshape(len(x), of.channels, of.height, of.width) / 255
    mean, std = (torch.tensor(values, dtype=x.dtype, device=x.device)[:, None, None] for values in (of.mean, of.std))
    return (x - mean) / std


def _padded(layer: layers.Window2d, function: Callable[..., Tensor], x: Tensor, *parameters: Tensor) -> Tensor:
    """PyTorch's own padding where it has it: alike on both sides; else zeros, or -inf of a max-pooling, before."""
    top, bottom, left, right = layer.window(tuple(x.shape[1:])).padding
    if (top, left) == (bottom, right):
        return function(x, *parameters, padding=(top, left))
    around = -torch.inf if isinstance(layer, layers.MaxPool2d) else 0.0
    return function(F.pad(x, (left, right, top, bottom), value=around), *parameters)


def _batch_norm(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    return F.batch_norm(x, mean, variance, weight, bias, eps=eps)


def inward(node: Node, value: Tensor) -> Tensor:
    """A parameter of the node as it lies channels last."""
    match node.layer:
        case layers.Conv1d() if value.ndim == 3:
            return value.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        case layers.LayerNorm():
            return value.T.contiguous()
        case layers.Linear() if value.ndim == 2 and node.flattened:
            return value.unflatten(1, node.flattened).transpose(1, 2).flatten(1).contiguous()
    return value


def outward(node: Node, name: str, value: Tensor) -> Tensor:
    """The parameter that `inward` gave, as `Node.parameters` shapes it."""
    match node.layer:
        case layers.LayerNorm():
            value = value.T
        case layers.Linear() if value.ndim == 2 and node.flattened:
            value = value.unflatten(1, node.flattened[::-1]).transpose(1, 2)
    return value.reshape(node.parameters[name])


def _norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def _norm_last(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    rows = x.squeeze(2).transpose(1, 2)  # (N, L, C), contiguous
    return F.layer_norm(rows, weight.shape, weight, bias, eps).transpose(1, 2).unsqueeze(2)


def _flat_last(x: Tensor) -> Tensor:
    return x.squeeze(2).transpose(1, 2).flatten(1)
