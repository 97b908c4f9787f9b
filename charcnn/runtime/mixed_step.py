"""The kernels of a training step in mixed precision, in order, and the arrays that they read and write.

All arrays are made, and tensor maps encoded, before the first step. What changes from step to step lies on the GPU,
so that a step may be recorded as a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from charcnn import layers
from charcnn.aliases import Argument, Array, DType
from charcnn.gpu import device
from charcnn.layers import Node, Shape
from charcnn.ops import maxpool1d_training as pools
from charcnn.ops.common import columns
from charcnn.ops.common.precision import HALF_PRECISIONS
from charcnn.ops.conv1d.products import BY_FEATURES, BY_WEIGHTS, FORWARD, Kind, TrainingProduct
from charcnn.ops.layernorm import training as norms
from charcnn.ops.layernorm import training_backward as norms_backward
from charcnn.ops.linear.dropout import dropout as dropout_
from charcnn.ops.linear.head import head
from charcnn.ops.token_conv1d.training import TokenForward
from charcnn.ops.token_conv1d.training_backward import TokenBackward
from charcnn.runtime.mixed_plan import ResultSizes, TrainedBlock, blocks_of, largest, sizes_of

HALVES = {name: replace(of, dtype=np.uint16) for name, of in HALF_PRECISIONS.items()}
"""Numbers of 16 bits by precision, as words in either case."""

Start = Callable[..., object]
"""Starts a kernel of a step, on the stream that it is given."""


class Held(NamedTuple):
    """The parameters of a step by name, each in the axes that `FlatParams.parts` gives it."""

    masters: Mapping[str, Array]
    """Float32 weights, at least those that no product reads."""
    slopes: Mapping[str, Array]
    """Their gradients."""
    halves: Mapping[str, Array]
    """Those that products read, in 16 bits."""


class Around:
    """What a step starts besides its own kernels: nothing, where one GPU holds all weights and gradients."""

    def before(self, name: str) -> Sequence[Start]:
        """Before a product that reads these weights."""
        return ()

    def taken(self, name: str) -> Sequence[str]:
        """The weights whose gradients `after` takes, behind that of these weights."""
        return ()

    def after(self, name: str) -> Sequence[Start]:
        """Behind the gradient of these weights."""
        return ()


class BlockFeatures(NamedTuple):
    """A block's features in a step: (N, S, C), or of linear layers (N, 1, C)."""

    block: TrainedBlock
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

    @property
    def valid(self) -> int:
        """Rows of an input's result that mean something."""
        shape = self.block.node.out_shape
        return 1 if len(shape) == 1 else shape[1] // (pools.WINDOW if self.block.pooled else 1)


