"""Where ranks run: their cores and GPUs, the NUMA nodes of both, and what to tell mpiexec where they do not fit."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from charcnn.host import cores as cores_of

PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True)
class Place:
    """Where a rank runs."""

    rank: int
    host: str
    cores: tuple[int, ...]
    """Those that it may use."""
    threads: int
    """How many of its threads compute or start work on a GPU."""
    parallel: bool
    """Whether it would have as many threads as it has cores."""
    gpus: tuple[tuple[int, int | None], ...]
    """The GPUs that it drives, and the NUMA node of each, None where it is not known."""
    nodes: tuple[tuple[int, ...], ...]
    """The host's cores by NUMA node; one node where the system does not tell."""

    def near(self) -> set[int]:
        """The NUMA nodes of the cores that it may use."""
        return {node for node, cores in enumerate(self.nodes) if set(cores) & set(self.cores)}


def place(rank: int, threads: int, gpus: Sequence[tuple[int, str]], *, parallel: bool = False) -> Place:
    """This process's place.

    Args:
        rank: its number.
        threads: how many of its threads are busy.
        gpus: the index and the PCI address, as `0000:1b:00.0`, of each GPU that it drives.
        parallel: whether it would have as many threads as it has cores.
    """
    nodes = tuple(tuple(cpus) for cpus in cores_of.numa_nodes().values())
    if not any(nodes):
        nodes = (tuple(range(os.cpu_count() or 1)),)
    where = tuple((index, node_of(address)) for index, address in gpus)
    return Place(rank, platform.node(), tuple(cores_of.usable()), threads, parallel, where, nodes)


def node_of(address: str) -> int | None:
    """The NUMA node of a PCI address; None where it is not known."""
    try:
        node = int((PCI / address.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the firmware does not say


def advice(places: Sequence[Place]) -> list[str]:
    """What is wrong with where these ranks run, and what mpiexec would do about it; nothing where all is well."""
    said = []
    for host in dict.fromkeys(place.host for place in places):
        here = [place for place in places if place.host == host]
        said += _of_gpus(here) if here[0].gpus else _of_cores(here)
    return said


def _of_gpus(here: Sequence[Place]) -> list[str]:
    """Ranks of a host that drive GPUs."""
    said = []
    cramped = [place for place in here if len(place.cores) < min(place.threads, sum(map(len, place.nodes)))]
    if cramped:
        said.append(
            f"{_ranks(cramped)} on {cramped[0].host} may use {_cores(len(cramped[0].cores))} for "
            f"{cramped[0].threads} threads: start with --bind-to numa, or none"
        )
    for place in here:
        away = [(gpu, node) for gpu, node in place.gpus if node is not None and node not in place.near()]
        if away and place not in cramped:
            gpu, node = away[0]
            said.append(
                f"GPU {gpu} of rank {place.rank} on {place.host} is at NUMA node {node}, its cores at "
                f"{', '.join(map(str, sorted(place.near())))}: start with {_near(here)}"
            )
    free = [place for place in here if len(place.near()) > 1 and len(place.gpus) == 1]
    if free:
        said.append(
            f"{_ranks(free)} on {free[0].host} may use cores of {len(free[0].near())} NUMA nodes, and memory may be "
            f"far from the GPU: start with {_near(here)}"
        )
    return said


def _of_cores(here: Sequence[Place]) -> list[str]:
    """Ranks of a host that compute on its cores."""
    host, whole = here[0].host, sum(map(len, here[0].nodes))
    used, threads = set().union(*(place.cores for place in here)), sum(place.threads for place in here)
    each = max(1, whole // len(here))
    better = f"start with --map-by ppr:{len(here)}:node:PE={each} --bind-to core"
    if threads > len(used) and len(here) <= whole:
        return [f"{_ranks(here)} on {host} run {threads} threads on {_cores(len(used))}: {better}"]
    if len(used) < whole and each > 1 and any(place.parallel for place in here):
        return [f"{_ranks(here)} on {host} may use {len(used)} of its {_cores(whole)}: {better}"]
    return []


def _near(here: Sequence[Place]) -> str:
    """Options of Open MPI's mpiexec that share a host's ranks out evenly over its NUMA nodes."""
    return f"--map-by ppr:{-(-len(here) // len(here[0].nodes))}:numa --bind-to numa"


def _ranks(places: Sequence[Place]) -> str:
    numbers = ", ".join(str(place.rank) for place in places)
    return f"rank {numbers}" if len(places) == 1 else f"ranks {numbers}"


def _cores(number: int) -> str:
    return "1 core" if number == 1 else f"{number} cores"
