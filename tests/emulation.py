"""Warps and tensor cores in plain Python, for kernels of `mma` and `wgmma` in Numba's simulator.

The simulator runs each thread of a block as one of the host, and knows no warps. Here 32 of them meet where an
instruction is a whole warp's, or 128 where it is a warpgroup's, and one of them does it for all. Copies of `mma` happen
as late as they may, when they are waited for; those of `wgmma` as early. Addresses in global memory are the host's own.
"""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict

import numpy as np
from numba import cuda

from charcnn.gpu import device, ptx, tensor_map
from charcnn.gpu.launch import Call
from charcnn.gpu.ptx.simulated import float_of_e4m3

BASE = 4096
"""Where dynamic shared memory begins in the shared window."""

LANES = 32

WARPGROUP = 128

EIGHTHS = np.array([float_of_e4m3(bits) for bits in range(256)], np.float64)


def block():
    """The number of the current thread's block."""
    return int(threading.current_thread().blockIdx.x)


class Machine:
    """What the threads of a block share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.meetings: dict[tuple[int, ...], threading.Barrier] = {}
        self.given: dict[tuple[int, ...], dict[int, object]] = defaultdict(dict)
        self.taken: dict[tuple[int, ...], dict[int, object]] = {}
        self.copies = threading.local()

    def together(self, value, work, size=LANES):
        """What `work` makes of the values of a warp, or of so many threads, a value for each of them."""
        thread = threading.current_thread().threadIdx.x
        place, group = thread % size, (block(), size, thread // size)
        with self.lock:
            meeting = self.meetings.setdefault(group, threading.Barrier(size))
            self.given[group][place] = value
        if meeting.wait() == 0:
            self.taken[group] = dict(enumerate(work([self.given[group][i] for i in range(size)])))
        meeting.wait()
        return self.taken[group][place]

    def cvta_to_shared(self, array):
        self.memory = array.view(np.uint8).reshape(-1)
        return BASE

    def row(self, address):
        """16 bytes of shared memory."""
        assert address % 16 == 0
        at = int(address) - BASE
        assert 0 <= at <= len(self.memory) - 16, "outside shared memory"
        return self.memory[at : at + 16]

    # Copies: a group a commit, done when waited for.

    def _groups(self):
        if not hasattr(self.copies, "groups"):
            self.copies.groups = [[]]
        return self.copies.groups

    def cp_async_16(self, to, source, wanted):
        assert wanted in (0, 16)
        self._groups()[-1].append((int(to), int(source), int(wanted)))

    def cp_async_commit_group(self):
        self._groups().append([])

    def cp_async_wait_group(self, most):
        def waiting():
            groups = self._groups()
            while len(groups) - 1 > most:
                for to, source, wanted in groups.pop(0):
                    self.row(to)[:] = np.frombuffer(ctypes.string_at(source, 16), np.uint8) if wanted else 0

        return waiting

    # Matrices, by the tables of the PTX ISA.

    def load(self, addresses):
        """ldmatrix.x4: (lane, matrix) words."""
        rows = np.stack([self.row(address).copy().view(np.uint32) for address in addresses]).reshape(4, 8, 4)
        return rows.transpose(1, 2, 0).reshape(LANES, 4)

    @staticmethod
    def numbers(words, kind):
        """(..., words) as (..., numbers) in float64."""
        if kind == "tf32":
            return (words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
        if kind == "e4m3":
            return EIGHTHS[np.ascontiguousarray(words).view(np.uint8)]
        halves = np.ascontiguousarray(words).view(np.uint16)
        if kind == "bf16":
            return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return halves.view(np.float16).astype(np.float64)

    def product(self, a, b, c, kind):
        """mma.sync: a (lane, 4) and b (lane, 2) words, c (lane, 4) floats."""
        rows = a.reshape(8, 4, 4)  # (group, thread of group, word)
        upper = np.concatenate([rows[:, :, 0], rows[:, :, 2]], 1)
        lower = np.concatenate([rows[:, :, 1], rows[:, :, 3]], 1)
        left = self.numbers(np.concatenate([upper, lower]), kind)
        columns = b.reshape(8, 4, 2)
        right = self.numbers(np.concatenate([columns[:, :, 0], columns[:, :, 1]], 1), kind)
        with np.errstate(invalid="ignore"):
            sums = (left @ right.T).reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(LANES, 4)
        return (sums + c).astype(np.float32)

    def mma_tile(self, kind, down, across, phases=1, split=False):
        def work(given):
            sums = np.stack([one[0] for one in given])
            first = np.array([[int(address) for address in one[1]] for one in given])
            columns = np.array([int(one[2]) for one in given])
            for turned in range(0, 128, 64 if split else 32):

                def rows(low, turned=turned):
                    return [
                        self.load((first[:, i % phases] ^ turned + low) + i // phases * phases * 16 * 128)
                        for i in range(down)
                    ]

                for j in range(across):
                    pair = self.load((columns ^ turned) + j // 2 * 2048)[:, j % 2 * 2 : j % 2 * 2 + 2]
                    rest = self.load((columns ^ turned + 16) + j // 2 * 2048)[:, j % 2 * 2 : j % 2 * 2 + 2]
                    high, low = rows(0), rows(16)
                    small = (np.ascontiguousarray(pair).view(np.float16) / np.float16(ptx.LOW_SCALE)).view(np.uint32)
                    for i in range(down):
                        at = slice((i * across + j) * 4, (i * across + j) * 4 + 4)
                        if split:
                            term = self.product(low[i], small, np.zeros((LANES, 4), np.float32), kind)
                            term = self.product(high[i], rest, term, kind)
                            sums[:, at] += self.product(high[i], pair, term, kind)
                        else:
                            sums[:, at] = self.product(high[i], pair, sums[:, at], kind)
            for one, made in zip(given, sums, strict=True):
                one[0][:] = made
            return [None] * LANES

        return lambda sums, a, b: self.together((sums, a, b), work)

    def quad_sum(self, value):
        def work(values):
            sums = np.array(values, np.float32).reshape(8, 4)
            pairs = sums + sums[:, [1, 0, 3, 2]]
            return (pairs + pairs[:, [2, 3, 0, 1]]).reshape(-1)

        return self.together(value, work)


class Barrier:
    """Of a block, or an mbarrier: a phase ends with so many arrivals, and all bytes that are expected."""

    def __init__(self, arrivals) -> None:
        self.arrivals = self.missing = arrivals
        self.bytes = self.phases = 0
        self.change = threading.Condition()

    def count(self, arrivals, size=0):
        """Arrivals, and bytes to wait for, or less than none that came; the phases that had ended before."""
        with self.change:
            self.missing, self.bytes, before = self.missing - arrivals, self.bytes + size, self.phases
            assert self.missing >= 0, "more arrivals than were waited for"
            if self.missing == self.bytes == 0:
                self.missing, self.phases = self.arrivals, before + 1
                self.change.notify_all()
            return before

    def wait(self, ended):
        with self.change:
            assert self.change.wait_for(lambda: ended(self.phases), timeout=120), "waits for ever"


class Hopper(Machine):
    """A block that is a cluster of its own: copies by tensor maps, mbarriers, and products by warpgroups."""

    def __init__(self) -> None:
        super().__init__()
        self.barriers: dict[int, Barrier] = {}
        self.named: dict[int, Barrier] = {}

    def mbarrier_init(self, barrier, count):
        self.barriers[barrier] = Barrier(count)

    def mbarrier_arrive_expect_tx(self, barrier, size):
        self.barriers[barrier].count(1, size)

    def mbarrier_arrive(self, barrier):
        self.barriers[barrier].count(1)

    def mbarrier_wait(self, barrier, parity):
        self.barriers[barrier].wait(lambda phases: phases % 2 != parity)

    def _named(self, number, threads):
        with self.lock:
            return self.named.setdefault(number, Barrier(threads))

    def named_barrier_arrive(self, number, threads):
        return lambda: self._named(number, threads).count(1)

    def named_barrier_sync(self, number, threads):
        def sync():
            before = self._named(number, threads).count(1)
            self._named(number, threads).wait(lambda phases: phases > before)

        return sync

    # Copies.

    def encode(self, array, shape, strides, box):
        """A tensor map, as a device array that begins with its own number."""
        tensor_map.check(shape, strides, box, 2)
        made = device.to_device(np.zeros(16, np.uint64))
        self.maps[device.address(made)] = device.address(array), shape, strides, box
        return made

    def _swizzled(self, addresses):
        return (addresses ^ (addresses >> 7 & 7) << 4) - BASE

    def copy_box(self, to, found, barrier, *first):
        begin, shape, strides, box = self.maps[found]
        assert to % 128 == 0
        assert first[0] < shape[0]
        for i, place in enumerate(np.ndindex(*box[:0:-1])):
            row, at = np.zeros(box[0], np.uint16), [a + b for a, b in zip(first[1:], place[::-1], strict=True)]
            if all(a < size for a, size in zip(at, shape[1:], strict=True)):
                source = begin + sum(a * stride for a, stride in zip(at, strides, strict=True)) + 2 * first[0]
                data = ctypes.string_at(source, 2 * min(box[0], shape[0] - first[0]))
                row[: len(data) // 2] = np.frombuffer(data, np.uint16)
            self.memory[self._swizzled(to + i * 128 + np.arange(128))] = row.view(np.uint8)
        self.barriers[barrier].count(0, -2 * int(np.prod(box)))

    def bulk_load(self, to, source, size, barrier):
        self.memory[to - BASE : to - BASE + size] = np.frombuffer(ctypes.string_at(source, size), np.uint8)
        self.barriers[barrier].count(0, -size)

    def ld_shared_v4_b32(self, address):
        return tuple(int(word) for word in self.row(address).view(np.uint32))

    def ld_shared_v4_f32(self, address):
        return tuple(self.row(address).view(np.float32))

    def st_shared_v4_b32(self, address, *words):
        self.row(address).view(np.uint32)[:] = words

    def st_shared_v4_f32(self, address, *values):
        self.row(address).view(np.float32)[:] = values

    def shfl_exchange(self, words, apart):
        def work(given):
            made = []
            for lane, (first, second, odd) in enumerate(given):
                assert bool(odd) == bool(lane & apart)
                others = given[lane ^ apart]
                made.append((*others[1], *second) if odd else (*first, *others[0]))
            return made

        return lambda first, second, odd: self.together((first, second, odd), work, 32)

    # Products.

    def matrix(self, descriptor, rows, kind):
        address = (int(descriptor) & 0x3FFF) << 4
        return self.numbers(self.memory[self._swizzled(address + np.arange(rows * 128).reshape(rows, 128))], kind)

    def wgmma(self, kind, columns, more=True):
        def work(given):
            _, a, b = given[0]
            with np.errstate(invalid="ignore"):
                made = self.matrix(a, 64, kind) @ self.matrix(b, columns, kind).T
            # Rows of (warp, second half, group of lanes), columns of (eight, lane of a group, second).
            made = made.reshape(4, 2, 8, columns // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5).reshape(WARPGROUP, -1)
            for (sums, *matrices), values in zip(given, made, strict=True):
                assert matrices == [a, b]
                sums[:] = sums + values if more else values
            return [None] * WARPGROUP

        return lambda sums, a, b: self.together((sums, a, b), work, WARPGROUP)


def _store(kind, count, to_array=None):
    def store(address, *values):
        if len(values) > count:  # after the index of an array
            return to_array(address, *values)
        assert len(values) == count
        data = np.array([kind(value) for value in values], kind).tobytes()
        assert int(address) % len(data) == 0
        return ctypes.memmove(int(address), data, len(data))

    return store


def _from_base(instruction):
    """As of an array that begins at BASE, where the simulator's begin at 0."""
    return lambda array, address, *more: instruction(array, address - BASE, *more)


