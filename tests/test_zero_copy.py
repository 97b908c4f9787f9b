"""A few inputs without copies: the same bits in any order of sizes and from any thread, and errors that come out.

Without a GPU, graphs and the driver are stood in for; the compiled call between them is the real one.
"""

from __future__ import annotations

import ctypes
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from conftest import quick, runs_here
from numba import cuda

from charcnn import catalog
from charcnn.config import SMALL
from charcnn.gpu import device, graph, launch, zero_copy
from charcnn.gpu.launch import Call, jit
from charcnn.model import params
from charcnn.ops.common.layer import ArraySpec, NoScratch
from charcnn.runtime import stream
from charcnn.runtime import zero_copy as runtime_zero_copy
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.sequence import on_gpus
from charcnn.runtime.timeline import Timeline
from charcnn.runtime.zero_copy import MOST, few_of

hopper = pytest.mark.skipif(not runs_here(catalog.level("l16")), reason="needs a GPU of compute capability 9.0")
simulated = pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, whose driver is not stood in for")

SIZES = SimpleNamespace(length=10, classes=3)

REFUSED = 719  # a launch that failed


@jit()
def _sums_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += np.float32(x[i // y.shape[1], j]) * np.float32(j + 1)
        y[i // y.shape[1], i % y.shape[1]] = total / np.float32(i % y.shape[1] + 3)


class Sums(NoScratch):
    """Each result is a weighted sum of a row."""

    nbytes = 0

    def __init__(self, **says):
        vars(self).update(says)

    def writes(self, x):
        return [ArraySpec((x[0], SIZES.classes))]

    def __call__(self, x, space):
        (y,) = self.writes(x.shape)
        call = Call(space.device(*y), space.stream, y.shape, dtypes={"x": x.dtype}, x=x)
        call.launch_each(_sums_kernel, x, call.out)
        return call.result()


class Graph:
    """In place of `graph.Graph`: does the work when it is launched."""

    made: ClassVar[dict[int, Graph]] = {}
    numbers = count(1)
    pieces = ()

    def __init__(self, start, stream):
        self._start, self._stream, self.handle = start, stream, next(Graph.numbers)
        self.result = start(stream)
        Graph.made[self.handle] = self

    def launch(self):
        self.result = self._start(self._stream)


class Stream:
    """The simulator's have no number."""

    def __int__(self):
        return 7

    def synchronize(self):
        pass


class Driver:
    """In place of three of the driver's functions."""

    def __init__(self):
        self.refused, self.loses, self.held, self.calls = None, False, [], []
        integer = ctypes.c_int64
        self._kept = [
            ctypes.CFUNCTYPE(ctypes.c_int, integer)(lambda context: self.answer("push")),
            ctypes.CFUNCTYPE(ctypes.c_int, integer, integer)(self.launch),
            ctypes.CFUNCTYPE(ctypes.c_int, integer)(lambda to: self.answer("pop")),
        ]
        self.addresses = tuple(ctypes.cast(one, ctypes.c_void_p).value for one in self._kept)

    def answer(self, name):
        self.calls.append(name)
        return REFUSED if self.refused == name else 0

    def launch(self, handle, stream):
        if self.answer("launch"):
            return REFUSED
        if not self.loses:
            Graph.made[handle].launch()
        return 0


FEW = 8  # go without copies where there is no GPU


@pytest.fixture
def driver(monkeypatch):
    """Where there is no GPU, the driver; None where there is one."""
    if not device.SIMULATED:
        return None
    made = Driver()
    monkeypatch.setattr(zero_copy, "addresses", lambda names: made.addresses)
    monkeypatch.setattr(zero_copy, "Graph", Graph)
    monkeypatch.setattr(graph, "Graph", Graph)
    monkeypatch.setattr(graph, "AVAILABLE", True)
    monkeypatch.setattr(cuda, "stream", Stream)
    monkeypatch.setattr(cuda, "event", lambda timing: SimpleNamespace(record=lambda on: None, wait=lambda on: None))
    monkeypatch.setattr(graph, "copy", lambda to, source, stream: to[: len(source)].copy_to_device(source))
    monkeypatch.setattr(runtime_zero_copy, "MOST", FEW)  # less than a batch, so that others are copied
    return made


def rows(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, SIZES.length), np.uint8)


def build(monitor=None, streams=2, last=None):
    layers = [Sums(), Sums(**(last or {}))]
    return on_gpus(
        lambda: [("network", layers)], SIZES, batch=20, streams=streams, gpus=[0], monitor=monitor, graph=True
    )


def expected(ids):
    sums = ids.astype(np.float64) @ np.arange(1, SIZES.length + 1)
    features = sums[:, None] / np.arange(3, 6)
    return (features @ np.arange(1, 4))[:, None] / np.arange(3, 6)


@pytest.fixture(params=[{}, {"writes_host": True}], ids=["copied back", "written there"])
def last(request):
    return request.param


def test_a_few_inputs_have_the_bits_that_more_have(driver, last):
    run, ids = build(last=last), rows(9)
    assert run.few == (FEW if device.SIMULATED else MOST)
    whole = run(ids)
    np.testing.assert_allclose(whole, expected(ids), rtol=1e-5)
    for n in (8, 1, 5, 2, 8, 3, 7, 1, 4, 6):
        np.testing.assert_array_equal(run(ids[:n]), whole[:n])
        np.testing.assert_array_equal(run(ids[9 - n :]), whole[9 - n :])
    assert run(ids[:0]).shape == (0, SIZES.classes)
    run.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        run(ids[:1])


def test_two_threads(driver):
    run, ids = build(last={"writes_host": True}), rows(40)
    whole = np.concatenate([run(ids[:20]), run(ids[20:])])

    def calls(seed):
        rng = np.random.default_rng(seed)
        for n in rng.integers(1, 12, 30):
            at = int(rng.integers(0, 40 - n))
            np.testing.assert_array_equal(run(ids[at : at + n]), whole[at : at + n])

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(calls, seed) for seed in range(3)]:
            done.result()


def test_what_is_not_like_a_batch_is_refused_as_ever(driver):
    run = build()
    with pytest.raises(TypeError, match="same_kind"):
        run(rows(2).astype(np.int64))
    wide = np.zeros((2, 2 * SIZES.length), np.uint8)
    wide[:, ::2] = rows(2)
    np.testing.assert_array_equal(run(wide[:, ::2]), run(rows(2)))
    with pytest.raises(ValueError, match=r"ids has shape \(5, 11\): need \(n, 10\), n at most 20"):
        run(np.zeros((10, 11), np.uint8))


def test_stages_and_spans_are_told(driver):
    monitor, done = Monitor(timeline=Timeline()), []
    monitor.progress = done.append
    run = build(monitor, streams=1)
    before = time.perf_counter()
    run(rows(3))
    assert 0 < monitor.seconds["network"] <= time.perf_counter() - before
    assert [(span.kind, span.name) for span in monitor.timeline.spans] == [
        ("kernel", "network"),
        ("wait", "wait for the GPU"),
    ]
    assert sum(done) == 3


def test_kernels_are_timed_one_by_one_without_it(driver, monkeypatch):
    run, seen = build(streams=1), []
    (worker,) = run._on_gpu.values()
    monkeypatch.setattr(launch, "profiler", lambda *launched: seen.append(launched))
    run(rows(2))
    assert len(seen) == 2
    assert not worker._zero_copy._made


def test_how_few():
    assert [few_of(length, 4) for length in (10, 1014, 1 << 13, 150_528)] == [64, 64, 8, 0]
    assert [few_of(10, classes) for classes in (1000, 1 << 20)] == [16, 0]


@simulated
def test_graphs_are_one_a_size(driver):
    before, run = len(Graph.made), build(streams=1)
    for n in (1, 2, 1, 2, 8, 8):
        run(rows(n))
    assert len(Graph.made) == before + 3
    zero_copy.compile_ahead()
    assert len(zero_copy._round_trip.signatures) == 1, "what is compiled ahead is what is called"


@simulated
@pytest.mark.parametrize("name", ["push", "launch"])
def test_a_refused_launch_is_an_error(driver, monkeypatch, name):
    run, named = build(streams=1), []
    monkeypatch.setattr(zero_copy, "status_name", lambda status: named.append(status) or "LAUNCH_FAILED")
    driver.refused = name
    for _ in range(3):
        with pytest.raises(device.DeviceError, match="refused to launch a CUDA graph: LAUNCH_FAILED"):
            run(rows(2))
    assert named == [REFUSED] * 3
    assert driver.calls == (["push"] if name == "push" else ["push", "launch", "pop"]) * 3
    driver.refused = None
    np.testing.assert_allclose(run(rows(2)), expected(rows(2)), rtol=1e-5)


@simulated
def test_results_that_never_come_wait_for_the_stream_which_raises(driver, monkeypatch):
    run, ids = build(streams=1), rows(2)
    (worker,) = run._on_gpu.values()
    first = run(ids)
    driver.loses, waits = True, []

    def fails():
        waits.append(1)
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    trip = worker._zero_copy._made[2]
    monkeypatch.setattr(trip, "_stream", SimpleNamespace(synchronize=fails))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ILLEGAL_ADDRESS"):
            run(ids)
    assert len(waits) == 2, "the second call waits for what the first had left"
    monkeypatch.setattr(trip, "_stream", SimpleNamespace(synchronize=lambda: waits.append(2)))
    driver.loses = False
    np.testing.assert_array_equal(run(ids), first)
    assert waits[2:] == [2], "and for nothing else"


@simulated
def test_a_result_that_is_the_mark_itself_is_given_after_a_wait(driver, monkeypatch):
    run, ids = build(streams=1, last={"writes_host": True}), rows(1)
    run(ids)
    (worker,) = run._on_gpu.values()
    trip = worker._zero_copy._made[1]

    def finish():
        trip._bits[1:] = np.float32(2).view(np.uint32)

    driver.loses = True
    monkeypatch.setattr(trip, "_stream", SimpleNamespace(synchronize=finish))
    found = run(ids).view(np.uint32)
    assert found.tolist() == [[zero_copy.PENDING, *[np.float32(2).view(np.uint32)] * 2]]


@simulated
def test_results_are_seen_when_they_are_written_late(driver):
    run, ids = build(streams=1), rows(3)
    whole = run(ids)
    (worker,) = run._on_gpu.values()
    trip = worker._zero_copy._made[3]
    bits, driver.loses = trip._bits, True
    late = whole.reshape(-1).view(np.uint32)

    def write():
        for i in np.random.default_rng(0).permutation(late.size):  # values become visible in any order
            bits[i] = late[i]

    timer = threading.Timer(0.02, write)
    timer.start()
    assert zero_copy._round_trip(trip._call, bits, 1 << 34) == 0
    np.testing.assert_array_equal(trip._results, whole)
    timer.join()


def test_a_batch_of_one_is_computed_in_the_callers_thread(driver):
    names, run = [], build(streams=2)
    (worker,), few = run._on_gpu.values(), min(run.few, run.batch)
    made = type(worker).__call__

    def call(self, ids, logits):
        names.append(threading.current_thread().name)
        made(self, ids, logits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream.GraphWorker, "__call__", call)
        run(rows(few))
        assert names == [threading.current_thread().name]
        run(rows(few + 1))
        assert all(name.startswith("worker") for name in names[1:])
        run(rows(run.batch))  # more than each worker takes without copies
    assert names[-1] == threading.current_thread().name


@hopper
@quick(lambda precision: precision in ("fp16", "fp8"))
@pytest.mark.parametrize(("level", "precision"), [("l16", "bf16"), ("l16", "fp16"), ("l16", "tf32"), ("l17", "fp8")])
def test_logits_are_those_of_the_copied_way_bit_by_bit(level, precision):
    weights, row = params.init(SMALL, seed=6), catalog.level(level)
    run = row.module.build(weights, SMALL, batch=128, gpus=[0], **row.build_options(precision))
    ids = np.random.default_rng(1).integers(0, SMALL.alphabet + 1, (MOST + 36, SMALL.length), np.uint8)
    ids[::3, 200:] = SMALL.alphabet

    def copied(part):
        return run.on_device(device.to_device(part)).copy_to_host()

    assert run.few == MOST
    once = {n: copied(ids[:n]) for n in range(1, MOST + 1)}
    for n in np.random.default_rng(2).integers(1, MOST + 1, 60):
        np.testing.assert_array_equal(run(ids[:n]), once[n])
    for at in range(0, 56, 7):  # other ids each time: none is read after the next has come
        part = ids[at : at + 1 + at % MOST]
        np.testing.assert_array_equal(run(part), copied(part))

    def calls(seed):
        rng = np.random.default_rng(seed)
        for n in rng.integers(1, MOST + 1, 200):
            np.testing.assert_array_equal(run(ids[:n]), once[n])

    with ThreadPoolExecutor(2) as pool:
        more = np.empty((len(ids), SMALL.classes), np.float32)
        beside = run.submit(ids, more)  # copied, as they are more
        for done in [pool.submit(calls, seed) for seed in range(2)]:
            done.result()
        beside.result()
    np.testing.assert_array_equal(more, copied(ids))
    run.close()


@hopper
def test_logits_that_are_not_a_number_come_at_once(monkeypatch):
    weights = params.init(SMALL, seed=6)
    weights["fc3.bias"] = np.full(SMALL.classes, np.nan, np.float32)
    run = catalog.level("l16").module.build(weights, SMALL, batch=8, streams=1, gpus=[0])
    ids = np.zeros((1, SMALL.length), np.uint8)
    run(ids)  # records the graph
    monkeypatch.setattr(zero_copy.RoundTrip, "_wait", lambda trip: pytest.fail("a NaN was taken for pending"))
    assert np.isnan(run(ids)).all()
    run.close()
