"""MPI with real ranks: any N over any R, in order, bit for bit; and what a failing rank does to the others."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import by_turns

from charcnn import offload

ROOT = Path(__file__).parents[1]
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


def mpi_installed():
    try:
        from mpi4py import MPI  # noqa: F401
    except ImportError:
        return False
    return MPIEXEC is not None


needs_mpi = pytest.mark.skipif(not mpi_installed(), reason="no MPI: pip install -e '.[mpi]'")
# Open MPI wants to be told that ranks may share cores, and that root may start them.
ENVIRONMENT = {
    **os.environ,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def survives_deaths():
    """Whether mpiexec can be told that the job goes on when a rank dies: Open MPI's, from 5 on."""
    if MPIEXEC is None:
        return False
    version = subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    found = re.search(r"Open MPI\) (\d+)", version.stdout)
    return found is not None and int(found[1]) >= 5


DEAD_FOR = 10.0
"""Seconds after which a launcher is ended all of whose ranks are dead. One that works ends within a second."""

ABORTED = 1
"""The status of a run that its launcher aborted, given to one that was ended."""


def states(parent):
    """Of a process's children, what Linux says that they do: Z where one has ended. Elsewhere none."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, above = place.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:  # it has gone
            continue
        if int(above) == parent:
            found.append(state)
    return found


def communicate(started, timeout):
    """Standard output, standard error, and whether its ranks were dead while it stayed: then it is killed.

    Open MPI 4.1's mpiexec may wait for ever on a lock of its own once it has said that it aborts. A rank that lives
    is waited for: that it does not end is ours.
    """
    ends, dead_since = time.monotonic() + timeout, None
    while (now := time.monotonic()) < ends:
        try:
            return *started.communicate(timeout=min(0.5, ends - now)), False
        except subprocess.TimeoutExpired:
            of_ranks = states(started.pid)
        now = time.monotonic()
        dead_since = (dead_since or now) if of_ranks and set(of_ranks) == {"Z"} else None
        if dead_since and now - dead_since >= DEAD_FOR:
            started.kill()
            return *started.communicate(), True
    raise subprocess.TimeoutExpired(started.args, timeout)


def mpiexec(ranks, *command, options=(), timeout=200, **environment):
    started = subprocess.Popen(
        [MPIEXEC, *options, "-n", str(ranks), sys.executable, *map(str, command)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**ENVIRONMENT, **environment},
    )  # fmt: skip
    try:
        out, err, stuck = communicate(started, timeout)
    except subprocess.TimeoutExpired:
        ps = ["ps", "--ppid", str(started.pid), "--pid", str(started.pid), "-o", "pid,ppid,stat,wchan:32,etimes,args"]
        alive = subprocess.run(ps, capture_output=True, text=True, check=False).stdout
        started.kill()
        out, err = started.communicate()
        pytest.fail(f"mpiexec did not end within {timeout} s.\n{alive}{out}{err}")
    if stuck:
        said = f"mpiexec did not end though all its ranks had, {DEAD_FOR:g} s before: it was killed"
        warnings.warn(said, stacklevel=2)
        err += f"{said}\n"
    return subprocess.CompletedProcess(started.args, ABORTED if stuck else started.returncode, out, err)


LAUNCHER = """#!{python}
import os, sys, time
launcher, ranks = os.getpid(), int(sys.argv[sys.argv.index("-n") + 1])
for rank in range(ranks):
    if os.fork() == 0:
        while rank < {living} and os.getppid() == launcher:
            time.sleep(0.05)
        os._exit(1)
