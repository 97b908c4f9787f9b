"""MPI with real ranks: any N over any R, in order, bit for bit; and what a failing rank does to the others."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from charcnn import offload

ROOT = Path(__file__).parents[1]
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


def mpi_installed():
    try:
        from mpi4py import MPI  # noqa: F401
    except ImportError:
        return False
    return MPIEXEC is not None


needs_mpi = pytest.mark.skipif(not mpi_installed(), reason="no MPI: pip install 'charcnn[mpi]'")
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


def mpiexec(ranks, *command, options=(), timeout=200, **environment):
    started = subprocess.Popen(
        [MPIEXEC, *options, "-n", str(ranks), sys.executable, *map(str, command)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**ENVIRONMENT, **environment},
    )  # fmt: skip
    try:
        out, err = started.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        ps = ["ps", "--ppid", str(started.pid), "--pid", str(started.pid), "-o", "pid,ppid,stat,wchan:32,etimes,args"]
        alive = subprocess.run(ps, capture_output=True, text=True, check=False).stdout
        started.kill()
        out, err = started.communicate()
        pytest.fail(f"mpiexec did not end within {timeout} s.\n{alive}{out}{err}")
    return subprocess.CompletedProcess(started.args, started.returncode, out, err)


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
    done = mpiexec(2, "-c", UNTOLD, timeout=60)
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
    with pytest.raises(RuntimeError, match=r"charcnn\[mpi\]"):
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
@pytest.mark.parametrize("ranks", [1, 2, 4])
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
    done = mpiexec(2, "-m", "charcnn.levels.l1", "--config", "tiny", "--inputs", 5, "--json", file)
    assert done.returncode == 0, done.stderr
    assert json.loads(file.read_text())["ranks"] == 2
    assert done.stdout.count("validated") == 1, "the root alone reports"


FAILING = """
import sys
from charcnn import offload
import charcnn.levels
charcnn.levels.prepare()
from charcnn.levels import l2
from charcnn.levels.runner import command as runner
rank = offload.world().rank
def build(params, config, *, batch=4, gpus=None, monitor=None):
    run = l2.build(params, config, batch=batch, monitor=monitor)
    calls = []
    def fail(ids):
        calls.append(1)
        if rank == 1 and len(calls) > 1:
            raise {error}
        return run(ids)
    return fail
build.__module__ = "charcnn.levels.l2"
runner.main(build, ["--config", "tiny", "--inputs", "6"])
"""


@needs_mpi
def test_a_rank_that_raises_stops_all_with_its_traceback():
    done = mpiexec(2, "-c", FAILING.format(error="ZeroDivisionError('the lens cap is on')"))
    assert done.returncode != 0
    assert "rank 1: Traceback" in done.stderr
    assert "the lens cap is on" in done.stderr
    assert "validated" not in done.stdout


@needs_mpi
def test_a_rank_out_of_memory_stops_all_with_one_line():
    done = mpiexec(2, "-c", FAILING.format(error="MemoryError()"))
    assert done.returncode != 0
    assert "out of host memory: lower --batch" in done.stderr
    assert "Traceback" not in done.stderr


@needs_mpi
def test_bad_options_under_mpi_end_all_ranks_and_say_it_once():
    done = mpiexec(2, "-m", "charcnn.levels.l1", "--text", "nowhere.txt")
    assert done.returncode != 0
    assert done.stderr.count("nowhere.txt") == 1
    done = mpiexec(2, "-m", "charcnn.levels.l1", "--inputs", "none")
    assert done.returncode != 0
    assert done.stderr.count("--inputs") == 1
