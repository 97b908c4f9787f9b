"""Compile the kernels of every CUDA variant for Hopper (sm_90a) with no GPU and no driver, and print what they cost.

Prints JSON: kernel -> its variant, registers, spilled bytes, local and shared memory, ptxas warnings. It calls each
variant's launcher on small arrays with the launch replaced by a compilation, so the signatures are the launcher's own.
Needs the CUDA wheels (extra `cuda`).
"""

from __future__ import annotations

import argparse
import atexit
import inspect
import json
import numbers
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

if __name__ == "__main__":  # before numba is imported
    os.environ["NUMBA_ENABLE_CUDASIM"] = "0"
    os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp()  # a cached kernel has no linker log
    atexit.register(shutil.rmtree, os.environ["NUMBA_CACHE_DIR"])
    sys.path[:0] = [str(Path(__file__).parent.parent)]

import numpy as np
import operator_cases
from cuda.pathfinder import find_nvidia_binary_utility
from numba import typeof
from numba.cuda import codegen, dispatcher
from numba.cuda.cudadrv import driver

from charcnn import catalog, device
from charcnn.ops import tensor_map

TARGET = (9, 0, "a")


class Recorder:
    """Compiles what would be launched, and keeps each kernel's costs."""

    def __init__(self, cubins: Path | None = None) -> None:
        self.kernels: dict[str, dict[str, Any]] = {}
        self.cubins = cubins
        self.variant = ""
        self._compiled: dict[str, Any] = {}

    def launch(self, kernel: Any, *args: Any) -> None:
        """Stands in for `device.Call.launch`."""
        library = kernel.compile(tuple(typeof(arg) for arg in args))._codelibrary
        cubin = bytes(library.get_cubin(TARGET).code)
        ptx = library.get_asm_str(TARGET)
        key = f"{self.variant}: {title(kernel)}"
        if self._compiled.setdefault(key, kernel) is not kernel:
            raise RuntimeError(f"two kernels are called {key}: the costs of one would hide the other's")
        self.kernels[key] = {
            "variant": self.variant,
            "function": function(kernel),
            **costs(library.get_linkerinfo(TARGET)),
            "local_instructions": sass_count(cubin, r"\b(LDL|STL)\b"),
            "float64_instructions": len(re.findall(r"\.f64", ptx)),
        }
        if self.cubins:
            (self.cubins / f"{re.sub(r'[^a-z0-9_=]+', '_', key)}.cubin").write_bytes(cubin)


def function(kernel: Any) -> str:
    """The name of the kernel's function, or of the factory that made it."""
    return kernel.py_func.__qualname__.split(".")[0]


def title(kernel: Any) -> str:
    """The kernel's function, with the constants that its factory closed over: _conv1d_naive_kernel(kernel_size=7)."""
    constants = inspect.getclosurevars(kernel.py_func).nonlocals
    values = ", ".join(f"{name}={text}" for name, value in sorted(constants.items()) if (text := shown(value)))
    return f"{function(kernel)}({values})"


def shown(value: Any) -> str | None:
    """A constant as text: a number or a tuple of numbers; None for anything else."""
    if isinstance(value, tuple):
        return f"({' '.join(str(shown(one)) for one in value)})"
    return str(value) if isinstance(value, numbers.Number) else None


def sass_count(cubin: bytes, pattern: str) -> int | None:
    """How many machine instructions match; None where the wheel nvidia-cuda-nvdisasm is not installed."""
    nvdisasm = find_nvidia_binary_utility("nvdisasm")
    if nvdisasm is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run([nvdisasm, "-c", file.name], capture_output=True, text=True, check=True).stdout
    return len(re.findall(pattern, listing))


def costs(log: str) -> dict[str, Any]:
    """Resources and warnings from the linker's log; bytes that it does not mention are 0."""

    def number(pattern: str, default: int | None = 0) -> int | None:
        match = re.search(pattern, log)
        return int(match.group(1)) if match else default

    return {
        "registers": number(r"[Uu]sed (\d+) registers", None),
        "spill_stores": number(r"(\d+) bytes spill stores", None),
        "spill_loads": number(r"(\d+) bytes spill loads", None),
        "local_bytes": number(r"(\d+) bytes stack frame", None),
        "shared_bytes": number(r"(\d+) bytes smem"),
        # C75xx: wgmma was serialised, or setmaxnreg ignored
        "warnings": [line for line in log.splitlines() if "warn" in line.lower() or "C75" in line],
    }


def build(names: list[str], cubins: Path | None = None) -> dict[str, dict[str, Any]]:
    """Compile what the named CUDA variants launch (all where none is named); each kernel's costs."""
    here = SimpleNamespace(compute_capability=TARGET[:2], id=0)
    recorder = Recorder(cubins)
    verbose = partial(driver.LinkerOptions, verbose=True)
    with (
        # numba-cuda asks the current device what to compile for, and loads what it compiled
        mock.patch.object(dispatcher, "get_current_device", return_value=here),
        mock.patch.object(codegen.devices, "get_context", return_value=SimpleNamespace(device=here)),
        mock.patch.object(dispatcher._Kernel, "bind"),
        mock.patch.object(driver, "LinkerOptions", verbose),
        # launchers: stay on the host, and compile where they would launch
        mock.patch.object(device, "gpu_count", return_value=1),
        mock.patch.object(device, "require_capability"),
        mock.patch.object(device, "require_hopper"),
        mock.patch.object(tensor_map, "encode", lambda array, *sizes: array),
        mock.patch.object(device, "on_device", lambda array: isinstance(array, np.ndarray)),
        mock.patch.object(device, "as_device_array", lambda array, stream: array),
        mock.patch.object(device, "address", return_value=0),
        mock.patch.object(device, "to_device", lambda array, stream=0: array),
        mock.patch.object(device, "empty", lambda shape, dtype, stream=0: np.empty(shape, dtype)),
        mock.patch.object(
            device.Call, "launch", lambda _, kernel, blocks, threads, *args, shared=0: recorder.launch(kernel, *args)
        ),
        mock.patch.object(device.Call, "result", lambda call: call.out),
        mock.patch.object(device.Call, "second", lambda call, array, given=None: array),
    ):
        for row in catalog.VARIANTS:
            if row.device == "cuda" and (not names or row.name in names):
                recorder.variant = row.name
                cases = operator_cases.CASES[row.operator]
                fit = [s for s in (*cases.edges, *cases.large) if operator_cases.takes(row.technique, s)]
                # Sizes may be constants of the kernel: the first, and the most work.
                for sizes in (fit[0], max(fit, key=lambda sizes: prod(sizes.values()))):
                    case = cases.build(sizes)
                    row.launcher(**case.inputs, **case.options)
    return recorder.kernels


def main() -> None:
    """Print the costs as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help="such as conv1d_naive; all where none is named")
    parser.add_argument("--cubins", type=Path, metavar="FOLDER", help="leave the compiled kernels there")
    arguments = parser.parse_args()
    if arguments.cubins:
        arguments.cubins.mkdir(parents=True, exist_ok=True)
    print(json.dumps(build(arguments.variants, arguments.cubins), indent=2))


if __name__ == "__main__":
    main()