print("ranks started", flush=True)
print("aborts", file=sys.stderr, flush=True)
open({started!r}, "w").close()
time.sleep(600)
"""
"""It does not end, nor wait for its ranks. So many of them live as long as it does."""


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """Have `mpiexec` start a launcher some of whose ranks live on."""
    if not states(os.getppid()):
        pytest.skip("no /proc, which tells of processes")

    clock, begun = time.monotonic, None

    def since_started():
        nonlocal begun
        if begun is None and (tmp_path / "started").exists():
            begun = clock()
        return 0.0 if begun is None else clock() - begun

    def replace(living):
        script = tmp_path / "launcher"
        script.write_text(LAUNCHER.format(python=sys.executable, living=living, started=str(tmp_path / "started")))
        script.chmod(0o755)
        monkeypatch.setattr(sys.modules[__name__], "MPIEXEC", str(script))
        monkeypatch.setattr(sys.modules[__name__], "DEAD_FOR", 1.0)
        monkeypatch.setattr(sys.modules[__name__], "time", SimpleNamespace(monotonic=since_started))

    return replace


def test_a_launcher_that_stays_when_its_ranks_are_dead_is_ended_as_one_that_aborts(launcher):
    launcher(living=0)
    with pytest.warns(UserWarning, match="did not end though all its ranks had"):
        done = mpiexec(3, "-c", "", timeout=30)
    assert done.returncode == ABORTED
    assert done.stdout == "ranks started\n"
    assert re.fullmatch("aborts\nmpiexec did not end .*, 1 s before: it was killed\n", done.stderr)


@pytest.mark.parametrize(("ranks", "living"), [(3, 1), (2, 2), (0, 0)])
def test_a_launcher_is_waited_for_while_a_rank_lives_or_where_it_has_none(ranks, living, launcher):
    launcher(living)
    with pytest.raises(pytest.fail.Exception, match=r"(?s)did not end within 2\.5 s.*ranks started\naborts"):
        mpiexec(ranks, "-c", "", timeout=2.5)


def test_shares_are_even_and_complete():
    for total in range(20):
        for ranks in range(1, 8):
            counts = offload.shares(total, ranks)
            assert sum(counts) == total
            assert max(counts) - min(counts) <= 1


def test_gpus_are_shared_out_evenly():
    assert [offload.gpu_share([0, 1, 2, 3], rank, 2) for rank in range(2)] == [[0, 2], [1, 3]]
    assert [offload.gpu_share([0, 1], rank, 4) for rank in range(4)] == [[0], [1], [0], [1]]
    assert offload.gpu_share([0, 1, 2], 0, 1) == [0, 1, 2]


UNTOLD = """
import os
from charcnn import offload
from charcnn.offload.ranks import LOCAL
for names in LOCAL:
    for name in names:
        os.environ.pop(name, None)
comm = offload.world()
if comm.rank == 1:
    comm.recv(source=0)
    assert offload.local_place(comm) == (1, 2)
else:
    assert offload.local_place(comm) == (0, 2)
    comm.send(None, dest=1)
    print("placed")
"""


@needs_mpi
def test_ranks_whose_launcher_tells_no_place_ask_once_at_their_start():
    done = mpiexec(2, "-c", UNTOLD, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "placed" in done.stdout


def test_no_mpiexec_needs_no_mpi(monkeypatch):
    for name in offload.LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    assert offload.world() is None
    ids = np.zeros((3, 5), np.uint8)
    assert offload.static(None, ids, lambda part: part[:, :2] + 1, 5, 2).shape == (3, 2)


def test_mpiexec_without_mpi4py_says_what_to_install(monkeypatch):
    monkeypatch.setenv(offload.LAUNCHED[0], "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(RuntimeError, match=r"pip install -e .*\[mpi\]"):
        offload.world()


ROUND_TRIP = """
import sys
import numpy as np
from charcnn import offload
comm = offload.world()
for n in (0, 1, 2, 3, 7, 64):
    ids = np.random.default_rng(n).integers(0, 71, (n, 9), np.uint8) if comm.rank == 0 else None
    expected = None if ids is None else ids[:, :3].astype(np.float32) * 2
    logits = offload.static(comm, ids, lambda part: part[:, :3].astype(np.float32) * 2, 9, 3)
    assert (logits is None) == (comm.rank != 0)
    if comm.rank == 0:
        assert np.array_equal(logits, expected), n
