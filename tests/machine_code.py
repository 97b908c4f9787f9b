"""The machine code of every kernel that a level launches, compiled for Hopper (sm_90a) without a GPU: JSON.

    python tests/machine_code.py [LEVEL ...] > machine_code.json

A row a kernel: for which levels and precisions it is, its registers, its bytes, and a digest of its instructions, which
a change that only moves or renames leaves as it was. Compiled kernels come from Numba's cache, where they are there.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before numba is imported
    os.environ["NUMBA_ENABLE_CUDASIM"] = "0"
    sys.path[:0] = [str(Path(__file__).parent.parent)]

from charcnn.compiling.cubin import instructions, registers

TARGET = "sm_90a"


def described(cubin: bytes) -> dict[str, Any]:
    """The registers of a kernel, its bytes, and the digest of its instructions."""
    code = instructions(cubin)
    return {"registers": registers(cubin), "bytes": len(code), "digest": hashlib.sha256(code).hexdigest()[:16]}


def kernels(levels: Sequence[str]) -> list[dict[str, Any]]:
    """Of every kernel that these levels launch, at the network's own sizes, with and without LayerNorm."""
    from charcnn.compiling.networks import BuiltLevel, record, runnable
    from charcnn.compiling.stand_in import Target, compiling_for
    from charcnn.config import SMALL
    from charcnn.gpu.launch import title

    target, found = Target.named(TARGET), {}
    for level, precision in runnable(target):
        if levels and level not in levels:
            continue
        for config in (SMALL, replace(SMALL, layernorm=False)):
            launched: dict[Any, None] = {}
            record(BuiltLevel(level, precision, config), target, lambda *launch, to=launched: to.setdefault(launch))
            with compiling_for(target):
                for kernel, kinds in launched:
                    definition = kernel.compile(kinds)
                    cubin = bytes(definition._codelibrary.get_cubin(target.compiler).code)
                    row = {"kernel": title(kernel), **described(cubin)}
                    users = found.setdefault(tuple(row.values()), (row, []))[1]
                    if (user := f"{level} {precision}") not in users:
                        users.append(user)
    return [{**row, "levels": users} for row, users in sorted(found.values(), key=lambda each: str(each[0].values()))]


if __name__ == "__main__":
    print(json.dumps(kernels(sys.argv[1:]), indent=1))