class MixedStep:
    """What a step starts, forward and back, up to the gradients.

    Attributes:
        ids, targets, counts, share: what a step reads: inputs uint8 (rows, length), float32 (rows, classes), the factor
            of each loss (rows,), and (1,), what a loss counts in their mean.
        factors: float32 (3, 2), likewise: see `factors_of`.
        losses, logits: float32 (rows,) and (rows, classes), which it writes.
        stages: of all blocks but the last.
        starts: its kernels.
        forwards: of these, those that go forward, less dropout.
        features, workspace: what memory it has.

    Args:
        nodes: as `blocks_of` takes them.
        rows: inputs of a step.
        held: the parameters.
        made: int64 (1,), how many steps were made, from which dropout's masks follow.
        scaling: float32 (3,), of which the first is by what gradients are too large.
        product: how products are computed.
        dropout, seed, multi_label, precision: as of `mixed_training.MixedTraining`.
        around: what else is started.
    """

    def __init__(
        self, nodes: Sequence[Node], rows: int, held: Held, made: Array, scaling: Array,
        product: type[TrainingProduct], *, dropout: float, seed: int, multi_label: bool, precision: str, around: Around,
    ) -> None:  # fmt: skip
        self._around, self._half_of, self._scaling = around, HALVES[precision], scaling
        self._ptx_type = self._half_of.ptx_type
        self._rows, self._blocks, self._made, self._product_of = rows, blocks_of(nodes), made, product
        self._masters, self._slopes, self._halves = held
        self._dropout, self._seed, self._multi_label = dropout, seed, multi_label
        classes = math.prod(self._blocks[-1].node.out_shape)
        self.ids = device.empty((rows, math.prod(nodes[0].in_shape)), np.uint8)
        self.targets, self.logits = (device.empty((rows, classes), np.float32) for _ in range(2))
        self.counts, self.losses = (device.empty((rows,), np.float32) for _ in range(2))
        self.share, self.factors = device.empty((1,), np.float32), device.to_device(self.factors_of(0.0))
        self.features, self.workspace = list[Array](), list[Array | TrainingProduct]()
        self._sums, self._dropped = list[tuple[Array, Array]](), list[Start]()
        self._in_parts = set[str]()
        self.stages, self.starts, self.forwards = list[BlockFeatures](), list[Start](), list[Start]()
        self._plan()

    def factors_of(self, leak: float) -> np.ndarray:
        """Pairs of factors above 0 and below: of leaky ReLU, with dropout behind it, and of dropout alone."""
        kept = 1 / (1 - self._dropout)
        return np.array([[1, leak], [kept, kept * leak], [kept, kept]], np.float32)

    def _plan(self) -> None:
        first, *inner, last = self._blocks
        of_first, *sizes = sizes_of(self._blocks)
        self._token_stage(first, of_first)
        for block, of in zip(inner, sizes, strict=True):
            self._drop(block)
            self._stage(block, of)
        self._drop(last)
        self._turns = [self._feature((self._rows * largest(self._blocks),)) for _ in range(2)]
        dy = self._head(last)
        self.forwards = [start for start in self.starts if start not in self._dropped]
        for at in reversed(range(1, len(self.stages))):
            dy = self._back(self.stages[at], dy, self.stages[at - 1].block.pooled)
        self._token_back(self.stages[0], dy)
        self._add_up()

    def _add_up(self) -> None:
        """Parts of gradients that are there by now."""
        self.starts.append(columns.Sums(self._sums).start)
        self._sums, self._in_parts = [], set()

    def _drop(self, block: TrainedBlock) -> None:
        """Dropout of what a linear layer reads, in place."""
        if self._dropout and isinstance(block.node.layer, layers.Linear):
            x, layer = self.stages[-1].result, self._blocks.index(block)
            given = x, self._made, self._dropout
            more = partial(dropout_, *given, seed=self._seed, layer=layer, ptx_type=self._ptx_type)
            self._dropped.append(more)
            self.starts.append(self._dropped[-1])

    def _token_stage(self, block: TrainedBlock, of: ResultSizes) -> None:
        stage = BlockFeatures(block, self.ids, None, *self._picked(block, of))
        weight, bias, affine = self._own(block)
        shapes = tuple(weight.shape), tuple(self.ids.shape)
        self._tokens = TokenForward(*shapes, layernorm=bool(affine), eps=block.eps, ptx_type=self._ptx_type)
        more = [affine or None, self.factors[0], stage.pooled, stage.place, stage.normalised, stage.moments]
        self.starts.append(partial(self._tokens.forward, self.ids, weight, bias, *more))
        self.stages.append(stage)

    def _stage(self, block: TrainedBlock, of: ResultSizes) -> None:
        n, x = self._rows, self.stages[-1].result
        if isinstance(block.node.layer, layers.Linear):
            x = x.reshape((n, 1, x.size // n))
        stage = BlockFeatures(block, x, self._feature((n, of.stride, of.channels)), *self._picked(block, of))
        _, bias, affine = self._own(block)
        more = {"bias": bias, "rectified": block.norm is None, "factors": self.factors[0]}
        self.starts += self._around.before(f"{block.name}.weight")
        self.starts.append(self._product(FORWARD, x, self._half(block), stage.y, block.taps, **more).start)
        if affine:
            written = stage.pooled, stage.place, stage.normalised, stage.moments
            gamma, beta = affine
            given = stage.y, gamma, beta, self.factors[0]
            self.starts.append(partial(norms.norm_pool_forward, *given, *written, block.eps, ptx_type=self._ptx_type))
        elif block.pooled:
            length = block.node.out_shape[1]
            given = stage.y, length, stage.pooled, stage.place
            self.starts.append(partial(pools.pool_forward, *given, ptx_type=self._ptx_type))
        self.stages.append(stage)

    def _head(self, block: TrainedBlock) -> Array:
        before = self.stages[-1]
        n, (units, classes) = self._rows, self._masters[f"{block.name}.weight"].shape
        h, parts = before.result.reshape((n, units)), columns.parts_of(n, units)
        weight, bias, _ = self._own(block)
        dh, dlogits = self._turn((n, units)), self._work((n, classes))
        dweight, dbias = self._work((parts, units, classes)), self._work((parts, classes))
        factors = self.factors[2 if before.block.pooled else 1]
        given = weight, bias, self.targets, self.counts, self.share, self._scaling, factors
        written = self.losses, self.logits, dh, dlogits, dweight, dbias
        self.starts.append(partial(head, h, *given, *written, multi_label=self._multi_label, ptx_type=self._ptx_type))
        self._sums += [(dweight, self._slope(block, "weight")), (dbias, self._slope(block, "bias"))]
        return dh

    def _back(self, stage: BlockFeatures, dy: Array, after_pool: bool) -> Array:
        """From the gradient of a block's result to that of what it read."""
        block, x = stage.block, stage.x
        dy = dy.reshape(stage.result.shape)
        if block.norm is not None:
            sums = self._norm_columns(stage, block.norm, dy)
            dx = self._turn(stage.y.shape)
            part = self._work((norms_backward.backward_parts(*stage.y.shape), stage.y.shape[2]))
            gamma = self._masters[f"{block.norm.layer.name}.weight"]
            read = dy, stage.place, self.factors[0], stage.y, stage.moments, sums, gamma
            self.starts.append(partial(norms_backward.norm_pool_backward, *read, dx, part, ptx_type=self._ptx_type))
            dy = dx
        elif block.pooled:
            n, rows, channels = stage.y.shape
            parts = columns.parts_of(n * rows // pools.WINDOW, channels)
            dx, part = self._turn(stage.y.shape), self._work((parts, channels))
            given = dy, stage.place, self.factors[0], dx, part
            self.starts.append(partial(pools.pool_backward, *given, ptx_type=self._ptx_type))
            dy = dx
        else:
            n, rows, channels = dy.shape
            part = self._work((columns.parts_of(n * rows, channels), channels))
            self.starts.append(partial(columns.column_sums, dy, part, ptx_type=self._ptx_type))
        self._sums.append((part, self._slope(block, "bias")))
        product = self._product(BY_WEIGHTS, x, dy, self._slope(block, "weight"), block.taps)
        self.starts.append(product.start)
        name = f"{block.name}.weight"
        if product.partial is not None:
            self._in_parts.add(name)
        if self._in_parts.intersection(self._around.taken(name)):
            self._add_up()
        self.starts += [*self._around.after(name), *self._around.before(name)]
        before, dropped = self._turn(x.shape), self._dropout and isinstance(block.node.layer, layers.Linear)
        more = {} if after_pool and not dropped else {"mask": _flat(x)}
        more["factors"] = self.factors[2 if after_pool else 1 if dropped else 0]
        self.starts.append(self._product(BY_FEATURES, dy, self._half(block), before, block.taps, **more).start)
        return before

    def _token_back(self, stage: BlockFeatures, dy: Array) -> None:
        block, dy = stage.block, dy.reshape(stage.result.shape)
        _, bias, affine = self._own(block)
        more = () if block.norm is None else (affine[0], stage.moments, self._norm_columns(stage, block.norm, dy))
        backward = TokenBackward(self._tokens).backward
        written = self._slope(block, "weight"), self._slope(block, "bias")
        self.starts.append(partial(backward, dy, stage.place, *written, bias, self.factors[0], *more))

    def _norm_columns(self, stage: BlockFeatures, norm: Node, dy: Array) -> Array:
        """Gradients of gamma and beta, and of each input two sums, which it gives."""
        gamma = self._masters[f"{norm.layer.name}.weight"]
        parts, input_parts = map(self._work, norms_backward.columns_shapes(self._rows, *gamma.shape))
        sums = self._work((self._rows, 2))
        read = dy, stage.place, self.factors[0], stage.normalised, gamma
        self.starts.append(
            partial(norms_backward.norm_columns, *read, input_parts, parts, sums, ptx_type=self._ptx_type)
        )
        for part, name in zip((parts[0], parts[1]), ("weight", "bias"), strict=True):
            self._sums.append((part, self._slopes[f"{norm.layer.name}.{name}"]))
        return sums

    def _product(self, kind: Kind, a: Array, b: Array, out: Array, taps: int, **more: Argument) -> TrainingProduct:
        b, out = _flat(b), out if kind.by_tap else _flat(out)
        product = self._product_of(kind, _flat(a), b, out, self._half_of, taps=taps, **more)
        self.workspace.append(product)
        if product.partial is not None:
            self._sums.append(product.partial)
        return product

    # Arrays.

    def _picked(self, block: TrainedBlock, of: ResultSizes) -> tuple[Array | None, ...]:
        """What pooling writes: results, places, and behind LayerNorm what was normalised, and moments."""
        if not block.pooled:
            return None, None, None, None
        shape, normed = (self._rows, of.windows, of.channels), block.norm is not None
        normalised = self._feature(shape) if normed else None
        moments = self._work((self._rows, 2)) if normed else None
        return self._feature(shape), self._feature(shape, np.uint8), normalised, moments

    def _own(self, block: TrainedBlock) -> tuple[Array, Array, tuple[Array, ...]]:
        """Weight, where no product reads it, bias, and gamma and beta where there are such: float32."""
        held, norm = self._masters, block.norm
        affine = () if norm is None else tuple(held[f"{norm.layer.name}.{part}"] for part in ("weight", "bias"))
        return held.get(f"{block.name}.weight"), held[f"{block.name}.bias"], affine

    def _half(self, block: TrainedBlock) -> Array:
        return self._halves[f"{block.name}.weight"]

    def _slope(self, block: TrainedBlock, part: str) -> Array:
        return self._slopes[f"{block.name}.{part}"]

    def _turn(self, shape: Shape) -> Array:
        """A place for gradients of features: that which was not taken last."""
        self._turns.reverse()
        return self._turns[0][: math.prod(shape)].reshape(tuple(shape))

    def _feature(self, shape: Shape, dtype: DType = np.uint16) -> Array:
        self.features.append(device.empty(shape, dtype))
        return self.features[-1]

    def _work(self, shape: Shape) -> Array:
        array = device.empty(shape, np.float32)
        self.workspace.append(array)
        return array


def _flat(array: Array) -> Array:
    """(rows, channels)"""
    shape = tuple(array.shape)
    return array.reshape((math.prod(shape[:-1]), shape[-1]))
