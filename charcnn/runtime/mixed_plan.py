"""Plans of training in mixed precision: a network as blocks, and where its parameters lie in one buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from charcnn import layers
from charcnn.aliases import Array
from charcnn.gpu.arrays import expect
from charcnn.layers import Node
from charcnn.model import gradients
from charcnn.ops import maxpool1d_training as pools
from charcnn.ops.common.arrays import pack, unpack
from charcnn.runtime.training import FLOAT, KINDS, trained

ALIGNED = 64
"""Values that a parameter's place in a buffer is a multiple of, so that each begins at 128 bytes of its copy."""


class TrainedBlock(NamedTuple):
    """A convolution or linear layer, and what follows it."""

    node: Node
    norm: Node | None
    pooled: bool
    rectified: bool

    @property
    def name(self) -> str:
        """The layer's."""
        return self.node.layer.name

    @property
    def eps(self) -> float:
        """Of LayerNorm."""
        norm = self.norm and self.norm.layer
        return norm.eps if isinstance(norm, layers.LayerNorm) else layers.LayerNorm.eps

    @property
    def linear(self) -> bool:
        """Whether it is a linear layer."""
        return isinstance(self.node.layer, layers.Linear)

    @property
    def taps(self) -> int:
        """Of a convolution."""
        return self.node.layer.kernel_size if isinstance(self.node.layer, layers.Conv1d) else 1


class ResultSizes(NamedTuple):
    """Of a block's results in a step, of an input."""

    stride: int
    """Rows, as many as what the first convolution of its group reads."""
    channels: int
    windows: int
    """Of pooling, or 0."""


def blocks_of(nodes: Sequence[Node]) -> list[TrainedBlock]:
    """A network of token ids as blocks.

    Raises:
        ValueError: names the layer. The first must be a convolution of one-hot columns that ends in pooling. Further
            convolutions have ReLU, LayerNorm only with pooling, and windows of 3; the last one has pooling. Linear
            layers have ReLU, but for the last.
    """
    rest, found = (
        [node for node in gradients.logits_of(nodes) if not isinstance(node.layer, layers.Flatten)],
        list[TrainedBlock](),
    )
    if not isinstance(rest[0].layer, layers.OneHot):
        raise ValueError(f"{rest[0].layer.label}: need token ids, which a network's first layer turns to columns")
    at = 1
    while at < len(rest):
        node, norm, pooled = rest[at], None, False
        if not isinstance(node.layer, layers.Conv1d | layers.Linear):
            raise ValueError(f"{node.layer.label}: need a convolution or linear layer here")
        at += 1
        if at < len(rest) and isinstance(rest[at].layer, layers.LayerNorm):
            norm, at = rest[at], at + 1
        rectified = at < len(rest) and isinstance(rest[at].layer, layers.Relu)
        at += rectified
        if at < len(rest) and isinstance(pool := rest[at].layer, layers.MaxPool1d):
            pooled, at = True, at + 1
            if pool.size != pools.WINDOW:
                raise ValueError(f"{pool.label}: need windows of {pools.WINDOW}")
        if rectified == (at == len(rest)) or (norm is not None and not pooled) or (pooled and not rectified):
            raise ValueError(f"{node.layer.label}: need ReLU behind it, and pooling behind LayerNorm; nothing last")
        made = TrainedBlock(node, norm, pooled, rectified)
        if made.linear and found and not (found[-1].linear or found[-1].pooled):
            raise ValueError(
                f"{made.name}: need pooling behind {found[-1].name}, as features have rows behind the last"
            )
        found.append(made)
    if not found or not found[0].pooled or isinstance(found[-1].node.layer, layers.Conv1d):
        raise ValueError("nodes: need a first convolution with pooling, and a linear layer last")
    return found


