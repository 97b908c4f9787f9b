"""A thread's and a block's place in the grid, and the extents of arrays, as uint32.

Numba has places as int32 and extents as int64, so that what is computed from them takes 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import cuda
from numba.cuda import types

from charcnn.gpu.device import SIMULATED
from charcnn.gpu.launch import jit
from charcnn.gpu.ptx.intrinsics import typed

if not SIMULATED:
    from charcnn.gpu.backend.compiler import cgutils, nvvmutils


def _special_register(register: str) -> Callable[[Callable[[], int]], Any]:
    """A function for kernels that reads one of PTX's special registers; in the simulator, what is declared."""

    def declare(declared: Callable[[], int]) -> Any:
        if SIMULATED:  # which gives device functions a `cuda` of the thread's own
            return jit(device=True)(declared)

        def typing(typingctx):
            return types.uint32(), lambda context, builder, signature, given: nvvmutils.call_sreg(builder, register)

        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(typing, name, getattr(declared, name))
        return typed(register, declared=declared)(typing)

    return declare


@_special_register("tid.x")
def thread_idx_x() -> int:
    """`cuda.threadIdx.x`"""
    return int(cuda.threadIdx.x)


@_special_register("ctaid.x")
def block_idx_x() -> int:
    """`cuda.blockIdx.x`"""
    return int(cuda.blockIdx.x)


@_special_register("ctaid.y")
def block_idx_y() -> int:
    """`cuda.blockIdx.y`"""
    return int(cuda.blockIdx.y)


@_special_register("ctaid.z")
def block_idx_z() -> int:
    """`cuda.blockIdx.z`"""
    return int(cuda.blockIdx.z)


@_special_register("ntid.x")
def block_dim_x() -> int:
    """`cuda.blockDim.x`"""
    return int(cuda.blockDim.x)


@_special_register("nctaid.x")
def grid_dim_x() -> int:
    """`cuda.gridDim.x`"""
    return int(cuda.gridDim.x)


@_special_register("nctaid.y")
def grid_dim_y() -> int:
    """`cuda.gridDim.y`"""
    return int(cuda.gridDim.y)


@typed(simulated=lambda array: tuple(map(int, array.shape)))
def extents(typingctx, array):
    """`array.shape`"""
    if not isinstance(array, types.Array):
        return None

    def codegen(context, builder, signature, given):
        shape = context.make_array(array)(context, builder, given[0]).shape
        sizes = [builder.trunc(size, cgutils.int32_t) for size in cgutils.unpack_tuple(builder, shape)]
        return context.make_tuple(builder, signature.return_type, sizes)

    return types.UniTuple(types.uint32, array.ndim)(array), codegen
