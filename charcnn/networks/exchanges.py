"""What exchanges features between GPUs that share a network: the layers of `between`, on the current GPU.

Their kernels write straight to the other ranks' memory, and are recorded in a CUDA graph with the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from charcnn import ops
from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.gpu.collectives import Group, Hosts
from charcnn.gpu.collectives.pieces import Piece, launch_pieces
from charcnn.gpu.collectives.regions import array_at
from charcnn.layers import Shape, Softmax
from charcnn.networks.between import BETWEEN, Gathered, GatheredInputs, SharedNorm, Summed
from charcnn.networks.channels import Channels
from charcnn.networks.lowering import Op, Ops
from charcnn.ops.common.epilogue_functions import inlined
from charcnn.ops.common.features import STORED
from charcnn.ops.common.layer import ArraySpec, NoScratch, PreparedLayer, Space
from charcnn.ops.common.mma_layout import OCTET
from charcnn.ops.common.precision import choose
from charcnn.ops.shared_norm import ITEMSIZE, FeaturePlaces, Reach, launch_borders
from charcnn.ops.shared_softmax import launch_softmax
from charcnn.runtime.sequence import Stage


class Exchanges:
    """Layers on the current GPU that exchange features with the group's other ranks; all make the same.

    Args:
        group: the ranks.
        batch: inputs at most.
        ops: the rank's share.
    """

    def __init__(self, group: Group, batch: int, ops: Ops) -> None:
        self.group, self.batch = group, batch
        between = [op.layer for op in ops if isinstance(op.layer, BETWEEN) and not getattr(op.layer, "local", False)]
        own = [isinstance(layer, GatheredInputs) for layer in between]
        self.alone = group.in_kernels and len(own) - sum(own) < 2  # inputs of a batch of one are not gathered
        """Whether nothing else says that all ranks have read a result before it is written again."""
        self.inputs = 0 if any(own) else None
        """The inputs of the batch whose layers start, where each rank begins with some of them."""

    def room(self, nbytes: Sequence[int]) -> list[int]:
        """By rank, the address here of so many bytes on it."""
        return self.group.share(max(*nbytes, 1))

    def pieces(
        self, x: int, x_row: int, ys: Sequence[int], y_rows: Sequence[int], pieces: Sequence[Sequence[Piece]],
        rows: int, stream: Stream,
    ) -> None:  # fmt: skip
        """Start to bring every rank the other ranks' pieces of all rows; arguments as of `launch_pieces`."""
        if isinstance(self.group, Hosts):
            self.group.pieces(x, x_row, ys, y_rows, pieces, rows, stream)
        else:
            launch_pieces(self.group, x, x_row, ys, y_rows, pieces, rows, stream)

    def begun(self, stages: list[Stage]) -> list[Stage]:
        """Stages of all layers. Where each rank has some inputs, the first stage takes these."""
        if self.inputs is None:
            return stages
        (label, layers), *rest = stages
        return [(label, [OwnInputs(self), *layers]), *rest]

    def last(self, op: Op, *, octets: bool, together: int, before: PreparedLayer | None = None) -> PreparedLayer:
        """The layer of an op whose features are channels-last.

        Args:
            op: reads what the one before it has packed.
            octets: whether two terms lie so.
            together: the multiple of channels that features have.
            before: of a `SharedNorm`, what normalises this rank's channels alone.

        Raises:
            ValueError: two terms in octets that ranks would share.
        """
        form, (_, *image) = choose(op.reads, STORED), op.in_shape
        layer, area = op.layer, math.prod(image)
        if isinstance(layer, Summed):
            softmax = any(isinstance(node.layer, Softmax) for node in op.nodes)
            return SumSoftmax(self) if softmax else SumLayer(self, op)
        if isinstance(layer, GatheredInputs):
            return GatherInputs(self, area * form.size * op.inputs.width)
        if isinstance(layer, SharedNorm):
            assert before is not None
            width = op.inputs.width
            return NormLayer(self, before, layer, FeaturePlaces(0, area, area * width, width, 1))
        assert isinstance(layer, Gathered)
        if layer.local:
            return Same()
        apart = octets and form.terms == 2  # a channel's terms lie in its octet's
        if apart and any(number % OCTET for of in layer.pieces(1) for piece in of for number in piece):
            raise ValueError(
                f"{layer.label}: ranks share octets of two terms: need a multiple of {OCTET} channels each"
            )
        channel = form.size if apart else form.itemsize
        together = 1 if op.outputs.width % together else together
        rows = [Channels.grouped(len(need), together).width * channel for need in layer.needs]
        shape = (*image, form.terms * op.outputs.width)
        each = area * (1 if apart else form.terms)
        return GatherLayer(self, layer, ArraySpec(shape, form.dtype), each, op.inputs.width * channel, rows, channel)

    def first(self, op: Op, before: PreparedLayer | None = None) -> PreparedLayer:
        """The layer of an op on float32 features, channels first; `before` as of `last`."""
        layer, (channels, *image) = op.layer, op.in_shape
        area = math.prod(image)
        if isinstance(layer, Summed):
            return SumLayer(self, op)
        if isinstance(layer, GatheredInputs):
            return GatherInputs(self, 4 * channels * area)
        if isinstance(layer, SharedNorm):
            assert before is not None
            return NormLayer(self, before, layer, FeaturePlaces(0, area, channels * area, 1, area))
        assert isinstance(layer, Gathered)
        rows = [4 * len(need) * area for need in layer.needs]
        return GatherLayer(self, layer, ArraySpec(op.out_shape), 1, 4 * channels * area, rows, 4 * area)


