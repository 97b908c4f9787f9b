"""Asynchronous offload with real ranks, the sources it draws from, the lanes it feeds and the timeline it leaves."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import by_turns
from numba import cuda
from test_mpi import mpiexec, needs_mpi

from charcnn import catalog, offload
from charcnn.gpu import device
from charcnn.offload.inputs import chunks
from charcnn.runtime import timeline
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.stream import StreamBuffers


def random_ids(n, length=9):
    return np.random.default_rng(n).integers(0, 71, (n, length), np.uint8)


def double(ids):
    return ids[:, :3].astype(np.float32) * 2


@pytest.mark.parametrize("available", [1, 3, 10])
@pytest.mark.parametrize("total", [0, 1, 3, 7, 25])
def test_repeated_rows_are_those_of_the_whole(available, total):
    ids = random_ids(available)
    whole = ids[np.arange(total) % available]
    source = offload.Repeated(ids, total)
    assert len(source) == total
    for start in range(total + 1):
        for stop in range(start, total + 2):
            assert np.array_equal(source[start:stop], whole[start:stop])
    assert np.array_equal(source[np.arange(total)[::-2]], whole[::-2])


def test_nothing_cannot_be_repeated():
    with pytest.raises(ValueError, match="rows is empty"):
        offload.Repeated(random_ids(0), 1)


def test_texts_are_encoded_when_asked_for():
    asked = []

    def encode(texts):
        asked.append(list(texts))
        return np.array([[len(text)] for text in texts], np.uint8)

    source = offload.Repeated(offload.Encoded(["a", "bb", "ccc"], encode), 5)
    assert not asked
    assert source[1:3].tolist() == [[2], [3]]
    assert source[2:5].tolist() == [[3], [1], [2]]
    assert asked == [["bb", "ccc"], ["ccc"], ["a", "bb"]]


def test_chunks_of_any_source_are_its_rows_in_order():
    ids = random_ids(23)
    for source in (ids, offload.Repeated(ids, 23), [ids[:2], ids[2:2], ids[2:20], ids[20:]], iter([ids])):
        parts = list(chunks(source, 5, 9))
        assert max(map(len, parts)) <= 5
        assert np.array_equal(np.concatenate(parts), ids)
    with pytest.raises(ValueError, match=r"need uint8 \(n, 8\)"):
        next(chunks(ids, 5, 8))
    with pytest.raises(ValueError, match="source gives int64"):
        next(chunks([np.zeros((2, 9), np.int64)], 5, 9))


@pytest.mark.parametrize("n", [0, 1, 5, 64])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_one_process_computes_alone(n, chunk):
    ids = random_ids(n)
    for source in (ids, iter([ids[: n // 2], ids[n // 2 :]])):
        logits = offload.asynchronous(None, source, double, 9, 3, chunk=chunk)
        assert np.array_equal(logits, offload.static(None, ids, double, 9, 3))
        assert logits.dtype == np.float32
    with pytest.raises(ValueError, match="depth=0"):
        offload.asynchronous(None, ids, double, 9, 3, depth=0)


SCRIPT = """
import resource, time
import numpy as np
from charcnn import offload
from charcnn.runtime import timeline
from charcnn.runtime.pipeline import Pipeline
comm = offload.world()
root = comm.rank == 0
def double(ids):
    return ids[:, :3].astype(np.float32) * 2
def ids_of(n, length=9):
    return np.random.default_rng(n).integers(0, 71, (n, length), np.uint8)
"""

ROUND_TRIP = """
from mpi4py import MPI
requests = []
class Recording:
    def __init__(self, comm):
        self._comm = comm
    def __getattr__(self, name):
        return getattr(self._comm, name)
    def Dup(self):
        return Recording(self._comm.Dup())
    def Isend(self, *args):
        requests.append(self._comm.Isend(*args))
        return requests[-1]
    def Irecv(self, *args):
        requests.append(self._comm.Irecv(*args))
        return requests[-1]