print("rank done", comm.rank, comm.size)
"""


@needs_mpi
@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_any_inputs_over_any_ranks_come_back_in_order(ranks):
    done = mpiexec(ranks, "-c", ROUND_TRIP)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank done") == ranks


KEEP_LOGITS = """
import sys
import charcnn.levels
charcnn.levels.prepare()
import numpy as np
from charcnn.levels.runner import command as runner
from importlib import import_module
name, out, *options = sys.argv[1:]
validate = runner.validate
def keep(job, logits, *more):
    np.save(out, logits)
    return validate(job, logits, *more)
runner.validate = keep
runner.main(import_module("charcnn.levels." + name).build, options)
"""


@pytest.mark.exhaustive
@needs_mpi
@pytest.mark.parametrize(("name", "inputs"), [("l0", 5), ("l2", 1), ("l2", 11), ("l5", 3)])
def test_levels_give_the_same_bits_on_any_number_of_ranks(name, inputs, tmp_path):
    script = tmp_path / "keep.py"
    script.write_text(KEEP_LOGITS)
    kept = []
    for ranks in (1, 3):
        out = tmp_path / f"{ranks}.npy"
        done = mpiexec(ranks, script, name, out, "--config", "tiny", "--inputs", inputs, "--batch", 2)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{ranks} rank" in done.stdout
        kept.append(np.load(out))
    assert len(kept[0]) == inputs
    assert np.array_equal(kept[0], kept[1])


@needs_mpi
def test_report_under_mpi(tmp_path):
    file = tmp_path / "report.json"
    done = mpiexec(2, "-m", "charcnn.levels.l0", "--config", "tiny", "--inputs", 3, "--json", file)
    assert done.returncode == 0, done.stderr
    assert json.loads(file.read_text())["ranks"] == 2
    assert done.stdout.count("validated") == 1, "the root alone reports"


FAILING = """
import sys
from charcnn import offload
import charcnn.levels
charcnn.levels.prepare()
from charcnn.levels import l0
from charcnn.levels.runner import command as runner
rank = offload.world().rank
def build(params, config, *, batch=4, gpus=None, monitor=None):
    run = l0.build(params, config, batch=batch, monitor=monitor)
    calls = []
    def fail(ids):
        calls.append(1)
        if rank == 1 and len(calls) > 1:
            raise {error}
        return run(ids)
    return fail
build.__module__ = "charcnn.levels.l0"
runner.main(build, ["--config", "tiny", "--inputs", "2"])
"""


@by_turns
@needs_mpi
def test_a_rank_that_raises_stops_all_with_its_traceback():
    done = mpiexec(2, "-c", FAILING.format(error="ZeroDivisionError('the lens cap is on')"))
    assert done.returncode != 0
    assert "rank 1: Traceback" in done.stderr
    assert "the lens cap is on" in done.stderr
    assert "validated" not in done.stdout


@by_turns
@needs_mpi
def test_a_rank_out_of_memory_stops_all_with_one_line():
    done = mpiexec(2, "-c", FAILING.format(error="MemoryError()"))
    assert done.returncode != 0
    assert "out of host memory: lower --batch" in done.stderr
    assert "Traceback" not in done.stderr


@needs_mpi
@pytest.mark.exhaustive
def test_bad_options_under_mpi_end_all_ranks_and_say_it_once():
    done = mpiexec(2, "-m", "charcnn.levels.l1", "--text", "nowhere.txt")
    assert done.returncode != 0
    assert done.stderr.count("nowhere.txt") == 1
    done = mpiexec(2, "-m", "charcnn.levels.l1", "--inputs", "none")
    assert done.returncode != 0
    assert done.stderr.count("--inputs") == 1
