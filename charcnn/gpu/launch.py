"""What every launch of a kernel shares: `jit`, and `Call`, by which a launcher takes its arrays and starts kernels."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numba import cuda

from charcnn.aliases import Array, DType, Function, Kernel, KernelArgument, NumbaType, Stream
from charcnn.gpu import absent, backend, device, integers, pool
from charcnn.gpu.arrays import DTYPES, apart, check, check_out, several, writable
from charcnn.gpu.backend.compiler import driver
from charcnn.gpu.described import described
from charcnn.gpu.device import SIMULATED, DeviceError
from charcnn.gpu.driver import context
from charcnn.gpu.launch_block import LaunchBlock
from charcnn.gpu.ptx.intrinsics import made_with
from charcnn.layers.layer import Shape

if SIMULATED:
    from charcnn.gpu import emulator
elif backend.IS_MLIR:
    from charcnn.gpu.backend.mlir import NoCache as KernelCache
else:
    from charcnn.gpu.backend.kernel_cache import KernelCache

launching = threading.RLock()
"""Numba loads a kernel at its first launch, and two threads that do so at once fail; nor can the simulator run two."""

profiler: Callable[..., AbstractContextManager[None]] | None = None
"""While it is set, each launch is put into what it gives, and no CUDA graph is recorded: `charcnn.gpu.profile`."""

_UNTIMED: AbstractContextManager[None] = nullcontext()


class _Counter(threading.local):
    """Launches of each thread."""

    launches = 0


_counter = _Counter()


def count(launches: int) -> None:
    """Count launches of this thread that no `Call` started itself."""
    _counter.launches += launches


def jit(**options: Any) -> Callable[[Function], Any]:
    """`numba.cuda.jit`, compiled code kept on disk.

    Numba keeps a kernel under its name and what it closes over. Its options, which decide the code as well, go into the
    name of a kernel that a function makes.
    """

    def compiled(function: Function) -> Any:
        if absent.MISSING:
            return cuda.jit(**options)(function)
        if "<locals>" in function.__qualname__:
            words = re.findall(r"\w+", repr(sorted(options.items())))
            function.__qualname__ = "_".join([function.__qualname__, *words])
        kernel = cuda.jit(**options)(function)
        kernel.made_with = made_with(sys._getframe(1))  # of a kernel that a function makes, that one; else the module
        if not SIMULATED and not options.get("device"):  # which may be a user's, typed in: there is no file to look at
            kernel._cache = KernelCache(function, integers.install)
            integers.narrow(kernel)
        return kernel

    return compiled


Grid: TypeAlias = int | tuple[int, ...]

_compiled: dict[tuple[object, ...], tuple[tuple[NumbaType, ...], Kernel]] = {}
"""What `_compile` found for kernels whose arguments are NumPy scalars, by kernel, GPU and the scalars' types: Numba
looks at each argument anew at every launch."""


def _compile(kernel: Kernel, args: tuple[KernelArgument, ...]) -> tuple[tuple[NumbaType, ...], Kernel]:
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


def compiled_for(kernel: Kernel, args: tuple[KernelArgument, ...]) -> Kernel:
    """Numba's kernel, compiled for these arguments and the current GPU."""
    return _compile(kernel, args)[1]


def title(kernel: Kernel) -> str:
    """A kernel's module and function, or the function that made it: conv1d.wgmma.kernel.make_kernel."""
    function = getattr(kernel, "py_func", None) or kernel.fn  # the simulator's
    module = function.__module__.removeprefix("charcnn.").removeprefix("ops.")
    return f"{module}.{function.__qualname__.split('.')[0]}"


_shared_allowed: dict[tuple[int, Kernel], int] = {}
_carved: set[tuple[int, Kernel]] = set()

STATIC = 48 * 1024
"""Bytes of shared memory that a block may have without asking."""

_WHOLE = 100
"""Percent of what may be shared memory."""


PORTABLE = 8
"""Blocks of a cluster that every GPU with clusters can run."""


def _allow(compiled: Kernel, shared: int, early: bool, cluster: int) -> None:
    """Dynamic shared memory past 48 KB, clusters of more than PORTABLE blocks: attributes of the compiled kernel, once
    a GPU. Numba has no option for them.

    Of a kernel that begins `early`, all that may be shared memory is: a multiprocessor cannot divide it in another way
    while a kernel still runs there.
    """
    from cuda.bindings.driver import CUfunction_attribute

    key = cuda.get_current_device().id, compiled
    if shared > STATIC and _shared_allowed.get(key, 0) < shared:
        if shared > (limit := device.shared_limit()):
            raise DeviceError(f"a block needs {shared:,} bytes of shared memory: this GPU has {limit:,}")
        function = compiled._codelibrary.get_cufunc()
        attribute = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.driver.cuKernelSetAttribute(attribute, shared, function.handle, function.device.id)
        _shared_allowed[key] = shared
    if early and key not in _carved:
        function = compiled._codelibrary.get_cufunc()
        carveout = CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        driver.driver.cuKernelSetAttribute(carveout, _WHOLE, function.handle, function.device.id)
        _carved.add(key)
    if cluster > PORTABLE:
        function = compiled._codelibrary.get_cufunc()
        attribute = CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        driver.driver.cuKernelSetAttribute(attribute, 1, function.handle, function.device.id)


