"""Training of networks of images from their layers: cross-entropy, AdamW, the step falling as a cosine.

Steps are computed by own kernels, or in PyTorch; the order of images and what is changed in them are the same.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.util import find_spec

import numpy as np

from charcnn.layers import BatchNorm2d, Network
from charcnn.ops.adamw import ParameterGroup
from charcnn.runtime.training import Training
from charcnn.training import with_torch

ENGINES = ("auto", "own", "torch")

BATCH, RATE, DECAY = 128, 2e-3, 0.02
"""Inputs a step; AdamW's largest step, and weight decay."""

SHIFT = 2
"""Pixels, in 28, by which an image is moved at most, each way."""

TECHNIQUES = "cpu_blas", "loops"
"""Of own kernels: of an operator the first that there is."""

MOMENTUM = 0.1
"""By how much of a batch's statistics running ones move."""

Params = Mapping[str, np.ndarray]


class ImageSteps(ABC):
    """What computes the steps of a training, and holds its weights."""

    engine: str
    """What it is called."""

    @abstractmethod
    def step(self, x: np.ndarray, labels: np.ndarray, rate: float) -> float:
        """Move the weights by the mean loss of images uint8 (B, C * H * W) and their labels; the loss before."""

    @abstractmethod
    def weights(self) -> dict[str, np.ndarray]:
        """A copy, float32 by name, batch normalisation's running statistics among them."""


class OwnSteps(ImageSteps):
    """By own kernels on a CPU: products by NumPy's BLAS, the rest in plain loops.

    Args:
        network: its last layer may be Softmax.
        params: the first weights.

    Raises:
        ValueError: a layer has no gradient there.
    """

    engine = "own"

    def __init__(self, network: Network, params: Params) -> None:
        group = ParameterGroup(0, lr=1.0, weight_decay=DECAY)
        self._training = Training(network.nodes, params, BATCH, TECHNIQUES, group=group, clip=0.0, momentum=MOMENTUM)
        self._eye = np.eye(math.prod(network.nodes[-1].out_shape), dtype=np.float32)

    def step(self, x: np.ndarray, labels: np.ndarray, rate: float) -> float:
        """See `ImageSteps.step`."""
        return float(self._training.step(x, self._eye[labels], rate).mean(dtype=np.float64))

    def weights(self) -> dict[str, np.ndarray]:
        """See `ImageSteps.weights`."""
        return {name: array.copy() for name, array in (self._training.params | self._training.running).items()}


def engine_of(asked: str) -> str:
    """ "own" or "torch"; of "auto" PyTorch, which is faster, where it is installed.

    Raises:
        ValueError: there is no such engine.
    """
    if asked not in ENGINES:
        raise ValueError(f"engine={asked!r}: need one of {', '.join(ENGINES)}")
    return asked if asked != "auto" else "torch" if find_spec("torch") else "own"


def train(
    network: Network, params: Params, rows: np.ndarray, labels: np.ndarray, *, epochs: int, seed: int = 0,
    rate: float = RATE, mirrored: bool = False, engine: str = "auto",
    told: Callable[[int, float], object] = lambda epoch, loss: None,
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
        engine: of ENGINES.
        told: called after each epoch with its number and mean loss.

    Returns:
        float32 arrays by name, batch normalisation's running statistics among them.

    Raises:
        ValueError: there is no such engine, PyTorch is missing, or own kernels lack a layer's gradient.
    """
    first, rng = {name: _first(name, value, network) for name, value in params.items()}, np.random.default_rng(seed)
    own = engine_of(engine) == "own"
    made: ImageSteps = (OwnSteps if own else with_torch.module("images_torch", "engine torch").TorchSteps)(
        network, first
    )
    shape, each = network.nodes[0].out_shape, -(-len(rows) // BATCH)
    for epoch in range(epochs):
        total, order = 0.0, rng.permutation(len(rows))
        for step in range(each):
            done, part = (epoch + step / each) / epochs, order[step * BATCH : (step + 1) * BATCH]
            now = rate * min(1, 20 * done + 0.01) * (1 + math.cos(math.pi * done)) / 2
            x = _changed(rows[part].reshape(len(part), *shape), rng, mirrored)
            total += made.step(x.reshape(len(part), -1), labels[part], now) * len(part)
        told(epoch + 1, total / len(rows))
    return made.weights()


def _first(name: str, value: np.ndarray, network: Network) -> np.ndarray:
    """Biases, means 0; batch normalisation's weights and variances 1; other weights as they are given."""
    norms = {node.layer.name for node in network.nodes if isinstance(node.layer, BatchNorm2d)}
    owner, _, part = name.rpartition(".")
    if part in ("bias", "running_mean"):
        return np.zeros_like(value)
    if part == "running_var" or owner in norms:
        return np.ones_like(value)
    return value.copy()


def _changed(x: np.ndarray, rng: np.random.Generator, mirrored: bool) -> np.ndarray:
    """A batch of images (B, C, H, W), moved and perhaps mirrored; what comes in at a side is 0."""
    if mirrored and rng.random() < 0.5:
        x = x[..., ::-1]
    height, width = x.shape[2:]
    most = max(1, round(SHIFT * width / 28))
    down, right = rng.integers(-most, most + 1, 2)
    padded = np.pad(x, ((0, 0), (0, 0), (most, most), (most, most)))
    return padded[:, :, most + down : most + down + height, most + right : most + right + width]
