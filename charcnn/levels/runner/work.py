"""What each launch of a profile computes and moves, as far as the network's layers tell it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from charcnn.config import Config
from charcnn.gpu.launch import title
from charcnn.layers import Node

if TYPE_CHECKING:
    from charcnn.gpu.profile import Done, Launch

PRODUCTS = ("conv1d.", "conv2d.", "linear.", "chain.")
"""Rooms of kernels that multiply; of others they sum, move or compare."""

LOOKED_UP = "token_conv1d."
"""Of kernels that compute the first convolution and multiply nothing."""


def products_of_level(config: Config, stages: Sequence[str]) -> dict[str, list[Node]]:
    """The convolutions and linear layers that each stage of a level computes, in order."""
    named = {node.layer.name: node for node in config.nodes if node.flops}
    found = {}
    for stage in stages:
        first, _, last = stage.removeprefix("conv_block_").partition(" to ")
        if stage.startswith("conv_block_"):
            names = [f"conv{block}" for block in range(int(first), int(last or first) + 1)]
        else:
            names = list(named) if stage == "network" else [name for name in named if stage == f"{name[:2]}_blocks"]
        found[stage] = [named[name] for name in names]
    return found


def done(products: Mapping[str, Sequence[Node]], inputs: int, size: int) -> Callable[[Sequence[Launch]], list[Done]]:
    """A function from launches to the operations of each, and the bytes that it moves, None where that is not known.

    A stage's products are those of its calls one by one; a call that is alone has them all. Of a call with several
    kernels that multiply, as in Winograd's filtering, no kernel's part is known.

    Args:
        products: by stage, its convolutions and linear layers in order.
        inputs: of the batch.
        size: bytes of a weight.
    """

    def found(launches: Sequence[Launch]) -> list[Done]:
        names = [title(one.kernel) for one in launches]
        result: list[Done] = [_moved(one, launches) for one in launches]
        for stage, nodes in products.items():
            own = [i for i, one in enumerate(launches) if one.stage == stage]
            if any(names[i].startswith(LOOKED_UP) for i in own):
                nodes = nodes[1:]
            calls: dict[int, list[int]] = {}
            for i in own:
                if names[i].startswith(PRODUCTS):
                    calls.setdefault(launches[i].call, []).append(i)
            parts = [nodes] if len(calls) == 1 else [[node] for node in nodes]
            known = len(parts) == len(calls)
            for number, members in enumerate(calls.values()):
                for i in members:
                    alone = known and len(members) == 1
                    result[i] = _of(launches[i], parts[number], inputs, size) if alone else (None, None)
        return result

    return found


def _of(one: Launch, nodes: Sequence[Node], inputs: int, size: int) -> Done:
    held = size * sum(prod(shape) for node in nodes for shape in node.parameters.values())
    return inputs * sum(node.flops for node in nodes), one.reads[0] + one.writes + held


def _moved(one: Launch, launches: Sequence[Launch]) -> Done:
    """Of a kernel that multiplies nothing: the bytes of its call where no other kernel has part in that."""
    alone = sum(other.call == one.call for other in launches) == 1
    return None, sum(one.reads) + one.writes if alone else None
