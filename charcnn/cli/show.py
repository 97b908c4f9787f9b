"""Show the kernels of a layer, or one of your own: a table, their PTX, or their machine code (SASS).

A layer's kernels are those that the first level or network with it launches, at its own sizes. With --file the kernel
is one of that Python file, which is run for it. They are compiled for any GPU, even one that is not there. PTX is what
Numba's compiler writes; SASS is what the GPU runs, as NVIDIA's nvdisasm or cuobjdump prints it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from charcnn.cli import DONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from charcnn.compiling.layers import Kernel
    from charcnn.compiling.stand_in import Target

EPILOG = """examples:
  charcnn show                      lists the layers
  charcnn show WgmmaConv sm_90a     lists its kernels
  charcnn show MmaConv sm_80 --precision bf16 --ptx
  charcnn show WgmmaConv sm_90a --sass --kernel 2 > conv.sass
  charcnn show --file mine.py scale sm_90a --types "float32[::1], int32"

exit status: 0 done; 2 unusable options or machine"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which layer, for which GPU, and what of it."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("layer", nargs="?", metavar="LAYER", help="such as WgmmaConv; or a kernel of --file (default: list all)")
    add("capability", nargs="?", metavar="CAPABILITY", help="sm_75 to sm_121 (default: this machine's GPU's)")
    add("--file", metavar="F", help="a Python file with kernels of your own")
    add("--types", metavar="T", help="of such a kernel's arguments (default: as its @cuda.jit says)")
    add("--precision", metavar="P", help="arithmetic (default: the layer's first)")
    add("--batch", type=int, metavar="B", help="inputs per batch (default: the level's or network's own)")
    add("--kernel", type=int, metavar="N", help="only the kernel with this number, from 1")
    code = parser.add_mutually_exclusive_group().add_argument
    code("--ptx", action="store_true", help="print their PTX")
    code("--sass", action="store_true", help="print their machine code")


def run(options: argparse.Namespace) -> int:
    """Show; the exit status."""
    if options.file is not None:
        return _own(options)
    from charcnn import catalog
    from charcnn.host.terminal import table

    if options.types is not None:
        raise ValueError(f"--types {options.types}: layers have types of their own: need --file, too")
    if options.layer is None:
        rows = [[row.name, ", ".join(row.precisions), row.home] for row in catalog.LAYERS if row.device == "cuda"]
        print("\n".join(table(["layer", "precisions", "module under charcnn.ops"], rows, 3)))
        return DONE
    from charcnn.compiling import layers

    layer = layers.named(options.layer)
    precision = options.precision or layer.precisions[0]
    if precision not in layer.precisions:
        raise ValueError(f"--precision {precision}: {layer.name} has {', '.join(layer.precisions)}")
    if options.batch is not None and options.batch < 1:
        raise ValueError(f"--batch {options.batch}: need at least 1")
    target = _target(options)
    where, found = layers.launched(layer, precision, target, options.batch)
    _check_number(options, layer.name, len(found), f" in {where}")
    kernels = layers.compiled(found, target, options.kernel)
    if options.ptx or options.sass:
        return _print_code(options, kernels, target)
    rows = [[str(number), one.title, *_sizes(one)] for number, one in kernels]
    print("\n".join(table(["", "kernel", *SIZES], rows, 2)))
    print(f"{layer.name} in {precision}, as {where} launches it, for {target}")
    return DONE


SIZES = ("registers", "bytes of code", "lines of PTX")


def _sizes(kernel: Kernel) -> list[str]:
    return [str(kernel.registers), f"{kernel.code_bytes:,}", str(kernel.ptx.count("\n"))]


def _target(options: argparse.Namespace) -> Target:
    from charcnn.cli.compile import target_of
    from charcnn.gpu import device

    if device.SIMULATED:
        raise device.DeviceError("the simulator compiles nothing: unset NUMBA_ENABLE_CUDASIM")
    device.require_compiler()
    return target_of(options.capability)


def _check_number(options: argparse.Namespace, name: str, count: int, where: str = "") -> None:
    if options.kernel is not None and not 1 <= options.kernel <= count:
        raise ValueError(f"--kernel {options.kernel}: {name} has kernels 1 to {count}{where}")


def _print_code(options: argparse.Namespace, kernels: Iterable[tuple[int, Kernel]], target: Target) -> int:
    from charcnn.compiling import cubin

    for number, one in kernels:
        text = one.ptx if options.ptx else cubin.sass(one.cubin)
        print(f"// {number}. {one.title}({one.arguments}), {target}, {one.registers} registers\n{text}", flush=True)
    return DONE


def _own(options: argparse.Namespace) -> int:
    """Show a kernel of a user's own file, or list them."""
    from charcnn.compiling import cubin, own
    from charcnn.host.terminal import printable, table

    for name in ("precision", "batch"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} {getattr(options, name)}: is of layers, not of --file")
    if options.layer is None:
        options.capability = "sm_90a"  # nothing of it is shown, and there need be no GPU
        names = own.kernels(options.file, _target(options))
        print("\n".join(map(printable, names)) or f"{printable(options.file)} has no kernels")
        return DONE
    target = _target(options)
    found = own.compiled(options.file, options.layer, options.types, target)
    _check_number(options, options.layer, len(found))
    kernels = [one for one in enumerate(found, 1) if options.kernel in (None, one[0])]
    if options.ptx or options.sass:
        return _print_code(options, kernels, target)
    rows = []
    for number, one in kernels:
        costs = cubin.resources(one.log)
        spilled = costs["spill_stores"] + costs["spill_loads"]
        held = (f"{size:,}" for size in (spilled, costs["local_bytes"], costs["shared_bytes"]))
        rows.append([str(number), f"{one.title}({one.arguments})", *_sizes(one), *held])
        for warning in costs["warnings"]:
            print(warning)
    print("\n".join(table(["", "kernel", *SIZES, "bytes spilled", "local", "shared"], rows, 2)))
    print(f"of {printable(options.file)}, for {target}; shared memory that the launch asks for is not counted")
    return DONE
