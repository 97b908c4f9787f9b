"""What the driver is handed at a launch, and when a call starts what one before it started: the driver is a function
of this file."""

import ctypes
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from gpu_arrays import BEGIN, Exported, OnGpu
from numba import types

from charcnn.gpu import described as describing
from charcnn.gpu import device, driver, launch, launch_block, replay
from charcnn.gpu.described import described
from charcnn.gpu.device import DeviceError
from charcnn.gpu.launch_block import DriverConfig, LaunchBlock


@pytest.fixture
def handed(monkeypatch):
    """The configuration of each launch, the kernel's handle, and the parameters' addresses."""
    found, answer = [], [0]

    def launched(config, function, parameters, extra):
        assert not extra
        found.append((DriverConfig.from_address(config), function, parameters))
        return answer[0]

    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
    function = kind(launched)
    monkeypatch.setattr(driver, "function", lambda name, count: function)
    found.append(answer)
    return found


def read(parameters, *codes):
    """What lies at the addresses of a kernel's parameters."""
    at = (ctypes.c_void_p * len(codes)).from_address(parameters)
    values = []
    for address, code in zip(at, codes, strict=True):
        values.append(struct.unpack(f"<{code}", ctypes.string_at(address, struct.calcsize(code)))[0])
    return values


def test_the_driver_gets_grid_attributes_and_parameters_as_it_documents_them(handed):
    x = OnGpu((2, 3, 5), BEGIN)
    kinds = types.Array(types.float32, 3, "C"), types.uint32, types.float32, types.UniTuple(types.int64, 2), types.bool_
    args = x, np.uint32(7), np.float32(0.5), (8, -9), True
    block = LaunchBlock(None, 99, kinds, args, (3, 2), 128, shared=1024, early=True, cluster=4)
    block.start(5, [BEGIN, *args[1:3], *args[3], True])
    config, function, parameters = handed[1]
    assert (*config.grid, *config.block, config.shared) == (12, 2, 1, 128, 1, 1, 1024)
    assert (function, config.stream, config.count) == (99, 5, 2)
    cluster, early = config.attributes[:2]
    assert (cluster.id, *cluster.value[:3], early.id, early.value[0]) == (4, 4, 1, 1, 6, 1)
    array = [0, 0, 30, 4, BEGIN, 2, 3, 5, 60, 20, 4]
    assert read(parameters, *"q" * 11, "I", "f", "q", "q", "?") == [*array, 7, 0.5, 8, -9, True]
    block.start(6, [BEGIN + 64, *args[1:3], *args[3], False])
    again = read(handed[2][2], *"q" * 11, "I", "f", "q", "q", "?")
    assert (again[4], again[-1], handed[2][0].stream) == (BEGIN + 64, False, 6)
    assert block.arrays == {0}


def test_a_cooperative_launch_and_clusters_that_run_at_once(handed, monkeypatch):
    block = LaunchBlock(None, 99, (), (), 3, 32, cooperative=True)
    block.start(0, [])
    config = handed[1][0]
    assert (config.count, config.attributes[0].id, config.attributes[0].value[0]) == (1, 2, 1)

    def answered(found, function, config):
        ctypes.c_int.from_address(found).value = 7
        return int(function == 98)

    monkeypatch.setattr(driver, "function", lambda name, count: answered)
    assert LaunchBlock(None, 99, (), (), 3, 32, cluster=2).most_clusters() == 7
    with pytest.raises(DeviceError, match="how many clusters run at once: CUDA_ERROR_INVALID_VALUE"):
        LaunchBlock(None, 98, (), (), 3, 32, cluster=2).most_clusters()


def test_a_block_that_holds_its_numbers_takes_addresses_alone(handed):
    x, y = OnGpu((2, 3), BEGIN), OnGpu((4,), BEGIN + 4096)
    kinds = types.Array(types.float32, 2, "C"), types.uint32, types.Array(types.float32, 1, "C"), types.uint64
    args = x, np.uint32(7), y, np.uint64(BEGIN + 64)
    block = LaunchBlock(None, 99, kinds, args, 3, 128, cluster=2)
    values, codes = [BEGIN, 7, BEGIN + 4096, BEGIN + 64], [*"q" * 9, "I", *"q" * 7, "Q"]
    held = block.holding(values, [0, 3])
    block.start(0, [1, 2, 3, 4])  # which writes its own memory
    held.start(8, [BEGIN + 8, BEGIN + 16])
    config, function, parameters = handed[2]
    assert (config.stream, function, *config.grid, config.attributes[0].value[0]) == (8, 99, 6, 1, 1, 2)
    found = read(parameters, *codes)
    assert (found[4], found[9], found[14], found[-1]) == (BEGIN + 8, 7, BEGIN + 4096, BEGIN + 16)
    assert read(handed[1][2], *codes)[9] == 2