def _load(count, from_array):
    def load(address, *index):
        if index:
            return from_array(address, *index)
        assert int(address) % (4 * count) == 0
        values = np.frombuffer(ctypes.string_at(int(address), 4 * count), np.float32)
        return values[0] if count == 1 else tuple(values)

    return load


def emulate(monkeypatch, machine=None):
    """Let kernels of `mma` run in the simulator."""
    machine = machine or Machine()
    launch = Call.launch

    def launch_ints(call, kernel, blocks, threads, *args, shared=0, cluster=1, early=False):
        assert cluster == 1
        machine.__init__()
        args = [int(arg) if isinstance(arg, np.integer) else arg for arg in args]
        launch(call, kernel, blocks, threads, *args, shared=shared)

    monkeypatch.setattr(Call, "launch", launch_ints)
    monkeypatch.setattr(device, "require_tensor_cores", lambda what, hopper=False: None)
    monkeypatch.setattr(device, "address", lambda array: array._ary.ctypes.data)
    for name in (
        "cvta_to_shared",
        "cp_async_16",
        "cp_async_commit_group",
        "cp_async_wait_group",
        "mma_tile",
        "quad_sum",
    ):
        monkeypatch.setattr(ptx, name, getattr(machine, name))
    for name in ("ld_shared_v4_b32_at", "ld_shared_v4_f32_at", "st_shared_v4_b32_at"):
        monkeypatch.setattr(ptx, name, _from_base(getattr(ptx, name)))
    monkeypatch.setattr(ptx, "tid_x", lambda: threading.current_thread().threadIdx.x)
    monkeypatch.setattr(ptx, "mul_hi_u32", lambda a, b: int(a) * int(b) >> 32)
    monkeypatch.setattr(ptx, "max_nan_f32", lambda a, b: np.float32(np.maximum(a, b)))
    monkeypatch.setattr(ptx, "ld_global_f32", _load(1, ptx.ld_global_f32))
    monkeypatch.setattr(ptx, "ld_global_v4_f32", _load(4, ptx.ld_global_v4_f32))
    monkeypatch.setattr(ptx, "st_global_f32", _store(np.float32, 1))
    monkeypatch.setattr(ptx, "st_global_b32", _store(np.uint32, 1))
    monkeypatch.setattr(ptx, "st_global_v4_b32", _store(np.uint32, 4, ptx.st_global_v4_b32))


