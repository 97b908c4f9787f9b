"""Ranks that train together: the same bits whoever holds what, bytes as counted, checkpoints, and ranks that die."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from conftest import by_turns
from sharded_ways import ROWS, WAYS, made, taught
from test_mpi import mpiexec, needs_mpi, survives_deaths

from charcnn import SMALL, TINY
from charcnn.config import TINY_MATRICES
from charcnn.levels import t9
from charcnn.levels.runner import sharded
from charcnn.model import params
from charcnn.ops import adamw_cpu
from charcnn.runtime import training_checkpoint
from charcnn.runtime.exchange import RankExchange
from charcnn.runtime.sharded_training import ShardedTraining
from charcnn.runtime.sharding import LEAST_MEMORY, BucketLayout, Sharding, counted
from charcnn.runtime.training import Training, trained

STATES = ("weights", "gradients", "masters", "moments")

RANKS = """
import json, os, sys
sys.path.insert(0, "tests")
from sharded_ways import WAYS, made, taught
from charcnn import offload

comm, found = offload.world(), {}
rank, ranks = comm.rank, comm.size
os.chdir(sys.argv[1])
others = dict(zip(WAYS, [*list(WAYS)[1:], *WAYS]))
for way in WAYS:
    training = made(way, comm)
    taught(training, range(3), rank, ranks)
    training.save(f"{way}.safetensors")
    loss = training.mean(taught(training, range(3, 5), rank, ranks))
    training.close()
    for other in (way, "t7") if "all" in sys.argv else (others[way],):
        again = made(other, comm)
        again.resume(f"{way}.safetensors")
        assert (again.steps, again.mean(taught(again, range(3, 5), rank, ranks))) == (3, loss)
        assert again.digest() == training.digest()
    assert len(set(comm.allgather(training.digest()))) == 1
    found[way] = {"digest": training.digest(), "loss": loss, "memory": training.memory, "counted": training.counted,
                  "files": training.files, "weights": {name: array.tolist() for name, array in training.params.items()}}
if rank == 0:
    print(json.dumps(found))
