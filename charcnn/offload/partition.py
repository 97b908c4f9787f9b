"""A network's layers over ranks: stages of a pipeline, equal in FLOP, or every layer's channels shared out.

Both are plans on nodes of `charcnn.layers`: no weights, no messages. A product is a layer that multiplies, a
convolution or a linear layer; what follows it up to the next one, pointwise or pooling, goes with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from charcnn.layers import Conv2d, Flatten, Linear, LocalResponseNorm, Node, Pixels, Shape, Softmax
from charcnn.offload.ranks import shares

Nodes = tuple[Node, ...]
Ranges = tuple[range, ...]
"""Channels of features, or values of a vector, by rank."""


def products(nodes: Sequence[Node]) -> list[int]:
    """Where a stage may begin: at the first layer, and at each later product, a Flatten before it included."""
    found = [i for i, node in enumerate(nodes) if node.flops]
    return [0, *(i - isinstance(nodes[i - 1].layer, Flatten) for i in found[1:])]


def stages(nodes: Sequence[Node], count: int) -> list[Nodes]:
    """The layers as so many stages whose largest FLOP are the least possible, by dynamic programming.

    Raises:
        ValueError: there are fewer products than stages.
    """
    starts = products(nodes)
    if not 1 <= count <= len(starts):
        raise ValueError(f"{count} ranks: need 1 to {len(starts)}, a convolution or linear layer for each stage")
    ends = [*starts[1:], len(nodes)]
    work = [sum(n.flops for n in nodes[a:b]) for a, b in zip(starts, ends, strict=True)]
    cuts = [0, *(ends[of.stop - 1] for of in cut(work, count))]
    return [tuple(nodes[a:b]) for a, b in itertools.pairwise(cuts)]


def cut(work: Sequence[float], count: int) -> list[range]:
    """Pieces of work in order, as so many stages whose largest is the least possible."""
    sums = [0.0, *itertools.accumulate(work)]
    # best[e]: of the first e pieces in as many stages as rounds went by, the largest stage, and where stages end.
    best: dict[int, tuple[float, list[int]]] = {0: (0, [])}
    for _ in range(count):
        best = {
            end: min((max(best[at][0], sums[end] - sums[at]), [*best[at][1], end]) for at in best if at < end)
            for end in range(1 + min(best), len(work) + 1)
        }
    return [range(a, b) for a, b in itertools.pairwise([0, *best[len(work)][1]])]


def begins(work: Sequence[float], count: int, shared: Sequence[int]) -> list[tuple[int, int, float]]:
    """Where each stage of pieces of work begins: it shares [begin, end) with the stage before, which has that share.

    Args:
        work: of each piece, in order.
        count: stages.
        shared: where pieces begin that two stages may share together, the first at 0. Where one would be more stages',
            or there are none, nothing is shared.
    """
    sums = [0.0, *itertools.accumulate(work)]
    ends, found = [*shared[1:], len(work)], [(0, 0, 0.0)]
    for at in (sums[-1] * place / count for place in range(1, count)):
        for begin, end in zip(shared, ends, strict=False):
            if sums[begin] <= at < sums[end]:
                found.append((begin, end, (at - sums[begin]) / (sums[end] - sums[begin])))
    if len({begin for begin, *_ in found}) == count:
        return found
    return [(own.start, own.start, 0.0) for own in cut(work, count)]


def channels(count: int, groups: int, ranks: int, label: str) -> Ranges:
    """Output channels shared out: a rank has whole groups, or a part of one.

    Raises:
        ValueError: there are fewer channels than ranks.
    """
    each = count // groups
    if ranks <= groups:
        sizes = [each * share for share in shares(groups, ranks)]
    else:
        sizes = [size for share in shares(ranks, groups) for size in shares(each, share)]
    if 0 in sizes:
        raise ValueError(f"{ranks} ranks: {label} has {count} channels in groups of {each}: need at least one a rank")
    stops = list(itertools.accumulate(sizes))
    return tuple(range(stop - size, stop) for size, stop in zip(sizes, stops, strict=True))


def overlap(a: range, b: range) -> range:
    """What lies in both."""
    return range(max(a.start, b.start), max(a.start, b.start, min(a.stop, b.stop)))


@dataclass(frozen=True)
class Placed:
    """A layer as ranks share it: what each takes, and gives."""

    node: Node
    take: Ranges
    give: Ranges
    sums: bool = False
    """It is a linear layer whose columns are shared out: results are to be added up, and one rank has the bias."""


@dataclass(frozen=True)
class Part:
    """Layers that follow each other with no message between, and what comes before them."""

    shape: Shape
    """Of the whole features that it reads."""
    kind: str
    """"": nothing is sent; "exchange": each rank gets what others have of what it needs; "sum": all add up."""
    has: Ranges
    """What each rank's array holds,"""
    owns: Ranges
    """of which so much is right,"""
    need: Ranges
    """and what it needs."""
    layers: tuple[Placed, ...] = ()

    @property
    def values(self) -> int:
        """Of an input, float32 values that the rank which sends most sends."""
        if self.kind == "sum":  # in a ring
            return math.ceil(2 * (len(self.has) - 1) / len(self.has) * math.prod(self.shape))
        if not self.kind:
            return 0
        ranks = range(len(self.has))
        each = [sum(len(overlap(self.owns[r], self.need[s])) for s in ranks if s != r) for r in ranks]
        return max(each) * math.prod(self.shape[1:])


NORMS = "neighbours", "outermost", "whole"
"""How `tensor` has local response normalisation of channels that ranks share."""


