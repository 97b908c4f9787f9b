"""Warps and tensor cores in plain Python, for kernels of `mma` in Numba's simulator.

The simulator runs each thread of a block as one of the host, and knows no warps. Here 32 of them meet where an
instruction is a whole warp's, and one of them does it for all. Copies happen as late as they may: when they are waited
for. Addresses in global memory are the host's own.
"""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict

import numpy as np

from charcnn import device
from charcnn.ops import ptx

BASE = 4096
"""Where dynamic shared memory begins in the shared window."""

LANES = 32


def lane_and_warp():
    thread = threading.current_thread().threadIdx.x
    return thread % LANES, thread // LANES


class Machine:
    """What the threads of a block share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.meetings: dict[int, threading.Barrier] = defaultdict(lambda: threading.Barrier(LANES))
        self.given: dict[int, dict[int, object]] = defaultdict(dict)
        self.taken: dict[int, dict[int, object]] = {}
        self.copies = threading.local()

    def together(self, value, work):
        """What `work` makes of a warp's 32 values, a value for each lane."""
        lane, warp = lane_and_warp()
        with self.lock:
            meeting = self.meetings[warp]
            self.given[warp][lane] = value
        if meeting.wait() == 0:
            self.taken[warp] = dict(enumerate(work([self.given[warp][i] for i in range(LANES)])))
        meeting.wait()
        return self.taken[warp][lane]

    def shared_address(self, array):
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

    def copy_16(self, to, source, wanted):
        assert wanted in (0, 16)
        self._groups()[-1].append((int(to), int(source), int(wanted)))

    def commit(self):
        self._groups().append([])

    def wait(self, most):
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

    def multiply_matrices(self, kind, down, across, phases=1, split=False):
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


def _store(kind, count):
    def store(address, *values):
        assert len(values) == count
        assert int(address) % (4 * count) == 0
        ctypes.memmove(int(address), np.array([kind(value) for value in values], kind).tobytes(), 4 * count)

    return store


def _from_base(instruction):
    """As of an array that begins at BASE, where the simulator's begin at 0."""
    return lambda array, address, *more: instruction(array, address - BASE, *more)


def _load(count):
    def load(address):
        assert int(address) % (4 * count) == 0
        values = np.frombuffer(ctypes.string_at(int(address), 4 * count), np.float32)
        return values[0] if count == 1 else tuple(values)

    return load


def emulate(monkeypatch):
    """Let kernels of `mma` run in the simulator."""
    machine = Machine()
    launch = device.Call.launch

    def launch_ints(call, kernel, blocks, threads, *args, shared=0):
        machine.__init__()
        args = [int(arg) if isinstance(arg, np.integer) else arg for arg in args]
        launch(call, kernel, blocks, threads, *args, shared=shared)

    monkeypatch.setattr(device.Call, "launch", launch_ints)
    monkeypatch.setattr(device, "require_tensor_cores", lambda what, hopper=False: None)
    monkeypatch.setattr(device, "address", lambda array: array._ary.ctypes.data)
    for name in ("shared_address", "copy_16", "commit", "wait", "multiply_matrices", "quad_sum"):
        monkeypatch.setattr(ptx, name, getattr(machine, name))
    for name in ("load8_at", "load4_at", "store8_at"):
        monkeypatch.setattr(ptx, name, _from_base(getattr(ptx, name)))
    monkeypatch.setattr(ptx, "thread_again", lambda: threading.current_thread().threadIdx.x)
    monkeypatch.setattr(ptx, "multiply_high", lambda a, b: int(a) * int(b) >> 32)
    monkeypatch.setattr(ptx, "max_floats", lambda a, b: np.float32(np.maximum(a, b)))
    monkeypatch.setattr(ptx, "load_float", _load(1))
    monkeypatch.setattr(ptx, "load_floats", _load(4))
    monkeypatch.setattr(ptx, "store_float", _store(np.float32, 1))
    monkeypatch.setattr(ptx, "store_word", _store(np.uint32, 1))
    monkeypatch.setattr(ptx, "store_words", _store(np.uint32, 4))