"""


def one_rank():
    training = Training(TINY.nodes, params.init(TINY, 3), ROWS, "loops")
    losses = taught(training)
    return training.params, losses.mean(dtype=np.float64)


def assert_as_one_rank(weights, loss):
    begun, (expected, its_loss) = params.init(TINY, 3), one_rank()
    assert loss == pytest.approx(its_loss, rel=1e-5)
    for name, array in expected.items():
        moved = np.linalg.norm(array - begun[name])
        assert np.linalg.norm(np.asarray(weights[name]) - array) <= 1e-3 * moved, name


@needs_mpi
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.exhaustive), pytest.param(3, marks=by_turns)])
def test_all_ways_have_the_same_bits_and_the_bytes_that_are_counted(ranks, tmp_path):
    """Also from a checkpoint of any way, and from theirs on one rank; nearly those of one rank that trains alone."""
    done = mpiexec(ranks, "-c", RANKS, tmp_path, *["all"] * (ranks == 2))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len({(one["digest"], one["loss"]) for one in found.values()}) == 1
    assert_as_one_rank(found["t5"]["weights"], found["t5"]["loss"])
    of = {"t5": 0, "t6": 1, "t7": 2, "t7 of 3": 3, "t8": 2, "t8 of 3": 3}
    for way, one in found.items():
        for kind in STATES:
            assert (
                one["counted"][kind] <= one["memory"][kind] <= (1.1 if way == "layers" else 1.03) * one["counted"][kind]
            )
        if way in of:
            sizes = counted(TINY.parameters, ranks, of[way])
            assert {kind: one["counted"][kind] for kind in STATES} == sizes
    whole = 4 * TINY.parameters
    assert found["t9"]["memory"]["weights"] == found["t9"]["memory"]["moments"] == 0
    assert 3 * whole / ranks <= found["t9"]["files"] <= 1.03 * 3 * whole / ranks
    training = made("t6")
    training.resume(tmp_path / "t9.safetensors")
    loss = training.mean(taught(training, range(3, 5)))
    assert_as_one_rank(training.params, loss)
    assert len({(tmp_path / f"{way}.safetensors").read_bytes() for way in found}) == 1


@pytest.mark.parametrize("way", WAYS)
def test_one_rank_has_the_bits_of_a_training_without_parts(way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    training, (expected, _) = made(way), one_rank()
    taught(training)
    for name, array in training.params.items():
        assert array.tobytes() == expected[name].tobytes(), name
    training.close()


def test_gradients_are_sent_while_backward_computes(monkeypatch):
    """All buckets but that of the first layers, before these have theirs."""
    training, sent = made("t6"), []
    send, first = RankExchange.sums, training._function("one_hot_conv1d_backward")
    monkeypatch.setattr(RankExchange, "sums", lambda self, x, then: (sent.append("bucket"), send(self, x, then)))
    training._functions["one_hot_conv1d_backward"] = lambda *a, **k: (sent.append("conv1"), first(*a, **k))[1]
    taught(training, [0])
    buckets = len(training._layout.buckets)
    assert buckets > 3
    assert sent == ["bucket"] * (buckets - 1) + ["conv1", "bucket"]


def test_adamw_runs_behind_the_next_forward_pass(monkeypatch):
    training, may, move = made("t8"), threading.Event(), adamw_cpu.move
    monkeypatch.setattr(adamw_cpu, "move", lambda *args: (may.wait(60), move(*args)))
    taught(training, [0])
    assert len(training._moves) == len(training._layout.buckets)
    may.set()
    training.close()
    assert not training._moves


def test_windows_are_no_larger_than_allowed(tmp_path):
    """A fifth of what the files hold, and a tenth."""
    weights, digests = params.init(TINY_MATRICES, 1), set()
    rng = np.random.default_rng(0)
    ids, targets = rng.integers(0, 71, (1, TINY_MATRICES.length), np.uint8), np.eye(4, dtype=np.float32)[:1]
    states = 12 * TINY_MATRICES.parameters
    for of in (Sharding(), *(Sharding(3, directory=str(tmp_path), memory=states // part) for part in (5, 10))):
        training = ShardedTraining(TINY_MATRICES.nodes, weights, 1, "loops", of)
        for _ in range(2):
            training.step(ids, targets)
        digests.add(training.digest())
        if of.stage:
            assert states <= training.files <= 1.01 * states
            assert training._states.windows <= of.memory
            assert not [*tmp_path.iterdir()]  # files have no names
    assert len(digests) == 1


def test_counts():
    """ZeRO's paper has these, in mixed precision and in float32."""
    n, ranks = SMALL.parameters, 64
    found = [sum(counted(n, ranks, stage, "fp16").values()) for stage in range(4)]
    assert found == pytest.approx([16 * n, 4 * n + 12 * n / ranks, 2 * n + 14 * n / ranks, 16 * n / ranks], abs=4)
    found = [sum(counted(n, ranks, stage).values()) for stage in range(4)]
    assert found == pytest.approx([16 * n, 8 * n + 8 * n / ranks, 4 * n + 12 * n / ranks, 16 * n / ranks], abs=4)


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("bucket", [1, 2000, None, 1 << 30])
def test_buckets_are_layers_side_by_side(ranks, bucket):
    shapes = trained(TINY.nodes)
    layout = BucketLayout(shapes, ranks, bucket)
    assert [name for one in layout.buckets for name in one.names] == [*shapes]
    assert sum(one.length for one in layout.buckets) == layout.weights == TINY.parameters
    layers = [{name.split(".")[0] for name in one.names} for one in layout.buckets]
    assert sum(map(len, layers)) == len(set.union(*layers))
    assert all(0 <= ranks * one.part - one.length < 4 * ranks for one in layout.buckets)
    ends = [layout.whole(one).stop for one in layout.buckets]
    assert [layout.whole(one).start for one in layout.buckets] == [0, *ends[:-1]]
    assert ends[-1] == layout.size == ranks * layout.part(layout.buckets[-1]).stop
    for name in shapes:
        number, at = layout.places[name]
        assert layout.parameter(np.arange(layout.size), name).ravel()[0] == at
        assert name in layout.buckets[number].names


