"""Rewrites of the techniques that compute channels last: what features are between two ops.

A `Technique` says what its layers read (`charcnn.networks.channels_last_layers`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from charcnn.layers import (
    AvgPool2d,
    Conv2d,
    GlobalAvgPool2d,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Pixels,
    Sigmoid,
    Softmax,
)  # fmt: skip
from charcnn.layers.windows import Window
from charcnn.networks.between import Gathered, GatheredInputs, SharedNorm, Summed
from charcnn.networks.channels import ONE, Channels
from charcnn.networks.lowering import Op, Ops
from charcnn.ops.common.pixel_tables import exact_tables
from charcnn.ops.common.precision import HALF_PRECISIONS
from charcnn.ops.conv1d.windows import COLUMNS
from charcnn.ops.pixels_to_depth import Blocks
from charcnn.ops.shared_softmax import CLASSES


@dataclass(frozen=True)
class Technique:
    """What rewrites ask of a technique, in a precision."""

    precision: str

    together = 8
    """Channels that features have a multiple of."""
    columns = COLUMNS
    """Output channels that a group has a multiple of."""
    octets = False
    """Whether two terms lie so."""
    whole_rows = False
    """Whether the two terms of a pixel make no part of a row that a linear layer reads."""

    def exact(self, window: Window, width: int, c_in: int, c_out: int) -> bool:
        """Whether a convolution takes pixels that one fp16 holds: where the precision has two terms, of one then."""
        return False

    def most(self, op: Op) -> int:
        """The most inputs of which a convolution or a linear layer has other kernels; 0: it has none."""
        return 0


def takes_epilogue(before: Op, op: Op) -> bool:
    """Whether the last pass of an op before computes the pointwise function: of a product, or a sum over ranks.

    A sum over ranks computes a softmax, too.
    """
    if isinstance(op.layer, Softmax):
        return isinstance(before.layer, Summed) and len(before.nodes) == 1 and op.in_shape[0] <= CLASSES
    last = _multiplies(before) or isinstance(before.layer, Summed)
    return last and len(before.nodes) == 1 and bool(op.layer.epilogue)


def pixels_to_blocks(ops: Ops, technique: Technique, to_depth: bool | None = None) -> Ops:
    """A first convolution that moves by more than 1 reads blocks of pixels as pixels, and moves by 1.

    Before a linear layer all pixels are one block: a row of values, channel after channel, as PyTorch has it.

    Args:
        ops: what follows Pixels is simplified.
        technique: says whether its convolution takes pixels that one fp16 holds: with two terms, of one then.
        to_depth: whether a convolution does. None: where that takes fewer products, which is no measurement.
    """
    if len(ops) < 2 or not isinstance(ops[0].layer, Pixels):
        return ops
    pixels, after, *rest = ops
    image = ops[0].layer
    if after.nodes[0].flattened is not None:
        return replace(pixels, blocks=Blocks.whole(image.height, image.width)), after, *rest
    if not isinstance(after.layer, Conv2d):
        return ops
    conv, window = after.layer, after.layer.window(after.in_shape)
    if window.stride == (1, 1) or window.dilation != (1, 1) or conv.groups > 1:
        return ops
    blocks, channels = Blocks.of(window, image.height, image.width), image.channels * math.prod(window.stride)
    if to_depth is None:
        products = math.prod(window.kernel) * Channels.grouped(image.channels, technique.together).width
        to_depth = math.prod(window.in_steps) * Channels.grouped(channels, technique.together).width < products
    if not to_depth:
        return ops
    exact = technique.exact(Window(window.in_steps), blocks.counts[1], channels, conv.channels)
    entries = image if exact and exact_tables(image.mean, image.std) is not None else None
    return replace(pixels, blocks=blocks, exact=entries), replace(after, blocks=blocks, exact=entries), *rest


def choose_precisions(ops: Ops, technique: Technique) -> Ops:
    """Features have the technique's precision from the pixels to the last product, whose results are float32."""
    reads, found = technique.precision, list[Op]()
    for place, op in enumerate(ops):
        writes = reads
        if _multiplies(op):
            wide = _ends(ops[place + 1 :], technique) or _summed_wide(ops[place + 1 :], technique)
            writes = "fp32" if wide else technique.precision
        elif op.plan is not None:
            writes = technique.precision
        found.append(replace(op, reads=reads, writes=writes))
        reads = writes
    return tuple(found)


def _summed_wide(rest: Sequence[Op], technique: Technique) -> bool:
    """Whether ranks add up what is multiplied before these, in float32."""
    return bool(rest) and isinstance(rest[0].layer, Summed) and technique.precision not in HALF_PRECISIONS


def _multiplies(op: Op) -> bool:
    return op.plan is None and isinstance(op.layer, Conv2d | Linear)