def tensor(nodes: Sequence[Node], ranks: int, norms: str = NORMS[0]) -> list[Part]:
    """Every product shared out over ranks: output channels of convolutions; rows, then columns of linear layers.

    Features stay shared out for as long as the next layer can read them so. Pointwise and pooling layers can, and so
    can a convolution whose groups are those that a rank has. A linear layer can by the columns of what a rank has; its
    results are added up. Local response normalisation needs some channels of the neighbours.

    Args:
        nodes: the network.
        ranks: how many.
        norms: how a rank gets those channels.
            "neighbours": it gets them, of all pixels, before it normalises.
            "outermost": the norm itself exchanges them.
            "whole": one message less, for more work. The convolution before it computes them as well, where it reads
            all channels; elsewhere each rank gets all channels.

    Raises:
        ValueError: a product has fewer channels or units than there are ranks.
    """
    has = owns = _everything(nodes[0].in_shape, ranks)
    parts = [Part(nodes[0].in_shape, "", has, owns, has)]
    whole, summed = True, False
    for place, node in enumerate(nodes):
        all_, inner, reach = _everything(node.in_shape, ranks), math.prod(node.in_shape[1:]), 0
        take, give, sums, right = has, has, False, None
        match node.layer:
            case Conv2d(channels=count, groups=groups):
                give = channels(count, groups, ranks, node.layer.label)
                each, read = count // groups, node.in_shape[0] // groups
                take = tuple(range(of.start // each * read, -(-of.stop // each) * read) for of in give)
                if norms == "whole" and take == _everything(node.in_shape, ranks):
                    right, give = give, _reached(give, _next_norm(nodes[place + 1 :]), node.out_shape[0])
            case Linear() if not whole:
                take, give, sums = owns, _everything(node.out_shape, ranks), True
            case Linear(units=units):
                give = channels(units, 1, ranks, node.layer.label)
            case LocalResponseNorm(size=size) if not whole and norms != "outermost":
                reach = size // 2
                take = give = _reached(owns, reach, node.in_shape[0])
                if norms == "whole" and take != has:
                    take = give = all_
                    reach = 0
            case Softmax():
                take = give = all_
            case Pixels():
                give = _everything(node.out_shape, ranks)
            case Flatten():
                give = _times(has, inner)
        if summed or take != has:
            there = all(overlap(a, b) == b for a, b in zip(owns, take, strict=True))
            parts.append(Part(node.in_shape, "sum" if summed else "" if there else "exchange", has, owns, take))
        parts[-1] = replace(parts[-1], layers=(*parts[-1].layers, Placed(node, take, give, sums)))
        if isinstance(node.layer, Flatten):
            owns = _times(owns, inner)
        elif right is not None:
            owns = right
        elif not reach and give is not has:
            owns = give
        has, summed = give, sums
        whole = all(len(of) == node.out_shape[0] for of in owns)
    root = (range(nodes[-1].out_shape[0]), *(range(0),) * (ranks - 1))
    if summed or not whole:
        parts.append(Part(nodes[-1].out_shape, "sum" if summed else "exchange", has, owns, has if summed else root))
    return parts


SLOWER = 14
"""How many times as long values take from another GPU's memory as from its own. An H200 has 0.3 and 4.2 TB/s."""


def by_units(nodes: Sequence[Node], ranks: int, batch: int, *, few: bool) -> tuple[int, int]:
    """The first layer that GPUs share by units or channels, and the one behind the last; before, they share inputs.

    It is the first linear layer whose weights take longer to read than its features take between GPUs. A single input
    cannot be shared: there it is the first product from which on ranks exchange nothing but sums.

    Args:
        nodes: the network.
        ranks: how many.
        batch: inputs.
        few: whether an exchange takes longer than half of a linear layer: only pairs are shared, by one sum each.
    """
    for begin in products(nodes) if batch == 1 else ():
        if all(part.kind != "exchange" for part in tensor(nodes[begin:], ranks, "whole")):
            return begin, len(nodes)
    linear = [i for i, node in enumerate(nodes) if isinstance(node.layer, Linear)]
    values = {i: batch * (nodes[i].in_shape[0] + nodes[i].out_shape[0]) for i in linear}
    first = next((place for place, i in enumerate(linear) if SLOWER * values[i] < _weights(nodes[i])), len(linear))
    shared = linear[first:]
    if few:
        shared = shared[: len(shared) // 2 * 2]
    if not shared:
        return len(nodes), len(nodes)
    begin = shared[0] - isinstance(nodes[shared[0] - 1].layer, Flatten)
    end = len(nodes) if shared[-1] == linear[-1] else shared[-1] + 1
    return begin if any(node.flops for node in nodes[:begin]) else 0, end


def _weights(node: Node) -> int:
    return sum(math.prod(shape) for shape in node.parameters.values())


def _next_norm(rest: Sequence[Node]) -> int:
    """How far the normalisation reaches that comes next, behind pointwise layers alone; 0 of none."""
    after = next((node.layer for node in rest if not node.layer.epilogue), None)
    return after.size // 2 if isinstance(after, LocalResponseNorm) else 0


def _reached(ranges: Ranges, reach: int, channels: int) -> Ranges:
    """So many more on either side, of those that there are."""
    return tuple(overlap(range(of.start - reach, of.stop + reach), range(channels)) for of in ranges)


def _everything(shape: Shape, ranks: int) -> Ranges:
    return (range(shape[0]),) * ranks


def _times(ranges: Ranges, inner: int) -> Ranges:
    return tuple(range(of.start * inner, of.stop * inner) for of in ranges)
