"""Warps and tensor cores in plain Python, for kernels of `mma` in Numba's simulator.

The simulator knows no warps. Here 32 threads of a block meet where an instruction is a whole warp's, and one of them
does it for all. Copies happen as late as they may, when they are waited
for. Addresses in global memory are the host's own.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache

import numpy as np
from greenlet import getcurrent
from numba import cuda
from simulated_threads import wait

from charcnn.gpu import device, ptx
from charcnn.gpu.launch import Call
from charcnn.gpu.ptx.simulated import float_of_e4m3
from charcnn.ops.common import moments

BASE = 4096
"""Where dynamic shared memory begins in the shared window."""

LANES = 32

EIGHTHS = np.array([float_of_e4m3(bits) for bits in range(256)], np.float64)


def block():
    """The number of the current thread's block."""
    return int(getcurrent().blockIdx.x)


class Meeting:
    """Of so many threads, again and again: the last to come does the work of all.

    What it made is kept until all have come to the next one, so that nobody waits for those who still read it.
    """

    def __init__(self, size) -> None:
        self.given, self.made, self.turn = [None] * size, [None, None], [0] * size
        self.come = self.met = 0

    def result(self, place, value, work):
        turn, self.given[place], self.come = self.turn[place], value, self.come + 1
        if self.come == len(self.given):
            self.made[turn % 2], self.come, self.met = list(work(self.given)), 0, turn + 1
        wait(lambda: self.met > turn)
        self.turn[place] = turn + 1
        return self.made[turn % 2][place]


