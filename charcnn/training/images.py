"""Training of networks of images, in PyTorch, from their layers: cross-entropy, AdamW, the step falling as a cosine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from charcnn.aliases import Array
from charcnn.layers import BatchNorm2d, Flatten, Network, Node, Softmax
from charcnn.model.pytorch import function

BATCH, RATE, DECAY = 128, 2e-3, 0.02
"""Inputs a step; AdamW's largest step, and weight decay."""

SHIFT = 2
"""Pixels, in 28, by which an image is moved at most, each way."""

Params = Mapping[str, np.ndarray]


def train(
    network: Network, params: Params, rows: np.ndarray, labels: np.ndarray, *, epochs: int, seed: int = 0,
    rate: float = RATE, mirrored: bool = False, told: Callable[[int, float], object] = lambda epoch, loss: None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Weights fitted to images and their labels.

    Args:
        network: its last layer may be Softmax, which training leaves out.
        params: the first weights; biases and batch normalisation begin anew.
        rows: uint8 (N, C * H * W); labels: ints (N,).
        epochs: times that all images are seen.
        seed: of their order and changes.
        rate: AdamW's largest step.
        mirrored: whether left and right may change places.
        told: called after each epoch with its number and mean loss.

    Returns:
        float32 arrays by name, batch normalisation's running statistics among them.
    """
    torch.manual_seed(seed)
    held = {name: torch.from_numpy(_first(name, value, network)) for name, value in params.items()}
    learned = [value.requires_grad_() for name, value in held.items() if "running" not in name]
    optimiser = torch.optim.AdamW(learned, rate, weight_decay=DECAY)
    images, targets = torch.from_numpy(rows.copy()), torch.from_numpy(labels.astype(np.int64))
    shape, steps = network.nodes[0].out_shape, -(-len(rows) // BATCH)
    for epoch in range(epochs):
        total = 0.0
        for step, part in enumerate(torch.randperm(len(rows)).split(BATCH)):
            done = (epoch + step / steps) / epochs
            optimiser.param_groups[0]["lr"] = rate * min(1, 20 * done + 0.01) * (1 + math.cos(math.pi * done)) / 2
            x = _changed(images[part].reshape(len(part), *shape), mirrored)
            logits = _forward(network.nodes, x.flatten(1), held, training=True)
            loss = F.cross_entropy(logits, targets[part])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item() * len(part)
        told(epoch + 1, total / len(rows))
    return {name: value.detach().numpy() for name, value in held.items()}


def _first(name: str, value: np.ndarray, network: Network) -> np.ndarray:
    """Biases, means 0; batch normalisation's weights and variances 1; other weights as they are given."""
    norms = {node.layer.name for node in network.nodes if isinstance(node.layer, BatchNorm2d)}
    owner, _, part = name.rpartition(".")
    if part in ("bias", "running_mean"):
        return np.zeros_like(value)
    if part == "running_var" or owner in norms:
        return np.ones_like(value)
    return value.copy()


def _changed(x: torch.Tensor, mirrored: bool) -> torch.Tensor:
    """A batch of images, moved and perhaps mirrored; what comes in at a side is 0."""
    if mirrored and torch.rand(()) < 0.5:
        x = x.flip(3)
    most = max(1, round(SHIFT * x.shape[3] / 28))
    down, right = torch.randint(-most, most + 1, (2,)).tolist()
    height, width = x.shape[2:]
    return F.pad(x, (most,) * 4)[:, :, most + down : most + down + height, most + right : most + right + width]


def _forward(nodes: tuple[Node, ...], x: Array, held: Mapping[str, Any], *, training: bool) -> Array:
    for node in nodes:
        weights = [held[name] for name in node.parameters]
        if isinstance(node.layer, BatchNorm2d) and training:
            weight, bias, mean, variance = weights
            x = F.batch_norm(x, mean, variance, weight, bias, training=True, eps=node.layer.eps)
        elif not (training and isinstance(node.layer, Softmax)):
            x = function(node.layer, False)(x, *weights)
        assert isinstance(node.layer, Flatten) or x.shape[1:] == node.out_shape
    return x