def sizes_of(blocks: Sequence[TrainedBlock]) -> list[ResultSizes]:
    """Of all blocks but the last, whose results are logits."""
    found, stride = list[ResultSizes](), 0
    for block in blocks[:-1]:
        conv, shape = isinstance(block.node.layer, layers.Conv1d), block.node.out_shape
        stride = (stride or block.node.in_shape[1]) if conv else 1
        found.append(ResultSizes(stride, shape[0], shape[1] // pools.WINDOW if block.pooled else 0))
        stride = 0 if block.pooled or not conv else stride
    return found


def counted(nodes: Sequence[Node], rows: int) -> dict[str, int]:
    """Bytes by kind that a step of so many rows needs, from the layers alone.

    A weight has 2 bytes of its copy, 4 of its gradient, 4 of its master, 8 of two moments. Features are what each block
    writes, 2 bytes a value, and two gradients of the largest. A value that pooling picks leaves a byte that says where,
    and behind LayerNorm 2 bytes of what it was.
    """
    weights, blocks = sum(map(math.prod, trained(nodes).values())), blocks_of(nodes)
    features, gradient = 0, largest(blocks)
    for block, of in zip(blocks, sizes_of(blocks), strict=False):
        picked = 2 + 1 + 2 * (block.norm is not None)
        features += of.channels * (picked * of.windows + 2 * of.stride * (block is not blocks[0]))
    held = 2 * weights, FLOAT * weights, FLOAT * weights, 2 * FLOAT * weights, rows * (features + 2 * 2 * gradient), 0
    return dict(zip(KINDS, held, strict=True))


def largest(blocks: Sequence[TrainedBlock]) -> int:
    """Values of an input's largest gradient."""
    return max(of.channels * max(of.windows, of.stride * (at > 0)) for at, of in enumerate(sizes_of(blocks)))


def check_leak(leak: float) -> None:
    """Raise ValueError where it is no slope of leaky ReLU."""
    if not 0 <= leak < 1:
        raise ValueError(f"{leak=}: need at least 0 and less than 1")


def check_dropout(dropout: float) -> None:
    """Raise ValueError where it is no share that leaves something."""
    if not 0 <= dropout < 1:
        raise ValueError(f"{dropout=}: need at least 0 and less than 1")


class FlatParams:
    """Where the parameters of a network lie in one buffer, as products read them: channels last.

    Args:
        nodes: of the network.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.shapes, self._begins, self.size = trained(nodes), dict[str, int](), 0
        for name, shape in self.shapes.items():
            self._begins[name] = self.size
            self.size += -(-math.prod(shape) // ALIGNED) * ALIGNED
        linear = next(node for node in nodes if isinstance(node.layer, layers.Linear))
        convs = [node for node in nodes if isinstance(node.layer, layers.Conv1d)]
        self._collapsed, self._last_channels = f"{linear.layer.name}.weight", convs[-1].out_shape[0]

    def parts(self, buffer: Array) -> dict[str, Array]:
        """Of a buffer the part of each parameter, in the axes that it has there."""
        found = {}
        for name, shape in self.shapes.items():
            at = self._begins[name]
            part = buffer[at : at + math.prod(shape)]
            if name == self._collapsed:
                shape = shape[::-1]
            elif len(shape) > 1:
                shape = (*shape[2:], *shape[1::-1])
            found[name] = part.reshape(tuple(shape))
        return found

    def flat(self, params: Mapping[str, np.ndarray]) -> np.ndarray:
        """Parameters by name, as the network has them, as a buffer float32 (size,).

        Raises:
            ValueError: one is missing, or has another shape; names it.
        """
        flat = np.zeros(self.size, np.float32)
        for name, part in self.parts(flat).items():
            if name not in params:
                raise ValueError(f"params lack {name}: need float32 {self.shapes[name]}")
            array = np.asarray(params[name], np.float32)
            expect(name, array, self.shapes[name])
            if name == self._collapsed:
                array = array.reshape(len(array), self._last_channels, -1)
                array = pack(array).reshape(-1, len(array))
            elif array.ndim > 1:
                array = pack(array)
            part[...] = array
        return flat

    def named(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """A copy of each parameter of such a buffer on the host, by name, as the network has it."""
        found = {}
        for name, part in self.parts(flat).items():
            if name == self._collapsed:
                part = part.reshape(-1, self._last_channels, part.shape[-1])
            found[name] = (unpack(part) if part.ndim > 1 else part.copy()).reshape(self.shapes[name])
        return found
