"""A rank's part of a network: layers of the plan with their share of the weights, run by the technique's own `build`.

A part begins with bytes, or with `Features`: float32, channels first, whatever the technique's own layout is. So those
on a GPU go through the host. A technique's `build` takes both, and gives features likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from charcnn import offload
from charcnn.aliases import Function, Record
from charcnn.layers import BatchNorm2d, Conv2d, Layer, Linear, Node, Shape
from charcnn.networks.architecture import Architecture, Features
from charcnn.offload import partition
from charcnn.runtime.run import Run


def part(whole: Architecture, before: Shape | None, layers: Sequence[Layer]) -> Architecture:
    """Layers of the network as one by itself, which reads features of this shape; None: bytes."""
    begin = () if before is None else (Features(before, name="features"),)
    return Architecture(whole.name, whole.variant, (*begin, *layers))


def stage(whole: Architecture, rank: int, ranks: int) -> Architecture:
    """The rank's stage of the network.

    Raises:
        ValueError: the network has fewer products than ranks.
    """
    nodes = partition.stages(whole.nodes, ranks)[rank]
    return part(whole, nodes[0].in_shape if rank else None, [node.layer for node in nodes])


def share(
    whole: Architecture, of: partition.Part, rank: int, params: Mapping[str, np.ndarray]
) -> tuple[Architecture, dict[str, np.ndarray]]:
    """The rank's share of a part of the network, and of its weights."""
    layers: list[Layer] = []
    held: dict[str, np.ndarray] = {}
    for placed in of.layers:
        layer, given = _sliced(placed, rank, params)
        layers.append(layer)
        held |= given
    first = of.layers[0].node
    before = None if first is whole.nodes[0] else (len(of.need[rank]), *of.shape[1:])
    return part(whole, before, layers), held


def _sliced(placed: partition.Placed, rank: int, params: Mapping[str, np.ndarray]) -> tuple[Layer, Record]:
    node, layer = placed.node, placed.node.layer
    take, give = (slice(of[rank].start, of[rank].stop) for of in (placed.take, placed.give))
    held = {name: params[name] for name in node.parameters}
    weight, bias = f"{layer.name}.weight", f"{layer.name}.bias"
    match layer:
        case Linear() if placed.sums:
            held[weight] = held[weight][:, take]
            held[bias] = held[bias] if rank == 0 else np.zeros_like(held[bias])
        case Conv2d(groups=groups):
            held = {name: value[give] for name, value in held.items()}
            read = len(placed.take[rank]) * groups // node.in_shape[0]
            layer = replace(layer, channels=len(placed.give[rank]), groups=read)
        case Linear():
            held = {name: value[give] for name, value in held.items()}
            layer = replace(layer, units=len(placed.give[rank]))
        case BatchNorm2d():
            held = {name: value[take] for name, value in held.items()}
    return layer, {name: np.ascontiguousarray(value) for name, value in held.items()}


def flops(whole: Architecture, mode: str, ranks: int) -> list[int]:
    """Of an input, those of each rank."""
    if mode == "pipeline":
        return [sum(node.flops for node in nodes) for nodes in partition.stages(whole.nodes, ranks)]
    return [
        sum(_work(placed, rank) for of in partition.tensor(whole.nodes, ranks) for placed in of.layers)
        for rank in range(ranks)
    ]


def _work(placed: partition.Placed, rank: int) -> int:
    node: Node = placed.node
    if not node.flops:
        return 0
    part_, all_ = (placed.take, node.in_shape) if placed.sums else (placed.give, node.out_shape)
    return node.flops * len(part_[rank]) // all_[0]


def parted(mode: str, build: Callable[..., Run]) -> Function:
    """A technique's `build` that makes this rank's part: takes `place`, (rank, ranks), too.

    Gives what `offload.PARTED[mode]` runs.
    """

    @wraps(build)
    def made(params: Any, config: Architecture, *, place: tuple[int, int], monitor: Any, **how: Any) -> Any:
        monitor = monitor.silent()
        if mode == "pipeline":
            own = stage(config, *place)
            held = {name: params[name] for name in own.parameter_shapes}
            return offload.Stage(build(held, own, monitor=monitor, **how), own.length, own.classes, own.byte_values)
        steps = []
        for of in partition.tensor(config.nodes, place[1]):
            if of.layers:
                own, held = share(config, of, place[0], params)
                steps.append(offload.Step(of, build(held, own, monitor=monitor, **how), own.length))
            else:
                steps.append(offload.Step(of, None))
        return offload.Steps(steps)

    return made
