"""Training steps of a character-level network on Hopper's tensor cores, in mixed precision.

Features and their gradients are bf16 and channels last, sums float32. Weights are float32 in one buffer, the masters,
as products read them; AdamW leaves a copy of 16 bits beside each. Buffers are made once for the largest number of
rows: a step with fewer has rows of blanks that count nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numba import cuda

from charcnn import layers
from charcnn.aliases import Array, DType, Stream
from charcnn.gpu import device, graph
from charcnn.gpu.arrays import expect
from charcnn.layers import Node, Shape
from charcnn.model import gradients
from charcnn.ops import maxpool1d_training as pools
from charcnn.ops.adamw import AdamW, ParameterGroup
from charcnn.ops.common import columns
from charcnn.ops.common.arrays import pack, unpack
from charcnn.ops.common.precision import HALF_PRECISIONS
from charcnn.ops.conv1d.wgmma.products import BY_FEATURES, BY_WEIGHTS, FORWARD, Kind
from charcnn.ops.conv1d.wgmma.products_layer import Product
from charcnn.ops.layernorm import training as norms
from charcnn.ops.layernorm import training_backward as norms_backward
from charcnn.ops.linear.head import head
from charcnn.ops.token_conv1d.training import TokenForward
from charcnn.ops.token_conv1d.training_backward import TokenBackward
from charcnn.runtime.training import FLOAT, KINDS, trained

HALF = HALF_PRECISIONS["bf16"]

ALIGNED = 64
"""Values that a parameter's place in a buffer is a multiple of, so that each begins at 128 bytes of its copy."""


class Block(NamedTuple):
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
    def taps(self) -> int:
        """Of a convolution."""
        return self.node.layer.kernel_size if isinstance(self.node.layer, layers.Conv1d) else 1


class Stage(NamedTuple):
    """A block's features in a step: (N, S, C), or of linear layers (N, 1, C)."""

    block: Block
    x: Array
    y: Array
    pooled: Array | None
    """What pooling gave, where there is one, and what it leaves for the way back."""
    place: Array | None
    normalised: Array | None
    moments: Array | None

    @property
    def result(self) -> Array:
        """What the next block reads."""
        return self.y if self.pooled is None else self.pooled


class Sizes(NamedTuple):
    """Of a block's results in a step, of an input."""

    stride: int
    """Rows, as many as what the first convolution of its group reads."""
    channels: int
    windows: int
    """Of pooling, or 0."""


def blocks_of(nodes: Sequence[Node]) -> list[Block]:
    """A network of token ids as blocks.

    Raises:
        ValueError: it is not made of a convolution of one-hot columns that ends in pooling, of convolutions with ReLU,
            whose LayerNorm and pooling of 3 come together, and of linear layers with ReLU but for the last; names the
            layer.
    """
    rest, found = [node for node in gradients.logits_of(nodes) if not isinstance(node.layer, layers.Flatten)], []
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
        if at < len(rest) and isinstance(rest[at].layer, layers.MaxPool1d):
            pooled, at = True, at + 1
            if rest[at - 1].layer.size != pools.WINDOW:
                raise ValueError(f"{rest[at - 1].layer.label}: need windows of {pools.WINDOW}")
        if rectified == (at == len(rest)) or (norm is not None and not pooled) or (pooled and not rectified):
            raise ValueError(f"{node.layer.label}: need ReLU behind it, and pooling behind LayerNorm; nothing last")
        found.append(Block(node, norm, pooled, rectified))
    if not found or not found[0].pooled or isinstance(found[-1].node.layer, layers.Conv1d):
        raise ValueError("nodes: need a first convolution with pooling, and a linear layer last")
    return found