def test_ctypes_lays_the_configuration_out_as_the_driver_does():
    """Sizes and names as cuda.bindings has them."""
    names = pytest.importorskip("cuda.bindings.driver").CUlaunchAttributeID
    assert (ctypes.sizeof(DriverConfig), ctypes.sizeof(launch_block.DriverAttribute)) == (56, 72)
    assert int(names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) == launch_block.CLUSTER
    assert int(names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) == launch_block.EARLY


def test_a_launch_that_the_driver_refuses_says_so(handed):
    pytest.importorskip("cuda.bindings.driver")
    handed[0][0] = 1
    with pytest.raises(DeviceError, match="did not start a kernel: CUDA_ERROR_INVALID_VALUE"):
        LaunchBlock(None, 99, (), (), 1, 32).start(0, [])


def test_arguments_that_no_kernel_takes_are_named(handed):
    with pytest.raises(TypeError, match="of type complex64: need a number"):
        LaunchBlock(None, 99, (types.complex64,), (1j,), 1, 32)


class Called:
    """What `Replay.keep` reads of a call."""

    def __init__(self, out, *started, repeats=True, own=()):
        self.out, self.started, self.repeats, self.stream, self.inputs = out, [*started], repeats, 0, ()
        self.own = [*own]


class Recorder:
    """A launch block that notes what it is started with."""

    def __init__(self, arrays):
        self.arrays, self.starts = frozenset(arrays), []

    def holding(self, values, places):
        def start(stream, addresses):
            written = dict(zip(places, addresses, strict=True))
            self.starts.append((stream, [written.get(i, value) for i, value in enumerate(values)]))

        return SimpleNamespace(start=start)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(launch, "current_context", lambda: 1)
    monkeypatch.setattr(describing, "context", lambda: 1)
    monkeypatch.setattr(device, "gpu_count", lambda: 1)
    monkeypatch.setattr(device, "as_stream", lambda stream: stream)


def arrays(begin, sizes=(8, 8, 8)):
    """Apart from each other."""
    return [OnGpu((size,), begin + 4096 * i) for i, size in enumerate(sizes)]


def kept(known, x, weight, y, *extra, options=(), **how):
    block = Recorder({0, 1, 2})
    values = [described(x).begin, described(weight).begin, described(y).begin + 16, *extra]
    known.keep(Called(y, (block, values), **how), (x, weight), options, y)
    return block


def test_a_call_of_the_same_kinds_starts_the_same_with_its_own_addresses(gpu):
    known = replay.Replay()
    x, weight, y = arrays(BEGIN)
    assert known.started((x, weight), (), y, None) is None
    block = kept(known, x, weight, y, np.uint32(3))
    a, b, c = arrays(BEGIN + (1 << 20))
    assert known.started((a, b), (), c, 9) is c
    assert block.starts == [(9, [a.begin, b.begin, c.begin + 16, 3])]


@pytest.mark.parametrize(
    "change",
    [
        lambda x, weight, y: ((OnGpu((9,), x.begin), weight), (), y),  # another shape
        lambda x, weight, y: ((OnGpu((8,), x.begin, np.int32), weight), (), y),  # another dtype
        lambda x, weight, y: ((OnGpu((8,), x.begin + 16), weight), (), y),  # begins elsewhere in 128 bytes
        lambda x, weight, y: ((np.zeros(8, np.float32), weight), (), y),  # on the host
        lambda x, weight, y: ((x, weight), (1,), y),  # another option
        lambda x, weight, y: ((x, weight), ([1],), y),  # one without a hash
        lambda x, weight, y: ((x, weight), (), x),  # the result is what is read
        lambda x, weight, y: ((x, weight), (), OnGpu((8,), weight.begin)),
        lambda x, weight, y: ((x, weight), (), lambda shape, dtype: y),  # a function that gives it
        lambda x, weight, y: ((Exported(x.begin, (8,), stream=5), weight), (), y),  # written on another stream
    ],
)
def test_any_other_call_takes_its_whole_way(gpu, change):
    known = replay.Replay()
    x, weight, y = arrays(BEGIN)
    block = kept(known, x, weight, y)
    given, options, out = change(x, weight, y)
    assert known.started(given, options, out, None) is None
    assert not block.starts
    assert known.started((x, weight), (), y, None) is y