_blocks: dict[tuple[object, ...], LaunchBlock] = {}
"""By kernel, GPU, grid and kinds of arguments."""

KEPT = 4096
"""Launches that are remembered at once."""


def prepared(
    kernel: Kernel, blocks: Grid, threads: Grid, args: tuple[KernelArgument, ...], shared: int, early: bool,
    cluster: int, cooperative: bool = False,
) -> tuple[LaunchBlock, list[KernelArgument]]:  # fmt: skip
    """What starts the kernel on the current GPU, and what it is started with: addresses and numbers.

    Raises:
        TypeError: an argument is no number, array on the GPU, or tuple of such.
        DeviceError: a block needs more shared memory than there is.
    """
    values: list[KernelArgument] = []
    kinds: list[object] = []
    _look_at(args, kinds, values)
    key = id(kernel), current_context(), blocks, threads, shared, early, cluster, cooperative, *kinds
    found = _blocks.get(key)
    if found is None:
        types, compiled = _compile(kernel, args)
        early = early and device.begins_early()
        if shared > STATIC or early or cluster > PORTABLE:
            _allow(compiled, shared, early, cluster)
        function = int(compiled._codelibrary.get_cufunc().handle)
        found = LaunchBlock(
            kernel, function, types, args, blocks, threads, shared, early, cluster, cooperative=cooperative
        )
        if len(_blocks) >= KEPT:
            _blocks.clear()
        _blocks[key] = found  # which keeps the kernel, so that no other one gets its id
    return found, values


def most_clusters(kernel: Kernel, threads: int, args: tuple[KernelArgument, ...], shared: int, cluster: int) -> int:
    """How many clusters of a kernel the current GPU runs at once, where nothing else runs.

    Raises:
        TypeError, DeviceError: as of `prepared`; the driver refuses.
    """
    if SIMULATED:
        return device.multiprocessors() // cluster
    return prepared(kernel, 1, threads, args, shared, False, cluster)[0].most_clusters()


def current_context() -> int:
    """The driver's current context; Numba's is made current where this thread has none."""
    return context() or (cuda.current_context() and context())


def _look_at(args: Sequence[KernelArgument], kinds: list[object], values: list[KernelArgument]) -> None:
    for arg in args:
        of = type(arg)
        if of in _NUMBERS or isinstance(arg, np.generic):
            kinds.append(of)
            values.append(arg)
        elif isinstance(arg, tuple):
            kinds.append(len(arg))
            _look_at(arg, kinds, values)
        else:
            found = described(arg)
            if found is None:
                raise TypeError(f"a kernel's argument is a {of.__name__}: need a number or an array on the GPU")
            kinds.append(found.kind)
            values.append(found.begin)


_NUMBERS = (int, float, bool)


def start(
    kernel: Kernel, blocks: Grid, threads: Grid, stream: Stream, *args: KernelArgument, shared: int = 0,
    cluster: int = 1, early: bool = False,
) -> None:  # fmt: skip
    """Start a kernel by itself, as `Call.launch` does; nothing is waited for."""
    with launching:
        if not SIMULATED:
            _counter.launches += 1
            block, values = prepared(kernel, blocks, threads, args, shared, early, cluster)
            block.start(int(stream), values)
        elif cluster > 1:
            emulator.start_grid(kernel, blocks, threads, args, shared, cluster, stream, False)
        else:
            kernel[blocks, threads, stream, shared](*args)


def pair(out: Array) -> tuple[Array, Array]:
    """A launcher's `out` for two results, (y, stat); two None where None.

    Raises:
        ValueError: it is not a pair.
    """
    y, stat = several(out, ("y", "stat"))
    writable("stat", stat)
    return y, stat


