"""Ranks that die or are stopped while others wait for them: each run ends, by one line and a status."""

import math
import os
import signal
import subprocess
import sys

import pytest
from conftest import by_turns
from test_farm import ULFM, needs_ulfm
from test_mpi import ENVIRONMENT, ROOT, mpiexec, needs_mpi, survives_deaths

from charcnn.offload import watch

BOTH = pytest.mark.parametrize("options", [(), pytest.param(ULFM, marks=needs_ulfm)], ids=["plain", "ulfm"])


def ended(done):
    """By a status and without a traceback."""
    assert done.returncode not in (0, None), done.stderr
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(("value", "seconds"), [("", 60), ("5", 5), ("0.5", 0.5), ("0", math.inf)])
def test_limits_are_seconds(value, seconds, monkeypatch):
    monkeypatch.setenv("CHARCNN_MPI_START", value)
    assert watch.limit("CHARCNN_MPI_START") == seconds


@pytest.mark.parametrize("value", ["-1", "soon", "nan"])
def test_other_limits_are_refused(value, monkeypatch):
    monkeypatch.setenv("CHARCNN_MPI_END", value)
    with pytest.raises(ValueError, match=f"CHARCNN_MPI_END={value}: need seconds, or 0 for no limit"):
        watch.limit("CHARCNN_MPI_END")


GUARDED = """
import sys, time
from charcnn.offload.watch import Guard
guard = Guard(3, float(sys.argv[1]))
print("guarded", flush=True)
sys.stdin.readline()
guard.close()
"""


def guarded(seconds):
    command = [sys.executable, "-c", GUARDED, seconds]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, **pipes, text=True, cwd=ROOT)
    assert process.stdout.readline() == "guarded\n"
    return process


def test_a_process_that_is_stopped_too_long_is_ended_by_its_guard():
    process = guarded("0.5")
    os.kill(process.pid, signal.SIGSTOP)
    _, said = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert said == "charcnn: rank 3: stopped for 0.5 s, and ended (CHARCNN_MPI_STOPPED sets the seconds)\n"


def test_a_process_that_goes_on_is_left_alone_and_its_guard_ends_with_it():
    process = guarded("30")
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGCONT)
    _, said = process.communicate("\n", timeout=300)  # returns when the guard has closed its standard error, too
    assert (process.returncode, said) == (0, "")


START = """
import os, signal, sys
rank, how = int(os.environ["OMPI_COMM_WORLD_RANK"]), sys.argv[1]
if rank == 1:
    os.kill(os.getpid(), getattr(signal, how))
from charcnn import offload
offload.world()
"""


@needs_mpi
@pytest.mark.parametrize(
    ("options", "how"),
    [((), "SIGSTOP"), pytest.param(ULFM, "SIGSTOP", marks=needs_ulfm), pytest.param(ULFM, "SIGKILL", marks=needs_ulfm)],
)
def test_ranks_do_not_wait_for_one_that_never_starts(options, how):
    done = mpiexec(2, "-c", START, how, options=options, timeout=300, CHARCNN_MPI_START="1")
    ended(done)
    assert "charcnn: rank 0: MPI did not start within 1 s: another rank died, is stopped or is late" in done.stderr


@needs_mpi
def test_mpi_that_cannot_start_ends_the_process_by_a_line_and_a_status():
    """Another rank dies while it starts: Open MPI would abort, which under ULFM counts as a success.

    Open MPI 4 aborts by lines of its own.
    """
    environment = {**ENVIRONMENT, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_pml": "nosuch"}
    command = [sys.executable, "-c", "from charcnn import offload; offload.world()"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300, check=False)
    assert done.returncode == watch.FAILED
    assert "charcnn: rank 1: MPI did not start" in done.stderr or not survives_deaths()


STEPS = """
import os, signal, sys
from charcnn import offload
import charcnn.levels
charcnn.levels.prepare()
from charcnn.levels import l2
from charcnn.levels.runner import command as runner
how, mode = sys.argv[1:]
rank = offload.world().rank
def build(params, config, *, batch=4, gpus=None, monitor=None):
    run = l2.build(params, config, batch=batch, monitor=monitor)
    calls = []
    def struck(ids):
        calls.append(1)
        if rank == 1 and len(calls) > 1:
            os.kill(os.getpid(), getattr(signal, how))
        return run(ids)
    return struck
build.__module__ = "charcnn.levels.l2"
runner.main(build, ["--config", "tiny", "--inputs", "30", "--offload", mode])
"""


@needs_mpi
@needs_ulfm
@pytest.mark.parametrize("mode", [pytest.param("static", marks=pytest.mark.exhaustive), "async"])
def test_a_death_ends_all_ranks_that_go_in_step(mode):
    done = mpiexec(2, "-c", STEPS, "SIGKILL", mode, options=ULFM, timeout=300)
    ended(done)
    line = f"charcnn: rank 0: rank 1 has died, and ends this run: --offload {mode} needs all; --offload farm goes on"
    assert line in done.stderr
    assert "validated" not in done.stdout


@by_turns
@needs_mpi
@needs_ulfm
def test_a_stopped_rank_is_ended_and_with_it_all_that_go_in_step():
    done = mpiexec(2, "-c", STEPS, "SIGSTOP", "static", options=ULFM, timeout=300, CHARCNN_MPI_STOPPED="1")
    ended(done)
    assert "charcnn: rank 1: stopped for 1 s, and ended" in done.stderr
    assert "rank 0: rank 1 has died" in done.stderr


END = """
import atexit, os, signal
from charcnn import offload
rank = offload.world().rank
if rank == 1:
    atexit.register(os.kill, os.getpid(), signal.SIGSTOP)
"""


@needs_mpi
@BOTH
def test_ranks_do_not_wait_for_one_that_never_ends(options):
    done = mpiexec(2, "-c", END, options=options, timeout=300, CHARCNN_MPI_END="1", CHARCNN_MPI_STOPPED="0")
    ended(done)
    assert "charcnn: rank 0: all is done here, but MPI did not end within 1 s" in done.stderr


BUILDING = """
import os, signal, sys, time
import numpy as np
from charcnn import offload
how, comm = sys.argv[1], offload.world()
def build(told):
    if how == "stop" and comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(5)
    return lambda ids: ids[:, :3].astype(np.float32)
if comm.rank:
    offload.work(comm, build)
    sys.exit()
ids = np.random.default_rng(5).integers(0, 71, (40, 9), np.uint8)
farm = offload.Farm(comm, 9, 3, size=4, deadline=1 if how == "stop" else 3, grace=60)
farm.brief()
farm.wait(600)
logits = farm.run(ids, lambda ids: ids[:, :3].astype(np.float32))
farm.close()
print(farm.report()["lost"], np.array_equal(logits, ids[:, :3]))
farm.leave(0)
"""


@needs_mpi
@BOTH
def test_a_worker_that_stops_before_it_is_ready_is_given_up(options):
    done = mpiexec(2, "-c", BUILDING, "stop", options=options, timeout=300)
    assert "no sign of life for 1 s before it was ready" in done.stdout, done.stdout + done.stderr
    assert "True" in done.stdout


@needs_mpi
@pytest.mark.exhaustive
def test_a_worker_that_builds_longer_than_the_deadline_is_not():
    done = mpiexec(2, "-c", BUILDING, "build", timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[] True"
