"""What every launch of a kernel shares: `jit`, and `Call`, by which a launcher takes its arrays and starts kernels."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import numpy as np
from numba import cuda

from charcnn.aliases import Array, DType, Function, Kernel, Stream
from charcnn.gpu import device, integers
from charcnn.gpu.arrays import apart, check, check_out, writable
from charcnn.gpu.device import SIMULATED, DeviceError
from charcnn.gpu.ptx.intrinsics import made_with
from charcnn.layers.layer import Shape

if SIMULATED:
    from charcnn.gpu import emulator

_launching = threading.Lock()
"""Numba loads a kernel at its first launch, and two threads that do so at once fail; nor can the simulator run two."""

profiler: Callable[..., AbstractContextManager[None]] | None = None
"""While it is set, each launch is put into what it gives, and no CUDA graph is recorded: `charcnn.gpu.profile`."""

_UNTIMED: AbstractContextManager[None] = nullcontext()


def jit(**options: Any) -> Callable[[Function], Any]:
    """`numba.cuda.jit`, compiled code kept on disk.

    Numba keeps a kernel under its name and what it closes over. Its options, which decide the code as well, go into the
    name of a kernel that a function makes.
    """

    def compiled(function: Function) -> Any:
        if "<locals>" in function.__qualname__:
            words = re.findall(r"\w+", repr(sorted(options.items())))
            function.__qualname__ = "_".join([function.__qualname__, *words])
        kernel = cuda.jit(**options)(function)
        kernel.made_with = made_with(sys._getframe(1))  # of a kernel that a function makes, that one; else the module
        if not SIMULATED and not options.get("device"):  # which may be a user's, typed in: there is no file to look at
            from charcnn.caching.kernel_cache import KernelCache

            kernel._cache = KernelCache(function, integers.install)
            integers.narrow(kernel)
        return kernel

    return compiled


_compiled: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = {}
"""What `_compile` found for kernels whose arguments are NumPy scalars, by kernel, GPU and the scalars' types: Numba
looks at each argument anew at every launch."""


def _compile(kernel: Kernel, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """Numba's types of the arguments, and the kernel compiled for them and the current GPU."""
    key = (
        (kernel, device.current(), *map(type, args))
        if args and all(isinstance(arg, np.generic) for arg in args)
        else None
    )
    if key in _compiled:
        return _compiled[key]
    kinds = tuple(kernel.typeof_pyval(arg) for arg in args)
    found = kinds, kernel.compile(kinds)
    if key is not None:
        _compiled[key] = found
    return found


def compiled_for(kernel: Kernel, args: tuple[Any, ...]) -> Any:
    """Numba's kernel, compiled for these arguments and the current GPU."""
    return _compile(kernel, args)[1]


def title(kernel: Kernel) -> str:
    """A kernel's module and function, or the function that made it: conv1d.wgmma.kernel.make_kernel."""
    function = getattr(kernel, "py_func", None) or kernel.fn  # the simulator's
    module = function.__module__.removeprefix("charcnn.").removeprefix("ops.")
    return f"{module}.{function.__qualname__.split('.')[0]}"


_shared_allowed: dict[tuple[int, Any], int] = {}

_WHOLE = 100
"""Percent of what may be shared memory."""


def _allow_shared(kernel: Kernel, shared: int, args: tuple[Any, ...], early: bool = False) -> None:
    """Dynamic shared memory past 48 KB: an attribute of the compiled kernel, once a GPU. Numba has no option for it.

    Of a kernel that begins `early`, all that may be shared memory is: a multiprocessor cannot divide it in another way
    while a kernel still runs there.
    """
    from cuda.bindings.driver import CUfunction_attribute
    from numba.cuda.cudadrv.driver import driver

    _, compiled = _compile(kernel, args)
    key = cuda.get_current_device().id, compiled
    if _shared_allowed.get(key, 0) < shared:
        if shared > (limit := device.shared_limit()):
            raise DeviceError(f"a block needs {shared:,} bytes of shared memory: this GPU has {limit:,}")
        function = compiled._codelibrary.get_cufunc()
        attribute = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.cuKernelSetAttribute(attribute, shared, function.handle, function.device.id)
        if early:
            carveout = CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            driver.cuKernelSetAttribute(carveout, _WHOLE, function.handle, function.device.id)
        _shared_allowed[key] = shared


def configured(kernel: Kernel, blocks: Any, threads: Any, stream: Stream, shared: int) -> Array:
    """Numba's launch, without its warning that a small grid does not fill the GPU: small batches have small grids."""
    if SIMULATED:
        return kernel[blocks, threads, stream, shared]
    from numba.cuda.core import config as cuda_config

    warns, cuda_config.CUDA_LOW_OCCUPANCY_WARNINGS = cuda_config.CUDA_LOW_OCCUPANCY_WARNINGS, 0
    try:
        return kernel[blocks, threads, stream, shared]
    finally:
        cuda_config.CUDA_LOW_OCCUPANCY_WARNINGS = warns


def _launch_with(
    kernel: Kernel, blocks: Any, threads: Any, stream: Stream, shared: int, args: Any, **options: Any
) -> None:
    """Numba's launch with what it has no option for: clusters, and programmatic dependent launch."""
    from cuda.core import LaunchConfig, Stream, launch

    kinds, compiled = _compile(kernel, args)
    values: list[Array] = []
    for kind, arg in zip(kinds, args, strict=True):
        if isinstance(arg, np.generic):
            values.append(arg)
        else:
            compiled._prepare_args(kind, arg, stream, [], values)
    config = LaunchConfig(grid=blocks, block=threads, shmem_size=shared, **options)
    launch(Stream.from_handle(int(stream)), config, compiled._codelibrary.get_cufunc().kernel, *values)


