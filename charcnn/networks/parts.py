"""A rank's part of a network: layers of the plan with their share of the weights, run by the technique's own `build`.

On GPUs a rank's share is one network, whose layers exchange features in the GPUs' memory. On CPUs parts are networks,
with messages between them. Such a part begins with bytes, or with `Features`: float32, channels first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
from numba import cuda

from charcnn import offload
from charcnn.aliases import Argument, Comm, Function, Record
from charcnn.catalog import NetworkTechnique
from charcnn.gpu.collectives import Group, Hosts
from charcnn.host.shared_memory import hosts
from charcnn.layers import BatchNorm2d, Conv2d, Layer, Linear, LocalResponseNorm, Network, Node, Shape
from charcnn.networks.architecture import Architecture, Features
from charcnn.networks.between import Gathered, GatheredInputs, SharedNorm, Summed
from charcnn.offload import partition
from charcnn.offload.relay import Border, Relay, timed
from charcnn.ops.common.layer import ArraySpec
from charcnn.runtime.monitor import Monitor
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


FEW = 64
"""Inputs of a batch, up to which a message less is worth more work."""

BY_CHANNELS = ["fp32"]
"""Precisions in which ranks share channels of networks with groups, not a batch's inputs. A rank has whole groups then,
which Winograd's filtering takes as convolutions. In other precisions memory traffic takes the time."""


def norms_of(batch: int, precision: str, *, in_kernels: bool = True) -> str:
    """Which of `partition.NORMS` is right for GPUs; `in_kernels` as of their group."""
    return "outermost" if batch > FEW and precision in BY_CHANNELS and in_kernels else "whole"


def gpu_share(
    whole: Architecture, batch: int, precision: str, place: tuple[int, int], params: Mapping[str, np.ndarray],
    *, in_kernels: bool = True,
) -> tuple[Architecture, dict[str, np.ndarray]]:  # fmt: skip
    """The rank's share of the network as one by itself, with exchanges between its layers; and its weights.

    Ranks begin with some of a batch's inputs each, and whole layers (`partition.by_units`), but in BY_CHANNELS.

    Args:
        whole: the network.
        batch: inputs at most.
        precision: of the technique that computes it.
        place: the rank, and how many there are.
        params: of the whole network.
        in_kernels: as of the ranks' group.
    """
    (rank, ranks), nodes = place, whole.nodes
    begin, end = partition.by_units(nodes, ranks, batch, few=batch <= FEW)
    if precision in BY_CHANNELS and any(getattr(node.layer, "groups", 1) > 1 for node in nodes):
        begin, end = 0, len(nodes)
    norms = norms_of(batch, precision, in_kernels=in_kernels)
    layers: list[Layer] = [node.layer for node in nodes[:begin]]
    held = {name: params[name] for node in (*nodes[:begin], *nodes[end:]) for name in node.parameters}
    if begin:
        layers.append(GatheredInputs())
    shared = partition.tensor(nodes[begin:end], ranks, norms) if begin < end else []
    for number, of in enumerate(shared):
        if of.kind == "sum":
            layers.append(Summed())
        elif number:  # at the end all ranks get what the root does
            needs = of.need if of.layers else (of.need[0],) * ranks
            layers.append(Gathered(of.has, of.owns, needs, place, local=not of.kind))
        for placed in of.layers:
            layer, given = _sliced(placed, rank, params)
            if isinstance(layer, LocalResponseNorm) and len({*placed.take}) == ranks > 1 and norms == "outermost":
                norm = {name: getattr(layer, name) for name in ("size", "alpha", "beta", "k", "name")}
                layer = SharedNorm(**norm, owns=placed.take)
            layers.append(layer)
            held |= given
    return part(whole, None, [*layers, *(node.layer for node in nodes[end:])]), held


def group_of(comm: Comm) -> Group:
    """The group of the ranks' current GPUs, of one host or several; all call it together."""
    return Hosts(comm, direct=offload.cuda_aware()[0]) if any(hosts(comm)) else Group(comm)


