"""Local response normalisation of channels that ranks share: what the outermost ones need of other ranks.

Each rank normalises its own channels by the usual kernel, as if there were no others. The kernel here then sends the
channels within the norm's reach to the ranks beside, takes theirs, and computes this rank's outermost channels again.
So an AlexNet of two ranks exchanges 2 of 48 channels, and nothing else is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numba import float32

from charcnn.aliases import Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.collectives.group import Group
from charcnn.gpu.collectives.kernels import given_up
from charcnn.gpu.collectives.protocols import COUNTERS, tiles
from charcnn.gpu.device import block_size, uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.layers import LocalResponseNorm
from charcnn.ops.local_response_norm_nhwc import inverse_power

THREADS = block_size(256)
"""Of a block, each of which takes a pixel at a time."""


class FeaturePlaces(NamedTuple):
    """Where a channel of a pixel lies, in numbers: image * pixel // area + step * (pixel % area) + apart * channel."""

    number: int
    """Pixels of all images."""
    area: int
    image: int
    step: int
    apart: int


class Reach(NamedTuple):
    """The channels that a rank's norms read of other ranks, and the results that take them."""

    before: int
    """Channels below its own that it needs."""
    after: int
    low: int
    """Its own from the first on, those whose norms need others."""
    high: int
    """Its own up to the last one, those whose norms need others."""

    @classmethod
    def of(cls, own: range, channels: int, size: int) -> Reach:
        """The reach of a norm of this size, over so many channels on all ranks."""
        below, above = size // 2, (size - 1) // 2
        before, after = min(below, own.start), min(above, channels - own.stop)
        low = min(below, len(own)) if before else 0
        return cls(before, after, low, min(above, len(own) - low) if after else 0)


def sent(owns: Sequence[range], size: int, source: int, to: int) -> tuple[int, int, int]:
    """The first of the source's channels that the other rank needs, how many, and their place among all it needs."""
    channels, own = owns[-1].stop, owns[to]
    reach = Reach.of(own, channels, size)
    begin = max(owns[source].start, own.start - reach.before)
    count = max(0, min(owns[source].stop, own.stop + reach.after) - begin)
    place = begin - own.start + reach.before - (len(own) if begin >= own.stop else 0)
    return begin - owns[source].start, count, place if count else 0


ITEMSIZE = 4
"""Bytes of a number: features are float32."""


@jit(device=True, forceinline=True)
def _load(address):
    # In halves: a load of 32 bits here is of what no other GPU writes meanwhile.
    return ptx.bitcast_f32(ptx.ld_global_b16(address, 1) | ptx.ld_global_b16(address + uint64(2), 1) << 16)


@cache
def make_kernel(size: int, power: Kernel, ranks: int, early: bool) -> Kernel:
    """The kernel of `launch_borders`, of a norm of this size; its tuples are of the ranks behind this one."""
    of, counter, threads, below, itemsize = tiles(ranks), COUNTERS["tiles"], THREADS, size // 2, ITEMSIZE
    posted, arrived = of.posted, of.arrived

    @jit(launch_bounds=(threads, 1))
    def kernel(
        x, y, edges, begins, counts, slots, pixels, area, image, step_, apart, channels, before, after, low, high,
        share, beta, k, regions, rank, patience, fault,
    ):  # fmt: skip
        if early:
            ptx.griddepcontrol_launch()
            ptx.griddepcontrol_wait()
        block, thread, own, mine = block_idx_x(), thread_idx_x(), regions[0], edges[0]
        if given_up(own, fault):
            return
        counted = own + uint64(counter + block * 4)
        step = ptx.ld_acquire_sys_b32(counted) + 1
        first, stride = block * threads + thread, grid_dim_x() * threads
        for p in range(first, pixels, stride):
            at = uint64(p // area) * uint64(image) + uint64(p % area * step_)
            for away in range(1, ranks):
                for c in range(counts[away]):
                    value = _load(x + (at + uint64((begins[away] + c) * apart)) * uint64(itemsize))
                    to = uint64(slots[away] + c) * uint64(pixels) + uint64(p)
                    ptx.st_global_f32(edges[away] + to * uint64(itemsize), value)
        posted(regions, block, rank, step)
        if not arrived(regions, block, rank, step, patience, fault):
            return
        for p in range(first, pixels, stride):
            at = uint64(p // area) * uint64(image) + uint64(p % area * step_)
            for i in range(low + high):
                c = i if i < low else channels - high - low + i
                total, value = float32(0), float32(0)
                for s in range(size):
                    near, term = c + before + s, float32(0)  # below channel 0 of those that are needed: none
                    if below <= near and near < below + before + channels + after:
                        near -= below
                        if near < before:
                            term = _load(mine + (uint64(near) * uint64(pixels) + uint64(p)) * uint64(itemsize))
                        elif near < before + channels:
                            place = at + uint64((near - before) * apart)
                            term = _load(x + place * uint64(itemsize))
                        else:
                            slot = uint64(near - channels)
                            term = _load(mine + (slot * uint64(pixels) + uint64(p)) * uint64(itemsize))
                    if s == below:
                        value = term
                    total += term * term
                to = y + (at + uint64(c * apart)) * uint64(itemsize)
                ptx.st_global_f32(to, value * power(k + share * total, beta))
        if thread == 0:
            ptx.st_release_sys_b32(counted, step)

    return kernel


def launch_borders(
    group: Group, norm: LocalResponseNorm, owns: Sequence[range], x: int, y: int, edges: Sequence[int],
    at: FeaturePlaces, stream: Stream,
) -> None:  # fmt: skip
    """Start to compute again the norms of this rank's outermost channels, with those of other ranks.

    Args:
        group: the ranks, which all call this.
        norm: the layer.
        owns: by rank, its channels of all.
        x, y: addresses of this rank's features, and of their norms, which lie alike.
        edges: by rank, the address on this GPU of its room for what it needs, in memory of `group.share`. What
            `launch_pieces` says of results holds for it.
        at: where features lie, float32.
        stream: a CUDA stream.
    """
    ranks, rank, own = group.ranks, group.rank, owns[group.rank]
    behind = [(rank + away) % ranks for away in range(ranks)]
    each = [(0, 0, 0), *(sent(owns, norm.size, rank, other) for other in behind[1:])]
    early = device.begins_early()
    kernel = make_kernel(norm.size, inverse_power(norm.beta, norm.k), ranks, early)
    columns = (tuple(map(np.uint32, column)) for column in zip(*each, strict=True))
    numbers = map(np.uint32, (*at, len(own), *Reach.of(own, owns[-1].stop, norm.size)))
    (this,) = map(np.uint32, (rank,))
    places = np.uint64(x), np.uint64(y), tuple(np.uint64(edges[other]) for other in behind)
    factors = map(np.float32, (norm.alpha / norm.size, norm.beta, norm.k))
    blocks = max(1, min(group.blocks, -(-at.number // THREADS)))
    start(
        kernel, blocks, THREADS, stream, *places, *columns, *numbers, *factors, group.regions, this,
        *group.waiting, early=early,
    )  # fmt: skip
