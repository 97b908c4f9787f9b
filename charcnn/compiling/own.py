"""Kernels of a user's own file, compiled for any GPU, without one: which it has, and for which types."""

from __future__ import annotations

import re
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from charcnn import aliases
from charcnn.compiling.layers import Kernel, compiled_kernel
from charcnn.compiling.stand_in import Target, compiling_for, replaced
from charcnn.gpu.backend import compiler

_SAID = re.compile(r"\x1b\[[0-9;]*m")
"""Colours of Numba's messages."""


def kernels(path: str, target: Target) -> dict[str, aliases.Kernel]:
    """The kernels that a file's module has, by name; the file is run, as if it was imported.

    Raises:
        OSError: it cannot be read.
        ValueError: it fails.
    """
    file = Path(path)
    file.read_bytes()
    with compiling_for(target), _importing(file), ExitStack() as stack:
        replaced(stack, compiler.Dispatcher, configure=_launches)
        try:
            found = runpy.run_path(str(file), run_name=file.stem)
        except (Exception, SystemExit) as error:
            raise ValueError(f"{path}: {_one_line(error)}{_line_of(error, file)}") from error
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, compiler.Dispatcher) and not value.targetoptions.get("device")
    }


def compiled(path: str, name: str, types: str | None, target: Target) -> list[Kernel]:
    """A file's kernel, compiled for the types that are given, or for each of its own signatures.

    Args:
        path: of a Python file.
        name: of the kernel in its module.
        types: of its arguments, as Numba spells them: "float32[::1], int32". None: it is a `cuda.jit("...")`.
        target: the GPU. None need be there.

    Raises:
        OSError: the file cannot be read.
        ValueError: there is no such kernel, or it does not compile for these types.
    """
    found = kernels(path, target)
    if name not in found:
        need = f"need one of {', '.join(found)}" if found else "it has none"
        raise ValueError(f"{name}: {path} has no such kernel: {need}")
    kernel = found[name]
    parameters = kernel.py_func.__code__.co_varnames[: kernel.py_func.__code__.co_argcount]
    called = f"{name}({', '.join(parameters)})"
    kinds = [_parsed(types)] if types is not None else list(kernel.overloads)
    if not kinds:
        raise ValueError(f'{called} has no types: need --types, such as --types "float32[::1], int32"')
    for one in kinds:
        if len(one) != len(parameters):
            raise ValueError(f"--types {types!r}: {called} takes {len(parameters)} arguments: got {len(one)}")
    return [_compiled(name, kernel, one, target) for one in kinds]


def _launches(kernel: aliases.Kernel, *configuration: aliases.Value) -> None:
    raise ValueError(
        f'launches {kernel.py_func.__name__} while it is imported: put that behind if __name__ == "__main__"'
    )


def _parsed(types: str) -> tuple[aliases.NumbaType, ...]:
    try:
        arguments, _ = compiler.normalize_signature(f"void({types})")
    except Exception as error:
        raise ValueError(f'--types {types!r}: {_one_line(error)}: need such as "float32[::1], int32"') from error
    return tuple(arguments)


def _compiled(name: str, kernel: aliases.Kernel, kinds: tuple[aliases.NumbaType, ...], target: Target) -> Kernel:
    kernel._cache, kernel._can_compile, kernel._specialized = compiler.NullCache(), True, False
    kernel.overloads.clear()  # so that it is compiled now: only then the linker says its costs
    try:
        return compiled_kernel(kernel, kinds, target)
    except Exception as error:
        raise ValueError(f"{name}({', '.join(map(str, kinds))}), {target}: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    """What went wrong, and in which line of a kernel, without the pipeline's words around it."""
    lines = [line.strip() for line in _SAID.sub("", str(error)).splitlines() if line.strip()]
    said = next((line for line in lines if not line.startswith("Failed in ")), "")
    if said.endswith(":") and said != lines[-1]:  # the signature that Numba looks for
        said += f" {lines[lines.index(said) + 1].lstrip('> ')}"
    if assembler := next((line.partition("error   : ")[2] for line in lines if "error   : " in line), ""):
        said += f": {assembler}"
    place = next((match for line in lines if (match := re.search(r'File "(.+?)", line (\d+)', line))), None)
    where = f" ({Path(place[1]).name}, line {place[2]})" if place and place[0] not in said else ""
    return f"{type(error).__name__}: {said}{where}"


def _line_of(error: BaseException, file: Path) -> str:
    lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == str(file)]
    return f" (line {lines[-1]})" if lines else ""


@contextmanager
def _importing(file: Path) -> Iterator[None]:
    """Modules in the file's folder can be imported, as where Python runs the file."""
    sys.path.insert(0, str(file.resolve().parent))
    try:
        yield
    finally:
        sys.path.remove(str(file.resolve().parent))