def test_true_is_not_one(gpu):
    known = replay.Replay()
    x, weight, y = arrays(BEGIN)
    kept(known, x, weight, y, options=(1,))
    assert known.started((x, weight), (True,), y, None) is None
    assert known.started((x, weight), (1.0,), y, None) is None
    kept(known, x, weight, y, options=((2, 1),))
    assert known.started((x, weight), ((2, 1),), y, None) is y
    assert known.started((x, weight), ((2.0, 1),), y, None) is None
    assert known.started((x, weight), ((2, True),), y, None) is None


@pytest.mark.parametrize(
    "how",
    [
        {"repeats": False},  # it started something through another call
        {"extra": (np.uint64(BEGIN + (1 << 30)),)},  # an address that lies in none of its arrays
    ],
)
def test_a_call_whose_like_may_start_something_else_is_not_kept(gpu, how):
    known = replay.Replay()
    x, weight, y = arrays(BEGIN)
    kept(known, x, weight, y, *how.pop("extra", ()), **how)
    assert known.started((x, weight), (), y, None) is None


def test_a_layer_may_read_arrays_of_its_own(gpu):
    known = replay.Replay(own=True)
    x, weight, y = arrays(BEGIN)
    block = kept(known, x, weight, y, np.uint64(BEGIN + (1 << 30)))
    assert known.started((x, weight), (), y, None) is y
    assert block.starts[0][1][-1] == BEGIN + (1 << 30)


def test_a_calls_own_arrays_are_others_each_time(gpu, monkeypatch):
    class Given(SimpleNamespace):
        def __init__(self, nbytes):
            assert nbytes == 64
            super().__init__(address=next(addresses))
            held.append(self.address)

        def __del__(self):
            held.remove(self.address)

    addresses, held = iter((BEGIN + (3 << 20), BEGIN + (4 << 20))), []
    monkeypatch.setattr(replay.pool, "PooledMemory", Given)
    known = replay.Replay()
    x, weight, y = arrays(BEGIN)
    own = OnGpu((16,), BEGIN + (1 << 30))
    block = kept(known, x, weight, y, np.uint64(own.begin + 8), own=[own])
    assert known.started((x, weight), (), y, 9) is None  # memory is kept for the default stream alone
    for where in (BEGIN + (3 << 20), BEGIN + (4 << 20)):
        assert known.started((x, weight), (), y, None) is y
        assert block.starts[-1][1][-1] == where + 8
        assert not held  # given back once all was started


def test_arrays_that_overlap_are_not_kept_as_an_address_would_be_of_either(gpu):
    known = replay.Replay()
    x, _, y = arrays(BEGIN)
    kept(known, x, x, y)
    assert known.started((x, x), (), y, None) is None


def test_in_place_and_not_are_two_calls(gpu):
    known = replay.Replay(in_place=True)
    x, y = OnGpu((8,), BEGIN), OnGpu((8,), BEGIN + 4096)
    there, here = Recorder({0, 1}), Recorder({0, 1})
    known.keep(Called(x, (here, [BEGIN, BEGIN])), (x,), (), x)
    assert known.started((x,), (), y, None) is None
    known.keep(Called(y, (there, [BEGIN, BEGIN + 4096])), (x,), (), y)
    assert known.started((x,), (), x, None) is x
    assert known.started((x,), (), y, None) is y
    assert here.starts == [(0, [BEGIN, BEGIN])]
    assert there.starts == [(0, [BEGIN, BEGIN + 4096])]
    late = OnGpu((8,), BEGIN + 16)
    assert known.started((x,), (), late, None) is None  # it would write what is still read


def test_a_tensor_map_holds_an_address(gpu):
    known = replay.Replay(own=True, by_address=3)
    x, weight, y = arrays(BEGIN)
    kept(known, x, weight, y)
    elsewhere = OnGpu((8,), BEGIN + (1 << 20))
    assert known.started((elsewhere, weight), (), y, None) is None
    assert known.started((x, weight), (), elsewhere, None) is None
    assert known.started((x, weight), (), y, None) is y


def test_nothing_is_replayed_while_tiles_are_tried(gpu):
    from charcnn.ops.common import tile_choice

    known = replay.Replay()
    x, weight, y = arrays(BEGIN)
    kept(known, x, weight, y)
    with tile_choice.trying(lambda key, candidates: candidates[0]):
        assert known.started((x, weight), (), y, None) is None
    assert known.started((x, weight), (), y, None) is y


