"""GPUs: which there are, where arrays lie, and what every launch of a kernel shares."""

from __future__ import annotations

import re
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import config, cuda, types
from numba.cuda.cudadrv.devicearray import is_cuda_ndarray

from charcnn.gpu import unload

if TYPE_CHECKING:
    from charcnn.ops.common.shapes import Shape

SIMULATED: bool = bool(config.ENABLE_CUDASIM)
"""Whether kernels run in Numba's simulator, a mode of the whole process (NUMBA_ENABLE_CUDASIM=1)."""

OLDEST = (7, 5)
"""The lowest compute capability that CUDA 13 compiles for."""

SHARED_LIMIT = 232_448
"""Bytes of shared memory that a block of an H100 or H200 may use: what plans assume where no GPU is seen."""

MULTIPROCESSORS = 132
"""Of an H100 or H200."""

GPU_NAME = "NVIDIA H200"
"""What kernels are compiled for where no GPU is seen."""

int32, uint32, uint64 = (int, int, int) if SIMULATED else (types.int32, types.uint32, types.uint64)
"""Casts for the indices of a kernel; in the simulator plain ints, as Numba's casts would take most of its time."""

_launching = threading.Lock()
"""Numba loads a kernel at its first launch, and two threads that do so at once fail; nor can the simulator run two."""

_SIMULATED_BLOCK = 32

if SIMULATED:  # else a barrier waits 5 ms each time that the thread which watches for it takes its turn
    sys.setswitchinterval(1e-4)

_NOT_IN_SIMULATOR = ("max_registers", "launch_bounds", "lineinfo", "lto")


def block_size(threads: int) -> int:
    """So many threads a block; in the simulator, where each is a thread of the host, at most 32."""
    return min(threads, _SIMULATED_BLOCK) if SIMULATED else threads


def _guard_shared_arrays() -> None:
    """Mend the simulator: two threads of a block that came first could get a shared array each, not one for both."""
    from numba.cuda.simulator.kernelapi import FakeCUDAShared

    lock, unguarded = threading.Lock(), FakeCUDAShared.array

    def array(self: Any, shape: Any, dtype: Any, alignment: None = None) -> Any:
        if shape == 0:  # dynamic shared memory: there from the start
            return unguarded(self, shape, dtype)
        caller = sys._getframe(1)
        with lock:
            place = caller.f_code, caller.f_lineno
            if place not in self._allocations:
                self._allocations[place] = np.empty(shape, np.dtype(getattr(dtype, "name", dtype)))
            return self._allocations[place]

    FakeCUDAShared.array = array


if SIMULATED:
    _guard_shared_arrays()
else:
    unload.mend()


class DeviceError(RuntimeError):
    """The machine cannot do what was asked: a message of one line that says what to do."""