def _ends(rest: Sequence[Op], technique: Technique) -> bool:
    """Whether what is multiplied before these is stored as float32: nothing multiplies it again, or that casts it.

    A linear layer casts where two terms of a pixel are no part of a row to it.
    """
    after = next((op for op in rest if _multiplies(op)), None)
    if after is None:
        return True
    casts, flattened = technique.whole_rows and technique.precision == "fp16x3", after.nodes[0].flattened
    return casts and flattened is not None and math.prod(flattened[1:]) > 1


def pack_channels(ops: Ops, technique: Technique) -> Ops:
    """Channels lie where what reads them next needs them, zeros between them (`charcnn.networks.channels`).

    Raises:
        ValueError: no layer computes an op behind the one before.
    """
    inputs, found = ONE, list[Op]()
    for place, op in enumerate(ops):
        outputs, groups, rest = inputs, 1, ops[place + 1 :]
        match op.layer:
            case _ if op.plan is not None:
                outputs = Channels.grouped(op.out_shape[0], technique.together)
            case Pixels(channels):
                if op.blocks is not None:
                    channels *= math.prod(op.blocks.size)
                outputs = Channels.grouped(channels, technique.together)
            case Conv2d() as conv:
                outputs, groups = _outputs(conv, inputs, rest, technique)
            case Linear(units):
                outputs = Channels.grouped(units, 1 if _ends(rest, technique) else technique.together)
            case Gathered(local=True) as kept if len(inputs.places) == op.in_shape[0]:
                outputs = Channels(inputs.places[kept.kept], inputs.width)
            case Gathered(local=False) if inputs.together:
                bare = op.reads == "fp32" and _ends(rest, technique)
                outputs = Channels.grouped(op.out_shape[0], 1 if bare else technique.together)
            case MaxPool2d() | AvgPool2d() | GlobalAvgPool2d() | GatheredInputs() | Summed():
                pass
            case SharedNorm() if op.reads != "fp32":
                raise ValueError(f"{op.layer.label}: ranks share channels of norms in fp32, not in {op.reads}")
            case LocalResponseNorm() if inputs.width == len(inputs.places) or not _sigmoid(found):
                pass
            case Softmax() if op.reads == "fp32":
                pass
            case _:
                raise ValueError(f"{op.layer.label}: no layer for it here behind the one before")
        found.append(replace(op, inputs=inputs, outputs=outputs, groups=groups))
        inputs = outputs
    return tuple(found)


def _sigmoid(before: Sequence[Op]) -> bool:
    """Whether places that hold no channel are 1/2: a sigmoid lies behind the last product."""
    behind = [*takewhile(lambda op: not _multiplies(op), reversed(before))]
    last = before[max(0, len(before) - len(behind) - 1) :]
    return any(isinstance(node.layer, Sigmoid) for op in last for node in op.nodes)


def _outputs(conv: Conv2d, inputs: Channels, rest: Sequence[Op], technique: Technique) -> tuple[Channels, int]:
    """Where a convolution's channels lie, and its groups: 1 where zeros lie between them."""
    readers, mixed = _reader(rest)
    outputs = Channels.grouped(conv.channels, technique.columns, conv.groups)
    apart = inputs.split(conv.groups, technique.together) and (outputs.together or not mixed)
    if conv.groups > 1 and apart:
        return outputs, conv.groups
    return Channels.grouped(conv.channels, technique.together, 1 if mixed else readers), 1


def _reader(rest: Sequence[Op]) -> tuple[int, bool]:
    """Groups of the convolution that reads these channels next, 1 of none; whether neighbours are mixed before that."""
    for op in rest:
        match op.layer:
            case Conv2d(groups=groups):
                return groups, False
            case LocalResponseNorm() | Gathered():
                return 1, True
            case Linear():
                break
    return 1, False


def choose_by_batch(ops: Ops, technique: Technique) -> Ops:
    """Convolutions and linear layers have other kernels for a few inputs, which may pool as well.

    They are for what leaves multiprocessors idle: where an input has tiles enough for all, its layers leave them out.
    """
    return tuple(_chosen(list(ops), technique))


def _chosen(rest: list[Op], technique: Technique) -> Iterator[Op]:
    while rest:
        op = rest.pop(0)
        most = technique.most(op) if _multiplies(op) else 0
        pools = bool(rest) and isinstance(rest[0].layer, MaxPool2d) and rest[0].layer.padding == 0
        if most and pools and isinstance(op.layer, Conv2d):
            pooling = rest.pop(0)
            yield replace(op, nodes=op.nodes + pooling.nodes, most=most, many=(op, pooling))
        else:
            yield replace(op, most=most, many=(op,)) if most else op