def emulate_hopper(monkeypatch, machine=None):
    """Let kernels of `wgmma` run in the simulator, a block at a time."""
    from numba.cuda.simulator.kernelapi import FakeCUDAModule  # where there is no GPU

    machine = machine or Hopper()
    machine.maps = {}
    emulate(monkeypatch, machine)
    jit = cuda.jit
    monkeypatch.setattr(  # the simulator's knows no `forceinline`, nor needs a device function be more than it is
        cuda, "jit", lambda device=False, **options: (lambda function: function) if device else jit(**options)
    )
    monkeypatch.setattr(tensor_map, "encode", machine.encode)
    monkeypatch.setattr(device, "multiprocessors", lambda: 1)
    monkeypatch.setattr(FakeCUDAModule, "syncwarp", lambda self: None, raising=False)
    monkeypatch.setattr(cuda, "syncwarp", lambda: None, raising=False)  # as device functions of other files have it
    for name in (
        "mbarrier_init",
        "mbarrier_arrive_expect_tx",
        "mbarrier_arrive",
        "mbarrier_wait",
        "named_barrier_arrive",
        "named_barrier_sync",
    ):
        monkeypatch.setattr(ptx, name, getattr(machine, name))
    for name in ("ld_shared_v4_b32", "ld_shared_v4_f32", "st_shared_v4_b32", "st_shared_v4_f32"):
        monkeypatch.setattr(ptx, name, getattr(machine, name))
    for name in ("bulk_load", "shfl_exchange", "wgmma"):
        monkeypatch.setattr(ptx, name, getattr(machine, name))
    for name in ("tma_load_2d", "tma_load_3d"):
        monkeypatch.setattr(ptx, name, machine.copy_box)
    for name in (
        "fence_mbarrier_init",
        "fence_proxy_tensormap",
        "fence_proxy_async",
        "wgmma_fence",
        "griddepcontrol_launch",
        "griddepcontrol_wait",
    ):
        monkeypatch.setattr(ptx, name, lambda *_: None)
    monkeypatch.setattr(ptx, "wgmma_wait_group", lambda groups: lambda: None)
    monkeypatch.setattr(ptx, "setmaxnreg", lambda count, more: lambda: None)
    half = _store(np.uint16, 1)
    monkeypatch.setattr(ptx, "st_global_b16", lambda address, word: half(address, word & 0xFFFF))
