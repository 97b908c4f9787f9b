"""Ranks that talk over TCP alone, and those of two hosts with a slow wire between: same bits, same losses."""

import json
import sys

import pytest
from conftest import quick
from hosts import Hosts, obstacle
from test_farm import ROUND_TRIP, ULFM, needs_ulfm
from test_kills import SCRIPT
from test_mpi import ENVIRONMENT, MPIEXEC, ROOT, mpiexec, needs_mpi

TCP = ("--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo")


@needs_mpi
@needs_ulfm
@pytest.mark.exhaustive
def test_over_tcp_the_bits_are_the_same():
    done = mpiexec(3, "-c", ROUND_TRIP, options=TCP)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank done") == 3


@needs_mpi
@needs_ulfm
@pytest.mark.parametrize(
    "how", ["kill", *(pytest.param(how, marks=pytest.mark.exhaustive) for how in ("stop", "raise"))]
)
def test_over_tcp_nothing_is_lost(how):
    fate = {
        "kills": {1: {"how": how, "when": "middle", "call": 3, "delay": 0}},
        "inputs": 1000,
        "chunk": 4,
        "slots": 1,
        "pace": 0.002,
        "root_computes": False,
        "waits": True,
    }
    done = mpiexec(3, "-c", SCRIPT, json.dumps(fate), options=(*ULFM, *TCP), timeout=300)
    nothing_is_lost(done)


def nothing_is_lost(done):
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert report["right"]
    assert 1 in {lost["rank"] for lost in report["lost"]}
    assert sum(rank["inputs"] for rank in report["ranks"]) == 1000


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Two hosts, 2 ms and 100 MB/s apart."""
    if why := obstacle():
        pytest.skip(f"no two hosts on this machine: {why}")
    with Hosts(tmp_path_factory.mktemp("hosts"), latency=2e-3, speed=100e6) as both:
        yield both


def over_hosts(hosts, *command, options=()):
    # Stopped ones end within seconds, not a minute.
    environment = {**ENVIRONMENT, "PYTHONPATH": ROOT, "CHARCNN_MPI_STOPPED": "5"}
    return hosts.mpiexec(MPIEXEC, 2, [sys.executable, *command], options=options, env=environment)


@needs_mpi
@pytest.mark.exhaustive
def test_gpus_of_two_hosts_share_layers(hosts):
    """Emulated GPUs, two on each host: nothing stands in for the hosts."""
    words = "charcnn.networks.ffn --variant tiny --as naive --offload tensor --batch 2 --inputs 3"
    done = over_hosts(hosts, "-m", *words.split(), options=("-x", "NUMBA_ENABLE_CUDASIM=1"))
    assert "validated passed: 3 of 3" in done.stdout, done.stdout + done.stderr
    assert "features go through MPI from pinned pages, host memory within a host" in done.stdout


TWO_HOSTS = """
import platform, time
import numpy as np
from charcnn import offload
comm = offload.world()
assert platform.node() == f"host{comm.rank // 2}", platform.node()
assert offload.local_place(comm) == (comm.rank % 2, 2)
ids = np.random.default_rng(1).integers(0, 71, (20_000, 1014), np.uint8)
def double(ids):
    return ids[:, :3].astype(np.float32) * 2
for name, mode in offload.MODES.items():
    comm.Barrier()
    started = time.perf_counter()
    logits = mode(comm, ids if comm.rank == 0 else None, double, 1014, 3)
    if comm.rank == 0:
        assert logits.tobytes() == double(ids).tobytes()
        print(name, "right", 20_000 / (time.perf_counter() - started), "inputs/s", flush=True)
"""


@needs_mpi
@needs_ulfm
@pytest.mark.exhaustive
def test_over_two_hosts_the_bits_are_the_same(hosts):
    done = over_hosts(hosts, "-c", TWO_HOSTS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("right") == 3


@needs_mpi
@needs_ulfm
@pytest.mark.parametrize("how", ["kill", "stop"])
@quick(lambda how: how == "kill")
def test_a_rank_of_another_host_may_be_lost(how, hosts):
    fate = {
        "kills": {rank: {"how": how, "when": "middle", "call": 3, "delay": 0} for rank in (1, 3)},
        "inputs": 1000,
        "chunk": 4,
        "slots": 1,
        "pace": 0.002,
        "root_computes": False,
        "waits": True,
    }
    nothing_is_lost(over_hosts(hosts, "-c", SCRIPT, json.dumps(fate), options=ULFM))