class Call:
    """One call of a CUDA launcher: inputs checked and brought to the GPU, `out` made, the result taken back.

    NumPy in, NumPy out; device in, device out, and then nothing waits for the GPU. DTYPES and, before it, `dtypes`
    say what the inputs must hold. Inputs and `out` lie all on the host or all on the device. `out`, and inputs that are
    `written`, share no memory with an input, but that `out` may be the one that `in_place` names. Where `out` is a
    function, it gives the array, of a shape and dtype. An input that is None counts as not given. Errors call `out`
    what `named` says.
    """

    def __init__(
        self,
        out: Array,
        stream: Stream,
        shape: Shape,
        dtype: DType = np.float32,
        dtypes: Mapping[str, Any] = MappingProxyType({}),
        in_place: str = "",
        named: str = "out",
        written: Sequence[str] = ("stat",),
        **inputs: Array,
    ) -> None:
        device.gpu_count()
        self.stream, self._before = device.as_stream(stream), _counter.launches
        self.started: list[tuple[LaunchBlock, list[KernelArgument]]] = []
        self._once = False
        self.own: list[Array] = []
        self._out = out = out(shape, dtype) if callable(out) else out
        inputs = {name: array for name, array in inputs.items() if array is not None}
        first, *_ = inputs
        self._device = device.on_device(inputs[first])
        for name, array in (*inputs.items(), (named, out)):
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
            check_out(out, shape, dtype, inputs, in_place, named)
        for name in inputs.keys() & set(written):  # other results than the first
            apart(name, inputs[name], {other: array for other, array in inputs.items() if other != name})
        if self._device:
            self.inputs = tuple(inputs.values())
        else:
            self.inputs = tuple(device.to_device(array, self.stream) for array in inputs.values())
        self.out = out if self._device and out is not None else pool.pooled(shape, dtype, self.stream)

    def launch(
        self,
        kernel: Kernel,
        blocks: Grid,
        threads: Grid,
        *args: KernelArgument,
        shared: int = 0,
        early: bool = False,
        cluster: int = 1,
        cooperative: bool = False,
    ) -> None:
        """Start the kernel, with so many bytes of dynamic shared memory, on this call's stream.

        An empty grid starts nothing. With a `cluster` of several blocks, `blocks` counts clusters. With `early`, the
        kernel may begin before the one before it on the stream has ended, once all blocks of that one have called
        `ptx.griddepcontrol_launch`; it calls `ptx.griddepcontrol_wait` before it touches what those that may still run
        read or write. Clusters need compute capability 9.0 or later; before it, no kernel begins early. Of a
        `cooperative` launch all blocks run at once, so that they may wait for each other.
        """
        if np.prod(blocks) > 0:
            with launching:
                _counter.launches += 1
                if not SIMULATED:
                    block, values = prepared(kernel, blocks, threads, args, shared, early, cluster, cooperative)
                    self.started.append((block, values))
                timed = profiler and profiler(kernel, args, blocks, threads, shared, cluster, self)
                with timed or _UNTIMED:
                    if not SIMULATED:
                        block.start(int(self.stream), values)
                    elif early or cluster > 1:
                        emulator.start_grid(
                            kernel, blocks, threads, args, shared, cluster, self.stream, early, cooperative
                        )
                    else:
                        kernel[blocks, threads, self.stream, shared](*args)

    def once(self) -> None:
        """Say that a call with other arrays of the same kinds may do something else, or more than to start kernels."""
        self._once = True

    @property
    def made(self) -> bool:
        """Whether the result is an array of this call's own making."""
        return self._out is None

    @property
    def repeats(self) -> bool:
        """Whether what it has started is all that it does: nothing through other calls."""
        others = _counter.launches - self._before != len(self.started)
        nothing = bool(self.out.size) and not self.started
        return self._device and not (self._once or others or nothing)

    def launch_each(self, kernel: Kernel, *args: KernelArgument, threads: int = 128) -> None:
        """Start one thread for each element of the output."""
        self.launch_over(self.out, kernel, *args, threads=threads)

    def launch_over(self, result: Array, kernel: Kernel, *args: KernelArgument, threads: int = 128) -> None:
        """Start one thread for each element of an array."""
        self.launch(kernel, -(-result.size // threads), threads, *args)

    def scratch(self, shape: Shape, dtype: DType) -> Array:
        """An uninitialised device array for this call's own use."""
        self.own.append(pool.pooled(shape, dtype, self.stream))
        return self.own[-1]

    def second(self, array: Array, out: Array = None) -> Array:
        """A second output, from the device array that a kernel wrote: `out`, or new, where the inputs lie.

        Comes before `result`, which waits for both.
        """
        if self._device:
            return array if out is None else out
        return array.copy_to_host(out, stream=self.stream)

    def result(self) -> Array:
        """What the launcher returns: `out` where it was given, else a new array where the inputs lie."""
        if self._device:
            return self.out if self._out is None else self._out
        result = self.out.copy_to_host(self._out, stream=self.stream)
        if self.stream:
            self.stream.synchronize()
        return result