STRUCK = """
import os, signal, sys
from charcnn.levels import t6
from charcnn.levels.runner import sharded
from charcnn.runtime.sharded_training import ShardedTraining

how, step = sys.argv.pop(1), ShardedTraining.step

def struck(self, *given):
    if self.steps == 2 and self._exchange.rank == 1:
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError
    return step(self, *given)

ShardedTraining.step = struck
t6.build.__module__ = "charcnn.levels.t6"
sharded.main(t6.build, sys.argv[1:])
"""


@needs_mpi
@by_turns
@pytest.mark.parametrize("how", ["dies", "raises", "survived"])
def test_a_rank_that_ends_ends_the_run_and_leaves_a_checkpoint(how, tmp_path):
    """Of the last step before, from which any number of ranks goes on; where ranks survive, the others say why."""
    if how == "survived" and not survives_deaths():
        pytest.skip("this mpiexec ends all ranks when one dies")
    file, options = tmp_path / "kept.safetensors", ("--with-ft", "ulfm") if how == "survived" else ()
    words = f"--config tiny --inputs 5 --repeat 4 --checkpoint {file}".split()
    done = mpiexec(3, "-c", STRUCK, "dies" if how == "survived" else how, *words, options=options, timeout=120)
    assert done.returncode, done.stdout
    assert "validated" not in done.stdout
    assert {"dies": "signal 9", "raises": "out of host memory", "survived": "rank 1 has died, and ends this run"}[
        how
    ] in (done.stderr), done.stderr
    if how == "survived":
        assert "training needs all ranks; --resume goes on from what --checkpoint wrote" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    with training_checkpoint.reading(file, trained(TINY.nodes)) as (steps, *_):
        assert steps == 2
    if how != "raises":
        return
    words = f"--config tiny --inputs 5 --resume {file} --json {tmp_path / 'report.json'}".split()
    done = mpiexec(2, "-m", "charcnn.levels.t7", *words, "--stage", 3)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["resumed_after"], report["ranks"], report["equal_weights"]) == (2, 2, True)
    assert report["validation"]["passed"]
    assert "the same on all 2 ranks" in done.stdout


@by_turns
@needs_mpi
def test_more_ranks_than_rows():
    done = mpiexec(2, "-m", "charcnn.levels.t5", "--config", "tiny", "--inputs", 1)
    assert done.returncode == 2
    assert done.stderr.count("t5: --inputs 1: need at least 2, a row for each rank") == 1, done.stderr


@pytest.mark.parametrize(("words", "line"), [
    ("--directory /none/such", "t9: [Errno 2] No such file or directory"),
    ("--memory 4", "t9: memory=4: need at least 12,288 bytes"),
    ("--checkpoint mine.txt", "already exists, and is no checkpoint of a training"),
    ("--resume mine.txt", "mine.txt is no checkpoint of a training"),
    ("--resume mine.txt --json mine.txt --force", "t9: --json mine.txt: is --resume: name another file"),
    ("--resume none.txt", "t9: [Errno 2] No such file or directory: 'none.txt'"),
])  # fmt: skip
def test_the_command_refuses_in_one_line(words, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    monkeypatch.setattr(t9.build, "__module__", "charcnn.levels.t9")
    with pytest.raises(SystemExit) as ended:
        sharded.main(t9.build, ["--config", "tiny", *words.split()])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_what_does_not_fit(tmp_path):
    for how, line in (
        ({"stage": 4}, "stage=4: need 0 to 3"),
        ({"directory": "x"}, "directory='x': needs stage 3, not 0"),
        ({"memory": LEAST_MEMORY - 1}, f"memory={LEAST_MEMORY - 1}: need at least"),
    ):
        with pytest.raises(ValueError, match=line):
            Sharding(**how)
    with pytest.raises(ValueError, match="technique='naive': need one that computes on the CPU: "):
        ShardedTraining(TINY.nodes, params.init(TINY, 0), 1, "naive")
    training, file = made("t5"), tmp_path / "kept.safetensors"
    training.save(file)
    training.save(file)  # its own it replaces
    other = ShardedTraining(TINY_MATRICES.nodes, params.init(TINY_MATRICES, 0), 1)
    with pytest.raises(ValueError, match="is of another network"):
        other.resume(file)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is not whole"):
        training.resume(file)
    file.write_text("something else")
    with pytest.raises(FileExistsError, match="it is kept"):
        training.save(file)
