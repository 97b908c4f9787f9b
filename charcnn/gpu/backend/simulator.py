"""Numba's simulator: what the emulator takes of its internals."""

# ruff: noqa: F401 - to be imported from here
from numba.cuda.np import numpy_support
from numba.cuda.simulator import kernel
from numba.cuda.simulator.args import ArgHint, InOut
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, FakeWithinKernelCUDAArray
from numba.cuda.simulator.kernelapi import FakeCUDAModule
