"""The farm with real ranks and without MPI: the bits of static, mixed ranks, checkpoints, and what a level reports."""

import heapq
import itertools
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import by_turns
from test_mpi import KEEP_LOGITS, mpiexec, needs_mpi, survives_deaths

from charcnn import offload
from charcnn.config import TINY
from charcnn.model import params
from charcnn.offload.farm import work_list
from charcnn.offload.farm.root import Farm
from charcnn.offload.farm.state import Member
from charcnn.offload.farm.work_list import WorkList
from charcnn.runtime.pipeline import Pipeline

ULFM = ("--with-ft", "ulfm")
needs_ulfm = pytest.mark.skipif(not survives_deaths(), reason="no Open MPI 5, which survives a death")


def random_ids(n, length=9):
    return np.random.default_rng(n).integers(0, 71, (n, length), np.uint8)


def double(ids):
    return ids[:, :3].astype(np.float32) * 2


@pytest.mark.parametrize("n", [0, 1, 5, 64])
@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("root_computes", [True, False])
def test_one_process_computes_alone(n, chunk, root_computes):
    ids = random_ids(n)
    for source in (ids, iter([ids[: n // 2], ids[n // 2 :]])):
        logits = offload.farm(None, source, double, 9, 3, chunk=chunk, root_computes=root_computes)
        assert np.array_equal(logits, offload.static(None, ids, double, 9, 3))


@pytest.mark.parametrize("wrong", [{"chunk": 0}, {"depth": 0}, {"deadline": 0.0}])
def test_wrong_arguments_are_named(wrong):
    name = "size" if "chunk" in wrong else next(iter(wrong))
    with pytest.raises(ValueError, match=f"{name}=0"):
        offload.farm(None, random_ids(3), double, 9, 3, **wrong)


def test_the_roots_own_error_reaches_the_caller_where_nobody_else_is():
    def fail(ids):
        raise ZeroDivisionError("the lens cap is on")

    with pytest.raises(ZeroDivisionError, match="lens cap"):
        offload.farm(None, random_ids(20), fail, 9, 3)


ROUND_TRIP = """
import numpy as np
from charcnn import offload
from charcnn.runtime.pipeline import Pipeline
comm = offload.world()
root = comm.rank == 0
def double(ids):
    return ids[:, :3].astype(np.float32) * 2
for n in (0, 1, 2, 3, 7, 64, 501):
    ids = np.random.default_rng(n).integers(0, 71, (n, 9), np.uint8)
    expected = double(ids)
    for chunk in (1, 5, 64):
        pipeline = Pipeline([lambda ids, logits: np.copyto(logits, double(ids))] * (1 + comm.rank % 3), chunk, 3)
        for compute in (double, pipeline):
            for source in (ids, [ids[: n // 3], ids[n // 3 :]], offload.Repeated(ids, n)):
                for computes in (True, False):
                    here = source if root else None
                    logits = offload.farm(comm, here, compute, 9, 3, chunk=chunk, root_computes=computes)
                    assert (logits is None) == (not root)
                    if root:
                        assert logits.tobytes() == expected.tobytes(), (n, chunk)
print("rank done", comm.rank)
"""


@needs_mpi
@pytest.mark.parametrize("ranks", [1, *(pytest.param(ranks, marks=by_turns) for ranks in (2, 4))])
def test_any_source_over_any_ranks_gives_the_bits_of_static(ranks):
    done = mpiexec(ranks, "-c", ROUND_TRIP)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank done") == ranks


GATED = """
import os, sys, time
import numpy as np
from charcnn import offload
comm, file, count = offload.world(), sys.argv[1], 100
mode = offload.MODES[sys.argv[2]]
def compute(ids):  # rank 1 is done with its first chunk when the others are done with all that it does not have
    if comm.rank != 1:
        with open(file, "ab") as done:
            done.write(b"." * len(ids))
    while comm.rank == 1 and os.path.getsize(file) < count - 2:
        time.sleep(0.01)
    return ids[:, :3].astype(np.float32)
ids = np.arange(9 * count, dtype=np.uint8).reshape(count, 9) if comm.rank == 0 else None
open(file, "ab").close()
comm.Barrier()
logits = mode(comm, ids, compute, 9, 3, chunk=1)
if comm.rank == 0:
    assert logits.tobytes() == ids[:, :3].astype(np.float32).tobytes()
    print("done", os.path.getsize(file))
"""


@needs_mpi
@pytest.mark.parametrize("mode", [pytest.param("async", marks=pytest.mark.exhaustive), "farm"])
def test_a_slow_rank_holds_up_only_the_two_chunks_that_it_has(mode, tmp_path):
    """Shared out evenly it would have 25 of 100, and wait for ever."""
    done = mpiexec(4, "-c", GATED, tmp_path / "chunks", mode)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "done 98\n"


def test_mixed_ranks_are_all_busy_to_the_end(monkeypatch):
    """Of four ranks one is four times as slow, each with two chunks under way; the time is not a clock's."""
    now, rates, size, total = 0.0, (200, 50, 200, 200), 2, 520
    monkeypatch.setattr(work_list, "time", SimpleNamespace(perf_counter=lambda: now))
    state = Farm(None, 9, 3, size=size).state
    state.workers = [Member(rank, state="ready") for rank in (1, 2, 3)]
    work = WorkList(state, Pipeline([lambda ids, logits: None], size, 3), random_ids(total), None, None)
    members, free, coming = (state.root, *state.workers), [0.0] * 4, []
    while not work._finished():
        for slot, member in itertools.product((0, 1), members):
            if slot not in member.away and (part := work._next(member)) is not None:
                free[member.rank] = max(free[member.rank], now) + len(part[1]) / rates[member.rank]
                heapq.heappush(coming, (free[member.rank], member.rank, slot, now))
                member.away[slot] = part
        if coming:
            now, rank, slot, begun = heapq.heappop(coming)
            part = members[rank].away.pop(slot)
            work._put(members[rank], part, double(part[1]), begun)
    assert work._logits.all().tobytes() == double(random_ids(total)).tobytes()
    assert now < 1.05 * total / sum(rates)
    assert now < 0.4 * total / len(rates) / min(rates), "as if shared out evenly"


def test_a_checkpoint_gives_back_what_it_was_told(tmp_path):
    ids, file, run = random_ids(50), tmp_path / "results", {"level": "l2", "inputs": 50}
    kept = offload.Checkpoint(file, run, 3)
    assert kept.inputs == 0
    expected = offload.farm(None, ids, double, 9, 3, chunk=4, checkpoint=kept)
    kept.close()
    calls = []

    def counted(ids):
        calls.append(len(ids))
        return double(ids)

    again = offload.Checkpoint(file, run, 3)
    assert again.inputs == 50
    logits = offload.farm(None, ids, counted, 9, 3, chunk=4, checkpoint=again)
    again.close()
    assert not calls
    assert logits.tobytes() == expected.tobytes()
    other = ids.copy()
    other[10] += 1  # an input that is not what it was is computed again
    again = offload.Checkpoint(file, run, 3)
    assert np.array_equal(offload.farm(None, other, counted, 9, 3, chunk=4, checkpoint=again), double(other))
    again.close()
    assert calls == [4]


@pytest.mark.parametrize("cut", [1, 7, 30, 61])
def test_half_a_record_is_dropped_and_the_rest_computed(cut, tmp_path):
    ids, file = random_ids(50), tmp_path / "results"
    for size in (None, cut):
        if size is not None:
            file.write_bytes(file.read_bytes()[:-size])
        kept = offload.Checkpoint(file, {}, 3)
        assert np.array_equal(offload.farm(None, ids, double, 9, 3, chunk=4, checkpoint=kept), double(ids))
        kept.close()
    assert offload.Checkpoint(file, {}, 3).inputs == 50


def test_a_damaged_record_is_not_believed(tmp_path):
    file = tmp_path / "results"
    kept = offload.Checkpoint(file, {}, 3)
    kept.keep(0, random_ids(4), double(random_ids(4)))
    kept.close()
    content = bytearray(file.read_bytes())
    content[-10] ^= 1
    file.write_bytes(content)
    assert offload.Checkpoint(file, {}, 3).inputs == 0


def test_a_checkpoint_tells_precisions_and_weights_apart():
    weights = params.init(TINY)
    run = offload.describe("l16", "fp16", weights, 9)
    assert run == offload.describe("l16", "fp16", params.init(TINY), 9)
    weights["conv3.bias"][0] += 1
    for other in (offload.describe("l16", "bf16", params.init(TINY), 9), offload.describe("l16", "fp16", weights, 9)):
        assert other != run


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    file = tmp_path / "results"
    offload.Checkpoint(file, {"level": "l2"}, 3).close()
    with pytest.raises(ValueError, match="is of another run: its level is 'l2', this one's 'l3'"):
        offload.Checkpoint(file, {"level": "l3"}, 3)
    file.write_bytes(b"something else\n")
    with pytest.raises(ValueError, match="is not a charcnn checkpoint"):
        offload.Checkpoint(file, {}, 3)


ROOT_DIES = """
import json, os, signal, sys, time
import numpy as np
from charcnn import offload
file, fatal = sys.argv[1], int(sys.argv[2])
comm = offload.world()
ids = np.random.default_rng(1).integers(0, 71, (200, 9), np.uint8)
def compute(ids):
    time.sleep(0.002)
    return ids[:, :3].astype(np.float32) * 2
if comm.rank:
    try:
        offload.work(comm, lambda told: compute)
    except offload.RootLost:
        print("the root is lost", flush=True)
    os._exit(0)
kept, back = offload.Checkpoint(file, {}, 3), 0
def progress(n):
    global back
    back += n
    if back >= fatal:
        os.kill(os.getpid(), signal.SIGKILL)
farm = offload.Farm(comm, 9, 3, size=2, root_computes=False)
farm.brief()
logits = farm.run(ids, compute, checkpoint=kept, progress=progress if not kept.inputs else None)
farm.close()
assert logits.tobytes() == (ids[:, :3].astype(np.float32) * 2).tobytes()
print("from the checkpoint:", kept.inputs, "computed:", farm.report()["retries"], flush=True)
farm.leave(0)
"""


@by_turns
@needs_mpi
@needs_ulfm
def test_after_the_roots_death_a_restart_continues(tmp_path):
    file = tmp_path / "results"
    done = mpiexec(3, "-c", ROOT_DIES, file, 60, options=ULFM, timeout=300)
    assert "from the checkpoint" not in done.stdout
    done = mpiexec(3, "-c", ROOT_DIES, file, 60, options=ULFM, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split("from the checkpoint:")[1].split()[0]) >= 60


@pytest.mark.exhaustive
@needs_mpi
@pytest.mark.parametrize(("name", "ranks", "inputs"), [("l2", 3, 11), ("l4", 2, 2)])
def test_levels_give_the_same_bits_by_any_offload(name, ranks, inputs, tmp_path):
    script = tmp_path / "keep.py"
    script.write_text(KEEP_LOGITS)
    kept = []
    modes = list(offload.MODES) if name == "l2" else ["static", "farm"]
    for mode in modes:
        out, report = tmp_path / f"{mode}.npy", tmp_path / f"{mode}.json"
        options = ["--config", "tiny", "--inputs", inputs, "--batch", 1, "--offload", mode, "--json", report]
        done = mpiexec(ranks, script, name, out, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(report.read_text())["offload"] == mode
        kept.append(np.load(out))
    assert len(kept[0]) == inputs
    assert all(logits.tobytes() == kept[0].tobytes() for logits in kept)
    ranks = json.loads((tmp_path / "farm.json").read_text())["farm"]["ranks"]
    assert sum(rank["inputs"] for rank in ranks) == inputs


DYING_LEVEL = """
import os, signal
from charcnn import offload
import charcnn.levels
charcnn.levels.prepare()
from charcnn.levels import l2
from charcnn.levels.runner import command as runner
rank = offload.world().rank
def build(params, config, *, batch=1, gpus=None, monitor=None):
    run = l2.build(params, config, batch=batch, monitor=monitor)
    calls = []
    def fail(ids):
        calls.append(1)
        if rank == 1 and len(calls) > 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 2 and len(calls) > 4:
            raise MemoryError
        return run(ids)
    return fail
build.__module__ = "charcnn.levels.l2"
runner.main(build, ["--config", "tiny", "--inputs", "300", "--offload", "farm"{options}])
"""


@needs_mpi
@needs_ulfm
@pytest.mark.exhaustive
def test_a_level_reports_who_was_lost(tmp_path):
    done = mpiexec(4, "-c", DYING_LEVEL.format(options=""), options=ULFM, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost rank 1, dead: " in done.stdout
    assert "lost rank 2, left: out of host memory: lower --batch" in done.stdout
    assert "2 ranks lost" in done.stdout
    assert "no input lost" in done.stdout
    assert "validated passed" in done.stdout


@needs_mpi
@pytest.mark.exhaustive
def test_without_ulfm_a_death_ends_the_run_with_what_is_done_saved(tmp_path):
    file = tmp_path / "results"
    script = DYING_LEVEL.format(options=f', "--checkpoint", "{file}"')
    done = mpiexec(3, "-c", script, timeout=300)
    assert done.returncode != 0
    assert f"if a rank dies, this run ends, and results so far stay in {file}" in done.stderr
    command = ["-m", "charcnn.levels.l2", "--config", "tiny", "--inputs", 300, "--batch", 1]
    command += ["--precision", "fp32"]  # its own, which need not be named
    done = mpiexec(1, *command, "--offload", "farm", "--checkpoint", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "inputs' results were in the checkpoint" in done.stdout


@needs_mpi
@pytest.mark.exhaustive
def test_a_rank_that_fails_leaves_on_any_mpi():
    done = mpiexec(3, "-c", DYING_LEVEL.replace("rank == 1", "rank == -1").format(options=""), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost rank 2, left" in done.stdout
    assert "1 ranks lost" in done.stdout


@pytest.mark.parametrize("option", [["--deadline", "3"], ["--checkpoint", "x"], ["--root-serves"]])
def test_options_of_the_farm_need_it(option):
    from charcnn import catalog
    from charcnn.levels import l2
    from charcnn.levels.runner import level_options

    options = level_options.parser("l2", l2, l2.build, quiet=False).parse_args(option)
    with pytest.raises(ValueError, match=f"{option[0]}: needs --offload farm"):
        level_options.prepare(catalog.level("l2"), options)
    if option[0] == "--checkpoint":
        options = level_options.parser("l2", l2, l2.build, quiet=False).parse_args(
            [*option, "--offload", "farm", "--repeat", "2"]
        )
        with pytest.raises(ValueError, match="cannot be combined with --repeat"):
            level_options.prepare(catalog.level("l2"), options)


def test_slow_ranks_leave_the_last_chunks_to_fast_ones():
    """Of three ranks one is 10 times as slow: it takes none of the last two chunks; the others never wait."""
    state = Farm(None, 9, 3, size=10).state
    state.workers = [Member(rank, state="ready") for rank in (1, 2)]
    work = WorkList(state, Pipeline([lambda ids, logits: None], 10, 3), random_ids(40), None, None)
    work._left = 20
    for member, rate in zip((state.root, *state.workers), (100, 100, 10), strict=True):
        member.count(rate, first=0.0, now=1.0)
        assert member.rate() == rate
    assert [work._better_left(member) for member in (state.root, *state.workers)] == [False, False, True]
    work._left = 1000
    assert not work._better_left(state.workers[1])


def test_chunks_of_a_lost_rank_are_reassigned():
    state = Farm(None, 9, 3).state
    state.workers = [Member(rank, state="ready") for rank in (1, 2)]
    first, second = state.workers
    parts = [(start, np.zeros((2, 9), np.uint8)) for start in (4, 0)]
    first.away = dict(zip((1, 0), parts, strict=True))
    state.lose(first, "hung", "a chunk was away")
    assert ([part[0] for part in state.returned], state.retries, first.away) == ([0, 4], 2, {})
    state.lose(first, "dead", "again")
    assert (state.retries, first.state, state.there()) == (2, "hung", [second])
    state.root_error = MemoryError("the root's own")
    with pytest.raises(MemoryError, match="the root's own"):
        state.lose(second, "dead", "the last one")
    state.forget()
    assert (len(state.returned), state.root_error) == (0, None)


def test_the_farm_costs_next_to_nothing_at_one_rank(monkeypatch):
    """Its slots look at the list a few times a chunk; whoever asked all the time would do so thousands of times."""
    looks, finished = [], WorkList._finished
    monkeypatch.setattr(WorkList, "_finished", lambda self: looks.append(1) or finished(self))

    def busy(ids):
        time.sleep(0.005)
        return double(ids)

    offload.farm(None, random_ids(80, 1014), busy, 1014, 3, chunk=1)
    assert len(looks) < 10 * 80