def jit(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """`numba.cuda.jit`, compiled code kept on disk, less the options that the simulator does not know.

    Numba keeps a kernel under its name and what it closes over. Its options, which decide the code as well, go into the
    name of a kernel that a function makes.
    """
    if SIMULATED:
        options = {key: value for key, value in options.items() if key not in _NOT_IN_SIMULATOR}

    def compiled(function: Callable[..., None]) -> Any:
        if "<locals>" in function.__qualname__:
            words = re.findall(r"\w+", repr(sorted(options.items())))
            function.__qualname__ = "_".join([function.__qualname__, *words])
        kernel = cuda.jit(**options)(function)
        if not SIMULATED:
            from charcnn.caching.kernel_cache import KernelCache

            kernel._cache = KernelCache(function)
        return kernel

    return compiled


@cache
def gpu_count() -> int:
    """GPUs that this process can use: at least one.

    Raises:
        DeviceError: no driver, no GPU, no compiler, or a GPU that is too old.
    """
    if SIMULATED:
        return 1
    from numba.cuda.cudadrv.error import CudaSupportError

    way_out = "use a CPU variant or level, or set NUMBA_ENABLE_CUDASIM=1 to run kernels in the slow simulator"
    try:
        count = len(cuda.gpus)
    except CudaSupportError as error:
        reason = " ".join(str(error).split())
        raise DeviceError(f"no usable NVIDIA driver ({reason}); {way_out}") from error
    if count == 0:
        raise DeviceError(f"the NVIDIA driver shows no GPU (see CUDA_VISIBLE_DEVICES); {way_out}")
    for gpu in cuda.gpus:
        capability = tuple(gpu.compute_capability)
        if capability < OLDEST:
            raise DeviceError(
                f"GPU {gpu.id} has compute capability {capability[0]}.{capability[1]}, "
                f"need {OLDEST[0]}.{OLDEST[1]} or later; {way_out}"
            )
    require_compiler()
    return count


def require_compiler() -> None:
    """Raise DeviceError where the CUDA compiler is not installed; the simulator needs none."""
    if SIMULATED:
        return
    from numba.cuda.cudadrv import nvvm
    from numba.cuda.cudadrv.error import NvvmSupportError

    try:
        nvvm.NVVM()
    except (NvvmSupportError, OSError, ImportError) as error:
        raise DeviceError("the CUDA compiler NVVM is not installed: pip install 'charcnn[cuda]'") from error


def choose(gpus: int | Sequence[int] | None = None) -> list[int]:
    """The GPUs to use, by index: all where None, the first so many where an int.

    Raises:
        ValueError: more GPUs than there are, or an index that there is not.
        DeviceError: as `gpu_count`.
    """
    count = gpu_count()
    if gpus is None:
        return list(range(count))
    if isinstance(gpus, int):
        if not 1 <= gpus <= count:
            raise ValueError(f"gpus={gpus}: need 1 to {count}, the GPUs of this machine")
        return list(range(gpus))
    if not gpus or any(not 0 <= gpu < count for gpu in gpus):
        raise ValueError(f"gpus={list(gpus)}: need indices from 0 to {count - 1}, the GPUs of this machine")
    return list(gpus)


def explain(error: BaseException) -> str | None:
    """One line for an error that a machine's user can act on, or None for any other (a bug)."""
    if isinstance(error, DeviceError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of host memory: lower --batch or --inputs"
    text = " ".join(str(error).split())
    if "OUT_OF_MEMORY" in text:
        return f"out of GPU memory: lower --batch ({text})"
    if type(error).__module__.startswith("numba.cuda.cudadrv"):
        return f"{type(error).__name__}: {text}"
    return None


def current() -> int:
    """The current GPU's index; the simulator has one GPU."""
    return 0 if SIMULATED else int(cuda.get_current_device().id)


def gpu_name() -> str:
    """What the driver calls the current GPU; an H200 where there is none, "simulator" in the simulator."""
    if SIMULATED:
        return "simulator"
    if not cuda.is_available():
        return GPU_NAME
    name = cuda.get_current_device().name
    return name.decode() if isinstance(name, bytes) else str(name)


def pci_address(gpu: int) -> str:
    """Where the GPU is plugged in, as Linux writes it: 0000:1b:00.0."""
    at = cuda.gpus[gpu].get_device_identity()
    return f"{at['pci_domain_id']:04x}:{at['pci_bus_id']:02x}:{at['pci_device_id']:02x}.0"


def on_device(array: Any) -> bool:
    """Whether the array lies on a GPU: Numba's own, or another library's with __cuda_array_interface__."""
    return is_cuda_ndarray(array) or hasattr(array, "__cuda_array_interface__")


def to_device(array: np.ndarray, stream: Any = 0) -> Any:
    """Copy a NumPy array to the current GPU."""
    if array.size and 0 in array.strides and array.flags.c_contiguous:  # of an axis of one, as np.newaxis makes it:
        array = array.ravel().reshape(array.shape)  # Numba takes it for a repeated one, and cannot reshape the array
    return cuda.to_device(array, stream=stream)


def to_host(array: Any, stream: Any = 0) -> np.ndarray:
    """Copy from the current GPU, and wait for it."""
    host = array.copy_to_host(stream=stream)
    if stream:
        stream.synchronize()
    return np.asarray(host)


def empty(shape: Shape, dtype: Any, stream: Any = 0) -> Any:
    """An uninitialised array on the current GPU."""
    return cuda.device_array(shape, dtype, stream=stream)


def as_stream(stream: Any) -> Any:
    """Numba's view of a stream: its own, None, an address, or CuPy's, PyTorch's or cuda.core's stream object."""
    if stream is None:
        return 0
    for attribute in ("cuda_stream", "ptr"):  # PyTorch, CuPy
        if hasattr(stream, attribute):
            stream = getattr(stream, attribute)
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        stream = (protocol() if callable(protocol) else protocol)[1]
    if isinstance(stream, int) and stream != 0:
        return cuda.external_stream(stream)
    return stream


def as_device_array(array: Any, stream: Any) -> Any:
    """Numba's view of a device array, no copy; work on `stream` then waits, on the GPU, for its producer."""
    if is_cuda_ndarray(array):
        return array
    producer = array.__cuda_array_interface__.get("stream")
    view = cuda.as_cuda_array(array, sync=False)
    if producer is not None and producer != int(stream):
        done = cuda.event(timing=False)
        done.record(cuda.external_stream(producer))
        done.wait(stream)
    return view


def address(array: Any) -> int:
    """Where an array begins on the GPU; 0 in the simulator."""
    return 0 if SIMULATED else int(array.__cuda_array_interface__["data"][0] or 0)


def require_memory(size: int, purpose: str) -> None:
    """Raise DeviceError unless the current GPU has so many bytes free."""
    free = cuda.current_context().get_memory_info().free
    if size > free:
        raise DeviceError(f"{purpose} take {size:,} bytes of GPU memory, {free:,.0f} are free: lower --batch")


def require_capability(least: tuple[int, int], what: str, way_out: str) -> None:
    """Raise DeviceError unless the current GPU has this compute capability, which `what` needs."""
    if SIMULATED:
        return
    capability = tuple(cuda.get_current_device().compute_capability)
    if capability < least:
        raise DeviceError(
            f"{what} needs compute capability {least[0]}.{least[1]}, this GPU has {capability[0]}.{capability[1]}; "
            f"{way_out}"
        )


def has_tensor_cores(*, hopper: bool = False) -> bool:
    """Whether the current GPU has tensor cores that kernels here can use: Hopper's own, or any since 8.0."""
    if SIMULATED:
        return False
    major = int(cuda.get_current_device().compute_capability[0])
    return major == 9 if hopper else major >= 8  # those after Hopper have others instead of its own


def require_tensor_cores(what: str, *, hopper: bool = False, way_out: str = "use a technique without them") -> None:
    """Raise DeviceError unless the current GPU `has_tensor_cores`, which `what` needs; it says what to do then."""
    if has_tensor_cores(hopper=hopper):
        return
    need = f"{what} needs tensor cores of compute capability {'9.0' if hopper else '8.0 or later'}"
    if SIMULATED:
        raise DeviceError(f"{need}, which the simulator has not; {way_out}")
    capability = tuple(cuda.get_current_device().compute_capability)
    raise DeviceError(f"{need}, this GPU has {capability[0]}.{capability[1]}; {way_out}")


def require_hopper(what: str) -> None:
    """Raise DeviceError unless the current GPU has Hopper's tensor cores, which `what` needs."""
    require_tensor_cores(what, hopper=True)


def shared_limit() -> int:
    """Bytes of shared memory that a block may use on the current GPU; an H200's where there is none."""
    if SIMULATED or not cuda.is_available():
        return SHARED_LIMIT
    return int(cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)


def multiprocessors() -> int:
    """Multiprocessors of the current GPU; an H200's where there is none."""
    if SIMULATED or not cuda.is_available():
        return MULTIPROCESSORS
    return int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


_compiled: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = {}
"""What `_compile` found for kernels whose arguments are NumPy scalars, by kernel, GPU and the scalars' types: Numba
looks at each argument anew at every launch."""


def _compile(kernel: Any, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """Numba's types of the arguments, and the kernel compiled for them and the current GPU."""
    key = (kernel, current(), *map(type, args)) if args and all(isinstance(arg, np.generic) for arg in args) else None
    if key in _compiled:
        return _compiled[key]
    kinds = tuple(kernel.typeof_pyval(arg) for arg in args)
    found = kinds, kernel.compile(kinds)
    if key is not None:
        _compiled[key] = found
    return found


_shared_allowed: dict[tuple[int, Any], int] = {}


def _allow_shared(kernel: Any, shared: int, args: tuple[Any, ...]) -> None:
    """Dynamic shared memory past 48 KB: an attribute of the compiled kernel, once a GPU. Numba has no option for it."""
    from cuda.bindings.driver import CUfunction_attribute
    from numba.cuda.cudadrv.driver import driver

    _, compiled = _compile(kernel, args)
    key = cuda.get_current_device().id, compiled
    if _shared_allowed.get(key, 0) < shared:
        if shared > (limit := shared_limit()):
            raise DeviceError(f"a block needs {shared:,} bytes of shared memory: this GPU has {limit:,}")
        function = compiled._codelibrary.get_cufunc()
        attribute = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.cuKernelSetAttribute(attribute, shared, function.handle, function.device.id)
        _shared_allowed[key] = shared


class Graph:
    """The work that a function starts on a stream, kept as a CUDA graph: all of it is started again by one call.

    The function is called twice. The first time compiles and loads its kernels and makes what they keep; the second
    time is recorded, and nothing runs. It must start the same work both times, on arrays that are there, and allocate
    nothing.

    Args:
        start: the function, called with the stream that it must use.
        stream: a stream of the current GPU, on which the work runs.

    Raises:
        DeviceError: the driver refuses, such as where `start` allocates or waits.
    """

    def __init__(self, start: Callable[[Any], Any], stream: Any) -> None:
        from cuda.bindings import driver

        start(stream)
        stream.synchronize()
        self._start = start  # and with it the arrays that the recorded work reads and writes
        self._stream, self._launch = int(stream), driver.cuGraphLaunch
        # Recorded on a stream of its own, which does not wait for the default stream: with one that does, whatever
        # another thread starts on the default stream meanwhile fails, and ends the recording. Relaxed, as garbage
        # collected meanwhile may free memory.
        own = _driven(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value))
        try:
            with cuda.defer_cleanup():
                _driven(driver.cuStreamBeginCapture(own, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
                try:
                    self.result: Any = start(cuda.external_stream(int(own)))
                    """What `start` returned."""
                except BaseException:
                    _, left = driver.cuStreamEndCapture(own)
                    if left:
                        driver.cuGraphDestroy(left)
                    raise
                graph = _driven(driver.cuStreamEndCapture(own))
        finally:
            driver.cuStreamDestroy(own)
        try:
            self._graph = _driven(driver.cuGraphInstantiate(graph, 0))
        finally:
            driver.cuGraphDestroy(graph)
        weakref.finalize(self, driver.cuGraphExecDestroy, self._graph).atexit = False

    def launch(self) -> None:
        """Start the work on the stream; nothing is waited for."""
        _driven(self._launch(self._graph, self._stream))


def copy(to: Any, source: Any, stream: Any) -> None:
    """Start to copy a device array, C-contiguous, to the beginning of another one; Numba's own way takes longer."""
    from cuda.bindings import driver

    if source.size:
        _driven(driver.cuMemcpyDtoDAsync(address(to), address(source), source.nbytes, int(stream)))


def _driven(answer: tuple[Any, ...]) -> Any:
    """What a call of the driver gave, or None.

    Raises:
        DeviceError: it failed.
    """
    status, *values = answer
    if int(status) != 0:
        raise DeviceError(f"the driver refused a CUDA graph or a copy: {status.name}")
    return values[0] if values else None


def _configured(kernel: Any, blocks: Any, threads: Any, stream: Any, shared: int) -> Any:
    """Numba's launch, without its warning that a small grid does not fill the GPU: small batches have small grids."""
    if SIMULATED:
        return kernel[blocks, threads, stream, shared]
    from numba.cuda.core import config as cuda_config

    warns, cuda_config.CUDA_LOW_OCCUPANCY_WARNINGS = cuda_config.CUDA_LOW_OCCUPANCY_WARNINGS, 0
    try:
        return kernel[blocks, threads, stream, shared]
    finally:
        cuda_config.CUDA_LOW_OCCUPANCY_WARNINGS = warns


def _launch_with(kernel: Any, blocks: Any, threads: Any, stream: Any, shared: int, args: Any, **options: Any) -> None:
    """Numba's launch with what it has no option for: clusters, and programmatic dependent launch."""
    from cuda.core import LaunchConfig, Stream, launch

    kinds, compiled = _compile(kernel, args)
    values: list[Any] = []
    for kind, arg in zip(kinds, args, strict=True):
        if isinstance(arg, np.generic):
            values.append(arg)
        else:
            compiled._prepare_args(kind, arg, stream, [], values)
    config = LaunchConfig(grid=blocks, block=threads, shmem_size=shared, **options)
    launch(Stream.from_handle(int(stream)), config, compiled._codelibrary.get_cufunc().kernel, *values)


DTYPES = {"ids": np.uint8, "stat": np.float64}
"""What a launcher's input of this name must hold; all others hold float32."""


def pair(out: Any) -> tuple[Any, Any]:
    """A launcher's `out` for two results, (y, stat); two None where None.

    Raises:
        ValueError: it is not a pair.
    """
    if out is None:
        return None, None
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise ValueError(f"out is a {type(out).__name__}: need a pair (y, stat)")
    return out[0], out[1]


class Call:
    """One call of a CUDA launcher: inputs checked and brought to the GPU, `out` made, the result taken back.

    NumPy in, NumPy out; device in, device out, and then nothing waits for the GPU. DTYPES and, before it, `dtypes`
    say what the inputs must hold. Inputs and `out` lie all on the host or all on the device.
    """

    def __init__(
        self,
        out: Any,
        stream: Any,
        shape: Shape,
        dtype: Any = np.float32,
        dtypes: Mapping[str, Any] = MappingProxyType({}),
        **inputs: Any,
    ) -> None:
        from charcnn.ops.common.arrays import check  # not above: the operators import this module
        from charcnn.ops.common.shapes import expect

        gpu_count()
        self.stream = as_stream(stream)
        self._given = out
        first, *_ = inputs
        self._device = on_device(inputs[first])
        for name, array in (*inputs.items(), ("out", out)):
            if array is None:
                continue
            if on_device(array) != self._device:
                sides = ("on the device", "on the host")
                raise ValueError(
                    f"{name} is {sides[self._device]} and {first} is {sides[not self._device]}: "
                    "need all arrays on one side"
                )
            if not self._device and not isinstance(array, np.ndarray):
                raise ValueError(f"{name} is a {type(array).__name__}: need a NumPy array or a device array")
        if self._device:
            inputs = {name: as_device_array(array, self.stream) for name, array in inputs.items()}
            out = None if out is None else as_device_array(out, self.stream)
        for name, array in inputs.items():
            check(name, array, {**DTYPES, **dtypes}.get(name, np.float32))
        if out is not None:
            check("out", out, dtype)
            expect("out", out, shape)
        if self._device:
            self.inputs = tuple(inputs.values())
        else:
            self.inputs = tuple(to_device(array, self.stream) for array in inputs.values())
        self.out = out if self._device and out is not None else empty(shape, dtype, self.stream)

    def launch(
        self,
        kernel: Any,
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
                    _allow_shared(kernel, shared, args)
                if early or cluster > 1:
                    options = {"programmatic_stream_serialization": early, "cluster": cluster if cluster > 1 else None}
                    _launch_with(kernel, blocks, threads, self.stream, shared, args, **options)
                else:
                    _configured(kernel, blocks, threads, self.stream, shared)(*args)

    def launch_each(self, kernel: Any, *args: Any, threads: int = 128) -> None:
        """Start one thread for each element of the output."""
        self.launch(kernel, -(-self.out.size // threads), threads, *args)

    def scratch(self, shape: Shape, dtype: Any) -> Any:
        """An uninitialised device array for this call's own use."""
        return empty(shape, dtype, self.stream)

    def second(self, array: Any, given: Any = None) -> Any:
        """A second output, from the device array that a kernel wrote: `given`, or new, where the inputs lie.

        Comes before `result`, which waits for both.
        """
        if self._device:
            return array if given is None else given
        return array.copy_to_host(given, stream=self.stream)

    def result(self) -> Any:
        """What the launcher returns: `out` where it was given, else a new array where the inputs lie."""
        if self._device:
            return self.out if self._given is None else self._given
        result = self.out.copy_to_host(self._given, stream=self.stream)
        if self.stream:
            self.stream.synchronize()
        return result