class Same(NoScratch):
    """What is read: the next layer takes of it what it needs."""

    nbytes = 0

    def writes(self, x: Shape) -> list[ArraySpec]:
        """Nothing of its own."""
        return [ArraySpec(x, np.uint8)]

    def __call__(self, x: Array, space: Space) -> Array:
        """x itself."""
        return x


class OwnInputs(NoScratch):
    """This rank's inputs of a batch."""

    nbytes = 0

    def __init__(self, exchanges: Exchanges) -> None:
        self._exchanges = exchanges

    def writes(self, x: Shape) -> list[ArraySpec]:
        """Nothing of its own."""
        return [ArraySpec((-(-x[0] // self._exchanges.group.ranks), *x[1:]), np.uint8)]

    def __call__(self, x: Array, space: Space) -> Array:
        """Those of x, where they are."""
        group, self._exchanges.inputs = self._exchanges.group, len(x)
        return x[GatheredInputs.own(len(x), group.rank, group.ranks)]


class GatherInputs(NoScratch):
    """The inputs of a batch that other ranks have, which they write here.

    Args:
        exchanges: of this rank.
        each: bytes of an input.
    """

    nbytes = 0

    def __init__(self, exchanges: Exchanges, each: int) -> None:
        self._exchanges, self._each = exchanges, each
        self._places = exchanges.room([exchanges.batch * each])
        self._said = device.to_device(np.zeros(4, np.float32))

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The inputs of all ranks, if each has as many as this one."""
        return [ArraySpec((x[0] * self._exchanges.group.ranks, *x[1:]), np.uint8)]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on this rank's inputs; a batch of one is on each."""
        n, group = self._exchanges.inputs, self._exchanges.group
        if n is None or n == len(x):
            return x
        if self._exchanges.alone:
            group.all_reduce(self._said, self._said, space.stream)
        pieces = GatheredInputs.pieces(n, group.ranks, self._each)
        self._exchanges.pieces(device.address(x), 0, self._places, [0] * group.ranks, pieces, 1, space.stream)
        return array_at(self._places[group.rank], (n, *x.shape[1:]), x.dtype)


class SumLayer(NoScratch):
    """An all-reduce of rows, and the pointwise function behind it."""

    nbytes = 0

    def __init__(self, exchanges: Exchanges, op: Op) -> None:
        self._group, self._dtype = exchanges.group, choose(op.reads or "fp32", STORED).dtype
        self._epilogue = inlined(op.epilogue) if op.epilogue else None

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The sums."""
        return [ArraySpec(x, self._dtype)]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on this rank's part."""
        (y,) = self.writes(x.shape)
        return self._group.all_reduce(x, space.device(*y), space.stream, epilogue=self._epilogue)


class SumSoftmax(NoScratch):
    """An all-reduce of rows of float32, and the softmax behind it."""

    nbytes = 0

    def __init__(self, exchanges: Exchanges) -> None:
        self._group = exchanges.group

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        return [ArraySpec(x)]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on this rank's part."""
        (result,) = self.writes(x.shape)
        y, (rows, *classes) = space.device(*result), x.shape
        if self._group.in_kernels:
            launch_softmax(self._group, device.address(x), device.address(y), rows, math.prod(classes), space.stream)
            return y
        flat = rows, math.prod(classes)
        total = self._group.all_reduce(x, x, space.stream).reshape(flat)
        ops.softmax_naive(total, out=y.reshape(flat), stream=space.stream)
        return y


class GatherLayer(NoScratch):
    """Channels of other ranks, which they write here.

    Args:
        exchanges: of this rank.
        layer: says who has and needs what.
        out: of an input's result.
        each: rows of an input.
        row, rows: bytes of a row of x, and by rank of one of its result.
        channel: bytes of a channel in a row.
    """

    nbytes = 0

    def __init__(
        self, exchanges: Exchanges, layer: Gathered, out: ArraySpec, each: int, row: int, rows: Sequence[int],
        channel: int,
    ) -> None:  # fmt: skip
        self._exchanges, self._group, self._out = exchanges, exchanges.group, out
        self._each, self._row, self._rows, self._pieces = each, row, rows, layer.pieces(channel)
        self._places = exchanges.room([exchanges.batch * each * one for one in rows])
        self._said = device.to_device(np.zeros(4, np.float32))

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result, which has room of its own."""
        return [ArraySpec((x[0], *self._out.shape), self._out.dtype)]

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on this rank's features."""
        ((shape, dtype),), group = self.writes(x.shape), self._group
        if self._exchanges.alone:  # all ranks have read the last result
            group.all_reduce(self._said, self._said, space.stream)
        rows = x.shape[0] * self._each
        self._exchanges.pieces(
            device.address(x), self._row, self._places, self._rows, self._pieces, rows, space.stream
        )  # fmt: skip
        return array_at(self._places[group.rank], shape, dtype)


class NormLayer(NoScratch):
    """A normalisation of this rank's channels, then of the outermost ones with other ranks' channels.

    Args:
        exchanges: of this rank.
        before: normalises this rank's channels as if there were no others.
        layer: the norm.
        at: where features lie, float32; its number is set by each batch.
    """

    def __init__(
        self, exchanges: Exchanges, before: PreparedLayer, layer: SharedNorm, at: FeaturePlaces
    ) -> None:  # fmt: skip
        self._group, self._before, self._layer, self._at = exchanges.group, before, layer, at
        self._alone, owns, self.nbytes = exchanges.alone, layer.owns, before.nbytes
        reaches = [Reach.of(own, owns[-1].stop, layer.size) for own in owns]
        size = exchanges.batch * at.area * ITEMSIZE
        self._edges = exchanges.room([(reach.before + reach.after) * size for reach in reaches])
        self._said = device.to_device(np.zeros(4, np.float32))

    def writes(self, x: Shape) -> list[ArraySpec]:
        """The result."""
        return self._before.writes(x)

    def __call__(self, x: Array, space: Space) -> Array:
        """Start on this rank's features."""
        y, group = self._before(x, space), self._group
        if self._alone:
            group.all_reduce(self._said, self._said, space.stream)
        launch_borders(
            group, self._layer, self._layer.owns, device.address(x), device.address(y), self._edges,
            self._at._replace(number=x.shape[0] * self._at.area), space.stream,
        )  # fmt: skip
        return y
