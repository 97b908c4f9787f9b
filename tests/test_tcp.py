"""Ranks that talk over TCP alone, as those of several hosts do: the same bits, the same losses."""

import json

import pytest
from test_farm import ROUND_TRIP, ULFM, needs_ulfm
from test_kills import SCRIPT
from test_mpi import mpiexec, needs_mpi

TCP = ("--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo")


@needs_mpi
@needs_ulfm
def test_over_tcp_the_bits_are_the_same():
    done = mpiexec(3, "-c", ROUND_TRIP, options=TCP)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank done") == 3


@needs_mpi
@needs_ulfm
@pytest.mark.parametrize("how", ["kill", "stop", "raise"])
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
    done = mpiexec(3, "-c", SCRIPT, json.dumps(fate), options=(*ULFM, *TCP), timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert report["right"]
    assert 1 in {lost["rank"] for lost in report["lost"]}
    assert sum(rank["inputs"] for rank in report["ranks"]) == 1000
