"""The cores that a rank may use: its share of the host's, where mpiexec bound it without being asked to.

Open MPI binds two ranks to a core each, and more to a NUMA node each, if it is not told otherwise: too few cores for a
GPU's threads, or cores far from it. `settle` gives such a rank its share of the cores that mpiexec itself may use, near
its GPU, disjoint from those of the host's other ranks. Whoever binds on purpose (--bind-to, --map-by, a rankfile,
taskset or numactl) is left alone, and so are ranks that another launcher started, or on another host than mpiexec's.

Numba and BLAS count a process's cores when they are imported: this module needs neither.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from charcnn.host.terminal import runs

NODES, CPUS = Path("/sys/devices/system/node"), Path("/sys/devices/system/cpu")

LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK")
"""Environment variables by which Open MPI, PMIx and MPICH tell a process that mpiexec started it."""

LAUNCHERS = ("mpiexec", "mpirun", "orterun", "prterun")

BINDS = (
    "bind-to", "map-by", "cpu-set", "cpu-list", "cpus-per", "rankfile", "rf", "bynode", "bycore", "bysocket",
    "npernode", "npersocket", "ppr", "pernode",
)  # fmt: skip
"""Options of mpiexec, or how they begin, by which a user says where ranks run."""

SETTINGS = (
    "hwloc_base_binding_policy", "hwloc_default_binding_policy", "hwloc_base_cpu_list", "hwloc_default_cpu_list",
    "hwloc_base_cpu_set", "rmaps_base_mapping_policy", "rmaps_default_mapping_policy", "rmaps_rank_file_path",
)  # fmt: skip
"""Open MPI's settings by which he does, as an option, or with OMPI_MCA_ or PRTE_MCA_ before them in the environment."""

BINDERS = ("taskset", "numactl", "hwloc-bind", "likwid-pin")

ENOUGH = 4
"""Cores that a rank with a GPU needs; those of its GPU's NUMA node come first."""


@dataclass(frozen=True)
class Host:
    """The cores of a host that ranks may share: each a tuple of its hardware threads."""

    cores: tuple[tuple[int, ...], ...]
    node: dict[int, int]
    """The NUMA node of each hardware thread."""


@dataclass
class _Bound:
    """A rank that mpiexec bound of its own accord."""

    host: Host
    rank: int
    """Its number among those of the host."""
    ranks: int
    was: frozenset[int]
    now: frozenset[int]


_bound: _Bound | None = None
_looked = False


