"""The picture of where a network's work and where its weights are."""

from __future__ import annotations

from math import prod

from charcnn.charts.svg import Axis, Picture, short
from charcnn.layers import Network, Node
from charcnn.networks import alexnet
from charcnn.networks.architecture import Architecture

LEFT, RIGHT, TOP, ROW = 60, 196, 34, 30


def work_of_alexnet() -> str:
    """Layers with weights: shares of all operations, and of all parameters."""
    network: Network = Architecture("alexnet", "2012", alexnet.layers("2012"))
    nodes = [node for node in network.nodes if node.parameters]
    parameters = [sum(prod(shape) for shape in node.parameters.values()) for node in nodes]
    shares = [
        (node.flops / network.flops, held / network.parameters) for node, held in zip(nodes, parameters, strict=True)
    ]
    picture = Picture("Shares of AlexNet's layers in its operations and in its parameters", TOP + ROW * len(nodes) + 22)
    picture.legend([("c0", "of the operations"), ("c2", "of the parameters")], LEFT, 14, 150)
    across = Axis(0, max(map(max, shares)), LEFT, picture.width - RIGHT, log=False)
    for number, (node, held) in enumerate(zip(nodes, parameters, strict=True)):
        y = TOP + ROW * number
        picture.text(LEFT - 8, y + 16, _name(node), "said", "end")
        for place, (kind, share) in enumerate(zip(("c0", "c2"), shares[number], strict=True)):
            picture.rect(LEFT, y + 11 * place, across(share) - LEFT, 10, kind, f"{_name(node)}: {share:.1%}")
        said = f"{short(node.flops, 'FLOP')}, {short(held)} parameters"
        picture.text(picture.width - 6, y + 15, said, "small", "end")
    for tick in range(0, int(100 * across.high) + 1, 20):
        picture.text(across(tick / 100), TOP + ROW * len(nodes) + 12, f"{tick} %", "small", "middle")
    return str(picture)


def _name(node: Node) -> str:
    return str(node.layer.name)
