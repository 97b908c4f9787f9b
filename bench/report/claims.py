"""Blocks that need no result: what a layer costs by its shape, and what work op times of others stand for."""

from __future__ import annotations

import math
from pathlib import Path

from charcnn import SMALL
from charcnn.layers import Conv2d, Linear, Node, place
from charcnn.networks import ece408
from charcnn.runtime.sharding import counted
from charcnn.runtime.training import trained
from report.markdown import UNMEASURED, number, sources, table
from report.schema import machine_called, results

CONV = Conv2d(256, 5, padding=2, groups=2, name="conv2")
"""AlexNet's second, of 96 channels at 27 x 27."""
POSITIONS, WIDTH, HEADS = 512, 768, 12
"""L, H and h of the FFN and the attention that stand as examples."""

STUDENT = [node for node in place(ece408.layers("64"), (64 * 64,)) if isinstance(node.layer, Conv2d)]
"""The course project's convolutions."""
OP_TIMES = {
    10: ((0.007455, 0.000259), (0.025613, 0.000765)),
    100: ((0.074735, 0.001499), (0.255830, 0.004704)),
    10_000: ((7.463296, 0.203084), (25.670930, 0.508383)),
}
"""Seconds that its document gives, by images and convolution: on a CPU and on a GPU."""


def ffn(width: int) -> tuple[Node, ...]:
    """A position's two products, H -> 4 H -> H; what is between is in the first one's epilogue."""
    return place((Linear(4 * width, name="fc1"), Linear(width, name="fc2")), (width,))


def attention(positions: int, width: int, heads: int) -> tuple[int, int, int]:
    """Parameters, multiplications and bytes in float32 of L positions; the four projections are linear layers."""
    (projection,) = place((Linear(width, name="projection"),), (width,))
    scores = heads * positions**2
    products = 2 * positions**2 * width  # Q K^T, and scores times V: of each head L * L * H / h
    moved = 4 * (4 * positions * width + 4 * scores)  # they read Q, K, V and write the sums; scores go out, in, out, in
    parameters, multiplications, size = (4 * value for value in _cost((projection,), positions))
    return parameters, multiplications + products, size + moved


def _cost(nodes: tuple[Node, ...], n: int = 1) -> tuple[int, int, int]:
    parameters = sum(math.prod(shape) for node in nodes for shape in node.parameters.values())
    return parameters, n * sum(node.flops for node in nodes) // 2, sum(node.bytes(n) for node in nodes)


def layer_costs(document: Path) -> str:
    """A convolution, an FFN and attention: parameters, multiplications and bytes, by formula and for an example."""
    convolution = place((CONV,), (96, 27, 27))
    size = f"L = {POSITIONS}, H = {WIDTH}"
    rows = [
        ["convolution", "M (C K² / g + 1)", "P Q · M C K² / g", "4 (C H W + M P Q + parameters)", ""],
        ["96 × 27² → 256 × 27², K = 5, g = 2", *_counted(_cost(convolution))],
        ["FFN: L × H → 4 H → H", "8 H² + 5 H", "8 L H²", "4 (10 L H + parameters)", ""],
        [size, *_counted(_cost(ffn(WIDTH), POSITIONS))],
        ["attention, h heads", "4 H² + 4 H", "4 L H² + 2 L² H", "4 (12 L H + 4 h L² + parameters)", ""],
        [f"{size}, h = {HEADS}", *_counted(attention(POSITIONS, WIDTH, HEADS))],
    ]
    return table(["layer", "parameters", "multiplications", "bytes", "multiplications a byte"], rows, right=1)


STAGES = {"t0, t5: everything on each rank": 0, "t6: ZeRO-1": 1, "t7: ZeRO-2": 2, "t7 --stage 3: ZeRO-3": 3}


def training_memory(document: Path, precision: str) -> str:
    """Bytes by kind that the paper's network takes on a rank, by stage and ranks, in fp32 or with fp16's two bytes."""
    weights, rows = sum(map(math.prod, trained(SMALL.nodes).values())), []
    for name, stage in STAGES.items():
        for ranks in (2, 64) if stage else (1,):
            held = counted(weights, ranks, stage, precision)
            of_rank = f"{ranks}" if stage else "any"
            total = sum(held.values())
            rows.append([name, of_rank, *(f"{size:,}" for size in (*held.values(), total)), f"{total / weights:.2f} N"])
    return table(["", "ranks", *held, "together", ""], rows, right=1)


def _counted(cost: tuple[int, int, int]) -> list[str]:
    return [*(f"{value:,}" for value in cost), f"{cost[1] / cost[2]:.0f}"]


def op_times(document: Path) -> str:
    """The course project's op times, and the rates that they come to."""
    rows = []
    for images, times in OP_TIMES.items():
        for node, (cpu, gpu) in zip(STUDENT, times, strict=True):
            work = images * node.flops
            cells = [f"{images:,}", node.layer.name, f"{work / 1e9:,.3f}"]
            cells += [cell for time in (cpu, gpu) for cell in (f"{1e3 * time:,.5g} ms", number(work / time / 1e9))]
            rows.append([*cells, f"{cpu / gpu:.0f}"])
    head = ["images", "layer", "GFLOP", "their CPU", "GFLOP/s", "their GPU", "GFLOP/s", "× as fast"]
    return table(head, rows, right=2)


def op_times_here(document: Path) -> str:
    """Op times in every technique of a device, and in PyTorch."""
    parts = []
    for file, raw in results().op_times.items():
        techniques, rows = list(dict.fromkeys(row["technique"] for row in raw["op_times"])), []
        for images, layer in dict.fromkeys((row["images"], row["layer"]) for row in raw["op_times"]):
            of = {
                row["technique"]: row["seconds"]
                for row in raw["op_times"]
                if (row["images"], row["layer"]) == (images, layer)
            }
            theirs = OP_TIMES[images][[node.layer.label for node in STUDENT].index(layer)][raw["device"] == "cuda"]
            exact = [name for name in of if name != "PyTorch" and not name.endswith("tf32")]  # to float32's tolerance
            best = min(exact, key=lambda name: of[name])
            cells = [f"{1e3 * of[name]:,.4g} ms" if name in of else "–" for name in techniques]
            cells[techniques.index(best)] = f"**{cells[techniques.index(best)]}**"
            beside = f"{of['PyTorch'] / of[best]:.2f} ×" if "PyTorch" in of else "–"
            rows.append([f"{images:,}", layer, f"{1e3 * theirs:,.5g} ms", *cells, beside])
        head = ["images", "layer", "theirs", *techniques, "PyTorch over the best"]
        made = table(head, rows, right=2)
        parts.append(f"{machine_called(raw['machine'])}:\n\n{made}{sources(document, [file])}")
    return "\n".join(parts) or UNMEASURED + "\n"
