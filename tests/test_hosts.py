"""Collectives of GPUs of several hosts: emulated ranks, which are processes that call themselves other hosts."""

from __future__ import annotations

import json
import re

import pytest
from test_collectives import BEGIN, EMULATED
from test_mpi import mpiexec, needs_mpi
from test_shared_networks import ANY

from charcnn.gpu.collectives import regions
from charcnn.gpu.collectives.hosts import messages
from charcnn.gpu.collectives.pieces import Piece
from charcnn.gpu.device import DeviceError
from charcnn.runtime.exchange import Alone

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
        ("aab", (7,)),
        *(
            pytest.param(of, (0, 5, 64, 1001), marks=pytest.mark.exhaustive)
            for of in ("ab", "aab", "abb", "aabb", "abab", "abca")
        ),
        pytest.param("ab", (65_537,), marks=pytest.mark.exhaustive),
    ],
)
def test_sums_and_copies_are_exact(names, sizes):
    """One rank a host and several, as many on each and not, side by side and in turns."""
    done = mpiexec(len(names), "-c", ALL, names, *sizes, timeout=1000, **EMULATED)
    link = "MPI from pinned pages" + ", host memory within a host" * (len({*names}) < len(names))
    assert done.stdout.splitlines() == [link] * len(names), done.stderr


DIRECT = ALL.replace(
    "group = Hosts(comm, deadline=100)",
    """from charcnn.gpu.collectives import hosts
hosts.GpuRegion = type("Stood", (hosts.HostRegion,), {})
group = Hosts(comm, deadline=100, direct=comm.rank < int(sys.argv.pop(1)))""",
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("direct", "link"), [(2, "MPI from GPU memory"), (1, "MPI from pinned pages")])
def test_messages_begin_and_end_in_gpu_memory_where_all_ranks_can(direct, link):
    """Memory of the host stands in for that of GPUs."""
    done = mpiexec(2, "-c", DIRECT, "ab", direct, 7, **EMULATED)
    assert done.stdout.splitlines() == [link] * 2, done.stderr


@pytest.mark.parametrize("refused", [True, False])
def test_where_a_rank_cannot_open_others_memory_none_does(refused, monkeypatch):
    closed = []

    class Region:
        def __init__(self, nbytes):
            pass

        def shared(self, comm):
            if refused:
                raise DeviceError("the driver refused a handle of GPU memory")

        def close(self):
            closed.append(True)

    monkeypatch.setattr(regions, "GpuRegion", Region)
    assert regions.opens(Alone()) != refused
    assert closed


CALLED = """
import platform
import sys
from charcnn import offload
names, rank = sys.argv.pop(1), offload.world().rank
platform.node = lambda: names[rank]
"""
"""What comes before a program whose ranks are on hosts of these names."""


@pytest.mark.parametrize(
    ("names", "ways"),
    [
        *(
            pytest.param(*of, marks=pytest.mark.exhaustive)
            for of in (
                ("ab", ["naive:fp32:0:channels", "winograd:fp32:9:inputs"]),
                ("aab", ["naive:fp32:9:channels", "naive:fp32:0:inputs"]),
                ("ab", ["mma:fp16:9:channels"]),
                ("ab", ["mma:bf16:9:inputs"]),
            )
        ),
    ],
)
def test_a_share_of_any_network(names, ways):
    """Channels and inputs are shared unevenly: results are one GPU's to within rounding."""
    done = mpiexec(len(names), "-c", CALLED + ANY, names, *ways, **EMULATED, PYTHONPATH="tests", timeout=500)
    assert done.stdout.count("all right") == len(names), done.stderr


def test_messages_go_once_from_a_rank_to_a_host():
    """To two ranks of a host goes what either takes, of each row one range; receivers take turns."""
    nothing, low, high = Piece(0, 0, 0), Piece(2, 4, 0), Piece(8, 2, 6)
    pieces = [[low, low, low, high], [nothing] * 4, [low] * 4, [high, high, nothing, low]]
    assert messages([[0], [1], [2, 3]], pieces) == [
        (0, 1, 1, 2, 4, 0, 0), (0, 2, 2, 2, 8, 0, 1), (1, 0, 0, 0, 0, 0, 0), (1, 2, 2, 0, 0, 1, 1),
        (2, 0, 0, 2, 4, 1, 0), (2, 1, 1, 2, 4, 1, 1), (3, 0, 0, 8, 2, 2, 0), (3, 1, 1, 8, 2, 2, 1),
    ]  # fmt: skip


