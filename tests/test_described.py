"""Arrays on a GPU as launches see them: what tells kinds apart, and where arrays lie."""

import numpy as np
from gpu_arrays import BEGIN, Exported, OnGpu

from charcnn.gpu import described as describing
from charcnn.gpu.described import described


def test_arrays_of_one_kind_have_one_number_and_keep_it():
    one, other = OnGpu((2, 3), BEGIN), OnGpu((2, 3), BEGIN + 4096)
    assert described(one).kind == described(other).kind
    assert described(one) is described(one)
    assert described(OnGpu((2, 3), BEGIN + 64)).kind != described(one).kind  # it begins elsewhere in 128 bytes
    assert (described(other).begin, described(other).end) == (BEGIN + 4096, BEGIN + 4096 + 24)
    assert described(OnGpu((3, 2), BEGIN)).kind != described(one).kind
    assert described(OnGpu((2, 3), BEGIN, np.int32)).kind != described(one).kind
    assert described(OnGpu((2, 0), BEGIN))[1:3] == (BEGIN, BEGIN)
    assert described(np.zeros(3)) is None
    assert described([1.0]) is None


def test_kinds_are_forgotten_before_they_are_many_and_no_number_is_given_twice(monkeypatch):
    monkeypatch.setattr(describing, "KEPT", 8)
    numbers = [described(OnGpu((size,), BEGIN)).kind for size in range(1, 30)]
    assert len(set(numbers)) == 29
    assert len(describing._kinds) <= 8


def test_exported_arrays_are_read_by_their_interface(monkeypatch):
    monkeypatch.setattr(describing, "context", lambda: 1)
    whole, strided = described(Exported(BEGIN)), described(Exported(BEGIN, strides=(8,)))
    assert (whole.end, strided.end) == (BEGIN + 16, BEGIN + 28)
    assert whole.kind != strided.kind
    assert described(Exported(BEGIN, stream=1)).producer == 0
    assert described(Exported(BEGIN, stream=77)).producer == 77
    assert described(Exported(BEGIN, [2, 2], strides=[8, 4])).end == BEGIN + 16
    assert described(Exported(BEGIN, mask=object())) is None  # Numba refuses it, and says so
