"""Hopper in plain Python, for kernels of `wgmma` in the simulator: TMA, mbarriers and warpgroups, beside `emulation`.

128 threads meet where an instruction is a whole warpgroup's. Copies happen as early as they may.
"""

from __future__ import annotations

import ctypes

import numpy as np
from emulation import BASE, Machine, emulate, stored
from numba import cuda
from simulated_threads import wait

from charcnn.gpu import device, ptx, tensor_map
from charcnn.ops.conv1d.wgmma import split_k

WARPGROUP = 128


class Barrier:
    """Of a block, or an mbarrier: a phase ends with so many arrivals, and all bytes that are expected."""

    def __init__(self, arrivals) -> None:
        self.arrivals = self.missing = arrivals
        self.bytes = self.phases = 0

    def count(self, arrivals, size=0):
        """Arrivals, and bytes to wait for, or less than none that came; the phases that had ended before."""
        self.missing, self.bytes, before = self.missing - arrivals, self.bytes + size, self.phases
        assert self.missing >= 0, "accumulate arrivals than were waited for"
        if self.missing == self.bytes == 0:
            self.missing, self.phases = self.arrivals, before + 1
        return before

    def wait(self, ended):
        wait(lambda: ended(self.phases))


LOAD, STORE = ptx.ld_shared_v4_f32, ptx.st_shared_v4_f32
"""The simulator's own, of an array and a place in it."""


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
            if all(0 <= a < size for a, size in zip(at, shape[1:], strict=True)):
                source = begin + sum(a * stride for a, stride in zip(at, strides, strict=True)) + 2 * first[0]
                data = ctypes.string_at(source, 2 * min(box[0], shape[0] - first[0]))
                row[: len(data) // 2] = np.frombuffer(data, np.uint16)
            self.memory[self._swizzled(to + i * 128 + np.arange(128))] = row.view(np.uint8)
        self.barriers[barrier].count(0, -2 * int(np.prod(box)))

    def encode_im2col(self, begin, shape, strides, walk):
        """A tensor map's words, of which the first is its number."""
        tensor_map.check(shape, strides, (64, 1, 1, 1), 2)
        walk.check()
        self.walks.append((begin, shape, strides, walk))
        return [len(self.walks) - 1] + [0] * 15

    def copy_im2col(self, to, found, barrier, channel, column, row, image, right, down):
        (number,) = np.frombuffer(ctypes.string_at(found, 8), np.uint64)
        begin, shape, strides, walk = self.walks[int(number)]
        assert to % 1024 == 0
        assert channel < shape[0]
        (left, top), ends = walk.lower, [size + corner for size, corner in zip(shape[1:3], walk.upper, strict=True)]
        for i in range(walk.pixels):
            pixels, at = np.zeros(64, np.uint16), (column + right, row + down, image)
            if all(0 <= a < size for a, size in zip(at, shape[1:], strict=True)):
                source = begin + sum(a * stride for a, stride in zip(at, strides, strict=True)) + 2 * channel
                data = ctypes.string_at(source, 2 * min(64, shape[0] - channel))
                pixels[: len(data) // 2] = np.frombuffer(data, np.uint16)
            self.memory[self._swizzled(to + i * 128 + np.arange(128))] = pixels.view(np.uint8)
            column += walk.stride[0]
            if column >= ends[0]:
                column, row = left, row + walk.stride[1]
            if row >= ends[1]:
                row, image = top, image + 1
        self.barriers[barrier].count(0, -128 * walk.pixels)

    def bulk_load(self, to, source, size, barrier):
        self.memory[to - BASE : to - BASE + size] = np.frombuffer(ctypes.string_at(source, size), np.uint8)
        self.barriers[barrier].count(0, -size)

    def ld_shared_v4_f32(self, *place):
        return LOAD(*place) if len(place) > 1 else tuple(self.row(*place).view(np.float32))

    def st_shared_v4_f32(self, *place_and_values):
        *place, a, b, c, d = place_and_values
        if len(place) > 1:
            STORE(*place, a, b, c, d)
        else:
            self.row(*place).view(np.float32)[:] = a, b, c, d

    def guarded_load(self, address, wanted):
        return ptx.ld_global_v4_b32(address) if wanted else (0, 0, 0, 0)

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

    def matrix(self, descriptor, rows, ptx_type):
        address = (int(descriptor) & 0x3FFF) << 4
        return self.numbers(self.memory[self._swizzled(address + np.arange(rows * 128).reshape(rows, 128))], ptx_type)

    def wgmma(self, ptx_type, columns, accumulate=True, quarters=4):
        def work(given):
            _, a, b = given[0]
            with np.errstate(invalid="ignore"):
                left, right = self.matrix(a, 64, ptx_type), self.matrix(b, columns, ptx_type)
                depth = left.shape[1] * quarters // 4
                made = left[:, :depth] @ right[:, :depth].T
            # Rows of (warp, second half, group of lanes), columns of (eight, lane of a group, second).
            made = made.reshape(4, 2, 8, columns // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5).reshape(WARPGROUP, -1)
            for (sums, *matrices), values in zip(given, made, strict=True):
                assert matrices == [a, b]
                sums[:] = sums + values if accumulate else values
            return [None] * WARPGROUP

        return lambda sums, a, b: self.together((sums, a, b), work, WARPGROUP)


def emulate_hopper(monkeypatch, machine=None):
    """Let kernels of `wgmma` run in the simulator, a block at a time."""
    from numba.cuda.simulator.kernelapi import FakeCUDAModule  # where there is no GPU

    machine = machine or Hopper()
    machine.maps, machine.walks = {}, []
    emulate(monkeypatch, machine)
    monkeypatch.setattr(tensor_map, "encode", machine.encode)
    monkeypatch.setattr(tensor_map, "encode_im2col", machine.encode_im2col)
    monkeypatch.setattr(device, "multiprocessors", lambda: 1)
    monkeypatch.setattr(split_k, "offered", lambda *_: None)  # test_wgmma_split_k has its tiles
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
    for name in ("ld_shared_v4_f32", "st_shared_v4_f32"):
        monkeypatch.setattr(ptx, name, getattr(machine, name))
    for name in ("bulk_load", "shfl_exchange", "wgmma"):
        monkeypatch.setattr(ptx, name, getattr(machine, name))
    for name in ("tma_load_2d", "tma_load_3d", "tma_load_4d"):
        monkeypatch.setattr(ptx, name, machine.copy_box)
    monkeypatch.setattr(ptx, "tma_load_im2col_4d", machine.copy_im2col)
    for name in (
        "bulk_prefetch_l2",
        "fence_mbarrier_init",
        "fence_proxy_tensormap",
        "fence_proxy_async",
        "wgmma_fence",
        "griddepcontrol_launch",
        "griddepcontrol_wait",
    ):
        monkeypatch.setattr(ptx, name, lambda *_: None)
    monkeypatch.setattr(ptx, "wgmma_wait_group", lambda groups: lambda: None)
    monkeypatch.setattr(ptx, "setmaxnreg", lambda count, accumulate: lambda: None)
    monkeypatch.setattr(device, "require_hopper", lambda what: None)
    for name in ("ld_cg", "ld_nc_no_allocate"):
        monkeypatch.setattr(ptx, name, machine.guarded_load)
    monkeypatch.setattr(ptx, "ld_cg_v4_f32", ptx.ld_global_v4_f32)
    monkeypatch.setattr(ptx, "st_global_v2_b32", stored(np.uint32, 2))
    monkeypatch.setattr(ptx, "st_global_v4_f32", stored(np.float32, 4, ptx.st_global_v4_f32))
    half, byte = stored(np.uint16, 1), stored(np.uint8, 1)
    monkeypatch.setattr(ptx, "st_global_b8", lambda address, word: byte(address, word & 0xFF))
    monkeypatch.setattr(ptx, "st_global_b16", lambda address, word: half(address, word & 0xFFFF))
