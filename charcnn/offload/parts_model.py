"""What tensor and pipeline parallelism give beside data parallelism: a model from FLOP, bytes, link and latency.

A layer takes the longer of its FLOP and its weights' bytes, where the memory's rate is known: at batch 1 a linear layer
reads every weight for two FLOP. Messages of a pipeline go while stages compute; those of tensor parallelism are waited
for. The root's thread is left out: all ways need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from charcnn.host.shared_memory import PINNED_PAGES
from charcnn.layers import Network, Node
from charcnn.offload import partition
from charcnn.offload.cost_model import Machine, Work, forecast

FLOAT = 4


@dataclass(frozen=True)
class Rank:
    """One GPU, and what lies between it and the others.

    Args:
        flops: FLOP/s in this network.
        memory: bytes/s of its memory; infinite where it is not known.
        link: bytes/s between two ranks, each way.
        latency: seconds of a message.
    """

    flops: float
    memory: float
    link: float
    latency: float

    def computed(self, node: Node, n: int, share: float = 1.0) -> float:
        """Seconds of a layer, or this share of it, on n inputs."""
        return share * max(n * node.flops / self.flops, FLOAT * _parameters(node) / self.memory)

    def message(self, values: int, n: int) -> float:
        """Seconds of so many float32 values an input."""
        return self.latency + n * FLOAT * values / self.link


@dataclass(frozen=True)
class Parallel:
    """What comes of a way on so many ranks."""

    way: str
    """data, tensor or pipeline."""
    ranks: int
    inputs_per_second: float
    """Of many batches."""
    seconds: float
    """Of one batch, from the root and back to it."""
    sent: float
    """Bytes of features that the rank which sends most sends for a batch."""
    parameters: float
    """Bytes of parameters on the rank that has most."""
    link: str = ""
    """Through what features go, where GPUs of a host reach each other; none of whole networks."""


def data(network: Network, rank: Rank, machine: Machine, work: Work) -> Parallel:
    """Each rank a whole network: of many batches as `forecast` has it; one batch is shared out."""
    n = -(-work.chunk // (ranks := machine.gpus * machine.hosts))
    whole, seconds = (sum(rank.computed(node, size) for node in network.nodes) for size in (work.chunk, n))
    machine = replace(machine, gpu_rate=work.chunk / whole, root_message=0.0)
    if work.chunk > n:
        seconds += 2 * rank.latency + n * (network.length + FLOAT * network.classes) / rank.link
    return Parallel("data", ranks, forecast(machine, work).inputs_per_second, seconds, 0.0, FLOAT * network.parameters)


def pipeline(network: Network, rank: Rank, machine: Machine, work: Work) -> Parallel:
    """Each rank a stage; a batch is a micro-batch.

    Raises:
        ValueError: as of `partition.stages`.
    """
    ranks, n = machine.gpus * machine.hosts, work.chunk
    stages = partition.stages(network.nodes, ranks)
    times = [sum(rank.computed(node, n) for node in stage) for stage in stages]
    widths = [math.prod(stage[-1].out_shape) for stage in stages] if ranks > 1 else []
    period = max(*times, *(n * FLOAT * width / rank.link for width in widths), 0.0)
    alone = sum(times) + sum(rank.message(width, n) for width in widths)
    rate = work.inputs / (alone + (-(-work.inputs // n) - 1) * period)
    held = max(sum(_parameters(node) for node in stage) for stage in stages)
    link = _link(machine, "messages of CPUs")
    return Parallel("pipeline", ranks, rate, alone, n * FLOAT * max(widths, default=0), FLOAT * held, link)


def tensor(network: Network, rank: Rank, machine: Machine, work: Work) -> Parallel:
    """Each rank a share of every layer; each part takes as long as the rank with most of it.

    Raises:
        ValueError: as of `partition.tensor`.
    """
    ranks, n = machine.gpus * machine.hosts, work.chunk
    seconds, sent, held = 0.0, 0, [0.0] * ranks
    for part in partition.tensor(network.nodes, ranks):
        each = [0.0] * ranks
        for placed in part.layers:
            for r in range(ranks):
                of, whole = (placed.take, placed.node.in_shape) if placed.sums else (placed.give, placed.node.out_shape)
                share = len(of[r]) / whole[0]
                each[r] += rank.computed(placed.node, n, share)
                held[r] += share * _parameters(placed.node)
        seconds += max(each)
        if part.kind == "sum":  # halving and doubling: half of the messages add up, half of them spread
            seconds += (2 * math.ceil(math.log2(ranks)) - 1) * rank.latency
        if part.kind:
            seconds += rank.message(part.values, n)
            sent += part.values
    inputs = (rank.latency + n * network.length / rank.link) if ranks > 1 else 0.0  # go while a batch is computed
    period = max(seconds, inputs)
    link = _link(machine, PINNED_PAGES)
    return Parallel("tensor", ranks, n / period, seconds + inputs, n * FLOAT * sent, FLOAT * max(held), link)


def _link(machine: Machine, far: str) -> str:
    """Through what features go; `far` between hosts."""
    return far if machine.hosts > 1 else "GPU memory" * (machine.gpus > 1)


def _parameters(node: Node) -> int:
    return sum(map(math.prod, node.parameters.values()))


WAYS: tuple[Callable[[Network, Rank, Machine, Work], Parallel], ...] = (data, tensor, pipeline)


def compare(network: Network, memory: float | None, machine: Machine, work: Work) -> list[Parallel]:
    """Every way on the machines' GPUs; those that the network has not layers or channels enough for are left out.

    Args:
        network: of images.
        memory: bytes/s of a GPU's memory; None: not known.
        machine: whose gpu_rate is the network's, at a large batch.
        work: chunk is a batch.
    """
    far = machine.hosts > 1
    link, latency = (machine.link, machine.latency) if far else (machine.local_link, machine.local_latency)
    rank = Rank(machine.gpu_rate * network.flops, memory or math.inf, link, latency)
    found = []
    for way in WAYS:
        try:
            found.append(way(network, rank, machine, work))
        except ValueError:  # too many ranks
            continue
    return found


def best(rows: list[Parallel], measure: Callable[[Parallel], float]) -> list[Parallel]:
    """For each number of ranks from two on, the row with the least measure."""
    counts = sorted({row.ranks for row in rows} - {1})
    return [min((row for row in rows if row.ranks == count), key=measure) for count in counts]


def verdict(rows: list[Parallel], measure: Callable[[Parallel], Any]) -> dict[str, list[Parallel]]:
    """Of tensor and pipeline, the rows that are better than data parallelism on as many ranks, by the least measure."""
    base = {row.ranks: measure(row) for row in rows if row.way == "data"}
    return {
        way.__name__: [row for row in rows if row.way == way.__name__ and measure(row) < 0.999 * base[row.ranks]]
        for way in WAYS[1:]
    }
