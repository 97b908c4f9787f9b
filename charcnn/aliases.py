"""Names for types that annotations cannot say: of arrays of several libraries, of Numba, of MPI, of JSON.

Data alone: nothing is imported that a start would wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""An array on the host or on a GPU: NumPy's, Numba's, or another library's with `__cuda_array_interface__`."""

DType: TypeAlias = Any
"""A NumPy dtype, or what makes one."""

Stream: TypeAlias = Any
"""A CUDA stream: Numba's; of users also CuPy's, PyTorch's, cuda.core's, an address, or None."""

DeviceMemory: TypeAlias = Any
"""Numba's owner of memory on a GPU, a `MemoryPointer`."""

Event: TypeAlias = Any
"""A CUDA event of Numba's."""

Kernel: TypeAlias = Any
"""What `gpu.launch.jit` makes: Numba's dispatcher, or the simulator's."""

KernelArgument: TypeAlias = Any
"""What a kernel is started with: a number, an array on the GPU or its address, or a tuple of such."""

Intrinsic: TypeAlias = Any
"""An instruction as a function that kernels call, as `gpu.ptx` makes them."""

Value: TypeAlias = Any
"""What a thread of the emulator computes with: numbers of Python's and NumPy's, tuples of them, arrays."""

NumbaType: TypeAlias = Any
"""Numba's type of a value."""

Builder: TypeAlias = Any
"""LLVM's, of llvmlite."""

Comm: TypeAlias = Any
"""An MPI communicator of mpi4py's."""

Record: TypeAlias = dict[str, Any]
"""Values by name: a JSON object, or keyword arguments."""

Json: TypeAlias = Any
"""What a file of JSON holds: an object, a list, or a plain value."""

Function: TypeAlias = Callable[..., Any]
"""A function of any signature."""

Texts: TypeAlias = Any
"""N texts of any kind that `Classifier.predict_proba` takes."""

Labels: TypeAlias = Any
"""Their N labels: of one label a text str or whole numbers, else lists of such."""

Argument: TypeAlias = Any
"""A keyword argument that is handed on."""
