"""A GPU that is not there: launchers and levels run on it as on a GPU, and each launch is handed over instead.

Arrays lie in the host's memory and hold anything. What numba-cuda asks the current device for is asked of a `Target`,
so that a kernel compiled here is kept in Numba's cache under the same key that a GPU of that kind looks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from charcnn.gpu import backend, device, graph, pieces, pool, tensor_map
from charcnn.gpu import launch as launching
from charcnn.gpu.backend import compiler

Launched = Callable[[Any, tuple[Any, ...]], object]
"""Is handed a kernel and the Numba types of its arguments."""

SIZES = {
    (7, 5): (40, 65_536),
    (8, 0): (108, 166_912),
    (8, 6): (82, 101_376),
    (8, 7): (16, 166_912),
    (8, 8): (16, 166_912),
    (8, 9): (128, 101_376),
    (9, 0): (device.MULTIPROCESSORS, device.SHARED_LIMIT),
    (10, 0): (148, 232_448),
    (10, 3): (148, 232_448),
    (11, 0): (20, 232_448),
    (12, 0): (170, 101_376),
    (12, 1): (48, 101_376),
}
"""Compute capability: multiprocessors of a GPU that has it, and bytes of shared memory that a block may use there
(CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"). Tiles are chosen by them."""


@dataclass(frozen=True)
class Target:
    """A GPU to compile for."""

    capability: tuple[int, int]
    multiprocessors: int
    shared_limit: int
    name: str
    """What the driver calls it: which tiles were measured for it."""

    def __str__(self) -> str:
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' * (self.capability >= (9, 0))}"

    @property
    def compiler(self) -> tuple[int, int, str]:
        """numba-cuda's name of it: from 9.0 on with the instructions that only this capability has."""
        return (*self.capability, "a" if self.capability >= (9, 0) else "")

    def has_tensor_cores(self, *, hopper: bool = False, turing: bool = False) -> bool:
        """See `device.has_tensor_cores`."""
        return self.capability[0] == 9 if hopper else turing or self.capability >= device.AMPERE

    @staticmethod
    def current() -> Target:
        """The current GPU."""
        from numba import cuda

        capability = cuda.get_current_device().compute_capability
        return Target(
            (int(capability[0]), int(capability[1])), device.multiprocessors(), device.shared_limit(),
            device.gpu_name(),
        )  # fmt: skip

    @staticmethod
    def named(text: str) -> Target:
        """Of a compute capability: "sm_90a", "sm_90", "9.0" and "9.0a" are the same.

        Raises:
            ValueError: it is none that kernels can be compiled for.
        """
        match = re.fullmatch(r"(?:sm_(\d+)(\d)|(\d+)\.(\d))([af]?)", text)
        major, minor, other_major, other_minor, letter = match.groups() if match else (None,) * 5
        capability = int(major or other_major or 0), int(minor or other_minor or 0)
        if capability not in SIZES or (letter and capability < (9, 0)) or letter == "f":
            known = ", ".join(str(Target(one, 0, 0, "")) for one in SIZES)
            raise ValueError(f"compute capability {text!r}: need one of {known}")
        return Target(capability, *SIZES[capability], device.GPU_NAME if capability == (9, 0) else text)


class Memory(np.ndarray):
    """An array that lies on the GPU that is not there."""

    def copy_to_device(self, source: Any, stream: Any = 0) -> None:
        """Nothing: it holds anything."""

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> Any:
        """An array of that shape."""
        return np.zeros(self.shape, self.dtype) if ary is None else ary


class Stream:
    """A stream on which nothing is waited for; and an event."""

    def __int__(self) -> int:
        return 0

    def synchronize(self, stream: Any = 0) -> None:
        """Nothing."""

    record = wait = synchronize

    def elapsed_time(self, other: Any) -> float:
        """Milliseconds."""
        return 0.0


class StandInGraph:
    """Stands in for `graph.Graph`: the work is started once."""

    def __init__(self, start: Callable[[Any], Any], stream: Any) -> None:
        self.result = start(stream)

    def launch(self) -> None:
        """Nothing: it was started when it was recorded."""


def kind(value: Any) -> Any:
    """Numba's type of a kernel's argument, arrays as on a GPU."""
    from numba.cuda import types

    if not isinstance(value, np.ndarray):
        return compiler.typeof(value, compiler.Purpose.argument)
    repeated = value.size and 0 in value.strides
    layout = "A" if repeated else "C" if value.flags.c_contiguous else "F" if value.flags.f_contiguous else "A"
    return types.Array(compiler.numpy_support.from_dtype(value.dtype), value.ndim, layout)


def _memory(array: Any, stream: Any = 0) -> Memory:
    return np.asarray(array).view(Memory)


@contextmanager
def compiling_for(target: Target) -> Iterator[None]:
    """numba-cuda takes `target` for the current device; what it compiles is linked, and not loaded."""
    if backend.IS_MLIR:
        with compiler.mlir.compiling_for(target.capability, target.compiler[2]):
            yield
        return
    here = SimpleNamespace(compute_capability=target.capability, id=0)
    context = SimpleNamespace(device=here)
    with ExitStack() as stack:
        replaced(stack, compiler.dispatcher, get_current_device=lambda: here)
        replaced(stack, compiler.codegen.devices, get_context=lambda *_: context)
        replaced(stack, compiler.dispatcher._Kernel, bind=lambda kernel: kernel._codelibrary.get_cubin())
        yield


@contextmanager
def standing_in(target: Target, launched: Launched) -> Iterator[None]:
    """In this context `target` is the one GPU of the process, its launches are handed over, and nothing computes."""
    from numba import cuda

    def launch(call: Any, kernel: Any, blocks: Any, threads: Any, *args: Any, **options: Any) -> None:
        if np.prod(blocks) > 0:
            launched(kernel, tuple(kind(arg) for arg in args))

    def need(there: bool, what: str) -> None:
        if not there:
            raise device.DeviceError(f"{what}, which {target} lacks")

    with ExitStack() as stack:
        stack.enter_context(compiling_for(target))
        replaced(
            stack, device,
            gpu_count=lambda: 1,
            choose=lambda gpus=None: [0],
            current=lambda: 0,
            gpu_name=lambda: target.name,
            multiprocessors=lambda: target.multiprocessors,
            shared_limit=lambda: target.shared_limit,
            capability=lambda: target.capability,
            has_tensor_cores=target.has_tensor_cores,
            has_capability=lambda least: target.capability >= least,
            require_capability=lambda least, what, way_out: need(target.capability >= least, f"{what} needs {least}"),
            require_tensor_cores=lambda what, *, hopper=False, turing=False, emulated=True, way_out="": need(
                target.has_tensor_cores(hopper=hopper, turing=turing), f"{what} needs tensor cores"
            ),
            require_memory=lambda size, purpose: None,
            on_device=lambda array: isinstance(array, np.ndarray),
            as_device_array=lambda array, stream: array,
            as_stream=lambda stream: stream or 0,
            address=lambda array: 0,
            to_device=_memory,
            to_host=lambda array, stream=0: np.asarray(array),
            empty=lambda shape, dtype, stream=0: np.empty(shape, dtype).view(Memory),
        )  # fmt: skip
        replaced(
            stack, graph,
            copy=lambda to, source, stream: None,
            copy_up=lambda to, source, offset, stream: None,
            Graph=StandInGraph,
        )  # fmt: skip
        replaced(stack, pool, pooled=device.empty)
        replaced(stack, pieces, pinned=lambda array: True)
        replaced(
            stack, launching.Call,
            launch=launch,
            result=lambda call: call.out,
            second=lambda call, array, given=None: array,
        )  # fmt: skip
        replaced(
            stack, launching,
            most_clusters=lambda kernel, threads, args, shared, cluster: target.multiprocessors // cluster,
        )  # fmt: skip
        replaced(
            stack, tensor_map,
            encode=lambda array, *sizes: _memory(np.zeros(16, np.uint64)),
            encode_im2col=lambda begin, *sizes: [0] * 16,
        )  # fmt: skip
        replaced(
            stack, cuda,
            gpus=[nullcontext()],
            stream=Stream,
            default_stream=Stream,
            event=lambda timing=True: Stream(),
            pinned_array=lambda shape, dtype: np.empty(shape, dtype),
            synchronize=lambda: None,
        )  # fmt: skip
        yield


def replaced(stack: ExitStack, owner: Any, **values: Any) -> None:
    """Set attributes until the stack unwinds."""
    for name, value in values.items():
        stack.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)
