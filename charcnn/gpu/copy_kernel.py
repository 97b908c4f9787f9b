"""A copy by a kernel: of a few bytes from or to the host's memory, where one by the driver takes longer to start."""

from __future__ import annotations

from numba import cuda

from charcnn.aliases import Array, Stream
from charcnn.gpu.launch import Call, jit


@jit()
def _copy_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i]


def copy(source: Array, to: Array, stream: Stream) -> None:
    """Start a kernel that copies one array to another of its size, each on the GPU or mapped; both C-contiguous."""
    source, to = source.reshape((source.size,)), to.reshape((to.size,))
    call = Call(to, stream, to.shape, to.dtype, {"x": source.dtype}, x=source)
    call.launch_each(_copy_kernel, source, to)
