"""Batches through several workers at once."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from itertools import combinations_with_replacement
from types import SimpleNamespace

import numpy as np
import pytest
from test_offload import double, random_ids

from charcnn import offload
from charcnn.levels.runner.rank import warmed
from charcnn.runtime import graph_order
from charcnn.runtime.pipeline import Pipeline, cuts


def test_workers_of_a_pipeline_run_at_once_and_one_batch_each():
    busy = [0, 0]

    def worker(number):
        def work(ids, logits):
            assert not busy[number]
            busy[number] = 1
            while ids[0, 0] == 0 and sum(busy) < 2:  # the first two batches each wait for the other
                time.sleep(0.001)
            if ids[0, 0] == 0:
                time.sleep(0.02)
            logits[:] = double(ids)
            busy[number] = 0

        return work

    done = []
    pipeline = Pipeline([worker(0), worker(1)], 4, 3, done.append)
    ids = random_ids(21)
    ids[:, 0] = np.arange(21) >= 8
    assert np.array_equal(pipeline(ids), double(ids))
    assert sum(done) == 21
    assert pipeline(ids[:0]).shape == (0, 3)
    assert np.array_equal(offload.asynchronous(None, ids, pipeline, 9, 3), double(ids))
    with pytest.raises(ValueError, match="at most batch=4"):
        pipeline.submit(ids[:5], np.empty((5, 3), np.float32))


@pytest.mark.parametrize(
    ("inputs", "length", "sizes"),
    [
        (5000, 1, [1024] * 4 + [904]),  # copied in no time
        (5120, 1 << 17, [1024] * 4 + [512, 256, 256]),
        (4200, 1 << 17, [1024] * 4 + [104]),
        (4300, 1 << 17, [1024] * 4 + [204]),
        (5000, 1 << 17, [1024] * 4 + [512, 256, 136]),
        (4095, 1 << 17, [1024] * 3 + [1023]),  # few
        (5, 1 << 40, [1] * 5),
        (0, 1, []),
    ],
)
def test_runs_of_large_batches_end_in_smaller_ones(inputs, length, sizes):
    found = list(cuts(0, inputs, 1 if length > 1 << 32 else 1024, length))
    assert [stop - start for start, stop in found] == sizes
    assert [start for start, _ in found] == [0, *(stop for _, stop in found)][: len(found)]


def test_each_worker_is_warm_for_all_sizes():
    seen = [[], []]
    pipeline = Pipeline([lambda ids, logits, own=own: own.append(len(ids)) for own in seen], 1024, 3)
    pipeline.warm(np.broadcast_to(np.uint8(0), (1024, 1 << 17)), 5120)
    assert seen == [[1024, 512, 256]] * 2
    pipeline(np.broadcast_to(np.uint8(0), (5120, 1 << 17)))
    assert sum(map(sum, seen)) == 2 * (1024 + 512 + 256) + 5120
    del seen[0][:], seen[1][:]
    network = SimpleNamespace(byte_values=71, length=9)
    assert warmed(pipeline, SimpleNamespace(device="cpu"), network, 1024, [], 1500) > 0
    assert seen == [[750]] * 2


@pytest.mark.parametrize("available", [1, 3, 10])
@pytest.mark.parametrize("kept", [1, 4, 100])
def test_repeated_rows_that_are_kept_are_views(available, kept):
    ids, total = random_ids(available), 25
    whole, source = ids[np.arange(total) % available], offload.Repeated(ids, total)
    source.keep(kept)
    for start, stop in combinations_with_replacement(range(total + 1), 2):
        assert np.array_equal(source[start:stop], whole[start:stop])
        assert stop - start > kept or source[start:stop].base is not None


def test_an_error_in_a_worker_reaches_the_caller():
    def work(ids, logits):
        raise ZeroDivisionError("the lens cap is on")

    for run in (Pipeline([work] * 2, 2, 3), lambda ids: offload.asynchronous(None, ids, lambda _: work(0, 0), 9, 3)):
        with pytest.raises(ZeroDivisionError, match="lens cap"):
            run(random_ids(20))


@pytest.mark.parametrize("inputs", [1, 5])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_worker_is_there_after_an_error(error, inputs):
    fails = [True]

    def work(ids, logits):
        if fails:
            fails.clear()
            raise error
        logits[:] = double(ids)

    pipeline, ids = Pipeline([work], 2, 3), random_ids(inputs)
    with pytest.raises(error):
        pipeline(ids)
    assert np.array_equal(pipeline(ids), double(ids))  # else it would wait for one for ever


def test_what_an_interrupted_batch_computes_is_waited_for():
    said, order = [], object.__new__(graph_order.GraphOrder)

    def event(name):
        return SimpleNamespace(**{way: lambda on, way=way: said.append((name, way, on)) for way in ("record", "wait")})

    order._buffers = SimpleNamespace(stream="own", on=lambda other: nullcontext())
    order._compute = SimpleNamespace(stream="shared", one_batch=threading.Lock())
    order._ready, order._done = event("ready"), event("done")
    with pytest.raises(KeyboardInterrupt), order.computing(1000):
        raise KeyboardInterrupt
    assert said[-2:] == [("done", "record", "shared"), ("done", "wait", "own")]
    assert not order._compute.one_batch.locked()
