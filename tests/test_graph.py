"""A recorded graph keeps what its work was recorded with; with a driver that is not there."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import by_turns

from charcnn.gpu import device, graph
from charcnn.ops import linear_relu_nlc_double_buffered
from charcnn.ops.conv1d.k_splits import splits_shape

driver = pytest.importorskip("cuda.bindings.driver", reason="cuda.bindings is not installed")

FUNCTIONS = (
    "cuStreamCreate", "cuStreamBeginCapture", "cuStreamEndCapture", "cuStreamDestroy", "cuGraphInstantiate",
    "cuGraphDestroy", "cuGraphExecDestroy", "cuGraphLaunch",
)  # fmt: skip


class Stream(SimpleNamespace):
    def __int__(self):
        return 1

    def synchronize(self):
        pass


@pytest.fixture
def recorded(monkeypatch):
    """`graph.Graph` of a function, by a driver that records nothing."""
    if not device.SIMULATED:
        pytest.skip("needs the simulator: a GPU's own driver records")
    for name in FUNCTIONS:
        monkeypatch.setattr(driver, name, lambda *_: (0, 1))
    monkeypatch.setattr(graph.cuda, "external_stream", lambda handle: handle)
    return lambda start: graph.Graph(start, Stream())


def test_what_is_allocated_while_it_is_recorded_lives_as_long_as_the_graph(recorded):
    made = []

    def start(stream):
        made.append(weakref.ref(device.empty((4,), np.float32)))

    kept = recorded(start)
    gc.collect()
    first, second = made
    assert first() is None, "nothing was recorded of it"
    assert second() is not None
    device.empty((4,), np.float32)
    assert len(kept._held) == 1, "later arrays are not its"
    del kept
    gc.collect()
    assert second() is None


@by_turns
def test_a_linear_layer_of_few_rows_allocates_in_each_call(recorded):
    """What ended in an illegal address when the graph ran: sums of parts, which nobody held."""
    x, weight = (device.to_device(np.ones(shape, np.float32)) for shape in ((2, 520), (520, 16)))
    bias, y = (device.to_device(np.zeros(shape, np.float32)) for shape in ((16,), (2, 16)))
    kept = recorded(lambda stream: linear_relu_nlc_double_buffered(x, weight, bias, out=y))
    assert [array.shape for array in kept._held] == [splits_shape(2, 520, 16)]
    assert np.all(y.copy_to_host() == 520)


def test_a_step_on_the_host_cuts_the_graph(recorded, monkeypatch):
    """The step runs where it is first met, not while it is recorded, and between the two graphs of each launch."""
    did, numbers = [], iter(range(1, 9))
    monkeypatch.setattr(driver, "cuStreamEndCapture", lambda _: (0, next(numbers)))
    monkeypatch.setattr(driver, "cuGraphInstantiate", lambda made, _: (0, 10 * made))
    monkeypatch.setattr(driver, "cuGraphLaunch", lambda made, _: did.append(made) or (0,))

    def start(stream):
        for name in "ab":
            graph.on_host(stream, lambda name=name: did.append(name))
        return "result"

    kept = recorded(start)
    assert did == ["a", "b"]
    for _ in range(2):
        did.clear()
        kept.launch()
        assert did == [10, "a", 20, "b", 30]
    assert (kept.handle, kept.result) == (10, "result")
    did.clear()
    graph.on_host(Stream(), lambda: did.append("now"))
    assert did == ["now"], "nothing is recorded any more"


def test_rows_are_copied_by_their_pitches():
    source, to = np.arange(12, dtype=np.uint8), np.zeros(10, np.uint8)
    graph.copy_rows(to.ctypes.data + 1, 5, source.ctypes.data + 2, 4, 3, 2, 0)
    assert to.tolist() == [0, 2, 3, 4, 0, 0, 6, 7, 8, 0]
    graph.copy_rows(0, 1, 0, 1, 0, 5, 0)
