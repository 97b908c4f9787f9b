"""Static offload with real ranks: each has its own share, in the batches in which one process computes it."""

from test_mpi import mpiexec, needs_mpi
from test_offload import SCRIPT

SHARES = """
seen = []
def work(ids, logits):
    seen.append((int.from_bytes(ids[0, :2].tobytes(), "little"), len(ids)))
    np.copyto(logits, double(ids))
for n in (0, 1, 2, 5, 64, 501):
    ids = ids_of(n)
    ids[:, :2] = np.arange(n, dtype="<u2")[:, None].view(np.uint8)
    counts = offload.shares(n, comm.size)
    mine = ids[sum(counts[: comm.rank]) :][: counts[comm.rank]]
    for batch in (1, 7, 64):
        pipeline = Pipeline([work] * (1 + comm.rank), batch, 3)
        pipeline.whole = 40 * (comm.rank == 1)  # one batch of up to so many
        alone = pipeline(mine)
        there, seen = sorted(seen), []
        logits = offload.static(comm, offload.Repeated(ids, n) if root else None, pipeline, 9, 3)
        assert sorted(seen) == there, (n, batch)
        seen = []
        assert logits.tobytes() == double(ids).tobytes() if root else logits is None
        # Of a stream, chunks go to the ranks in turn.
        stream = (part for start in range(0, n, 9) for part in (None, ids[start : start + 9]))
        logits = offload.static(comm, stream if root else None, pipeline, 9, 3)
        starts = [start + i for start in range(0, n, 9) for i in range(0, min(9, n - start), batch)]
        assert sorted(start for start, _ in seen) == starts[comm.rank :: comm.size], (n, batch, seen)
        seen = []
        assert logits.tobytes() == double(ids).tobytes() if root else logits is None
print("rank done", comm.rank)
"""


@needs_mpi
def test_static_gives_each_rank_its_own_batches_and_no_others():
    done = mpiexec(3, "-c", SCRIPT + SHARES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank done") == 3
