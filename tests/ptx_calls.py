"""Compile a call of every intrinsic of `charcnn.gpu.ptx`, and its examples, for Hopper (sm_90a) without a GPU: JSON.

A row a kernel: what it costs (`offline_build`), and its PTX. "calls" has every intrinsic, a place both as an address
and as an array; it is there to be compiled.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before numba is imported
    os.environ["NUMBA_ENABLE_CUDASIM"] = "0"
    sys.path[:0] = [str(Path(__file__).parent.parent)]

from charcnn.gpu import ptx

CONSTANTS: dict[str, list[tuple[Any, ...]]] = {
    "bulk_load_multicast": [(2,), (16,)],
    "bulk_wait_group_read": [(0,), (1,)],
    "cp_async": [(1,), (2,), (4,)],
    "cp_async_wait_group": [(0,), (3,)],
    "cvt_f16x2": [("f16",), ("f16", True), ("bf16",), ("bf16", True)],
    "cvt_f32x2": [("f16",), ("bf16",)],
    "max_nan_f16x2": [("f16",), ("bf16",)],
    "mma_sync": [("f16",), ("bf16",), ("tf32",), ("e4m3",)],
    "mma_tile": [("f16", 1, 2), ("f16", 2, 2, 2, True), ("bf16", 1, 2), ("tf32", 1, 2), ("e4m3", 1, 2)],
    "ld_shared_each": [(8,)],
    "mma_windows": [
        ("f16", 2, 2, ((0, 0), (1, 8), (0, 16)), 256, 1024),
        ("f16", 1, 1, ((0, 0),), 64, 512, True),
        ("bf16", 1, 2, ((0, 0), (1, 4)), 64),
        ("tf32", 2, 1, ((0, 0), (1, 4), (1, 8)), 64),
    ],
    "named_barrier_arrive": [(1, 64)],
    "named_barrier_sync": [(1, 64)],
    "pack_floats": [("float",), ("tf32",), ("split",), ("halves",)],
    "setmaxnreg": [(40, False), (232, True)],
    "shfl_exchange": [(1, 1), (2, 16)],
    "tma_load_2d_multicast": [(2,)],
    "wgmma": [
        ("f16", 8),
        ("bf16", 64, False),
        ("tf32", 8),
        ("e4m3", 8),
        ("f16", 8, True, 2, 64),
        ("bf16", 128, True, 4, 128, (True, True)),
        ("bf16", 64, True, 4, 128, (False, True)),
    ],
    "wgmma_registers": [("f16", 8, 2), ("bf16", 64, 6, 64)],
    "wgmma_sparse": [("f16", 8), ("bf16", 64, False), ("e4m3", 8)],
    "wgmma_wait_group": [(0,), (1,)],
}
"""By the name of what makes an intrinsic, the constants it is made with."""

TYPED = {
    "cvta_to_shared": "out[0] += {made}(smem)",
    "ld_shared_each": "{made}(weights, word)",
    "mma_tile": "{made}(acc, places, word)",
    "mma_windows": "{made}(acc, weights, places)",
    "shfl_exchange": "out[0] += {made}(words{words}, words{words}, word)[0]",
    "wgmma": "{made}(acc, word, word)",
    "wgmma_registers": "{made}(acc, weights, word)",
    "wgmma_sparse": "{made}(acc, word, word, weights)",
}
"""Calls of those whose operands are arrays of registers, or runs of words."""

SCALARS = {"r": "word", "l": "address", "f": "value", "g": "address", "s": "word"}
ARRAYS = {"g": "x, address", "s": "smem, word, word", "a": "smem, word, word"}


def names() -> list[str]:
    """What `charcnn.gpu.ptx` has for kernels, whose docstrings say their PTX: no numbers, no functions of the host."""
    return sorted(name for name, made in vars(ptx).items() if callable(made) and "PTX:" in (made.__doc__ or ""))


def intrinsics() -> list[tuple[str, tuple[Any, ...], Any]]:
    """Name, constants, and the intrinsic."""
    found = []
    for name in names():
        for constants in CONSTANTS.get(name, [()]):
            made = getattr(ptx, name)
            found.append((name, constants, made(*constants) if name in CONSTANTS else made))
    return found


def calls(number: int, constants: tuple[Any, ...], made: Any, special: str | None) -> list[str]:
    """Lines of a kernel that call intrinsic `number`: one for each way to give a place."""
    if special:
        return [special.format(made=f"made{number}", words=constants[0] if constants else 0)]
    ways = [SCALARS] if "a" not in made.ins else []
    if set(made.ins) & set(ARRAYS):
        ways.append({**SCALARS, **ARRAYS})
    if made.ins[:1] == "a" and len(made.ins) > 1:
        ways[:] = [{**SCALARS, "a": "smem, word"}]  # stores have no offset
    to = {"": "", "f": "sums[0] += ", "r": "out[0] += ", "l": "out[0] += "}[made.outs[:1]]
    first = "[0]" if len(made.outs) > 1 else ""
    return [f"{to}made{number}({', '.join(way[letter] for letter in made.ins)}){first}" for way in ways]


def kernel() -> Any:
    """A kernel that calls all."""
    from numba import cuda, float32, types, uint32

    found = intrinsics()
    lines = [line for i, (name, given, made) in enumerate(found) for line in calls(i, given, made, TYPED.get(name))]
    source = "\n    ".join([
        "def kernel(x, out, sums, address, word, value):",
        "smem = cuda.shared.array(64, types.float32, alignment=16)",
        "acc, places = cuda.local.array(64, float32), cuda.local.array(2, uint32)",
        "weights = cuda.local.array(24, uint32)",
        "for i in range(24):",
        "    weights[i] = out[i]",
        "for i in range(64):",
        "    acc[i] = sums[i]",
        "for i in range(2):",
        "    places[i] = out[i]",
        "words1, words2 = (out[1],), (out[1], out[2])",
        *lines,
        "for i in range(64):",
        "    sums[i] = acc[i]",
    ])  # fmt: skip
    linecache.cache["<calls>"] = len(source), None, source.splitlines(True), "<calls>"
    space = {"cuda": cuda, "types": types, "float32": float32, "uint32": uint32}
    space |= {f"made{i}": row[2] for i, row in enumerate(found)}
    exec(compile(source, "<calls>", "exec"), space)
    return cuda.jit(space["kernel"])


def build() -> dict[str, dict[str, Any]]:
    """Compile all."""
    from kernel_costs import all_compiled
    from numba.cuda import types

    from charcnn.compiling.stand_in import Target
    from charcnn.gpu.ptx import examples

    words, floats, address = types.uint32[::1], types.float32[::1], types.uint64
    halves, sums = types.Array(types.uint16, 2, "C"), types.Array(types.float32, 2, "C")
    given = {
        "calls": (kernel(), (floats, words, floats, address, types.uint32, types.float32)),
        "highest_bits": (examples.highest_bits, (words, words)),
        "reverse": (examples.reverse, (address, words)),
        "copy_box": (examples.copy_box, (address, halves, types.int64, types.int64)),
        "product": (examples.make_product(), (address, address, sums)),
    }
    made = all_compiled(list(given.values()), Target.named("sm_90a"))
    return {name: {**one.costs, "ptx": one.ptx} for name, one in zip(given, made, strict=True)}


if __name__ == "__main__":
    print(json.dumps(build()))
