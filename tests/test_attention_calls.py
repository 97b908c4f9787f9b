"""Calls of prepared attention from Python: what is known starts at once. The driver and the GPU are not there."""

from __future__ import annotations

import cProfile
import pstats

import numpy as np
import pytest
from gpu_arrays import BEGIN, OnGpu
from test_launch_block import Recorder, gpu  # noqa: F401 - the latter a fixture

from charcnn.gpu import device, launch, tensor_map
from charcnn.ops.attention.wgmma_layer import WgmmaAttention


class Reshaped(OnGpu):
    """One whose parts are asked for."""

    def reshape(self, shape):
        return Reshaped(shape, self.begin, self.dtype)

    def __getitem__(self, part):
        return Reshaped((self.size - part.start,), self.begin + part.start * self.dtype.itemsize, self.dtype)


ROWS = np.float16, (2, 8, 3 * 64), (2, 8, 64)
PACKED = np.float16, (16, 3 * 64), (16, 64)
HEADS = np.float16, *[(2, 2, 8, 32)] * 4


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("given", "bounds", "options"),
    [
        (HEADS, None, {}),
        (HEADS, (2,), {}),
        (ROWS, None, {}),
        (ROWS, (2,), {}),
        (PACKED, (3,), {"most": 9}),
    ],
)
def test_attention_starts_at_once_what_it_started_before(monkeypatch, given, bounds, options):
    """Tensor maps hold the addresses of what it reads: elsewhere it takes its whole way."""
    block, whole = Recorder(()), []

    def launched(call, kernel, blocks, threads, *args, shared, early):
        whole.append(early)
        launch.count(1)
        call.started.append((block, [*args]))

    maps = iter(range(BEGIN + (1 << 30), BEGIN + (1 << 31), 4096))
    monkeypatch.setattr(tensor_map, "encode", lambda *_: OnGpu((16,), next(maps), np.uint64))
    monkeypatch.setattr(device, "require_hopper", lambda what, emulated=True: None)
    monkeypatch.setattr(device, "multiprocessors", lambda: 132)
    monkeypatch.setattr(device, "as_stream", lambda stream: stream or 0)
    monkeypatch.setattr(launch.Call, "launch", launched)
    layer, (dtype, *shapes) = WgmmaAttention(2, 32), given
    *read, y, other = (Reshaped(shape, BEGIN + 65_536 * i, dtype) for i, shape in enumerate([*shapes, shapes[-1]]))
    more = () if bounds is None else (OnGpu(bounds, BEGIN + (1 << 20), np.int32),)
    named = {"offsets" if options else "lengths": more[0]} if more else {}
    call = layer.apply if len(read) > 1 else layer.of_rows

    for out in (y, y, other):
        assert call(*read, **named, **options, out=out) is out
    assert whole == [False, True], "maps are made, then known; the third call starts the same elsewhere"
    (stream, values), *rest = block.starts
    assert (stream, rest) == (0, [])
    assert values[3] == other.begin
    assert not more or values[4] == more[0].begin
    profile = cProfile.Profile()
    profile.enable()
    call(*read, **named, **options, out=y)
    profile.disable()
    assert (len(block.starts), block.starts[1][1][3]) == (2, y.begin)
    assert pstats.Stats(profile).total_calls < 70

    for i, one in enumerate(read):
        moved = [*read]
        moved[i] = Reshaped(one.shape, one.begin + (1 << 24), dtype)
        call(*moved, **named, **options, out=y)
    assert whole[2:] == [False] * len(read)
    if more and len(read) == 1:  # the other kind of bounds, refused as before
        with pytest.raises(ValueError, match="has shape"):
            call(*read, **{"lengths" if options else "offsets": more[0]}, out=y)
