"""A rank that is killed at any phase of training: what is left is a checkpoint that any number of ranks resumes."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from conftest import by_turns
from emulated_ranks import Died, Killed, Ranks
from sharded_ways import WAYS, made, taught

from charcnn import files
from charcnn.runtime import training_checkpoint

STEPS = 2


class Run:
    """Ranks that train and write a checkpoint after each step.

    Args:
        way: of WAYS.
        ranks: how many.
        file: the checkpoint.
        at: as of `Ranks`.
    """

    def __init__(self, way, ranks, file, at=None):
        self._way, self.file, self.saved, self.kept, self.seen = way, file, 0, [None], None
        self.ranks = Ranks(ranks, at, self.look)

    def left(self):
        return self.file.read_bytes() if self.file.exists() else None

    def look(self):
        """What is left at the moment of the kill, and how many checkpoints were written before."""
        self.seen = self.left(), self.saved

    def go(self):
        self.ended = self.ranks.run(self._body)
        return self

    def _body(self, comm):
        training = made(self._way, comm)
        for seed in range(STEPS):
            taught(training, [seed], comm.rank, comm.size)
            training.save(self.file)
            if comm.rank == 0:
                self.saved += 1
                self.kept.append(self.left())
        training.close()
        return training.digest()


@pytest.fixture
def run_of(monkeypatch, tmp_path):
    """Makes runs. Files make events, too: before and after each write, and before and after one gets its name."""
    monkeypatch.chdir(tmp_path)
    writing, put, runs = training_checkpoint.writing, files.put, []

    def surrounded(call):
        def made(*given, **more):
            runs[-1].ranks.event(0)
            found = call(*given, **more)
            runs[-1].ranks.event(0)
            return found

        return made

    class Watched:
        def __init__(self, file):
            self.write = surrounded(file.write)

    @contextmanager
    def watched(*given):
        with writing(*given) as file:
            yield Watched(file)

    monkeypatch.setattr(training_checkpoint, "writing", watched)
    monkeypatch.setattr(files, "put", surrounded(put))

    def make(way, ranks, at=None):
        runs.append(Run(way, ranks, tmp_path / f"{len(runs)}.safetensors", at))
        return runs[-1].go()

    return make


@by_turns
@pytest.mark.parametrize(("way", "ranks", "every"), [
    ("t7", 2, 11), *(pytest.param(way, 3, 3, marks=pytest.mark.exhaustive) for way in WAYS)
])  # fmt: skip
def test_a_kill_at_any_event_leaves_the_last_checkpoint_whole(way, ranks, every, run_of):
    """At its moment and at the end of all ranks, none of which hangs or ends well without the dead one."""
    whole = run_of(way, ranks)
    assert len(set(whole.ended)) == 1
    assert len({*whole.kept}) == STEPS + 1
    for rank in range(ranks):
        for event in range(1, whole.ranks.events[rank] + 1, every):
            run = run_of(way, ranks, (rank, event))
            assert isinstance(run.ended[rank], Killed), (rank, event)
            assert all(isinstance(one, Killed | Died) or one == whole.ended[0] for one in run.ended)
            left, saved = run.seen
            assert left in whole.kept[saved : saved + 2], (rank, event)
            assert run.left() in whole.kept[saved : saved + 2], (rank, event)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_any_number_of_ranks_resumes_it(ranks, run_of):
    """Each from the same weights and moments; as many as before to the same bytes."""
    before = run_of("t7", 2)
    file = before.file.with_name("half.safetensors")
    file.write_bytes(before.kept[1])

    def body(comm):
        training = made("t7 of 3", comm)
        training.resume(file)
        assert training.steps == 1
        training.save(again := file.with_name(f"again-{comm.rank}.safetensors"))
        taught(training, [1], comm.rank, comm.size)
        training.save(file.with_name(f"next-{comm.rank}.safetensors"))
        training.close()
        return again.read_bytes() if comm.rank == 0 else b""

    found = Ranks(ranks).run(body)
    assert found[0] == before.kept[1]
    assert (file.with_name("next-0.safetensors").read_bytes() == before.kept[2]) == (ranks == 2)