LATE = (
    HOSTS
    + """
import time
from charcnn.gpu.device import DeviceError

protocols.LOOKS, deadline = 16, float(sys.argv.pop(1))

x, exchanged = np.full(40, 1 + comm.rank, np.float32), Hosts._exchanged

def late(group, *parts, when):
    group.calls += 1
    if comm.rank == comm.size - 1 and group.calls == 2 and when == "in":
        time.sleep(4 * deadline)
    exchanged(group, *parts)
    if comm.rank == comm.size - 1 and group.calls == 2 and when == "behind":
        time.sleep(4 * deadline)

for when in sys.argv[1:]:
    Hosts._exchanged = lambda group, *parts: late(group, *parts, when=when)
    group = Hosts(comm, deadline=deadline)
    group.calls, said = 0, set()
    group.all_reduce(x)
    comm.Barrier()
    if comm.rank == comm.size - 1 and when == "before":
        time.sleep(4 * deadline)
    for _ in range(3):
        try:
            group.all_reduce(x)
        except DeviceError as error:
            said.add(str(error))
    try:
        group.check()
    except DeviceError as error:
        said.add(str(error))
    print(when, *said)
    comm.Barrier()
"""
)


@pytest.mark.parametrize(
    ("names", "phases"),
    [
        ("ab", ("in",)),
        pytest.param("ab", ("before", "behind"), marks=pytest.mark.exhaustive),
        pytest.param("aabb", ("before", "in", "behind"), marks=pytest.mark.exhaustive),
    ],
)
def test_a_late_rank_ends_the_wait_on_all_hosts(names, phases):
    """Where kernels wait for it, another host may have given up the one that waits: these are emulated, and slow."""
    deadline, host = 0.5 if len(names) == 2 else 2, names.index(names[-1])
    done = mpiexec(len(names), "-c", LATE, names, deadline, *phases, **EMULATED)
    assert done.returncode == 0, done.stderr
    for when in phases:
        lost = re.findall(rf"^{when} rank (\d) did not come within {deadline} s to where", done.stdout, re.MULTILINE)
        assert len(lost) == len(names), done.stdout
        assert all(int(rank) >= host for rank in lost), done.stdout


STRUCK = """
import os, signal
from charcnn.gpu.collectives import Hosts, hosts
from charcnn.networks.runner import encoder

phase, calls = sys.argv[1], []
struck = {"sum": (hosts, "launch_sum"), "copy": (hosts.recording, "copy_rows"), "sent": (Hosts, "_exchanged"),
          "met": (Hosts, "_met"), "waits": (Hosts, "_finish")}[phase]
start = getattr(*struck)

def dies(*given):
    calls.append(given)
    if rank == 1 and len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    start(*given)

setattr(*struck, dies)
encoder.main("bert", "--variant tiny --inputs 1 --tokens 4 --offload tensor --as mma".split())
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("phase", ["sum", "copy", "sent", "met", "waits"])
def test_a_rank_that_dies_in_an_exchange_ends_the_run(phase):
    done = mpiexec(2, "-c", CALLED + STRUCK, "ab", phase, timeout=120, **EMULATED)
    assert done.returncode
    assert "validated" not in done.stdout
    assert "signal 9" in done.stderr, done.stderr


COMMANDS = """
from charcnn.networks.runner import command, encoder
main = encoder.main if sys.argv[1] == "bert" else command.main
main(sys.argv[1], sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("names", "words", "link"),
    [
        pytest.param(*of, marks=pytest.mark.exhaustive if "ffn" not in of[1] else ())
        for of in (
            ("ab", "mnist --variant tiny --as naive --offload tensor --batch 1 --inputs 3", "MPI from pinned pages"),
            ("aabb", "mnist --variant tiny --as naive --offload tensor --batch 2 --inputs 3",
             "MPI from pinned pages, host memory within a host"),
            ("ab", "ffn --variant tiny --as naive --offload tensor --batch 2 --inputs 2", "MPI from pinned pages"),
            ("ab", "bert --variant tiny --as naive --offload tensor --tokens 4 --inputs 2", "MPI from pinned pages"),
            ("ab", "bert --variant tiny --as mma --precision bf16 --offload tensor --tokens 4 --inputs 2",
             "MPI from pinned pages"),
        )
    ],
)  # fmt: skip
def test_commands_on_two_hosts(names, words, link, tmp_path):
    words = [*words.split(), "--json", tmp_path / "r.json"]
    done = mpiexec(len(names), "-c", CALLED + COMMANDS, names, *words, **EMULATED)
    assert "validated passed" in done.stdout, done.stdout + done.stderr
    assert {did["link"] for did in json.loads((tmp_path / "r.json").read_text())["parts"]} == {link}


@pytest.mark.exhaustive
def test_stages_on_gpus_of_two_hosts_are_refused_in_a_line():
    words = "mnist --variant tiny --as naive --inputs 2 --offload pipeline"
    done = mpiexec(2, "-c", CALLED + COMMANDS, "ab", *words.split(), **EMULATED)
    assert done.returncode == 2, done.stdout + done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("mnist")] == [
        "mnist: rank 0: --offload pipeline: ranks on 2 hosts: stages on GPUs send features within a host alone; start "
        "ranks on one, or use --offload tensor or async"
    ]
