"""Counts that one rank tells another, and waits for them, in the order of a stream."""

from __future__ import annotations

import numpy as np

from charcnn.aliases import Stream
from charcnn.gpu import ptx
from charcnn.gpu.collectives.group import Group
from charcnn.gpu.collectives.kernels import given_up
from charcnn.gpu.collectives.protocols import LOOKS, too_late
from charcnn.gpu.launch import jit, start

APART = 128
"""Bytes from one count to the next."""

BEHIND = 1 << 31
"""From there on a difference of two counts is negative."""


@jit()
def signal_kernel(place, count):
    """See `signal`."""
    ptx.st_release_sys_b32(place, count)


@jit()
def wait_kernel(place, count, regions, source, patience, fault):
    """See `wait`."""
    if given_up(regions[0], fault):
        return
    looks, since = 0, ptx.pack_b64(0, 0)
    while (ptx.ld_acquire_sys_b32(place) - count) & 0xFFFFFFFF >= BEHIND:
        looks += 1
        if looks == LOOKS:
            since = ptx.globaltimer()
        elif looks % LOOKS == 0 and too_late(regions, since, patience, fault, source):
            break


def signal(place: int, count: int, stream: Stream) -> None:
    """Start to write a count, once all is done that the stream was given before.

    Args:
        place: the address here of a word on any rank.
        count: modulo 2^32.
        stream: a CUDA stream.
    """
    start(signal_kernel, 1, 1, stream, np.uint64(place), np.uint32(count % (1 << 32)))


def wait(group: Group, place: int, count: int, source: int, stream: Stream) -> None:
    """Start to wait until a word on this rank has come to a count: what the stream is given later runs after that.

    Args:
        group: whose deadline holds, after which it gives up the rank `source`.
        place: the word's address.
        count: modulo 2^32; what is behind it by less than 2^31 is waited for.
        source: the rank that writes it.
        stream: a CUDA stream.
    """
    numbers = np.uint32(count % (1 << 32)), group.regions, np.uint32(source)
    start(wait_kernel, 1, 1, stream, np.uint64(place), *numbers, *group.waiting)
