"""Show the kernels of a layer: a table, their PTX, or their machine code (SASS).

The kernels are those that the first level or network with this layer launches, at its own sizes. They are compiled for
any GPU, even one that is not there. PTX is what Numba's compiler writes; SASS is what the GPU runs, as NVIDIA's
nvdisasm or cuobjdump prints it.
"""

from __future__ import annotations

import argparse

from charcnn.cli import DONE

EPILOG = """examples:
  charcnn show                      lists the layers
  charcnn show WgmmaConv sm_90a     lists its kernels
  charcnn show MmaConv sm_80 --precision bf16 --ptx
  charcnn show WgmmaConv sm_90a --sass --kernel 2 > conv.sass

exit status: 0 done; 2 unusable options or machine"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which layer, for which GPU, and what of it."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("layer", nargs="?", metavar="LAYER", help="such as WgmmaConv (default: list all layers)")
    add("capability", nargs="?", metavar="CAPABILITY", help="sm_75 to sm_121 (default: this machine's GPU's)")
    add("--precision", metavar="P", help="arithmetic (default: the layer's first)")
    add("--batch", type=int, metavar="B", help="inputs per batch (default: the level's or network's own)")
    add("--kernel", type=int, metavar="N", help="only the kernel with this number, from 1")
    code = parser.add_mutually_exclusive_group().add_argument
    code("--ptx", action="store_true", help="print their PTX")
    code("--sass", action="store_true", help="print their machine code")


def run(options: argparse.Namespace) -> int:
    """Show; the exit status."""
    from charcnn import catalog
    from charcnn.host.terminal import table

    if options.layer is None:
        rows = [[row.name, ", ".join(row.precisions), row.home] for row in catalog.LAYERS if row.device == "cuda"]
        print("\n".join(table(["layer", "precisions", "module under charcnn.ops"], rows, 3)))
        return DONE
    from charcnn.cli.compile import target_of
    from charcnn.compiling import cubin, layers
    from charcnn.gpu import device

    layer = layers.named(options.layer)
    precision = options.precision or layer.precisions[0]
    if precision not in layer.precisions:
        raise ValueError(f"--precision {precision}: {layer.name} has {', '.join(layer.precisions)}")
    if options.batch is not None and options.batch < 1:
        raise ValueError(f"--batch {options.batch}: need at least 1")
    if device.SIMULATED:
        raise device.DeviceError("the simulator compiles nothing: unset NUMBA_ENABLE_CUDASIM")
    device.require_compiler()
    target = target_of(options.capability)
    where, found = layers.launched(layer, precision, target, options.batch)
    if options.kernel is not None and not 1 <= options.kernel <= len(found):
        raise ValueError(f"--kernel {options.kernel}: {layer.name} has kernels 1 to {len(found)} in {where}")
    kernels = layers.compiled(found, target, options.kernel)
    if not (options.ptx or options.sass):
        rows = [
            [str(number), one.title, str(one.registers), f"{one.code_bytes:,}", str(one.ptx.count("\n"))]
            for number, one in kernels
        ]
        print("\n".join(table(["", "kernel", "registers", "bytes of code", "lines of PTX"], rows, 2)))
        print(f"{layer.name} in {precision}, as {where} launches it, for {target}")
        return DONE
    for number, one in kernels:
        text = one.ptx if options.ptx else cubin.sass(one.cubin)
        print(f"// {number}. {one.title}({one.arguments}), {target}, {one.registers} registers\n{text}", flush=True)
    return DONE