DTYPES = {"ids": np.uint8, "images": np.uint8, "stat": np.float64}
"""What a launcher's input of this name must hold; all others hold float32."""


def pair(out: Array) -> tuple[Array, Array]:
    """A launcher's `out` for two results, (y, stat); two None where None.

    Raises:
        ValueError: it is not a pair.
    """
    if out is None:
        return None, None
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise ValueError(f"out is a {type(out).__name__}: need a pair (y, stat)")
    writable("stat", out[1])
    return out[0], out[1]


class Call:
    """One call of a CUDA launcher: inputs checked and brought to the GPU, `out` made, the result taken back.

    NumPy in, NumPy out; device in, device out, and then nothing waits for the GPU. DTYPES and, before it, `dtypes`
    say what the inputs must hold. Inputs and `out` lie all on the host or all on the device. `out` and `stat` share no
    memory with an input, but that `out` may be the one that `in_place` names. Where `out` is a function, it gives the
    array, of a shape and dtype.
    """

    def __init__(
        self,
        out: Array,
        stream: Stream,
        shape: Shape,
        dtype: DType = np.float32,
        dtypes: Mapping[str, Any] = MappingProxyType({}),
        in_place: str = "",
        **inputs: Any,
    ) -> None:
        device.gpu_count()
        self.stream = device.as_stream(stream)
        self._out = out = out(shape, dtype) if callable(out) else out
        first, *_ = inputs
        self._device = device.on_device(inputs[first])
        for name, array in (*inputs.items(), ("out", out)):
            if array is None:
                continue
            if device.on_device(array) != self._device:
                sides = ("on the device", "on the host")
                raise ValueError(
                    f"{name} is {sides[self._device]} and {first} is {sides[not self._device]}: "
                    "need all arrays on one side"
                )
            if not self._device and not isinstance(array, np.ndarray):
                raise ValueError(f"{name} is a {type(array).__name__}: need a NumPy array or a device array")
        if self._device:
            inputs = {name: device.as_device_array(array, self.stream) for name, array in inputs.items()}
            out = None if out is None else device.as_device_array(out, self.stream)
        for name, array in inputs.items():
            check(name, array, {**DTYPES, **dtypes}.get(name, np.float32))
        if out is not None:
            check_out(out, shape, dtype, inputs, in_place)
        if "stat" in inputs:  # of some operators a second result
            apart("stat", inputs["stat"], {name: array for name, array in inputs.items() if name != "stat"})
        if self._device:
            self.inputs = tuple(inputs.values())
        else:
            self.inputs = tuple(device.to_device(array, self.stream) for array in inputs.values())
        self.out = out if self._device and out is not None else device.empty(shape, dtype, self.stream)

    def launch(
        self,
        kernel: Kernel,
        blocks: int | tuple[int, ...],
        threads: int | tuple[int, ...],
        *args: Any,
        shared: int = 0,
        early: bool = False,
        cluster: int = 1,
    ) -> None:
        """Start the kernel, with so many bytes of dynamic shared memory, on this call's stream.

        An empty grid starts nothing. With a `cluster` of several blocks, `blocks` counts clusters. With `early`, the
        kernel may begin before the one before it on the stream has ended, once all blocks of that one have called
        `ptx.griddepcontrol_launch`; it calls `ptx.griddepcontrol_wait` before it touches what those that may still run
        read or write. Both need compute capability 9.0 or later.
        """
        if np.prod(blocks) > 0:
            with _launching:
                if shared > 48 * 1024 and not SIMULATED:
                    _allow_shared(kernel, shared, args, early)
                timed = profiler and profiler(kernel, args, blocks, threads, shared, cluster, self)
                with timed or _UNTIMED:
                    if SIMULATED and (early or cluster > 1):
                        emulator.start_grid(kernel, blocks, threads, args, shared, cluster, self.stream, early)
                    elif not SIMULATED and (early or cluster > 1):
                        options = {
                            "programmatic_stream_serialization": early,
                            "cluster": cluster if cluster > 1 else None,
                        }
                        _launch_with(kernel, blocks, threads, self.stream, shared, args, **options)
                    else:
                        configured(kernel, blocks, threads, self.stream, shared)(*args)

    def launch_each(self, kernel: Kernel, *args: Any, threads: int = 128) -> None:
        """Start one thread for each element of the output."""
        self.launch(kernel, -(-self.out.size // threads), threads, *args)

    def scratch(self, shape: Shape, dtype: DType) -> Any:
        """An uninitialised device array for this call's own use."""
        return device.empty(shape, dtype, self.stream)

    def second(self, array: Array, out: Array = None) -> Array:
        """A second output, from the device array that a kernel wrote: `out`, or new, where the inputs lie.

        Comes before `result`, which waits for both.
        """
        if self._device:
            return array if out is None else out
        return array.copy_to_host(out, stream=self.stream)

    def result(self) -> Any:
        """What the launcher returns: `out` where it was given, else a new array where the inputs lie."""
        if self._device:
            return self.out if self._out is None else self._out
        result = self.out.copy_to_host(self._out, stream=self.stream)
        if self.stream:
            self.stream.synchronize()
        return result
