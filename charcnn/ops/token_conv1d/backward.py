"""one_hot_conv1d_backward: a weight's gradient adds up dy where its tap met its character. Nothing is multiplied.

A sum's order is fixed: no atomics, so that the same arguments give the same bits.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import jit
from charcnn.ops.common.calls import ResultsCall
from charcnn.ops.conv1d.backward import channel_sums


@njit(cache=True, nogil=True)
def _weights_loops_kernel(dy, ids, dweight, dbias):
    depth = dweight.shape[1]
    sums = np.empty(depth)
    for c_out in range(dweight.shape[0]):
        total = 0.0
        for n in range(dy.shape[0]):
            for t in range(dy.shape[2]):
                total += dy[n, c_out, t]
        dbias[c_out] = total
        for k in range(dweight.shape[2]):
            sums[:] = 0
            for n in range(dy.shape[0]):
                for t in range(dy.shape[2]):
                    if ids[n, t + k] < depth:
                        sums[ids[n, t + k]] += dy[n, c_out, t]
            for character in range(depth):
                dweight[c_out, character, k] = sums[character]


@jit()
def _weights_naive_kernel(dy, ids, dweight):
    i = cuda.grid(1)
    if i < dweight.size:
        k, row = i % dweight.shape[2], i // dweight.shape[2]
        character, c_out = row % dweight.shape[1], row // dweight.shape[1]
        total = float32(0)
        for n in range(dy.shape[0]):
            part = float32(0)  # of an input apart
            for t in range(dy.shape[2]):
                if ids[n, t + k] == character:
                    part += dy[n, c_out, t]
            total += part
        dweight[c_out, character, k] = total


def launch_loops(out: tuple[np.ndarray, ...], dy: np.ndarray, ids: np.ndarray, weight: np.ndarray) -> None:
    """Sums are in float64."""
    _weights_loops_kernel(dy, ids, *out)


def launch_naive(call: ResultsCall, dy: Array, ids: Array, weight: Array) -> None:
    """A thread a weight looks at all ids, a block adds up a bias."""
    dweight, dbias = call.outs
    call.launch_over(dweight, _weights_naive_kernel, dy, ids, dweight)
    channel_sums(call, dy, dbias)