def sizes_of(blocks: Sequence[Block]) -> list[Sizes]:
    """Of all blocks but the last, whose results are logits."""
    found, stride = list[Sizes](), 0
    for block in blocks[:-1]:
        conv, shape = isinstance(block.node.layer, layers.Conv1d), block.node.out_shape
        stride = (stride or block.node.in_shape[1]) if conv else 1
        found.append(Sizes(stride, shape[0], shape[1] // pools.WINDOW if block.pooled else 0))
        stride = 0 if block.pooled or not conv else stride
    return found


def counted(nodes: Sequence[Node], rows: int) -> dict[str, int]:
    """Bytes by kind that a step of so many rows needs, from the layers alone.

    A weight has 2 bytes of its copy, 4 of its gradient, 4 of its master, 8 of two moments. Features are what each block
    writes, 2 bytes a value, and two gradients of the largest. A value that pooling picks leaves a byte that says where,
    and behind LayerNorm 2 bytes of what it was.
    """
    weights, blocks = sum(map(math.prod, trained(nodes).values())), blocks_of(nodes)
    features, gradient = 0, _largest(blocks)
    for block, of in zip(blocks, sizes_of(blocks), strict=False):
        picked = 2 + 1 + 2 * (block.norm is not None)
        features += of.channels * (picked * of.windows + 2 * of.stride * (block is not blocks[0]))
    held = 2 * weights, FLOAT * weights, FLOAT * weights, 2 * FLOAT * weights, rows * (features + 2 * 2 * gradient), 0
    return dict(zip(KINDS, held, strict=True))


def _largest(blocks: Sequence[Block]) -> int:
    """Values of an input's largest gradient."""
    return max(of.channels * max(of.windows, of.stride * (at > 0)) for at, of in enumerate(sizes_of(blocks)))


class MixedTraining:
    """A network, the buffers of its steps, and its optimiser, as `training.Training` has them.

    Args:
        nodes: of a network of token ids, as `blocks_of` takes it.
        params: the weights to begin with, NumPy; they stay as they are.
        rows: inputs of a step, at most.
        group: what AdamW is told; its size is filled in.
        clip: the largest norm of a step's gradient; 0 for no limit.
        recorded: whether a step is recorded as a CUDA graph the first time, and started as one from then on.
        stream: of the steps; a stream of their own where None.

    Raises:
        ValueError: a layer does not fit; names it.
        DeviceError: the GPU has no such tensor cores.
    """

    def __init__(
        self, nodes: Sequence[Node], params: Mapping[str, np.ndarray], rows: int, *,
        group: ParameterGroup = ParameterGroup(0), clip: float = 1.0, recorded: bool = False, stream: Stream = None,  # noqa: B008 - frozen
    ) -> None:  # fmt: skip
        device.require_hopper("wgmma")
        self._nodes, self._blocks, self._rows = nodes, blocks_of(nodes), rows
        self._stream = cuda.stream() if stream is None else device.as_stream(stream)
        self._recorded = recorded and not device.SIMULATED
        self._shapes, self._begins, size = trained(nodes), dict[str, int](), 0
        for name, shape in self._shapes.items():
            self._begins[name] = size
            size += -(-math.prod(shape) // ALIGNED) * ALIGNED
        linear = next(block.node for block in self._blocks if isinstance(block.node.layer, layers.Linear))
        convs = [block.node for block in self._blocks if isinstance(block.node.layer, layers.Conv1d)]
        self._collapsed, self._last_channels = f"{linear.layer.name}.weight", convs[-1].out_shape[0]
        flat = np.zeros(size, np.float32)
        for name, part in self._parts(flat).items():
            part[...] = self._laid(name, np.asarray(params[name], np.float32))
        self.weights, self.gradients = device.to_device(flat), device.to_device(np.zeros_like(flat))
        self._copies = device.empty((size,), HALF.dtype)
        sized = ParameterGroup(size, group.lr, group.betas, group.eps, group.weight_decay)
        self.optimiser = AdamW(self.weights, [sized], clip=clip, shadow=self._copies, stream=self._stream)
        self._masters, self._slopes, self._halves = map(self._parts, (self.weights, self.gradients, self._copies))
        self._features, self._workspace = list[Array](), list[Array]()
        self._ids = device.empty((rows, math.prod(nodes[0].in_shape)), np.uint8)
        self._targets = device.empty((rows, math.prod(self._blocks[-1].node.out_shape)), np.float32)
        self._share, self._losses = (device.empty((rows,), np.float32) for _ in range(2))
        self._given, self._set, self._rate = (0, 0), 1.0, device.to_device(np.ones(1))
        self._sums, self._products = list[tuple[Array, Array]](), list[Product]()
        self._starts = self._planned()
        self._graph: graph.Graph | None = None

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that are held, by KINDS."""
        moments, products = [self.optimiser.first, self.optimiser.second], self._products
        held = [self._copies], [self.gradients], [self.weights], moments, self._features, [*self._workspace, *products]
        return {kind: sum(int(one.nbytes) for one in arrays) for kind, arrays in zip(KINDS, held, strict=True)}

    @property
    def counted(self) -> dict[str, int]:
        """Bytes that the layers say it needs, by KINDS."""
        return counted(self._nodes, self._rows)

    @property
    def params(self) -> dict[str, np.ndarray]:
        """A copy of the weights that are trained, by name."""
        return self._named(self.weights)

    def loss_and_gradients(self, x: np.ndarray, targets: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
        """The mean loss of some inputs and copies of its gradients, by name; see `gradients.loss_and_gradients`."""
        self._fill(x, targets)
        self._backward(self._stream)
        losses = self.fetched(self._losses)[: len(x)]
        return float(losses.mean(dtype=np.float64)), self._named(self.gradients)

    def step(self, x: Array, targets: Array, rate: float = 1.0) -> Array:
        """Move the weights by the mean loss of some inputs.

        Args:
            x: uint8 (N, length): at most as many inputs as there are rows; NumPy, or on the GPU, then as many.
            targets: float32 (N, classes): what each class is to have; likewise.
            rate: factor of the learning rate.

        Returns:
            The losses (N,), before the step, on the GPU; `fetched` waits for them. The next step writes them anew.
        """
        self._fill(x, targets)
        if rate != self._set:
            self._rate.copy_to_device(np.array([rate]), stream=self._stream)
            self._set = rate
        if self._graph is not None:
            self._graph.launch()
        elif self._recorded:
            self._graph = graph.Graph(self._whole, self._stream)  # which makes this step, and then records the next one
        else:
            self._whole(self._stream)
        return self._losses[: len(x)]

    def fetched(self, array: Array) -> np.ndarray:
        """A copy on the host, when all steps before are done."""
        return device.to_host(array, self._stream)

    def _whole(self, stream: Stream) -> None:
        self._backward(stream)
        self.optimiser.step(self.gradients, self._rate, stream=stream)

    def _backward(self, stream: Stream) -> None:
        """Losses, and gradients in their buffer, of what `_fill` was given."""
        for start in self._starts:
            start(stream=stream)

    def _fill(self, x: Array, targets: Array) -> None:
        n, missing = len(x), self._rows - len(x)
        if not 0 < n <= self._rows:
            raise ValueError(f"x has {n} inputs: need 1 to {self._rows}, the rows of a step")
        for to, given, blank in ((self._ids, x, 255), (self._targets, targets, 0)):
            if device.on_device(given):
                expect("x" if to is self._ids else "targets", given, tuple(to.shape))
                graph.copy(to, given, self._stream)
            else:
                whole = np.pad(np.asarray(given, to.dtype), ((0, missing), (0, 0)), constant_values=blank)
                to.copy_to_device(whole, stream=self._stream)
        if (given := (n, self._total(n))) != self._given:
            share = np.where(np.arange(self._rows) < n, np.float32(1 / given[1]), np.float32(0))
            self._share.copy_to_device(share, stream=self._stream)
            self._given = given

    def _total(self, n: int) -> int:
        """Of how many losses a step's is the mean, where these inputs are given."""
        return n

    # What a step starts, in order: all arrays are made, and tensor maps encoded, before the first step.

    def _planned(self) -> list[Callable[..., object]]:
        first, *inner, last = self._blocks
        of_first, *sizes = sizes_of(self._blocks)
        starts: list[Callable[..., object]] = []
        stages = [self._token_stage(first, of_first, starts)]
        for block, of in zip(inner, sizes, strict=True):
            stages.append(self._stage(block, of, stages[-1].result, starts))
        self._turns = [self._feature((self._rows * _largest(self._blocks),)) for _ in range(2)]
        dy = self._head(last, stages[-1].result, starts)
        for at in reversed(range(1, len(stages))):
            dy = self._back(stages[at], dy, stages[at - 1].block.pooled, starts)
        self._token_back(stages[0], dy, starts)
        return [*starts, columns.Sums(self._sums).start]

    def _token_stage(self, block: Block, of: Sizes, starts: list[Callable[..., object]]) -> Stage:
        stage = Stage(block, self._ids, None, *self._picked(block, of))
        weight, bias, affine = self._own(block)
        shapes = tuple(weight.shape), tuple(self._ids.shape)
        self._tokens = TokenForward(*shapes, layernorm=bool(affine), eps=_eps(block))
        more = [affine or None, stage.pooled, stage.place, stage.normalised, stage.moments]
        starts.append(partial(self._tokens.forward, self._ids, weight, bias, *more))
        return stage

    def _stage(self, block: Block, of: Sizes, x: Array, starts: list[Callable[..., object]]) -> Stage:
        n = self._rows
        if isinstance(block.node.layer, layers.Linear):
            x = x.reshape((n, 1, x.size // n))
        stage = Stage(block, x, self._feature((n, of.stride, of.channels)), *self._picked(block, of))
        _, bias, affine = self._own(block)
        rectified = block.norm is None
        starts.append(self._product(FORWARD, x, self._half(block), stage.y, block.taps, bias=bias, rectified=rectified))
        if affine:
            written = stage.pooled, stage.place, stage.normalised, stage.moments
            starts.append(partial(norms.norm_pool_forward, stage.y, *affine, *written, _eps(block)))
        elif block.pooled:
            length = block.node.out_shape[1]
            starts.append(partial(pools.pool_forward, stage.y, length, stage.pooled, stage.place))
        return stage

    def _head(self, block: Block, h: Array, starts: list[Callable[..., object]]) -> Array:
        n, (units, classes) = self._rows, self._masters[f"{block.name}.weight"].shape
        h, parts = h.reshape((n, units)), columns.parts_of(n, units)
        weight, bias, _ = self._own(block)
        dh, dlogits = self._turn((n, units)), self._work((n, classes))
        dweight, dbias = self._work((parts, units, classes)), self._work((parts, classes))
        written = self._losses, dh, dlogits, dweight, dbias
        starts.append(partial(head, h, weight, bias, self._targets, self._share, *written))
        self._sums += [(dweight, self._slope(block, "weight")), (dbias, self._slope(block, "bias"))]
        return dh

    def _back(self, stage: Stage, dy: Array, after_pool: bool, starts: list[Callable[..., object]]) -> Array:
        """From the gradient of a block's result to that of what it read."""
        block, x = stage.block, stage.x
        dy = dy.reshape(stage.result.shape)
        if block.norm is not None:
            sums = self._norm_columns(stage, dy, starts)
            dx = self._turn(stage.y.shape)
            part = self._work((norms_backward.backward_parts(*stage.y.shape), stage.y.shape[2]))
            read = dy, stage.place, stage.y, stage.moments, sums, self._masters[f"{block.norm.layer.name}.weight"]
            starts.append(partial(norms_backward.norm_pool_backward, *read, dx, part))
            dy = dx
        elif block.pooled:
            n, rows, channels = stage.y.shape
            parts = columns.parts_of(n * rows // pools.WINDOW, channels)
            dx, part = self._turn(stage.y.shape), self._work((parts, channels))
            starts.append(partial(pools.pool_backward, dy, stage.place, dx, part))
            dy = dx
        else:
            n, rows, channels = dy.shape
            part = self._work((columns.parts_of(n * rows, channels), channels))
            starts.append(partial(columns.column_sums, dy, part))
        self._sums.append((part, self._slope(block, "bias")))
        starts.append(self._product(BY_WEIGHTS, x, dy, self._slope(block, "weight"), block.taps))
        before, mask = self._turn(x.shape), None if after_pool else _flat(x)
        starts.append(self._product(BY_FEATURES, dy, self._half(block), before, block.taps, mask=mask))
        return before

    def _token_back(self, stage: Stage, dy: Array, starts: list[Callable[..., object]]) -> None:
        block, dy = stage.block, dy.reshape(stage.pooled.shape)
        _, bias, affine = self._own(block)
        more = (affine[0], stage.moments, self._norm_columns(stage, dy, starts)) if affine else ()
        backward = TokenBackward(self._tokens).backward
        written = self._slope(block, "weight"), self._slope(block, "bias")
        starts.append(partial(backward, dy, stage.place, *written, bias, *more))

    def _norm_columns(self, stage: Stage, dy: Array, starts: list[Callable[..., object]]) -> Array:
        """Gradients of gamma and beta, and of each input two sums, which it gives."""
        norm = stage.block.norm
        gamma = self._masters[f"{norm.layer.name}.weight"]
        parts, input_parts = map(self._work, norms_backward.columns_shapes(self._rows, *gamma.shape))
        sums = self._work((self._rows, 2))
        read = dy, stage.place, stage.normalised, gamma
        starts.append(partial(norms_backward.norm_columns, *read, input_parts, parts, sums))
        for part, name in zip((parts[0], parts[1]), ("weight", "bias"), strict=True):
            self._sums.append((part, self._slopes[f"{norm.layer.name}.{name}"]))
        return sums

    def _product(
        self, kind: Kind, a: Array, b: Array, out: Array, taps: int, *, bias: Array = None, rectified: bool = False,
        mask: Array = None,
    ) -> Callable[..., object]:  # fmt: skip
        b, out = _flat(b), out if kind.by_tap else _flat(out)
        product = Product(kind, _flat(a), b, out, HALF, taps=taps, bias=bias, rectified=rectified, mask=mask)
        self._products.append(product)
        if product.partial is not None:
            self._sums.append(product.partial)
        return product.start

    # Arrays.

    def _picked(self, block: Block, of: Sizes) -> tuple[Array | None, ...]:
        """What pooling writes: results, places, and behind LayerNorm what was normalised, and moments."""
        if not block.pooled:
            return None, None, None, None
        shape, normed = (self._rows, of.windows, of.channels), block.norm is not None
        normalised = self._feature(shape) if normed else None
        moments = self._work((self._rows, 2)) if normed else None
        return self._feature(shape), self._feature(shape, np.uint8), normalised, moments

    def _own(self, block: Block) -> tuple[Array, Array, tuple[Array, Array] | tuple[()]]:
        """Weight, bias, and gamma and beta where there are such: float32."""
        held, norm = self._masters, block.norm
        affine = () if norm is None else tuple(held[f"{norm.layer.name}.{part}"] for part in ("weight", "bias"))
        return held[f"{block.name}.weight"], held[f"{block.name}.bias"], affine

    def _half(self, block: Block) -> Array:
        return self._halves[f"{block.name}.weight"]

    def _slope(self, block: Block, part: str) -> Array:
        return self._slopes[f"{block.name}.{part}"]

    def _turn(self, shape: Shape) -> Array:
        """A place for gradients of features: that which was not taken last."""
        self._turns.reverse()
        return self._turns[0][: math.prod(shape)].reshape(tuple(shape))

    def _feature(self, shape: Shape, dtype: DType = HALF.dtype) -> Array:
        self._features.append(device.empty(shape, dtype))
        return self._features[-1]

    def _work(self, shape: Shape) -> Array:
        self._workspace.append(device.empty(shape, np.float32))
        return self._workspace[-1]

    def _laid(self, name: str, array: np.ndarray) -> np.ndarray:
        """A parameter as products read it: channels last."""
        if name == self._collapsed:
            array = array.reshape(len(array), self._last_channels, -1)
            return pack(array).reshape(-1, len(array))
        return pack(array) if array.ndim > 1 else array

    def _named(self, buffer: Array) -> dict[str, np.ndarray]:
        """A copy of what a buffer holds of each parameter, as the network has it."""
        found = {}
        for name, part in self._parts(self.fetched(buffer)).items():
            if name == self._collapsed:
                part = part.reshape(-1, self._last_channels, part.shape[-1])
            found[name] = (unpack(part) if part.ndim > 1 else part.copy()).reshape(self._shapes[name])
        return found

    def _parts(self, buffer: Array) -> dict[str, Array]:
        """Of a buffer the part of each parameter, in the axes that it has there."""
        found = {}
        for name, shape in self._shapes.items():
            at = self._begins[name]
            part = buffer[at : at + math.prod(shape)]
            if name == self._collapsed:
                shape = shape[::-1]
            elif len(shape) > 1:
                shape = (*shape[2:], *shape[1::-1])
            found[name] = part.reshape(tuple(shape))
        return found


def _flat(array: Array) -> Array:
    """(rows, channels)"""
    shape = tuple(array.shape)
    return array.reshape((math.prod(shape[:-1]), shape[-1]))


def _eps(block: Block) -> float:
    return layers.LayerNorm.eps if block.norm is None else float(block.norm.layer.eps)
