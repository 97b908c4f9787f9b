"""A recorded graph keeps what its work was recorded with; with a driver that is not there."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

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


def test_a_linear_layer_of_few_rows_allocates_in_each_call(recorded):
    """What ended in an illegal address when the graph ran: sums of parts, which nobody held."""
    x, weight = (device.to_device(np.ones(shape, np.float32)) for shape in ((2, 520), (520, 16)))
    bias, y = (device.to_device(np.zeros(shape, np.float32)) for shape in ((16,), (2, 16)))
    kept = recorded(lambda stream: linear_relu_nlc_double_buffered(x, weight, bias, out=y))
    assert [array.shape for array in kept._held] == [splits_shape(2, 520, 16)]
    assert np.all(y.copy_to_host() == 520)
