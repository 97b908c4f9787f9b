"""The kernels that a layer of the catalogue launches, compiled for any GPU, without one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from charcnn import aliases, catalog
from charcnn.compiling import cubin
from charcnn.compiling.networks import BuiltLevel, ImageNetwork, record, runnable, runnable_techniques
from charcnn.compiling.stand_in import Memory, Target, compiling_for, replaced, standing_in
from charcnn.config import SMALL
from charcnn.gpu import backend, device
from charcnn.gpu.backend import compiler
from charcnn.gpu.profile import titles
from charcnn.ops.conv1d.ladder import StepConv1d

Found = dict[tuple[Any, tuple[Any, ...]], None]
"""Kernels, with Numba's types of their arguments, in order."""


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel."""

    title: str
    """Its module, the function that made it, and what tells it from others."""
    arguments: str
    """Their types."""
    registers: int
    code_bytes: int
    ptx: str
    cubin: bytes
    log: str
    """The linker's: what `cubin.resources` reads; empty of a kernel that was compiled before."""


def named(name: str) -> catalog.LayerRow:
    """The catalogue's row.

    Raises:
        ValueError: there is none, or it runs on the CPU.
    """
    rows, asked = {row.name: row for row in catalog.LAYERS if row.device == "cuda"}, name
    if (name := catalog.layer_name(asked)) != asked:
        warnings.warn(f"layer {asked} is {name} now", DeprecationWarning, stacklevel=2)
    if name not in rows:
        why = "it runs on the CPU" if name in {row.name for row in catalog.LAYERS} else "there is no such layer"
        raise ValueError(f"{name}: {why}: need one of {', '.join(rows)}")
    return rows[name]


def launched(layer: catalog.LayerRow, precision: str, target: Target, batch: int | None = None) -> tuple[str, Found]:
    """What it launches, and where: in the first level or network that does at its own sizes, or step by step.

    Args:
        layer: on a GPU.
        precision: one of its own.
        target: the GPU. None need be there.
        batch: inputs at once; None for those of the level or network, or all that matter where it takes fewer.

    Raises:
        ValueError: none launches it on such a GPU.
    """
    kind: Any = layer.made
    if issubclass(kind, StepConv1d):
        return "the ladder's steps at conv2", _steps(kind, target)
    levels = [
        BuiltLevel(level, offered, replace(SMALL, layernorm=layernorm), batch)
        for layernorm in (True, False)
        for level, offered in runnable(target)
        if offered == precision
    ]
    levels.sort(key=lambda one: not hasattr(one.row.module, layer.name))  # those that surely have it first
    programs: list[BuiltLevel | ImageNetwork] = [
        *levels,
        *(
            ImageNetwork(row.name, technique, offered, None, batch)
            for row in catalog.NETWORKS
            for technique, offered in runnable_techniques(target)
            if offered == precision
        ),
    ]
    for program in programs:
        for sizes in ([1 << 30], None):  # the program's own batch; then fewer inputs, too
            found: Found = {}
            with _watched(kind) as inside:
                try:
                    record(program, target, lambda *one, to=found: inside() and to.setdefault(one), sizes)
                except (ValueError, device.DeviceError):  # a network without such a technique
                    break
            if found:
                bare = isinstance(program, BuiltLevel) and not program.config.layernorm
                return f"{program} without LayerNorm" if bare else str(program), found
    raise ValueError(f"{layer.name}: no level or network launches it in {precision} on a GPU of {target}")


def compiled(found: Found, target: Target, only: int | None = None) -> Iterator[tuple[int, Kernel]]:
    """Each kernel, as its turn comes, and its number from 1; `only` that one where it is given."""
    names = titles([kernel for kernel, _ in found])
    with compiling_for(target):
        for number, (name, (kernel, kinds)) in enumerate(zip(names, found, strict=True), 1):
            if only not in (None, number):
                continue
            yield number, _compiled(name, kernel, kinds, target)


def compiled_kernel(kernel: Any, arguments: tuple[Any, ...], target: Target) -> Kernel:
    """A kernel of `numba.cuda.jit`, with Numba's types of its arguments, compiled for a GPU that need not be there."""
    with compiling_for(target):
        return _compiled(kernel.py_func.__name__, kernel, arguments, target)


def _compiled(name: str, kernel: Any, kinds: tuple[Any, ...], target: Target) -> Kernel:
    code, ptx, log = linked(kernel, kinds, target)
    types = ", ".join(map(str, kinds))
    return Kernel(name, types, cubin.registers(code), len(cubin.instructions(code)), ptx, code, log)


def linked(kernel: aliases.Kernel, kinds: tuple[aliases.NumbaType, ...], target: Target) -> tuple[bytes, str, str]:
    """A kernel's machine code, its PTX, and what the linker says of it, within `compiling_for` the target."""
    if backend.IS_MLIR:
        return compiler.mlir.linked(kernel, kinds, target.capability, str(target))
    with ExitStack() as stack:
        replaced(stack, compiler.driver, LinkerOptions=partial(compiler.driver.LinkerOptions, verbose=True))
        library = kernel.compile(kinds)._codelibrary
        code = bytes(library.get_cubin(target.compiler).code)
    return code, library.get_asm_str(target.compiler), library._linkerinfo_cache.get(target.compiler) or ""


def _steps(ladder: Any, target: Target) -> Found:
    found: Found = {}
    with standing_in(target, lambda *one: found.setdefault(one)):
        for step in ladder.steps:
            try:
                conv = ladder(step, np.zeros((7, 256, 256), np.float32), np.zeros(256, np.float32))
            except device.DeviceError as error:
                raise ValueError(f"{ladder.__name__}: {error}") from error
            conv(np.zeros((2, 336, 256), np.float16).view(Memory))
    return found


@contextmanager
def _watched(kind: Any) -> Iterator[Callable[[], bool]]:
    """Says whether a layer of this class, and of no subclass, is being called."""
    depth = 0

    def watching(method: Callable[..., Any]) -> Callable[..., Any]:
        def watched(layer: Any, *arguments: Any, **named: Any) -> Any:
            nonlocal depth
            inner = type(layer) is kind
            depth += inner
            try:
                return method(layer, *arguments, **named)
            finally:
                depth -= inner

        return watched

    with ExitStack() as stack:
        for name in ("__call__", "stat"):  # what a block does with its convolution is that one's, too
            if hasattr(kind, name):
                defined, method = name in vars(kind), getattr(kind, name)
                stack.callback(setattr if defined else lambda owner, name, _: delattr(owner, name), kind, name, method)
                setattr(kind, name, watching(method))
        yield lambda: depth > 0
