"""linear_softmax and linear_argmax: a classifier's last layer and what follows it, in one kernel."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, int32

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit
from charcnn.ops.linear.linear import dot

THREADS = 32
"""A block an input; a thread has every so manieth class."""


@jit()
def _linear_softmax_naive_kernel(x, weight, bias, y):
    shared = cuda.shared.array(THREADS, float32)
    n, thread = cuda.blockIdx.x, cuda.threadIdx.x
    greatest = float32(-math.inf)
    for c in range(thread, y.shape[1], THREADS):
        logit = dot(x[n], weight[c], bias[c])
        y[n, c] = logit  # which this thread alone reads again
        greatest = max(greatest, logit)
    shared[thread] = greatest
    cuda.syncthreads()
    for i in range(THREADS):
        greatest = max(greatest, shared[i])
    cuda.syncthreads()
    part = float32(0)
    for c in range(thread, y.shape[1], THREADS):
        value = math.exp(y[n, c] - greatest)  # at most 1: can't overflow
        y[n, c] = value
        part += value
    shared[thread] = part
    cuda.syncthreads()
    total = float32(0)
    for i in range(THREADS):
        total += shared[i]
    for c in range(thread, y.shape[1], THREADS):
        y[n, c] /= total


@jit()
def _linear_argmax_naive_kernel(x, weight, bias, y):
    values = cuda.shared.array(THREADS, float32)
    places = cuda.shared.array(THREADS, int32)
    n, thread = cuda.blockIdx.x, cuda.threadIdx.x
    held, best = float32(-math.inf), int32(thread)
    for c in range(thread, weight.shape[0], THREADS):
        value = dot(x[n], weight[c], bias[c])
        if value > held or (value != value and held == held):  # the first NaN wins
            held, best = value, int32(c)
    values[thread], places[thread] = held, best
    cuda.syncthreads()
    if thread == 0:
        for i in range(1, min(THREADS, weight.shape[0])):
            value, place = values[i], places[i]
            nan, had_nan = value != value, held != held
            if (nan and not had_nan) or value > held or ((value == held or (nan and had_nan)) and place < best):
                held, best = value, place
        y[n] = best


def launch_softmax(call: Call, x: Array, weight: Array, bias: Array) -> None:
    """One block an input: logits are written once, and turned where they lie."""
    c_out, c_in = weight.shape
    rows = call.out.size // c_out
    y = call.out.reshape(rows, c_out)
    call.launch(_linear_softmax_naive_kernel, rows, THREADS, x.reshape(rows, c_in), weight, bias, y)


def launch_argmax(call: Call, x: Array, weight: Array, bias: Array) -> None:
    """One block an input: no logit leaves the chip. Of equals the first; NaN counts as the greatest.

    Raises:
        ValueError: `out` is of uint8, a byte a label, and there are more than 256 classes.
    """
    if call.out.dtype == np.uint8 and weight.shape[0] > 256:
        raise ValueError(f"out has dtype uint8: need int64 for {weight.shape[0]} classes")
    rows, (_, c_in) = call.out.size, weight.shape
    y = call.out.reshape(rows)
    call.launch(_linear_argmax_naive_kernel, rows, THREADS, x.reshape(rows, c_in), weight, bias, y)