def usable() -> list[int]:
    """Those that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]


def settle(near: Sequence[int | None] | None = None) -> None:
    """Give this rank its share of the host's cores, where mpiexec bound it of its own accord; else do nothing.

    Args:
        near: the NUMA node of the GPU of each rank of the host, None where it is not known; None: ranks have no GPU, or
            it is not known yet which.
    """
    global _bound, _looked
    if not _looked:
        _looked, _bound = True, _find()
    if _bound is None:
        return
    share = shares(_bound.host, _bound.ranks, near)[_bound.rank]
    own = None if near is None else near[_bound.rank]
    if own is not None and len(_bound.was) >= len(share) and {_bound.host.node.get(cpu) for cpu in _bound.was} == {own}:
        share = set(_bound.was)  # as mpiexec has it is as near, and no less
    _use(share)
    _bound.now = frozenset(share)


def said() -> str | None:
    """What `settle` did, for people; None where it changed nothing."""
    if _bound is None or _bound.now == _bound.was:
        return None
    return f"{written(_bound.now)}, its share of the host; mpiexec had bound it to {written(_bound.was)}"


def _use(cores: Iterable[int]) -> None:
    chosen = set(cores)
    for thread in os.listdir("/proc/self/task"):  # those that are there keep their own; later ones inherit
        with suppress(OSError):
            os.sched_setaffinity(int(thread), chosen)


def _find() -> _Bound | None:
    """This rank as mpiexec bound it, if it did so of its own accord."""
    rank, ranks = (os.environ.get(f"OMPI_COMM_WORLD_LOCAL_{name}") for name in ("RANK", "SIZE"))
    if rank is None or ranks is None or not hasattr(os, "sched_setaffinity"):
        return None
    parent = os.getppid()
    try:
        words = _file(f"/proc/{parent}/cmdline")
        settings = {**os.environ, **dict(word.partition("=")[::2] for word in _file(f"/proc/{parent}/environ"))}
        allowed, was = os.sched_getaffinity(parent), os.sched_getaffinity(0)
    except OSError:
        return None
    host = of_host(allowed)
    whole = of_host(online() or allowed)  # Open MPI may bind to a core that mpiexec itself may not use
    defaults = by_default(was, host) or by_default(was, whole)
    if by_request(words, settings) or not defaults or int(ranks) > len(host.cores):
        return None
    return _Bound(host, int(rank), int(ranks), frozenset(was), frozenset(was))


def _file(name: str) -> list[str]:
    return Path(name).read_bytes().decode(errors="surrogateescape").split("\0")


def by_request(command: Sequence[str], settings: dict[str, str]) -> bool:
    """Whether a user said where ranks run, or it is not known.

    Args:
        command: that of the process that started the rank.
        settings: its environment.
    """
    if Path(command[0]).name.split(".")[0] not in LAUNCHERS:  # a daemon on another host, a shell, another launcher
        return True
    for word in command[1:]:
        option = word.lstrip("-")
        if word.startswith("-") and option.startswith(BINDS):
            return True
        if word in SETTINGS or Path(word).name in BINDERS:
            return True
    for prefix in ("OMPI_MCA_", "PRTE_MCA_"):
        for name in SETTINGS:
            value = settings.get(prefix + name, "")
            policy, _, modifiers = value.partition(":")
            if policy or "pe=" in modifiers.lower():  # ":oversubscribe" says nothing of where
                return True
    return False


def by_default(mask: set[int], host: Host) -> bool:
    """Whether the mask is one that Open MPI gives where it is not asked: a core, a NUMA node, or all."""
    nodes = [{cpu for core in host.cores for cpu in core if host.node[cpu] == node} for node in set(host.node.values())]
    return mask in [*map(set, host.cores), *nodes, {cpu for core in host.cores for cpu in core}]


def of_host(allowed: set[int]) -> Host:
    """Those of this host's cores that are allowed, in the order of NUMA nodes."""
    node = {cpu: number for number, cpus in numa_nodes().items() for cpu in cpus}
    cores: dict[int, tuple[int, ...]] = {}
    for cpu in sorted(allowed):
        try:
            siblings = listed(CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list")
        except (OSError, ValueError):
            siblings = [cpu]
        cores[min(siblings)] = tuple(sorted(allowed.intersection(siblings) | {cpu}))
    in_order = sorted(cores.values(), key=lambda core: (node.get(core[0], 0), core))
    return Host(tuple(in_order), {cpu: node.get(cpu, 0) for cpu in allowed})


def online() -> set[int]:
    """All hardware threads; none where the system does not tell."""
    try:
        return set(listed(CPUS / "online"))
    except (OSError, ValueError):
        return set()


def numa_nodes() -> dict[int, list[int]]:
    """The hardware threads of each NUMA node; nothing where the system does not tell."""
    found = {}
    for folder in NODES.glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            found[int(folder.name[4:])] = listed(folder / "cpulist")
    return dict(sorted(found.items()))


def listed(file: Path) -> list[int]:
    """The numbers of a list as Linux writes it: 0-3,8,10-11."""
    numbers: list[int] = []
    for part in filter(None, file.read_text().strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def written(cores: Iterable[int]) -> str:
    """Cores as Linux lists them, with a word before: cores 0-3,8."""
    found = runs(sorted(cores))
    numbers = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
    return f"core{'s' * (len(found) != 1 or found[0][0] != found[0][1])} {numbers}"


def shares(host: Host, ranks: int, near: Sequence[int | None] | None = None) -> list[set[int]]:
    """The hardware threads of each of a host's ranks: disjoint, and as many each as can be.

    Ranks with a GPU share the cores of its NUMA node, and, where those are few, of nodes that no rank is near.

    Args:
        host: whose cores.
        ranks: how many; at most as many as there are cores.
        near: as of `settle`.
    """
    nodes: dict[int, list[tuple[int, ...]]] = {}
    for core in host.cores:
        nodes.setdefault(host.node[core[0]], []).append(core)
    if near is None or any(node not in nodes for node in near):  # also where a GPU's node has no core that is allowed
        return _dealt(host.cores, ranks)
    parts: list[set[int]] = [set() for _ in range(ranks)]
    spare = [core for node, cores in nodes.items() if node not in near for core in cores]
    short = []
    for node, cores in nodes.items():
        here = [rank for rank in range(ranks) if near[rank] == node]
        for rank, part in zip(here, _dealt(cores, len(here)), strict=True):
            parts[rank] = part
        if len(cores) < ENOUGH * len(here):
            short += here
    for rank, part in zip(short, _dealt(spare, len(short)), strict=True):
        parts[rank] |= part
    return parts


def _dealt(cores: Sequence[tuple[int, ...]], ranks: int) -> list[set[int]]:
    """Neighbouring cores to each rank, the first ones one more; one each, in turn, where there are fewer than ranks."""
    if len(cores) < ranks:
        return [set(cores[rank % len(cores)]) if cores else set() for rank in range(ranks)]
    parts, start = [], 0
    for rank in range(ranks):
        stop = start + len(cores) // ranks + (rank < len(cores) % ranks)
        parts.append({cpu for core in cores[start:stop] for cpu in core})
        start = stop
    return parts