def over_group(build: Callable[..., Run], share: Function | None = None) -> Function:
    """A technique's `build` for GPUs, each of which has a share of every layer: takes `place`, (rank, ranks), too.

    All ranks of mpiexec call it, and then compute the same batches together. It gives an `offload.Steps`.

    Args:
        build: takes `group`.
        share: gives this rank's weights and network of the whole ones; called with those, the group, batch and
            precision. None where `build` takes the whole ones.
    """

    @wraps(build)
    def made(
        params: Mapping[str, np.ndarray], config: Network, *, place: tuple[int, int], monitor: Monitor,
        gpus: Sequence[int], **how: Argument,
    ) -> offload.Steps:  # fmt: skip
        if place[1] == 1:
            return offload.Steps([offload.Step(None, build(params, config, gpus=gpus, monitor=monitor, **how))])
        with cuda.gpus[gpus[0]]:
            group = group_of(offload.world())
        if share is not None:
            params, config = share(params, config, group, how.get("batch"), how.get("precision"))
        run = build(params, config, gpus=gpus[:1], monitor=monitor.silent(), **{**how, "streams": 1, "group": group})

        def checked(rows: np.ndarray) -> np.ndarray:
            results = run(rows)
            group.check()
            return results

        return offload.Steps([offload.Step(None, checked)], group)

    return made


def shared(technique: NetworkTechnique, build: Callable[..., Run]) -> Function:
    """`over_group` of a network's technique for GPUs."""

    def share(
        params: Mapping[str, np.ndarray], config: Architecture, group: Group, batch: int | None,
        precision: str | None,
    ) -> tuple[dict[str, np.ndarray], Architecture]:  # fmt: skip
        most = batch or inspect.signature(build).parameters["batch"].default
        place, of = (group.rank, group.ranks), technique.precision(precision)
        own, held = gpu_share(config, most, of, place, params, in_kernels=group.in_kernels)
        return held, own

    return over_group(build, share)


def relayed(technique: NetworkTechnique, build: Callable[..., Run]) -> Function:
    """A network's `build` for GPUs, each of which has a stage of layers, of equal time as measured on the root's GPU.

    Takes `place`, (rank, ranks), too. All ranks of mpiexec call it. It gives what `offload.pipeline` runs.

    Raises:
        ValueError: there are ranks on several hosts.
    """

    @wraps(build)
    def made(
        params: Mapping[str, np.ndarray], config: Architecture, *, place: tuple[int, int], monitor: Monitor,
        gpus: Sequence[int], batch: int | None = None, precision: str | None = None, **how: Argument,
    ) -> offload.Stage | Relay:  # fmt: skip
        comm, batch = offload.world(), batch or inspect.signature(build).parameters["batch"].default
        if place[1] == 1:
            how |= {"batch": batch, "gpus": gpus, **technique.build_options(precision)}
            stage: offload.Stage = parted("pipeline", build)(params, config, place=place, monitor=monitor, **how)
            return stage
        if any(found := hosts(comm)):
            raise ValueError(
                f"--offload pipeline: ranks on {len(set(found))} hosts: stages on GPUs send features within a host "
                "alone; start ranks on one, or use --offload tensor or async"
            )
        with cuda.gpus[gpus[0]]:
            return stage_on(comm, Group(comm), technique, params, config, batch, precision, gpus[0], monitor)

    return made


def stage_on(
    comm: Comm, group: Group, technique: NetworkTechnique, params: Mapping[str, np.ndarray], config: Architecture,
    batch: int, precision: str | None, gpu: int, monitor: Monitor,
) -> Relay:  # fmt: skip
    """This rank's stage on the current GPU, of a group of all the communicator's ranks, which call it together.

    Raises:
        ValueError: there are more ranks than ops; or as of the technique's `build`.
    """
    rank, ranks = comm.rank, comm.size
    ops, prepared = technique.module.network(
        technique.name, params, config, batch=batch, **technique.build_options(precision)
    )
    if ranks > len(ops):
        raise ValueError(f"{ranks} ranks: need 1 to {len(ops)}, of the layers that a stage may have")
    found = timed([prepared((op,)) for op in ops], batch, config.length) if rank == 0 else None
    seconds, specs = zip(*comm.bcast(found), strict=True)
    specs = ArraySpec((config.length,), np.uint8), *specs  # what each op reads, and the last one gives
    weighted = [place for place, op in enumerate(ops) if any(node.parameters for node in op.nodes)]
    shared = [0, *weighted[1:]] if batch >= DIVIDED else []
    cuts = [*partition.begins(seconds, ranks, shared), (len(ops), len(ops), 0.0)]
    borders = [Border(specs[end], specs[begin], share) for begin, end, share in cuts]
    reached = [sum(seconds[:begin]) + share * sum(seconds[begin:end]) for begin, end, share in cuts]
    (first, own, _), (last, end, _) = cuts[rank : rank + 2]
    each = [prepared(ops[of]) for of in (slice(first, own), slice(own, last), slice(last, end))]
    took = reached[rank + 1] - reached[rank]
    return Relay(group, each, borders, batch, gpu, monitor, took, ops[first].label)


DIVIDED = 64
"""Inputs of a micro-batch from which two stages share a layer of weights and what follows it: each takes some of the
inputs. The layers' time is about in proportion to them."""


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
