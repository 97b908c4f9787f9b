"""Collectives of GPUs of several hosts: emulated ranks, which are processes that call themselves other hosts."""

from __future__ import annotations

import pytest
from test_collectives import BEGIN, EMULATED
from test_mpi import mpiexec, needs_mpi

pytestmark = needs_mpi

HOSTS = (
    BEGIN
    + """
import platform
from charcnn.gpu.collectives.hosts import Hosts

names = sys.argv.pop(1)
platform.node = lambda: names[comm.rank]

def exact(found, xs):
    of = sorted({name: None for name in names})
    parts = [np.add.accumulate([wide(x) for x, name in zip(xs, names) if name == one], 0)[-1] for one in of]
    same(found, narrow(np.add.accumulate(parts, 0)[-1], xs.dtype.name))
"""
)

ALL = (
    HOSTS
    + """
group = Hosts(comm, deadline=100)
for dtype in ("float32", "float16", "uint16"):
    for size in map(int, sys.argv[1:]):
        xs, parts = drawn((size,), dtype), drawn((comm.size, size), dtype)
        mine = xs[comm.rank].copy()
        exact(group.all_reduce(mine), xs)
        exact(group.all_reduce(mine, mine), xs)  # in place
        same(group.all_gather(xs[comm.rank].copy()), xs)
        exact(np.stack(comm.allgather(group.reduce_scatter(parts[comm.rank].copy()))), parts)
        group.check()
print(group.link)
group.close()
"""
)


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        ("ab", (0, 1, 7, 333)),
        ("abab", (65,)),
        *(pytest.param(of, (0, 5, 64, 1001), marks=pytest.mark.exhaustive) for of in ("aab", "abb", "aabb", "abca")),
    ],
)
def test_sums_and_copies_are_exact(names, sizes):
    """One rank a host and several, as many on each and not, side by side and in turns."""
    done = mpiexec(len(names), "-c", ALL, names, *sizes, **EMULATED)
    link = "MPI from pinned pages" + ", host memory within a host" * (len({*names}) < len(names))
    assert done.stdout.splitlines() == [link] * len(names), done.stderr
