"""Kernels compiled with no GPU and no driver: what each costs. Needs the CUDA wheels (extra `cuda`)."""

from __future__ import annotations

import inspect
import numbers
import re
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from multiprocessing import get_context
from typing import Any, NamedTuple

import machine_code
from cuda.pathfinder import find_nvidia_binary_utility

from charcnn.compiling.cubin import resources
from charcnn.compiling.layers import linked
from charcnn.compiling.stand_in import Target, compiling_for


class Compiled(NamedTuple):
    """A compiled kernel."""

    costs: dict[str, Any]
    cubin: bytes
    ptx: str


def compiled(kernel: Any, kinds: tuple[Any, ...], target: Target) -> Compiled:
    """Compile it for arguments of these Numba types; its costs lack what `local_instructions` finds."""
    with compiling_for(target):
        cubin, ptx, log = linked(kernel, kinds, target)
    found = resources(log)
    described = machine_code.described(cubin)
    found |= {"code_bytes": described["bytes"], "code": described["digest"]}
    found["float64_instructions"] = len(re.findall(r"\.f64", ptx))
    return Compiled(found, cubin, ptx)


_to_compile: list[tuple[Any, ...]] = []


def _compiled(number: int) -> Compiled:
    return compiled(*_to_compile[number])


def all_compiled(kernels: list[tuple[Any, tuple[Any, ...]]], target: Target, jobs: int = 1) -> list[Compiled]:
    """Compile each, with the Numba types of its arguments, by so many processes."""
    _to_compile[:] = [(*kernel, target) for kernel in kernels]
    # Forked: what was made of Python's functions cannot be sent. Threads of one process would wait for Numba's lock.
    with ProcessPoolExecutor(jobs, get_context("fork")) as pool:
        found = list(pool.map(_compiled, range(len(kernels))))
    for one, count in zip(found, local_instructions([one.cubin for one in found], target), strict=True):
        one.costs["local_instructions"] = count
    return found


def function(kernel: Any) -> str:
    """The name of the kernel's function, or of the factory that made it."""
    return kernel.py_func.__qualname__.split(".")[0]


def title(kernel: Any) -> str:
    """The kernel's function, with the constants that its factory closed over: _conv1d_naive_kernel(kernel_size=7)."""
    values = ", ".join(f"{name}={text}" for name, text in sorted(constants(kernel.py_func).items()))
    return f"{function(kernel)}({values})"


def constants(function: Any) -> dict[str, str]:
    """What a function closed over, as text, and what its device functions did."""
    found: dict[str, str] = {}
    for name, value in inspect.getclosurevars(function).nonlocals.items():
        if hasattr(value, "py_func"):
            found |= constants(value.py_func)
        elif text := shown(value):
            found[name] = text
    return found


def shown(value: Any) -> str | None:
    """A constant as text: a number or a tuple of numbers; None for anything else."""
    if isinstance(value, tuple):
        return f"({' '.join(str(shown(one)) for one in value)})"
    return str(value) if isinstance(value, numbers.Number) else None


def local_instructions(cubins: list[bytes], target: Target) -> list[int | None]:
    """How many instructions of each read or write local memory; None where nvidia-cuda-nvdisasm is not installed.

    All in one call of nvdisasm, which takes as long to start as to read a hundred kernels.
    """
    nvdisasm = find_nvidia_binary_utility("nvdisasm")
    if nvdisasm is None or not cubins:
        return [None] * len(cubins)
    codes = [machine_code.instructions(cubin) for cubin in cubins]
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(codes))
        file.flush()
        words = [nvdisasm, "--binary", str(target).replace("sm_", "SM"), "-ndf", file.name]
        listing = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = [int(place, 16) for place in re.findall(r"/\*([0-9a-f]+)\*/.*\b(?:LDL|STL)\b", listing)]
    ends = list(accumulate(map(len, codes)))
    assert int(re.findall(r"/\*([0-9a-f]{4,})\*/", listing)[-1], 16) == ends[-1] - 16, "all of it was read"
    return [sum(end - len(code) <= place < end for place in found) for code, end in zip(codes, ends, strict=True)]
