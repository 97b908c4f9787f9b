"""Tables of a network on the terminal: a row a layer, a technique or a rank, and how its convolutions fuse."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from charcnn import catalog, offload
from charcnn.gpu import device
from charcnn.host.progress import Progress
from charcnn.host.terminal import table
from charcnn.layers import Conv2d, Flatten, MaxPool2d, Node, place
from charcnn.levels.runner.options import serves
from charcnn.levels.runner.peaks import Peaks
from charcnn.levels.runner.report import validate
from charcnn.networks.architecture import Architecture
from charcnn.networks.lowering import Ops, lower
from charcnn.networks.lowering.fusing import CHAINED, SIMPLIFY
from charcnn.networks.parts import flops
from charcnn.offload import partition
from charcnn.ops.chain import pyramid
from charcnn.runtime.monitor import Monitor

if TYPE_CHECKING:
    from charcnn.networks.runner.command import NetworkCommand


def staged(network: Architecture, stages: Sequence[str]) -> list[tuple[str, list[Node]]]:
    """The layers that each stage computes, in order: those of its name, and a pooling behind them that has no stage.

    Raises:
        ValueError: the stages are not those of the network's layers.
    """
    for nodes in (network.nodes, _simplified(network)):
        rest = [node for node in nodes if not isinstance(node.layer, Flatten)]
        found, named = [], []
        for stage, following in zip(stages, [*stages[1:], ""], strict=True):
            count = stage.count("+") + 1
            named.append(_label(rest[:count]))
            behind = rest[count].layer if len(rest) > count else None
            if isinstance(behind, MaxPool2d) and behind.label != following.split("+")[0]:
                count += 1
            found.append((stage, rest[:count]))
            rest = rest[count:]
        if not rest and named == list(stages):
            return found
    raise ValueError(f"stages {', '.join(stages)} are not the layers of {network.name}")


def _label(nodes: Sequence[Node]) -> str:
    return "+".join(node.layer.label for node in nodes)


def layers(network: Architecture, seconds: Mapping[str, float], inputs: int, batch: int, peaks: Peaks) -> list[str]:
    """A row a stage: shapes, FLOP and bytes an image, time, rates, and its share of the roofline.

    Args:
        network: whose layers the stages compute.
        seconds: of all inputs, by stage.
        inputs, batch: of all, and at once: parameters are read once a batch.
        peaks: of the machine, in the precision.
    """
    rows, size = [], peaks.size
    for stage, nodes in staged(network, list(seconds)):
        flop = sum(node.flops for node in nodes)
        first, last = nodes[0], nodes[-1]
        ends = int(np.prod(first.in_shape)) * (first.layer.in_itemsize or size) + size * int(np.prod(last.out_shape))
        held = size * sum(int(np.prod(shape)) for node in nodes for shape in node.parameters.values())
        moved, spent = ends + held / batch, seconds[stage] / inputs
        bound = max(flop / peaks.flops, moved / peaks.bytes)
        shape = " > ".join("x".join(map(str, of)) for of in (first.in_shape, last.out_shape))
        rates = f"{flop / spent / 1e9:,.1f}", f"{moved / spent / 1e9:,.2f}"
        rows.append(
            [_label(nodes), shape, f"{flop:,}", f"{moved:,.0f}", f"{1e6 * spent:,.2f}", *rates, f"{bound / spent:.0%}"]
        )
    head = ["layers", "shape", "FLOP", "bytes", "us an image", "GFLOP/s", "GB/s", "of roofline"]
    return [*table(head, rows, 2), f"roofline: {peaks.source}"]


def compare(subject: NetworkCommand, chosen: argparse.Namespace) -> int:
    """Run the network by every technique that runs here, after its results are checked. Exit status: 0, or 1: wrong."""
    with Progress(subject.name, every=chosen.log_every) as progress:
        rows, status = _compared(subject, chosen, progress)
    print("\n".join(table(["technique", "precision", "validated", "images/s"], rows, 3)))
    if device.SIMULATED:
        print("No GPU in use: techniques in CUDA are left out.")
    return status


def _compared(subject: NetworkCommand, chosen: argparse.Namespace, progress: Progress) -> tuple[list[list[str]], int]:
    rows: list[list[str]] = []
    status = 0
    for program in catalog.NETWORK_TECHNIQUES:
        if not program.computes(subject.name, device.shared_limit()) or not serves(program, chosen.precision):
            continue
        if program.device == "cuda" and device.SIMULATED:
            continue
        progress.step(f"{program.name}, after {len(rows)} others")
        job = subject.prepare(program, argparse.Namespace(**vars(chosen) | {"technique": program.name}))
        how = program.build_options(chosen.precision) | ({"batch": chosen.batch} if chosen.batch else {})
        run = program.build(program.name, job.params, job.params.config, monitor=Monitor(), **how)
        inputs = job.rows[:]
        results = run(inputs)
        check = validate(job, results, program.rounding(chosen.precision))
        seconds = []
        for _ in range(chosen.repeat):
            start = time.perf_counter()
            run(inputs)
            seconds.append(time.perf_counter() - start)
        spent = statistics.median(seconds)
        verdict = f"{'passed' if check['passed'] else 'FAILED'}, {check['sigmas'] or float('nan'):.2g} sigma"
        status |= not check["passed"]
        rows.append([program.name, program.precision(chosen.precision), verdict, f"{len(inputs) / spent:,.1f}"])
    return rows, status


TILES = (1, 2, 4, 7)
"""Of the last map, of which `plan` says what they compute twice."""


def _simplified(network: Architecture) -> list[Node]:
    return [op.nodes[0] for op in lower(network.nodes, SIMPLIFY)]


def lowering(steps: Sequence[tuple[str, Ops]]) -> None:
    """Print the ops that each rewrite changes, under its name."""
    before: Ops = ()
    for name, ops in steps:
        changed = [f"  {op}" for op in ops if op not in before]
        print(f"{name}: {len(ops)} ops", *(changed or ["  as before"] * (ops == before)), sep="\n")
        before = ops
    print()


def plan(network: Architecture, ops: Ops, batch: int) -> None:
    """Print how the network's convolutions fuse, and what tiles of the first ones compute twice.

    Args:
        network: the layers.
        ops: what they were lowered to, by a technique that plans chains.
        batch: images that forecasts are for.

    Raises:
        ValueError: it has no convolutions.
    """
    chains = [op for op in ops if op.plan is not None]
    if not chains:
        raise ValueError(f"--plan: {network.name} has no convolutions to fuse")
    for op in chains:
        print(f"{', '.join(node.layer.label for node in op.nodes)}, a batch of {batch:,}\n")
        print(op.plan.describe(), end="\n\n")
    simplified = _simplified(network)
    layers = [node.layer for node in simplified if isinstance(node.layer, CHAINED) and len(node.in_shape) == 3]
    convolutions = [at for at, layer in enumerate(layers) if isinstance(layer, Conv2d)]
    if len(convolutions) > 1:
        layers = layers[: convolutions[2] if len(convolutions) > 2 else None]
        size = place(layers, network.image)[-1].out_shape[1]
        tiles = [tile for tile in TILES if tile < size] + [size]
        found = pyramid(layers, network.image, tiles)
        counts = ", ".join(f"{tile}: {of.alike:.2f}x" for tile, of in zip(tiles, found, strict=True))
        print(f"multiplications of its first two convolutions in one kernel, by the tile of {size}x{size}: {counts}")


def parts(network: Architecture, report: Mapping[str, Any]) -> list[str]:
    """What each rank computed, sent and waited, where ranks have parts of the network; and the bubble of a pipeline."""
    mode, ranks, inputs = report["offload"], report["parts"], report["inputs"]
    measured = "begins" in ranks[0]  # stages on GPUs, cut by time
    if measured:
        times = [did["seconds"] for did in ranks]
        shares, of = [one / sum(times) for one in times], "time of a batch"
    else:
        shares, of = [work / network.flops for work in flops(network, mode, len(ranks))], "FLOP"
    rows, found = [], []
    for rank, (did, share) in enumerate(zip(ranks, shares, strict=True)):
        if mode == "pipeline":
            sent, per = did.get("bytes", 4 * did["width"]) * did["chunk"] * (len(ranks) > 1), "a micro-batch"
        else:
            sent, per = did["sent"] / inputs, "an input"
        busy = f"{did['busy'] / did['elapsed']:.1%}" if did["elapsed"] else "–"
        rows.append([str(rank), f"{share:.1%}", busy, f"{sent:,.0f}"])
    if mode == "pipeline":
        batches = -(-inputs // ranks[0]["chunk"])
        begins = [did["begins"] for did in ranks] if measured else [
            node[0].layer.label for node in partition.stages(network.nodes, len(ranks))
        ]  # fmt: skip
        found = [
            f"{batches} micro-batches of {ranks[0]['chunk']}; stages begin at {', '.join(begins)}",
            f"bubble: {report['idle']:.1%} of the ranks' time was idle; {offload.bubble(len(ranks), batches):.1%} of "
            f"equal stages, {offload.bubble_of(shares, batches):.1%} of these",
        ]
    elif not ranks[0]["recorded"]:  # else exchanges are part of computing
        found = [f"{report['idle']:.1%} of the ranks' time went to messages and waiting"]
    found += [f"features go through {ranks[0]['link']}"] * ("link" in ranks[0] and len(ranks) > 1)
    return [*table(["rank", f"of all {of}", "busy", f"bytes sent {per}"], rows), *found]
