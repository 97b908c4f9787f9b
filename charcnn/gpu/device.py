"""GPUs: which there are, what they can do, and where arrays lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import numpy as np
from numba import config, cuda, types

from charcnn.aliases import Array, DType, Stream
from charcnn.gpu import absent, backend, unload
from charcnn.gpu.backend.compiler import SIMULATED, CudaSupportError, driver, is_cuda_ndarray
from charcnn.gpu.described import described
from charcnn.gpu.errors import DeviceError
from charcnn.host.install import pip_install
from charcnn.layers.layer import Shape

OLDEST = (7, 5)
"""The lowest compute capability that CUDA 13 compiles for: Turing's."""

AMPERE, HOPPER = (8, 0), (9, 0)
"""Those that brought instructions which kernels here use."""

SHARED_LIMIT = 232_448
"""Bytes of shared memory that a block of an H100 or H200 may use: what plans assume where no GPU is seen."""

MULTIPROCESSORS = 132
"""Of an H100 or H200."""

GPU_NAME = "NVIDIA H200"
"""What kernels are compiled for where no GPU is seen."""

int32, uint32, uint64 = (int, int, int) if SIMULATED else (types.int32, types.uint32, types.uint64)
"""Casts for the indices of a kernel; in the simulator plain ints, as Numba's casts would take most of its time."""

_STREAMS: tuple[type, ...] = () if SIMULATED else (driver.Stream,)
"""Numba's."""

_SIMULATED_BLOCK = 32


def block_size(threads: int) -> int:
    """So many threads a block; in the simulator, where each is a thread of the host, at most 32."""
    return min(threads, _SIMULATED_BLOCK) if SIMULATED else threads


if not SIMULATED:
    from charcnn.gpu.backend.compiler import NvvmSupportError, nvvm

if not SIMULATED and not absent.MISSING:
    unload.mend()


class SizeError(DeviceError, ValueError):
    """The GPU's kernels cannot take a network's sizes, which other kernels can."""


@cache
def gpu_count() -> int:
    """GPUs that this process can use: at least one.

    Raises:
        DeviceError: no numba-cuda, its successor in its place, no driver, no GPU, no compiler, or a GPU that is too
            old.
    """
    if absent.MISSING:
        absent.refuse()
    if backend.IS_MLIR:
        raise DeviceError(f"charcnn cannot start kernels that {backend.NAME} compiles: unset {backend.VARIABLE}")
    if SIMULATED:
        return 1
    way_out = "use a CPU variant, technique or level; or set NUMBA_ENABLE_CUDASIM=1 to run kernels in a slow simulator"
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


def sees_hopper() -> bool:
    """Whether the current GPU is a Hopper GPU that can be used; False where there is none, and in the emulator."""
    if SIMULATED:
        return False
    try:
        gpu_count()
    except DeviceError:
        return False
    return has_tensor_cores(hopper=True)


def require_compiler() -> None:
    """Raise DeviceError where numba-cuda or the CUDA compiler is not installed; the simulator needs no compiler."""
    if absent.MISSING:
        absent.refuse()
    if SIMULATED:
        return
    try:
        nvvm.NVVM()
    except (NvvmSupportError, OSError, ImportError) as error:
        raise DeviceError(f"the CUDA compiler NVVM is not installed: {pip_install('cuda')}") from error


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
    if config.DISABLE_JIT and isinstance(error, NotImplementedError):
        return "NUMBA_DISABLE_JIT is set, and this runs in compiled code only: unset it"
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


def on_device(array: Array) -> bool:
    """Whether the array lies on a GPU: Numba's own, or another library's with __cuda_array_interface__."""
    return is_cuda_ndarray(array) or hasattr(array, "__cuda_array_interface__")


def to_device(array: np.ndarray, stream: Stream = 0) -> Array:
    """Copy a NumPy array to the current GPU."""
    if array.size and 0 in array.strides and array.flags.c_contiguous:  # of an axis of one, as np.newaxis makes it:
        array = array.ravel().reshape(array.shape)  # Numba takes it for a repeated one, and cannot reshape the array
    return cuda.to_device(array, stream=stream)


def to_host(array: Array, stream: Stream = 0) -> np.ndarray:
    """Copy from the current GPU, and wait for it."""
    host = array.copy_to_host(stream=stream)
    if stream:
        stream.synchronize()
    return np.asarray(host)


_held: ContextVar[list[Array] | None] = ContextVar("held", default=None)


def empty(shape: Shape, dtype: DType, stream: Stream = 0) -> Array:
    """An uninitialised array on the current GPU."""
    array = cuda.device_array(shape, dtype, stream=stream)
    if (held := _held.get()) is not None:
        held.append(array)
    return array


@contextmanager
def holding() -> Iterator[list[Array]]:
    """A list that holds what `empty` makes in the block, in this thread, also after the block."""
    held: list[Array] = []
    token = _held.set(held)
    try:
        yield held
    finally:
        _held.reset(token)


def as_stream(stream: Stream) -> Stream:
    """Numba's view of a stream: its own, None, an address, or CuPy's, PyTorch's or cuda.core's stream object."""
    if stream is None:
        return 0
    if isinstance(stream, _STREAMS):
        return stream
    for attribute in ("cuda_stream", "ptr"):  # PyTorch, CuPy
        if hasattr(stream, attribute):
            stream = getattr(stream, attribute)
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        stream = (protocol() if callable(protocol) else protocol)[1]
    if isinstance(stream, int) and stream != 0:
        return cuda.external_stream(stream)
    return stream


