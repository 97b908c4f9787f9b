"""What the puzzles' notebooks share: where kernels run, and checks that say what is wrong.

It stands before the first import of `numba.cuda`: kernels run on a GPU of compute capability 9.0, elsewhere emulated.
"""

from __future__ import annotations

import ctypes
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def _is_hopper() -> bool:
    """Whether the first GPU has compute capability 9.x, as the driver says."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    gpu, major = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(gpu), 0) != 0:
        return False
    return driver.cuDeviceGetAttribute(ctypes.byref(major), 75, gpu) == 0 and major.value == 9


if not _is_hopper():
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

import numpy as np  # noqa: E402

from charcnn.gpu import device, launch, tensor_map  # noqa: E402

if device.SIMULATED:
    from charcnn.gpu import emulator

SEEDS = range(3)
"""Of the schedules that a kernel is emulated by."""
_MOST = 3
"""Findings that are printed."""


@dataclass(frozen=True)
class Address:
    """An argument that a kernel is given as its address: an array."""

    array: np.ndarray


@dataclass(frozen=True)
class Map:
    """An argument that a kernel is given as the address of a tensor map with boxes of 64 x 64 halves: a matrix."""

    array: np.ndarray


def check_function(function: Callable[..., Any], cases: Sequence[tuple[Sequence[Any], np.ndarray]]) -> None:
    """Print whether a function gives what is wanted of it, for each case of arguments and result."""
    for args, wanted in cases:
        try:
            wrong = _difference(function(*args), wanted, 1e-6)
        except Exception as error:
            wrong = _raised(error)
        if wrong:
            print("not yet:", wrong)
            return
    print("solved")


def check(
    kernel: Any, blocks: int, threads: int, args: Sequence[Any], wanted: np.ndarray, *,
    cluster: int = 1, shared: int = 0, tolerance: float = 1e-5,
) -> None:  # fmt: skip
    """Print whether a kernel writes what is wanted to its last array, and what it does wrong.

    Args:
        kernel: called with the arguments, then with an array like `wanted`, then with those that are no arrays.
        blocks: of the grid.
        threads: of a block.
        args: Address, Map, NumPy arrays, and numbers.
        wanted: what is to be written.
        cluster: blocks of a cluster.
        shared: bytes of dynamic shared memory.
        tolerance: how far a result may be off, relative to the largest.
    """
    run = _emulated if device.SIMULATED else _on_gpu
    try:
        wrong = run(kernel, blocks, threads, args, wanted, cluster, shared, tolerance)
    except Exception as error:
        wrong = _raised(error)
    where = "emulated" if device.SIMULATED else "on the GPU"
    print(f"not yet: {wrong}" if wrong else f"solved, {where}")


def _given(args: Sequence[Any], out: Any) -> tuple[list[Any], list[Any]]:
    """What the kernel is given, and what must live as long as it runs."""
    kept, arrays, numbers = [], [], []
    for arg in args:
        if isinstance(arg, (Address, Map)):
            held = device.to_device(arg.array)
            kept.append(held)
            if isinstance(arg, Map):
                rows, columns = held.shape
                kept.append(tensor_map.encode(held, (columns, rows), (2 * columns,), (64, 64)))
            arrays.append(np.uint64(device.address(kept[-1])))
        elif isinstance(arg, np.ndarray):
            arrays.append(device.to_device(arg))
        else:
            numbers.append(np.int32(arg))
    return [*arrays, out, *numbers], kept


def _emulated(
    kernel: Any, blocks: int, threads: int, args: Sequence[Any], wanted: np.ndarray, cluster: int, shared: int,
    tolerance: float,
) -> str:  # fmt: skip
    wrong = ""
    for seed in SEEDS:
        out = np.full_like(wanted, np.nan)
        given, _kept = _given(args, out)
        findings = emulator.run(kernel, blocks, threads, given, seed=seed, cluster=cluster, shared=shared)
        if findings:
            return "\n".join(["the emulator finds", *map(_told, findings[:_MOST])])
        wrong = wrong or _difference(out, wanted, tolerance)
    return wrong


def _told(found: Any) -> str:
    source, text = linecache.getline(found.file, found.line).strip(), found.text.replace(f"{found.file}:", "line ")
    return f"  {found.kind}, line {found.line} of its cell: {source}\n    {text}"


def _on_gpu(
    kernel: Any, blocks: int, threads: int, args: Sequence[Any], wanted: np.ndarray, cluster: int, shared: int,
    tolerance: float,
) -> str:  # fmt: skip
    call = launch.Call(None, None, wanted.shape, wanted.dtype, x=np.zeros(1, np.float32))
    given, _kept = _given(args, device.to_device(np.full_like(wanted, np.nan)))
    call.launch(kernel, blocks // cluster, threads, *given, shared=shared, cluster=cluster)
    out = given[sum(not isinstance(arg, (int, np.integer)) for arg in args)]
    return _difference(device.to_host(out), wanted, tolerance)


def _difference(found: Any, wanted: np.ndarray, tolerance: float) -> str:
    """The first place where they differ, in words; empty where there is none."""
    found = np.asarray(found)
    if found.shape != wanted.shape:
        return f"the result has shape {found.shape}: need {wanted.shape}"
    with np.errstate(invalid="ignore", over="ignore"):
        right = np.abs(found - wanted) <= tolerance * max(1.0, float(np.abs(wanted).max()))
    if right.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~right)[0])
    count = f"{int(right.sum()):,} of {right.size:,} numbers are right"
    return f"{count}; the one at {at} is {found[at]:g}: need {wanted[at]:g}"


def _raised(error: Exception) -> str:
    line = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error}" + f" ({line.line})" * bool(line.line)
