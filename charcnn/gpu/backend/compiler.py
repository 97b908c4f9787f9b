"""numba-cuda's internals, of which its simulator has the first few."""

# ruff: noqa: F401 - to be imported from here
from __future__ import annotations

from typing import TYPE_CHECKING

from numba import config
from numba.cuda.cudadrv import driver
from numba.cuda.cudadrv.devicearray import is_cuda_ndarray
from numba.cuda.cudadrv.error import CudaSupportError

from charcnn.gpu import backend

backend.check()

SIMULATED: bool = bool(config.ENABLE_CUDASIM) and not backend.MISSING and not backend.IS_MLIR
"""Whether kernels run in Numba's simulator, a mode of the whole process (NUMBA_ENABLE_CUDASIM=1)."""

if TYPE_CHECKING or not (SIMULATED or backend.IS_MLIR):
    from numba.cuda import cgutils, codegen, dispatcher, nvvmutils, utils
    from numba.cuda.core.caching import NullCache
    from numba.cuda.core.imputils import RefType, Registry, iternext_impl
    from numba.cuda.core.sigutils import normalize_signature
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.cudadrv import nvvm
    from numba.cuda.cudadrv.error import NvvmSupportError
    from numba.cuda.descriptor import cuda_target
    from numba.cuda.dispatcher import CUDADispatcher as Dispatcher
    from numba.cuda.extending import intrinsic
    from numba.cuda.np import numpy_support
    from numba.cuda.typing import signature
    from numba.cuda.typing.templates import AbstractTemplate
    from numba.cuda.typing.typeof import Purpose, typeof

if TYPE_CHECKING or backend.IS_MLIR:
    from charcnn.gpu.backend import mlir

if not TYPE_CHECKING and backend.IS_MLIR:
    from numba.cuda import codegen, dispatcher, utils
    from numba.cuda.core.caching import NullCache
    from numba.cuda.core.sigutils import normalize_signature
    from numba.cuda.cudadrv import nvvm
    from numba.cuda.cudadrv.error import NvvmSupportError
    from numba.cuda.np import numpy_support
    from numba.cuda.typing.typeof import Purpose, typeof
    from numba_cuda_mlir.descriptor import MLIRDispatcher as Dispatcher

    from charcnn.gpu.backend.llvm_builder import cgutils, intrinsic, nvvmutils
    from charcnn.gpu.backend.mlir import ConfigStack