def stream_handle(stream: Stream) -> int:
    """The driver's handle of a stream that `as_stream` takes."""
    return int(as_stream(stream)) if stream else 0


def as_device_array(array: Array, stream: Stream) -> Array:
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


def address(array: Array) -> int:
    """Where an array begins on the GPU; in the simulator, on the host.

    Raises:
        ValueError: it lies on no GPU.
    """
    if SIMULATED:
        return int(array.ctypes.data)
    found = described(array)
    if found is None:
        raise ValueError(f"an array is a {type(array).__name__}: need one on the GPU")
    return found.begin


def require_memory(size: int, purpose: str) -> None:
    """Raise DeviceError unless the current GPU has so many bytes free."""
    free = cuda.current_context().get_memory_info().free
    if size > free:
        raise DeviceError(f"{purpose} take {size:,} bytes of GPU memory, {free:,.0f} are free: lower --batch")


def capability() -> tuple[int, int]:
    """The current GPU's compute capability."""
    major, minor = cuda.get_current_device().compute_capability
    return int(major), int(minor)


def has_capability(least: tuple[int, int]) -> bool:
    """Whether the current GPU has this compute capability; the simulator has all."""
    return SIMULATED or capability() >= least


def begins_early() -> bool:
    """Whether a kernel on the current GPU may begin before the one before it has ended: see `Call.launch`."""
    return not SIMULATED and has_capability((9, 0))


def require_capability(least: tuple[int, int], what: str, way_out: str) -> None:
    """Raise DeviceError unless the current GPU has this compute capability, which `what` needs."""
    if not has_capability(least):
        major, minor = capability()
        raise DeviceError(
            f"{what} needs compute capability {least[0]}.{least[1]}, this GPU has {major}.{minor}; {way_out}"
        )


def require_precision(precision: str, least: tuple[int, int]) -> None:
    """Raise ValueError unless the current GPU multiplies this precision, which takes this compute capability."""
    if not has_capability(least):
        major, minor = capability()
        raise ValueError(
            f"{precision=}: need compute capability {least[0]}.{least[1]} or later, this GPU has {major}.{minor}"
        )


def has_tensor_cores(*, hopper: bool = False, turing: bool = False) -> bool:
    """Whether the current GPU has tensor cores that kernels here can use: Hopper's own, or any since 8.0.

    Args:
        hopper: whether Hopper's own are needed.
        turing: whether those of 7.5 will do, too, which multiply fp16 alone.

    Returns:
        False in the simulator, so that nothing chooses them: what names them runs there, emulated.
    """
    if SIMULATED:
        return False
    if hopper:
        return capability()[0] == 9  # those after Hopper have others instead of its own
    return capability() >= (OLDEST if turing else AMPERE)


def require_tensor_cores(
    what: str, *, hopper: bool = False, turing: bool = False, emulated: bool = True,
    way_out: str = "use a technique without them",
) -> None:  # fmt: skip
    """Raise DeviceError, which says what to do, unless the GPU `has_tensor_cores`, or if `emulated` the simulator."""
    if has_tensor_cores(hopper=hopper, turing=turing) or (SIMULATED and emulated):
        return
    least = "9.0" if hopper else "7.5 or later" if turing else "8.0 or later"
    need = f"{what} needs tensor cores of compute capability {least}"
    if SIMULATED:
        raise DeviceError(f"{need}, which the simulator only emulates; {way_out}")
    major, minor = capability()
    raise DeviceError(f"{need}, this GPU has {major}.{minor}; {way_out}")


def require_hopper(what: str, *, emulated: bool = True) -> None:
    """Raise DeviceError unless the current GPU has Hopper's tensor cores, which `what` needs."""
    require_tensor_cores(what, hopper=True, emulated=emulated)


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


TENSOR_FLOP = {(7, 5): 1024, (8, 0): 2048, (8, 6): 1024, (8, 9): 1024, (9, 0): 4096}
"""FLOP a clock of a multiprocessor's tensor cores on numbers of 16 bits, by compute capability: NVIDIA's white papers
of TU102, GA100, GA102, AD102 and GH100."""


def peaks(*, tensor_cores: bool = False) -> tuple[float, float]:
    """float32 FLOP/s of the current GPU's cores at their highest clock, and bytes/s of its memory, by its own data.

    Args:
        tensor_cores: those of its tensor cores on numbers of 16 bits instead.

    Raises:
        DeviceError: how many these are is not known.
    """
    gpu = cuda.get_current_device()
    capability = tuple(gpu.compute_capability)
    a_clock = 2 * (64 if capability <= (8, 0) else 128)  # of a multiprocessor: CUDA's programming guide
    if tensor_cores:
        if capability not in TENSOR_FLOP:
            raise DeviceError(
                f"compute capability {capability[0]}.{capability[1]}: its tensor cores' FLOP are not known"
            )
        a_clock = TENSOR_FLOP[capability]
    flops = a_clock * gpu.MULTIPROCESSOR_COUNT * gpu.CLOCK_RATE * 1e3
    return flops, 2 * gpu.MEMORY_CLOCK_RATE * 1e3 * gpu.GLOBAL_MEMORY_BUS_WIDTH / 8
