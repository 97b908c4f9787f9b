"""Plans of training in mixed precision: a network as blocks, and where its parameters lie in one buffer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from charcnn import layers
from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.gpu.arrays import expect
from charcnn.layers import Node
from charcnn.model import gradients
from charcnn.ops import maxpool1d_training as pools
from charcnn.ops.common.arrays import pack, unpack
from charcnn.runtime.sharding import BUCKET, FEW, Bucket, Sharding
from charcnn.runtime.training import FLOAT, KINDS, trained

ALIGNED = 64
"""Values that a parameter's place in a buffer is a multiple of, so that each begins at 128 bytes of its copy."""


PRODUCTS = 4
"""Times as large as BUCKET is one of products' weights, about: sums of parts before each take a launch."""


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


def counted(nodes: Sequence[Node], rows: int, ranks: int = 1, stage: int = 0) -> dict[str, int]:
    """Bytes by kind that a step of so many rows needs on each of the ranks, at a stage of ZeRO, from the layers alone.

    A weight has 2 bytes of its copy, 4 of its gradient, 4 of its master, 8 of two moments. From stage 1 on those that
    no product reads have 4 bytes of their copy, which all ranks hold. Features are what each block writes, 2 bytes a
    value, and two gradients of the largest. A value that pooling picks leaves a byte that says where, and behind
    LayerNorm 2 bytes of what it was. One rank shares nothing, whatever the stage.
    """
    shapes, blocks, held = trained(nodes), blocks_of(nodes), Sharding(stage).held
    weights = sum(map(math.prod, shapes.values()))
    plain = sum(math.prod(shapes[name]) for name in plain_of(nodes)) if stage and ranks > 1 else 0
    features, gradient = 0, largest(blocks)
    for block, of in zip(blocks, sizes_of(blocks), strict=False):
        picked = 2 + 1 + 2 * (block.norm is not None)
        features += of.channels * (picked * of.windows + 2 * of.stride * (block is not blocks[0]))
    whole = 2 * (weights - plain), FLOAT * weights, FLOAT * weights, 2 * FLOAT * weights
    kinds = dict(zip(KINDS, (*whole, rows * (features + 2 * 2 * gradient), 0), strict=True))
    for kind in KINDS[: len(whole)]:
        kinds[kind] = -(-kinds[kind] // held(kind, ranks))
    kinds["weights"] += FLOAT * plain
    return kinds


def plain_of(nodes: Sequence[Node]) -> list[str]:
    """Parameters that no product on tensor cores reads, so that a step takes them in float32."""
    products = {f"{block.name}.weight" for block in blocks_of(nodes)[1:-1]}
    return [name for name in trained(nodes) if name not in products]


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
        ranks: that share the buffer's buckets, of each of which a rank has an equal part.
        grouped: whether the first bucket has what `plain_of` names, and the others layers side by side; else all is one
            bucket. None: where there are several ranks.
    """

    def __init__(self, nodes: Sequence[Node], ranks: int = 1, *, grouped: bool | None = None) -> None:
        self.shapes, self.ranks, self._begins, self.size = trained(nodes), ranks, dict[str, int](), 0
        self.buckets = list[Bucket]()
        grouped = ranks > 1 if grouped is None else grouped
        for names in self._groups(nodes) if grouped else [[*self.shapes]]:
            at = self.size
            for name in names:
                self._begins[name] = at
                at += -(-math.prod(self.shapes[name]) // ALIGNED) * ALIGNED
            part = -(-(at - self.size) // (ranks * ALIGNED)) * ALIGNED
            self.buckets.append(Bucket(tuple(names), self.size, part, at - self.size))
            self.size += ranks * part
        linear = next(node for node in nodes if isinstance(node.layer, layers.Linear))
        convs = [node for node in nodes if isinstance(node.layer, layers.Conv1d)]
        self._collapsed, self._last_channels = f"{linear.layer.name}.weight", convs[-1].out_shape[0]

    def _groups(self, nodes: Sequence[Node]) -> list[list[str]]:
        plain, groups = plain_of(nodes), list[list[str]]()
        sizes = {name: FLOAT * math.prod(shape) for name, shape in self.shapes.items()}
        enough = min(PRODUCTS * BUCKET, sum(sizes.values()) // FEW)
        for name in reversed([name for name in self.shapes if name not in plain]):  # as backward comes to them
            if not groups or sum(sizes[one] for one in groups[0]) >= enough:
                groups.insert(0, [])
            groups[0].insert(0, name)
        return [plain, *groups]

    def place(self, name: str) -> slice:
        """Where a parameter lies in the buffer."""
        at = self._begins[name]
        return slice(at, at + math.prod(self.shapes[name]))

    def whole(self, bucket: Bucket) -> slice:
        """Its place in the buffer."""
        return slice(bucket.begin, bucket.begin + self.ranks * bucket.part)

    def part(self, bucket: Bucket) -> slice:
        """Its place in a buffer of one rank's parts."""
        return slice(begin := bucket.begin // self.ranks, begin + bucket.part)

    def own(self, flat: np.ndarray, rank: int) -> np.ndarray:
        """A rank's parts of a buffer on the host, one behind another."""
        return np.concatenate([flat[self.whole(bucket)][bucket.of(rank)] for bucket in self.buckets])

    def merged(self, parts: np.ndarray) -> np.ndarray:
        """The buffer of which each rank has such parts: (ranks, n)."""
        return np.concatenate([parts[:, self.part(bucket)].ravel() for bucket in self.buckets])

    def parts(self, buffer: Array, names: Iterable[str] | None = None, begin: int = 0) -> dict[str, Array]:
        """Each parameter's part of a buffer, in the axes that it has there.

        Args:
            buffer: of all, or of those behind `begin`.
            names: of the parameters; None: all.
            begin: values of a whole buffer before this one.
        """
        found = {}
        for name in self.shapes if names is None else names:
            at, shape = self.place(name), self.shapes[name]
            part = buffer[at.start - begin : at.stop - begin]
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


class FlatWeights(Mapping[str, np.ndarray]):
    """Parameters in a buffer on the GPU. They come to the host, and get names, when one of them is looked at.

    Args:
        layout: where they lie.
        buffer: float32 (size,), on the GPU, that nobody writes any more.
        stream: on which it was written.
    """

    def __init__(self, layout: FlatParams, buffer: Array, stream: Stream) -> None:
        self.buffer, self._layout, self._stream = buffer, layout, stream

    @cached_property
    def _named(self) -> dict[str, np.ndarray]:
        return self._layout.named(device.to_host(self.buffer, self._stream))

    def __getitem__(self, name: str) -> np.ndarray:
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.shapes)

    def __len__(self) -> int:
        return len(self._layout.shapes)