recording = Recording(comm)
for n in (0, 1, 2, 3, 7, 64, 501):
    ids = ids_of(n)
    for chunk in (1, 5, 64):
        expected = offload.static(comm, ids if root else None, double, 9, 3)
        pipeline = Pipeline([lambda ids, logits: np.copyto(logits, double(ids))] * (1 + comm.rank % 3), chunk, 3)
        for compute in (double, pipeline):
            for source in (ids, [ids[: n // 3], ids[n // 3 :]], offload.Repeated(ids, n)):
                here = source if root else None
                logits = offload.asynchronous(recording, here, compute, 9, 3, chunk=chunk)
                assert (logits is None) == (not root)
                if root:
                    assert logits.tobytes() == expected.tobytes(), (n, chunk)
assert all(request == MPI.REQUEST_NULL for request in requests), "a request was never completed"
assert requests or comm.size == 1
# What is drawn but not yet back is bounded: 3 chunks for each rank, as depth says, and one that is being drawn.
drawn, back, most = 0, 0, 0
def source():
    global drawn, most
    for _ in range(100):
        drawn += 1
        most = max(most, drawn - back)
        yield ids_of(2)
def done(n):
    global back
    back += n // 2
work = Pipeline([lambda ids, logits: (time.sleep(0.001), np.copyto(logits, double(ids)))], 2, 3, done if root else None)
logits = offload.asynchronous(comm, source() if root else None, work, 9, 3, depth=3, progress=done)
if root:
    assert (drawn, back, len(logits)) == (100, 100, 200), (drawn, back)
    assert most <= 3 * comm.size + 1, most
    assert comm.size == 1 or most > comm.size, "never more than one chunk in flight"
print("rank done", comm.rank)
"""


@needs_mpi
@pytest.mark.parametrize("ranks", [*(pytest.param(ranks, marks=pytest.mark.exhaustive) for ranks in (1, 2)), 4])
def test_any_source_over_any_ranks_gives_the_bits_of_static(ranks):
    done = mpiexec(ranks, "-c", SCRIPT + ROUND_TRIP)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank done") == ranks


MEMORY_AND_WAITING = """
def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))  # KiB at the peak
one = ids_of(256, 1000)
def source(n):
    for i in range(0, n, 256):
        yield one[: min(256, n - i)]
def first(ids):
    return ids[:, :1].astype(np.float32)
offload.asynchronous(comm, source(20_000) if root else None, first, 1000, 1, chunk=256)
before = resident()
for way, given in ((offload.asynchronous, source(200_000)), (offload.static, offload.Repeated(one, 200_000))):
    logits = way(comm, given if root else None, first, 1000, 1, chunk=256)
    if root:
        assert len(logits) == 200_000
        assert np.array_equal(logits[-64:], first(one[200_000 % 256 - 64 : 200_000 % 256]))
grown = resident() - before
assert grown < 8 * 1024, f"rank {comm.rank} grew by {grown} KiB; all ids are 195,312"
# A rank that only waits sleeps: the source takes a second to begin.
def late():
    time.sleep(1)
    yield one
used, begun = time.process_time(), time.monotonic()
offload.asynchronous(comm, late() if root else None, first, 1000, 1, chunk=256)
used = time.process_time() - used  # on a machine that others use, a smaller share
assert used < 0.5 * (time.monotonic() - begun), f"rank {comm.rank} burnt {used} s"
print("rank done", comm.rank)
"""


@needs_mpi
def test_memory_is_flat_and_waiting_is_cheap():
    done = mpiexec(4, "-c", SCRIPT + MEMORY_AND_WAITING)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank done") == 4


TRACE = """
import sys
shift = 1000.0 * comm.rank  # as of hosts that were started at other times
clock = time.perf_counter
timeline.time.perf_counter = lambda: clock() + shift
kept = timeline.Timeline()
def slow(ids):
    with kept.span("stage", "conv_block_1"):
        time.sleep(0.01)
    return double(ids)
comm.Barrier()
offload.asynchronous(comm, ids_of(40) if root else None, slow, 9, 3, chunk=2, timeline=kept)
spans = timeline.gather(comm, kept)
assert (spans is None) == (not root)
if root:
    timeline.write(sys.argv[1], spans)
    assert timeline.bound(spans)["busy"]["host"]["share"] > 0
"""


@needs_mpi
def test_trace_shows_every_rank_in_one_time(tmp_path):
    script, file = tmp_path / "trace.py", tmp_path / "trace.json"
    script.write_text(SCRIPT + TRACE)
    done = mpiexec(3, script, file)
    assert done.returncode == 0, done.stderr
    events = json.loads(file.read_text())
    assert all({"name", "ph", "ts", "dur", "pid", "tid"} <= event.keys() for event in events)
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in events)
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {0, 1, 2}
    assert {"encode", "send", "receive", "conv_block_1", "return", "computed there"} == {e["name"] for e in spans}
    assert max(event["ts"] + event["dur"] for event in spans) < 5e8, "the ranks' clocks are not aligned"
    names = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in spans} == names
    computed = sum(event["name"] == "conv_block_1" for event in spans)
    assert computed == 20
    for away in (e for e in spans if e["name"] == "computed there"):  # on the root: around what another rank did
        inside = [
            e for e in spans
            if e["pid"] > 0 and e["cat"] == "stage" and away["ts"] - 1e6 < e["ts"] < away["ts"] + away["dur"] + 1e6
        ]  # fmt: skip
        assert inside


@needs_mpi
@by_turns
@pytest.mark.parametrize(("name", "seen"), [("l1", {"send"}), ("l7", {"copy up"})])
def test_levels_leave_a_trace(name, seen, tmp_path):
    file, report = tmp_path / "trace.json", tmp_path / "report.json"
    options = f"--config tiny --inputs {2 if device.SIMULATED else 4} --batch 1 --trace {file} --json {report}".split()
    done = mpiexec(2, "-m", f"charcnn.levels.{name}", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(said in done.stdout for said in ("passed", "bound by"))
    assert json.loads(report.read_text())["timeline"]["bound"] in ("network", "copy", "compute")
    spans = [event for event in json.loads(file.read_text()) if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {0, 1}
    assert seen | {"receive", "return", "conv_block_1", "fc_blocks"} <= {event["name"] for event in spans}


FAILING = """
from charcnn import offload
import charcnn.levels
charcnn.levels.prepare()
from charcnn.levels import l2
from charcnn.levels.runner import command as runner
rank = offload.world().rank
l2.OFFLOAD = offload.asynchronous
def build(params, config, *, batch=1, gpus=None, monitor=None):
    run = l2.build(params, config, batch=batch, monitor=monitor)
    calls = []
    def fail(ids):
        calls.append(1)
        if rank == {rank} and len(calls) > 3:
            raise ZeroDivisionError("the lens cap is on")
        return run(ids)
    return fail
build.__module__ = "charcnn.levels.l2"
runner.main(build, ["--config", "tiny", "--inputs", "{inputs}"])
"""


@needs_mpi
@pytest.mark.parametrize("rank", [pytest.param(rank, marks=by_turns) for rank in (0, 1)])
def test_a_rank_that_raises_stops_all_while_messages_are_under_way(rank):
    done = mpiexec(2, "-c", FAILING.format(rank=rank, inputs=5000))
    assert done.returncode != 0
    assert f"rank {rank}: Traceback" in done.stderr
    assert "the lens cap is on" in done.stderr
    assert "validated" not in done.stdout


@needs_mpi
@by_turns
def test_a_level_may_offload_either_way():
    done = mpiexec(2, "-c", FAILING.format(rank=-1, inputs=4))
    assert (done.returncode, "passed" in done.stdout) == (0, True), done.stderr


def test_many_inputs_are_never_all_made(monkeypatch):
    """The job of two million inputs holds the rows that there are."""
    from charcnn import catalog
    from charcnn.levels import l2
    from charcnn.levels.runner import level_options

    options = level_options.parser("l2", l2, l2.build, quiet=False).parse_args(["--inputs=2000000", "--config=tiny"])
    many = level_options.prepare(catalog.level("l2"), options)
    assert len(many.rows) == 2_000_000
    assert np.array_equal(many.rows[1_000_000:1_000_003], many.rows[0:3])  # 40 texts
    assert (len(many.shown), len(many.labels)) == (3, 40)
    monkeypatch.setattr(level_options, "ENCODED_AHEAD", 10)
    late = level_options.prepare(catalog.level("l2"), options)
    assert np.array_equal(late.rows[99:150], many.rows[99:150])
    assert np.array_equal(late.rows[np.array([5, 1_999_999])], many.rows[np.array([5, 1_999_999])])


def test_a_lane_has_two_host_buffers_and_keeps_what_it_did():
    kept = timeline.Timeline()
    monitor = Monitor(timeline=kept)
    lane = StreamBuffers(0, 3, monitor, pinned=48, features=24)
    assert monitor.memory == {0: 48}
    x = lane.host((2, 3))
    y = lane.host((3, 4))
    x[:], y[:] = 1, 2
    assert (x == 1).all()
    assert np.shares_memory(lane.host((1,)), x)
    assert lane.host((2, 2), np.uint8).dtype == np.uint8
    x_gpu, y_gpu = lane.device(x.shape), lane.device((3,), np.float64)
    assert (x_gpu.shape, x_gpu.dtype, y_gpu.dtype) == ((2, 3), np.float32, np.float64)
    with lane.copying("up"):
        x_gpu.copy_to_device(x, stream=lane.stream)
    with lane.computing("nothing"):
        pass
    with lane.copying("down"):
        x_gpu.copy_to_host(y.reshape(-1)[:6].reshape(2, 3), stream=lane.stream)
    with lane.stage("a part of the network"):
        pass
    lane.wait()
    assert (y.reshape(-1)[:6] == 1).all()
    names = ["copy up", "nothing", "copy down", "a part of the network", "wait for the GPU"]
    assert [span.name for span in kept.spans] == names
    assert [span.kind for span in kept.spans] == ["copy", "kernel", "copy", "kernel", "wait"]
    assert kept.spans[0].unit == "GPU 0 copy up"
    assert kept.spans[1].unit == "GPU 0"
    assert all(0 <= span.stop - span.start < 1 for span in kept.spans)
    assert list(monitor.seconds) == ["a part of the network"]
    assert lane.device(x.shape) is x_gpu, "buffers by turns, views of them made once"


def test_a_lane_keeps_few_views_whatever_the_batches_lengths():
    lane = StreamBuffers(0, 3, Monitor(), pinned=4_000, features=8)
    for n in range(1, 1_000):
        assert lane.host((n,)).shape == (n,)
        assert len(lane._views) <= 256


def test_a_lane_that_does_not_fit_names_the_bytes(monkeypatch):
    context = SimpleNamespace(get_memory_info=lambda: SimpleNamespace(free=1_999))
    monkeypatch.setattr(cuda, "current_context", lambda: context)
    message = "of one batch, twice, on stream 3 of GPU 0 take 2,000 bytes of GPU memory, 1,999 are free: lower --batch"
    with pytest.raises(device.DeviceError, match=message):
        StreamBuffers(0, 3, Monitor(), pinned=8, features=1_000)


def test_bound_is_the_busiest_resource():
    def spans(**kinds):
        made = [timeline.Span("stage", "s", "t", "t", 0, 10), timeline.Span("wait", "w", "t", "t", 1, 10)]
        for kind, times in kinds.items():
            made += [timeline.Span(kind, kind, f"{kind} {i}", kind, *pair) for i, pair in enumerate(times)]
        return made

    copy = [(0, 5), (1, 6), (8, 9)]  # overlapping ones count once: 7 of 10
    found = timeline.bound([spans(), spans(copy=copy, kernel=[(0, 6)])])
    assert found["bound"] == "copy"
    assert found["busy"]["copy"] == {"share": pytest.approx(0.7), "rank": 1}
    assert found["busy"]["kernel"]["share"] == pytest.approx(0.6)
    assert found["busy"]["host"]["share"] == pytest.approx(0.1)
    assert timeline.bound([spans(copy=copy, kernel=[(0, 9)])])["bound"] == "compute"
    assert timeline.bound([spans(network=[(0, 4), (3, 9)], kernel=[(0, 2)])])["bound"] == "network"
    assert timeline.bound([spans(encode=[(0, 10)])])["bound"] == "encode"


def test_a_timeline_that_is_off_keeps_nothing():
    with timeline.OFF.span("stage", "s"):
        timeline.OFF.add("stage", "s", "row", 0.0)
    assert not timeline.OFF.spans


DIRECT = """
import sys
from charcnn import offload
import charcnn.levels
charcnn.levels.prepare()
from charcnn.levels import l12
from charcnn.levels.runner import command as runner
offload.cuda_aware = lambda: (True, "an MPI that takes GPU memory")
class Comm:  # the simulator's GPU memory is the host's: MPI is given the host's array
    def __init__(self, comm):
        self._comm = comm
    def __getattr__(self, name):
        return getattr(self._comm, name)
    def Dup(self):
        return Comm(self._comm.Dup())
    def Irecv(self, array, *where):
        landed.append(type(array).__name__)
        return self._comm.Irecv(getattr(array, "_ary", array), *where)
    def Isend(self, array, *where):
        return self._comm.Isend(getattr(array, "_ary", array), *where)
landed, world = [], offload.world()
offload.world = lambda: Comm(world)
try:
    runner.main(l12.build, sys.argv[1:])
finally:
    assert ("FakeCUDAArray" in landed) == (world.rank > 0 and "--gpu-direct" in sys.argv), landed
    print("looked at rank", world.rank, flush=True)
"""


@needs_mpi
@pytest.mark.skipif(not device.SIMULATED, reason="on a GPU, MPI itself must be CUDA-aware")
@pytest.mark.parametrize("mode", [pytest.param(mode, marks=by_turns) for mode in ("async", "farm")])
def test_messages_land_in_gpu_memory_where_asked_for(mode):
    options = ["--offload", mode, "--gpu-direct"]
    done = mpiexec(2, "-c", DIRECT, "--config", "tiny", "--inputs", 2, "--batch", 1, *options, PYTHONPATH="tests:bench")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "messages  land in GPU memory: an MPI that takes GPU memory\n" in done.stdout
    assert "validated passed" in done.stdout
    assert done.stdout.count("looked at") == 2


def test_messages_land_on_the_host_where_they_must(monkeypatch):
    from charcnn.levels.runner.rank import choose_landing
    from charcnn.runtime.stream import GpuPipeline

    level = catalog.level("l12")
    run = GpuPipeline([SimpleNamespace(few=0, buffers=SimpleNamespace(gpu=gpu)) for gpu in (0, 1)], 1, 1)
    monkeypatch.setattr(offload, "cuda_aware", lambda: (True, "this MPI takes GPU memory"))
    unasked = "the host: this MPI takes GPU memory, and --gpu-direct would use it"
    assert choose_landing("comm", level, run, False) == unasked
    assert choose_landing("comm", level, run, True) == "the host: a rank drives 2 GPUs"
    assert choose_landing("comm", level, double, True) == "the host: l12 has no other way"
    assert choose_landing("comm", catalog.level("l11"), double, False) is None
    assert choose_landing(None, level, run, True) is None
    monkeypatch.setattr(offload, "cuda_aware", lambda: (False, "this MPI was built without CUDA"))
    assert choose_landing("comm", level, run, True) == "the host: this MPI was built without CUDA"
    assert run.direct is False


def test_direct_messages_need_gpus():
    from charcnn.levels import l2
    from charcnn.levels.runner import level_options

    asked = level_options.parser("l2", l2, l2.build, quiet=False).parse_args(["--gpu-direct"])
    with pytest.raises(ValueError, match="--gpu-direct: needs a level or technique that computes on GPUs"):
        level_options.prepare(catalog.level("l2"), asked)
