"""Threads that share a farm, or another way to offload: alone, over ranks, and when something fails."""

import threading

import numpy as np
import pytest
from conftest import by_turns
from test_farm import ULFM, needs_ulfm
from test_mpi import mpiexec, needs_mpi

from charcnn.offload import Farm, Overlapped, Scattered, Service

WAYS = pytest.mark.parametrize("way", [Farm, Overlapped, Scattered])


def triple(ids):
    return ids[:, :4].astype(np.float32) * 3


def ask(service, seed, blocks=30):
    rng = np.random.default_rng(seed)
    for _ in range(blocks):
        ids = rng.integers(0, 71, (rng.integers(0, 9), 12), np.uint8)
        logits = np.full((len(ids), 4), np.nan, np.float32)
        service.submit(ids, logits).result(timeout=300)
        assert np.array_equal(logits, triple(ids))


@WAYS
def test_threads_are_served_by_one_process(way):
    farm = way(None, 12, 4, size=8)
    service = Service(farm, triple)
    threads = [threading.Thread(target=ask, args=(service, seed)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(ValueError, match="ids has 9 rows: need at most size=8"):
        service.submit(np.zeros((9, 12), np.uint8), np.zeros((9, 4), np.float32))
    late = np.empty((1, 4), np.float32)
    future = service.submit(np.ones((1, 12), np.uint8), late)
    service.close()
    assert future.done()
    assert (late == 3).all()
    with pytest.raises(RuntimeError, match="closed"):
        service.submit(np.ones((1, 12), np.uint8), late)
    if way is Farm:
        assert farm.report()["ranks"][0]["inputs"] > 4


@WAYS
def test_an_error_reaches_all_who_wait(way):
    def fail(ids):
        raise ZeroDivisionError("the lens cap is on")

    service = Service(way(None, 12, 4, size=8), fail)
    space = np.empty((1, 4), np.float32)
    first = service.submit(np.ones((1, 12), np.uint8), space)
    with pytest.raises(ZeroDivisionError, match="lens cap"):
        first.result(timeout=300)
    with pytest.raises(ZeroDivisionError, match="lens cap"):
        service.submit(np.ones((1, 12), np.uint8), space).result(timeout=300)
    service.close()
    assert service.failed


RANKS = """
import os, signal, sys, threading, time
import numpy as np
sys.path.insert(0, "tests")
from charcnn import offload
from test_service import ask, triple
comm, dies = offload.world(), "dies" in sys.argv
calls = []
def compute(ids):
    calls.append(1)
    if dies and comm.rank == 1 and len(calls) == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.001)
    return triple(ids)
if comm.rank:
    offload.work(comm, lambda told: compute)
    if offload.survives_deaths():
        os._exit(0)
    sys.exit(0)
farm = offload.Farm(comm, 12, 4, size=8, root_computes=False)
farm.brief()
farm.wait(20)
service = offload.Service(farm, compute)
threads = [threading.Thread(target=ask, args=(service, seed, 60)) for seed in range(6)]
failed = []
threading.excepthook = lambda args: failed.append(args)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
service.close()
farm.close()
report = farm.report()
assert not failed, failed
assert report["ranks"][0]["inputs"] == 0 and all(rank["inputs"] for rank in report["ranks"][1:]), report
assert [lost["rank"] for lost in report["lost"]] == [1] * dies, report
print("all served", flush=True)
farm.leave(0)
"""


@needs_mpi
@pytest.mark.parametrize(
    "dies", [pytest.param(False, marks=pytest.mark.exhaustive), pytest.param(True, marks=[needs_ulfm, by_turns])]
)
def test_threads_are_served_by_many_ranks(dies):
    done = mpiexec(3, "-c", RANKS, *["dies"] * dies, options=ULFM * dies, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all served" in done.stdout
