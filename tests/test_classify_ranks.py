"""`charcnn classify` over ranks: the bytes of one process, however offloaded, whoever dies; errors, said once."""

import json
import os
import shutil
import sys

import pytest
from conftest import by_turns, quick
from test_farm import ULFM, needs_ulfm
from test_mpi import mpiexec, needs_mpi

from charcnn import offload
from charcnn.__main__ import main
from charcnn.cli import ranks as commands_ranks
from charcnn.config import TINY
from charcnn.model import params


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model, a file of texts, and what one process makes of it."""
    folder = tmp_path_factory.mktemp("classify")
    model, rows, alone = (str(folder / name) for name in ("model.safetensors", "rows.csv", "alone.csv"))
    params.save(model, params.init(TINY, 3), TINY, encoding="crepe", classes=("a", "b", "c", "d"))
    with open(rows, "w") as file:
        for i in range(1500):
            file.write(f'"{1 + i % 4}","title {i}","{"x" * (i % 90)} and {i * 7919 % 1000}"\n')
    assert main(["classify", rows, "-o", alone, "--model", model, "--quiet", "--device", "cpu"]) == 0
    return folder, model, rows, alone


def words(files, name, *more):
    """A command, and its output."""
    folder, model, rows, _ = files
    out = str(folder / f"{name}.csv")
    return ["classify", rows, "-o", out, "--model", model, "--device", "cpu", "--json", f"{out}.json", *more], out


def read(path):
    with open(path, "rb") as file:
        return file.read()


@pytest.mark.parametrize("how", offload.MODES)
def test_one_process_does_so_without_mpi(files, how, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    command, out = words(files, f"one-{how}", "--offload", how)
    assert main(command) == 0
    assert read(out) == read(files[3])
    with open(f"{out}.json") as file:
        assert json.load(file)["offload"] == how


def test_ways_to_offload_are_those_of_the_package():
    assert tuple(offload.MODES) == commands_ranks.MODES


def test_options_of_ranks_need_ranks(files, capsys):
    for more in ([], ["--offload", "async"]):
        assert main(["classify", files[2], "--model", files[1], "--root-serves", *more]) == 2
        assert "need --offload farm, or a start by mpiexec" in capsys.readouterr().err


COMMANDS = """
import json, sys
from charcnn import offload
from charcnn.__main__ import main
import charcnn.levels
charcnn.levels.prepare()
from charcnn.levels import l18
rank, whole = offload.world().rank, l18.build
def build(params, config, *, batch=48, **options):
    if rank == 1 and batch == 13:
        raise ValueError("no room here")
    return whole(params, config, batch=batch, **options)
l18.build = build
for words in json.loads(sys.argv[1]):
    try:
        status = main(words)
    except SystemExit as error:
        status = error.code
    if rank == 0:
        print("status", status, file=sys.stderr, flush=True)
"""


@needs_mpi
def test_ranks_write_the_bytes_of_one_process_and_errors_once(files):
    """One job does one command after the other: ranks take long to start."""
    folder, model, rows, alone = files
    several = str(folder / "several")
    shutil.copy(rows, folder / "more.csv")
    commands = [
        words(files, "wrong", "--offload", "async", "--encode-on", "gpu")[0],
        words(files, "wrong", "--offload", "static", "--batch", "13")[0],
        ["classify", "nowhere.csv", "--model", model],
        words(files, "wrong", "--report", rows)[0],
        *(words(files, how, "--offload", how)[0] for how in ("static", "async")),
        ["classify", rows, str(folder / "more.csv"), "-o", several, "--model", model, "--device", "cpu"],
        words(files, "farm", "--root-serves")[0],
    ]
    done = mpiexec(3, "-c", COMMANDS, json.dumps(commands), timeout=300)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("status")]
    assert said == ["status 2"] * 4 + ["status 0"] * 4, done.stderr
    refused = ("--encode-on gpu: ranks receive token ids", "rank 1: no room here", "nowhere.csv: No such file")
    for reason in (*refused, f"--report {rows}: is the input"):
        assert done.stderr.count(reason) == 1
    assert "3,000 rows of 2 files" in done.stderr
    assert read(f"{several}/more.csv") == read(f"{several}/rows.csv") == read(alone)
    for how in offload.MODES:
        out = words(files, how)[1]
        assert read(out) == read(alone)
        with open(f"{out}.json") as file:
            report = json.load(file)
        assert (report["rows"], report["offload"]) == (1500, how)
        assert how == "farm" or report["ranks"] == 3
    assert sum(rank["inputs"] for rank in report["farm"]["ranks"]) == 1500
    assert all(rank["inputs"] for rank in report["farm"]["ranks"][1:])
    assert done.stderr.count("if a rank dies, this run ends") == 5


# Others wait in their first calls: else a rank that is slow to begin finds too little left to die at.
DYING = """
import os, signal, sys, time
from charcnn import offload
from charcnn.__main__ import main
import charcnn.levels
charcnn.levels.prepare()
from charcnn.levels import l18
rank, whole = offload.world().rank, l18.build
def build(*arguments, **options):
    run, calls = whole(*arguments, **options), []
    def fail(ids):
        calls.append(1)
        if rank == 1 and len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank != 1 and len(calls) < 40:
            time.sleep(0.05)
        return run(ids)
    return fail
l18.build = build
sys.exit(main(sys.argv[1:]))
"""
# The root waits after its first calls: else a rank that is slow to begin finds nothing left to fail at.
FAILING = """
import os, sys, time
from charcnn import offload
from charcnn.__main__ import main
import charcnn.levels
charcnn.levels.prepare()
from charcnn.levels import l18
rank, whole, failed = offload.world().rank, l18.build, os.environ["FAILED"]
def build(*arguments, **options):
    run, calls = whole(*arguments, **options), []
    def fail(ids):
        calls.append(1)
        if rank == 1 and len(calls) == 3:
            open(failed, "w").close()
            raise ArithmeticError("of rank 1")
        while rank == 0 and len(calls) > 3 and not os.path.exists(failed):
            time.sleep(0.01)
        return run(ids)
    return fail
l18.build = build
sys.exit(main(sys.argv[1:]))
"""


@by_turns
@needs_mpi
@needs_ulfm
def test_a_rank_that_dies_loses_no_row(files):
    command, out = words(files, "killed", "--level", "l18", "--batch", "16", "--root-serves")
    done = mpiexec(3, "-c", DYING, *command, options=ULFM, timeout=300)
    assert done.returncode == 0, done.stderr
    assert read(out) == read(files[3])
    assert "lost rank 1, dead" in done.stderr
    assert "no row is lost" in done.stderr


@by_turns
@needs_mpi
@pytest.mark.parametrize("how", ["static", "async"])
@quick(lambda how: how == "static")
def test_a_rank_that_fails_ends_the_run_and_the_same_command_goes_on(files, how, tmp_path):
    command, out = words(files, f"failing-{how}", "--level", "l18", "--batch", "16", "--offload", how)
    done = mpiexec(2, "-c", FAILING, *command, timeout=300, FAILED=str(tmp_path / "failed"))
    assert done.returncode == 1, done.stderr
    assert "charcnn: rank 1: ArithmeticError: of rank 1" in done.stderr
    assert not os.path.exists(out)
    assert main(command) == 0
    assert read(out) == read(files[3])