def test_a_known_call_makes_few_python_calls(gpu):
    """Counts do not depend on the machine: every one takes 50 ns or more, and a launch shall take 8 µs."""
    import cProfile
    import pstats

    known = replay.Replay()
    x, weight, y = arrays(BEGIN)
    kept(known, x, weight, y)
    profile = cProfile.Profile()
    known.started((x, weight), (1, 0, 1), y, None)
    profile.enable()
    assert known.started((x, weight), (), y, None) is y
    profile.disable()
    assert pstats.Stats(profile).total_calls < 60


def test_calls_are_forgotten_before_they_are_many(gpu, monkeypatch):
    monkeypatch.setattr(replay, "KEPT", 4)
    known = replay.Replay()
    for size in range(1, 20):
        x, weight, y = arrays(BEGIN, (size, 8, 8))
        kept(known, x, weight, y)
    assert len(known._known) <= 4


def test_a_call_knows_what_else_was_launched_meanwhile(monkeypatch):
    """One that packs weights by another call is not started anew from what itself has launched."""
    call = SimpleNamespace(_before=3, started=[1, 2], out=OnGpu((8,), BEGIN), _device=True, _once=False)
    repeats = launch.Call.repeats.fget
    monkeypatch.setattr(launch, "_counter", SimpleNamespace(launches=5))
    assert repeats(call)
    launch._counter.launches = 6
    assert not repeats(call)
    launch._counter.launches = 5
    assert not repeats(SimpleNamespace(**{**vars(call), "_once": True}))
    assert not repeats(SimpleNamespace(**{**vars(call), "_device": False}))
    assert not repeats(SimpleNamespace(**{**vars(call), "_before": 5, "started": []}))


def test_a_call_whose_array_was_copied_on_the_way_is_not_kept(gpu):
    """PyTorch's reshape copies a tensor whose axes were exchanged; the copy lies elsewhere each time."""
    known = replay.Replay(own=True)
    x, weight, y = arrays(BEGIN)
    copied = OnGpu((8,), BEGIN + (1 << 30))
    call = Called(y, (Recorder({0, 1}), [copied.begin, y.begin]))
    call.inputs = (copied,)
    known.keep(call, (x, weight), (), y)
    assert known.started((x, weight), (), y, None) is None


def test_known_calls_count_as_launches(gpu, monkeypatch):
    """Else an outer call that starts them would be taken for one that starts its own kernels alone."""
    counter = SimpleNamespace(launches=0)
    monkeypatch.setattr(launch, "_counter", counter)
    known = replay.Replay()
    x, weight, y = arrays(BEGIN)
    kept(known, x, weight, y)
    assert known.started((x, weight), (), y, None) is y
    assert counter.launches == 1


def test_all_is_forgotten_where_tiles_may_be_others(gpu):
    from charcnn.ops.common import tile_choice

    known = replay.Replay()
    x, weight, y = arrays(BEGIN)
    kept(known, x, weight, y)
    tile_choice.forget()
    assert known.started((x, weight), (), y, None) is None
    kept(known, x, weight, y)
    assert known.started((x, weight), (), y, None) is y


def test_of_several_gpus_the_current_one_counts(gpu, monkeypatch):
    monkeypatch.setattr(device, "gpu_count", lambda: 2)
    monkeypatch.setattr(replay, "context", lambda: 1)
    known = replay.Replay()
    x, weight, y = arrays(BEGIN)
    kept(known, x, weight, y)
    assert known.started((x, weight), (), y, None) is y
    monkeypatch.setattr(replay, "context", lambda: 2)
    assert known.started((x, weight), (), y, None) is None


def test_a_layers_two_ways_and_its_lengths_are_apart():
    """A layer's `length` decides the result's shape; and both ways may be given arrays of one kind."""
    from charcnn.ops.common.conv import PreparedConv

    layer, seen = PreparedConv(), []
    layer._replay = SimpleNamespace(started=lambda arrays, options, out, stream: seen.append(options) or out)
    layer.length, layer.partial_moments_shape = 10, lambda n, length: (8,)
    x, other, y = arrays(BEGIN)
    for layer.length in (10, 12):
        layer.apply(x, out=y)
        layer.with_partial_moments(x, other, out=y)
    assert len(set(seen)) == 4