class Machine:
    """What the threads of a block share."""

    def __init__(self) -> None:
        self.meetings: dict[tuple[int, ...], Meeting] = {}

    def together(self, value, work, size=LANES):
        """What `work` makes of the values of a warp, or of so many threads, a value for each of them."""
        thread = getcurrent().threadIdx.x
        place, group = thread % size, (block(), size, thread // size)
        meeting = self.meetings.get(group) or self.meetings.setdefault(group, Meeting(size))
        return meeting.result(place, value, work)

    def cvta_to_shared(self, array):
        self.memory = array.view(np.uint8).reshape(-1)
        return BASE

    def row(self, address):
        """16 bytes of shared memory."""
        assert address % 16 == 0
        at = int(address) - BASE
        assert 0 <= at <= len(self.memory) - 16, "outside shared memory"
        return self.memory[at : at + 16]

    def ld_shared_v4_b32(self, address):
        return tuple(int(word) for word in self.row(address).view(np.uint32))

    def ld_shared_b32(self, address):
        at = int(address) % 16
        assert at % 4 == 0
        return int(self.row(int(address) - at)[at : at + 4].view(np.uint32)[0])

    def ld_shared_v2_b32(self, address):
        at = int(address) % 16
        assert at % 8 == 0
        return tuple(int(word) for word in self.row(int(address) - at)[at : at + 8].view(np.uint32))

    def st_shared_v4_b32(self, address, *words):
        self.row(address).view(np.uint32)[:] = words

    def st_shared_v2_f32(self, address, *values):
        assert address % 8 == 0
        at = int(address) - BASE
        self.memory[at : at + 8].view(np.float32)[:] = values

    # Copies: a group a commit, done when waited for.

    def _groups(self):
        thread = getcurrent()
        if not hasattr(thread, "copies"):
            thread.copies = [[]]
        return thread.copies

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

    def bulk_store(self, *operands):
        *to, source, size = operands  # an array and an index, or an address
        assert int(source) % 16 == size % 16 == 0
        thread = getcurrent()
        thread.stores = [*getattr(thread, "stores", []), (to, int(source) - BASE, int(size))]

    def bulk_wait_group_read(self, groups):
        assert groups == 0

        def waiting():
            for to, source, size in getcurrent().__dict__.pop("stores", []):
                data = self.memory[source : source + size]
                if len(to) == 1:
                    ctypes.memmove(int(to[0]), data.tobytes(), size)
                else:
                    assert int(to[1]) % 4 == 0
                    to[0].flat[int(to[1]) : int(to[1]) + size // 4] = data.view(np.float32)

        return waiting

    # Matrices, by the tables of the PTX ISA.

    def load(self, addresses):
        """ldmatrix.x4: (lane, matrix) words."""
        rows = np.stack([self.row(address).copy().view(np.uint32) for address in addresses]).reshape(4, 8, 4)
        return rows.transpose(1, 2, 0).reshape(LANES, 4)

    @staticmethod
    def numbers(words, ptx_type):
        """(..., words) as (..., numbers) in float64."""
        if ptx_type == "tf32":
            words = np.ascontiguousarray(words).view(np.uint32) & np.uint32(0xFFFFE000)
            return words.view(np.float32).astype(np.float64)
        if ptx_type == "e4m3":
            return EIGHTHS[np.ascontiguousarray(words).view(np.uint8)]
        halves = np.ascontiguousarray(words).view(np.uint16)
        if ptx_type == "bf16":
            return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return halves.view(np.float16).astype(np.float64)

    def product(self, a, b, c, ptx_type):
        """mma.sync: a (lane, 4) and b (lane, 2) words, c (lane, 4) floats."""
        rows = a.reshape(8, 4, 4)  # (group, thread of group, word)
        upper = np.concatenate([rows[:, :, 0], rows[:, :, 2]], 1)
        lower = np.concatenate([rows[:, :, 1], rows[:, :, 3]], 1)
        left = self.numbers(np.concatenate([upper, lower]), ptx_type)
        columns = b.reshape(8, 4, 2)
        right = self.numbers(np.concatenate([columns[:, :, 0], columns[:, :, 1]], 1), ptx_type)
        with np.errstate(invalid="ignore"):
            sums = (left @ right.T).reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(LANES, 4)
        return (sums + c).astype(np.float32)

    def ldmatrix_x4(self, address):
        return self.together(address, lambda given: [tuple(map(int, words)) for words in self.load(given)])

    def mma_sync(self, ptx_type):
        def work(given):
            a, b = (np.array([one[at] for one in given], np.uint32) for at in (slice(4), slice(4, 6)))
            return self.product(a, b, np.array([one[6:] for one in given], np.float32), ptx_type)

        return lambda *operands: self.together(operands, work)

    def mma_sync_terms(self, *operands):
        def work(given):
            a, low, b = (
                np.array([one[at] for one in given], np.uint32) for at in (slice(4), slice(4, 8), slice(8, 10))
            )
            rest, sums = (np.array([one[at] for one in given], np.float32) for at in (slice(10, 14), slice(14, 18)))
            small, term = self.product(low, b, rest, "f16"), self.product(a, b, np.zeros_like(sums), "f16")
            return [(*one, *other) for one, other in zip(small, sums + term, strict=True)]

        return self.together(operands, work)

    def mma_tile(self, ptx_type, down, across, phases=1, split=False, quarters=4):
        def work(given):
            sums = np.stack([one[0] for one in given])
            first = np.array([[int(address) for address in one[1]] for one in given])
            columns = np.array([int(one[2]) for one in given])
            for turned in range(0, 32 * quarters, 64 if split else 32):

                def rows(low, turned=turned):
                    return [
                        self.load((first[:, i % phases] ^ turned + low) + i // phases * phases * 16 * 128)
                        for i in range(down)
                    ]

                for j in range(across):
                    pair = self.load((columns ^ turned) + j // 2 * 2048)[:, j % 2 * 2 : j % 2 * 2 + 2]
                    rest = self.load((columns ^ turned + 16) + j // 2 * 2048)[:, j % 2 * 2 : j % 2 * 2 + 2]
                    high, low = rows(0), rows(16)
                    if split:
                        small = np.ascontiguousarray(pair).view(np.float16) / np.float16(ptx.LOW_SCALE)
                        small = small.view(np.uint32)
                    for i in range(down):
                        at = slice((i * across + j) * 4, (i * across + j) * 4 + 4)
                        if split:
                            term = self.product(low[i], small, np.zeros((LANES, 4), np.float32), ptx_type)
                            term = self.product(high[i], rest, term, ptx_type)
                            sums[:, at] += self.product(high[i], pair, term, ptx_type)
                        else:
                            sums[:, at] = self.product(high[i], pair, sums[:, at], ptx_type)
            for one, made in zip(given, sums, strict=True):
                one[0][:] = made
            return [None] * LANES

        return lambda sums, a, b: self.together((sums, a, b), work)

    def ld_shared_each(self, count):
        def fill(words, address):
            for i in range(0, count, 4):
                words[i : i + 4] = self.row(address + i // 4 * ptx.LANE_STEP).view(np.uint32)

        return fill

    def mma_windows(self, ptx_type, rows, kernel_rows, places, pitch, low=0, stacked=False):
        terms = 2 if low else 1
        held = 1 if stacked else terms
        products = ((0, 0, 0),) if not low else ((0, 0, 0), (1, 0, 1)) if stacked else ((0, 1, 1), (0, 0, 0), (1, 0, 1))

        def word(address):
            return [self.ld_shared_b32(address + term * low) for term in range(terms)]

        def two(words):  # of a lane, or one and a zero
            return np.concatenate([words, np.zeros_like(words)], 1)[:, :2] if words.shape[1] == 1 else words

        def work(given):
            weights = np.array([one[1] for one in given], np.uint32)[:, : held * kernel_rows * len(places) * 2]
            weights = weights.reshape(LANES, held, kernel_rows, len(places), 2)
            sums = np.zeros((LANES, rows, terms, 4), np.float32)
            for row in range(rows + kernel_rows - 1):
                words = [[word(one[2][at] + behind + row * pitch) for at, behind in places] for one in given]
                words = np.array(words, np.uint32)
                for r in range(max(0, row - kernel_rows + 1), min(rows, row + 1)):
                    for k in range(0, len(places), 2):
                        own = weights[:, :, row - r, k : k + 2]
                        a = [np.concatenate([two(own[:, w, :, half]) for half in (0, 1)], 1)[:, [0, 2, 1, 3]]
                             for w in range(held)]  # fmt: skip
                        for x, w, to in products:
                            b = two(words[:, k : k + 2, x])
                            sums[:, r, to] = self.product(a[w], b, sums[:, r, to], ptx_type)
            for one, made in zip(given, sums.reshape(LANES, -1), strict=True):
                one[0][: made.size] = made
            return [None] * LANES

        return lambda acc, a, at: self.together((acc, a, at), work)

    def warp_sum(self, value):
        kind = np.result_type(value)
        return self.together(value, lambda values: [kind.type(np.sum(values, dtype=kind))] * LANES)

    def quad_sum(self, value):
        def work(values):
            sums = np.array(values, np.float32).reshape(8, 4)
            pairs = sums + sums[:, [1, 0, 3, 2]]
            return (pairs + pairs[:, [2, 3, 0, 1]]).reshape(-1)

        return self.together(value, work)


def stored(kind, count, to_array=None):
    def store(address, *values):
        if len(values) > count:  # after the index of an array
            return to_array(address, *values)
        assert len(values) == count
        data = np.array([kind(value) for value in values], kind).tobytes()
        assert int(address) % len(data) == 0
        return ctypes.memmove(int(address), data, len(data))

    return store


def _from_base(instruction):
    """Addresses of an array that begins at BASE, where the simulator's begin at 0."""
    return lambda array, address, *more: instruction(array, address - BASE, *more)


def _load(kind, count, from_array):
    def load(address, *index):
        if index:
            return from_array(address, *index)
        assert int(address) % (4 * count) == 0
        values = np.frombuffer(ctypes.string_at(int(address), 4 * count), kind)
        return values[0] if count == 1 else tuple(values)

    return load


def _caches_of_its_own(monkeypatch):
    """Kernels made here hold device functions that run nowhere else: what makes them has other caches meanwhile."""
    own = {}
    for module in [module for name, module in sys.modules.items() if name.startswith("charcnn.ops")]:
        for name, value in list(vars(module).items()):
            if hasattr(value, "cache_parameters"):
                if id(value) not in own:
                    own[id(value)] = lru_cache(value.cache_parameters()["maxsize"])(value.__wrapped__)
                monkeypatch.setattr(module, name, own[id(value)])


def emulate(monkeypatch, machine=None):
    """Let kernels of `mma` run in the simulator."""
    from numba.cuda.simulator.kernelapi import FakeCUDALocal, FakeCUDAModule  # where there is no GPU

    machine = machine or Machine()
    monkeypatch.setattr(FakeCUDAModule, "nanosleep", lambda self, count: None, raising=False)
    _caches_of_its_own(monkeypatch)
    launch = Call.launch
    monkeypatch.setattr(cuda, "local", FakeCUDALocal(), raising=False)  # as device functions of other files have it
    jit = cuda.jit
    monkeypatch.setattr(  # the simulator's knows no `forceinline`, nor needs a device function be more than it is
        cuda, "jit", lambda device=False, **options: (lambda function: function) if device else jit(**options)
    )

    def launch_ints(call, kernel, blocks, threads, *args, shared=0, cluster=1, early=False):
        assert cluster == 1
        machine.__init__()
        args = [int(arg) if isinstance(arg, np.integer) else arg for arg in args]
        launch(call, kernel, blocks, threads, *args, shared=shared)

    monkeypatch.setattr(Call, "launch", launch_ints)
    monkeypatch.setattr(device, "require_tensor_cores", lambda what, **how: None)
    monkeypatch.setattr(device, "address", lambda array: array._ary.ctypes.data)
    for name in (
        "bulk_store",
        "bulk_wait_group_read",
        "cvta_to_shared",
        "cp_async_16",
        "cp_async_commit_group",
        "cp_async_wait_group",
        "ldmatrix_x4",
        "mma_sync",
        "mma_sync_terms",
        "ld_shared_each",
        "mma_tile",
        "mma_windows",
        "quad_sum",
        "warp_sum",
        "ld_shared_b32",
        "ld_shared_v2_b32",
        "ld_shared_v4_b32",
        "st_shared_v2_f32",
        "st_shared_v4_b32",
    ):
        monkeypatch.setattr(ptx, name, getattr(machine, name))
    for name in ("ld_shared_v4_b32_at", "ld_shared_v4_f32_at", "st_shared_v4_b32_at"):
        monkeypatch.setattr(ptx, name, _from_base(getattr(ptx, name)))
    for name in ("bulk_commit_group", "fence_proxy_async"):
        monkeypatch.setattr(ptx, name, lambda: None)
    monkeypatch.setattr(moments, "warp_sum", machine.warp_sum)
    monkeypatch.setattr(ptx, "tid_x", lambda: getcurrent().threadIdx.x)
    monkeypatch.setattr(ptx, "mul_hi_u32", lambda a, b: int(a) * int(b) >> 32)
    monkeypatch.setattr(ptx, "max_nan_f32", lambda a, b: np.float32(np.maximum(a, b)))
    monkeypatch.setattr(ptx, "ld_global_f32", _load(np.float32, 1, ptx.ld_global_f32))
    monkeypatch.setattr(ptx, "ld_global_v4_f32", _load(np.float32, 4, ptx.ld_global_v4_f32))
    words = _load(np.uint32, 4, ptx.ld_global_v4_b32)
    monkeypatch.setattr(ptx, "ld_global_v4_b32", lambda *place: tuple(map(int, words(*place))))
    pair = _load(np.uint32, 2, ptx.ld_global_v2_b32)
    monkeypatch.setattr(ptx, "ld_global_v2_b32", lambda *place: tuple(map(int, pair(*place))))
    monkeypatch.setattr(ptx, "st_global_v2_b32", stored(np.uint32, 2, ptx.st_global_v2_b32))
    monkeypatch.setattr(ptx, "st_global_f32", stored(np.float32, 1))
    monkeypatch.setattr(ptx, "st_global_b32", stored(np.uint32, 1))
    monkeypatch.setattr(ptx, "st_global_v4_b32", stored(np.uint32, 4, ptx.st_global_v4_b32))
