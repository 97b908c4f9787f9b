"""Kernels compiled by numba-cuda-mlir, without a GPU, beside what numba-cuda makes of them (tests/machine_code.json).

CHARCNN_BACKEND=numba-cuda-mlir python bench/backends.py --capability sm_90a --share 0/8 --jobs 2

It adds what it finds to bench/results/designs/backends.json, by capability, variant and function: the most registers,
and bytes spilled, of local memory and of machine code. Or it says why a kernel does not compile. `--cubins` keeps the
kernels for bench/backends_gpu.py, which launches them on a GPU beside numba-cuda's. A function is added once all of its
kernels are done, so with `--missing` a run that was ended resumes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from functools import cache
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

if __name__ == "__main__":  # before numba is imported
    os.environ["NUMBA_ENABLE_CUDASIM"] = "0"
    sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "tests")]

import offline_build
import operator_cases
import source_digest
from kernel_costs import title
from offline_build import sizes_of
from test_offline import BESIDE, CUDA, FEW_PORTABLE, FOR_ADA, LADDERS, RECORD, TILES

from charcnn import catalog
from charcnn.aliases import Kernel, NumbaType, Record, Value
from charcnn.compiling import cubin
from charcnn.compiling.layers import linked
from charcnn.compiling.stand_in import Target, compiling_for
from charcnn.gpu import backend, device
from charcnn.host.arguments import HelpFormatter
from charcnn.ops.common.precision import TENSOR_PRECISIONS

FILE = Path(__file__).parent / "results" / "designs" / "backends.json"

MANY = 64
"""So many times the inputs of a test's largest case are enough to time a kernel."""


def many(row: catalog.Variant) -> list[Record]:
    """The sizes that a variant is timed on: those of its tests that are the most work, with more inputs."""
    most = sizes_of(row)[-1]
    return [most | {"n": MANY * most["n"]} if "n" in most else most]


def cases(row: catalog.Variant) -> list[Value]:
    """A variant's arguments at these sizes."""
    return [operator_cases.CASES[row.operator].build(sizes) for sizes in many(row)]


def of_target(target: Target) -> list[str]:
    """All that such a GPU may launch: variants, ladders, what levels launch beside them; on Hopper other tiles, too."""
    if target.has_tensor_cores(hopper=True):
        return [*(row.name for row in CUDA), *TILES, *BESIDE, *LADDERS]
    needs = {name: of.capability for name, of in TENSOR_PRECISIONS.items()}
    portable = [row for row in CUDA if row.ampere or not row.tensor_cores]
    fit = [row.name for row in portable if needs.get(row.precision or "", device.AMPERE) <= target.capability]
    return [*fit, FEW_PORTABLE, "mma steps", *([FOR_ADA] if target.capability >= (8, 9) else [])]


def launched(names: list[str], target: Target) -> list[offline_build.Launch]:
    """What these launch. What a GPU other than Hopper has too little memory for is named, and left out."""
    if target.has_tensor_cores(hopper=True):
        return list(offline_build.launched(names, target).values())
    found: list[offline_build.Launch] = []
    for name in names:
        try:
            found += offline_build.launched([name], target).values()
        except ValueError as error:
            print(f"{name} refuses {target}: {error}", file=sys.stderr)
    return found


_launches: list[offline_build.Launch] = []
_target: list[Target] = []


def key(kernel: Kernel, kinds: tuple[NumbaType, ...]) -> str:
    """Names a kernel for arguments of these types, in every process and by either compiler."""
    spelled = re.sub(r", (False|True), aligned=True", "", " ".join(map(str, kinds)))
    return hashlib.sha256(f"{kernel.py_func.__module__} {title(kernel)} {spelled}".encode()).hexdigest()[:16]


def reason(error: BaseException) -> str:
    """Why a kernel does not compile, in a line: what the compiler's own log says, where it wrote one."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    if log := re.search(r"\S+numba_cuda_mlir_error_\w+\.log", text):
        text = Path(log[0]).read_text()
    lines = [line.strip() for line in text.splitlines()]
    found = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
    said = [line for line in lines if re.search("[Cc]annot|[Nn]o |not |[Ii]nvalid|[Uu]n", line)]
    line = (found[-1:] or said or lines or [""])[0]
    return re.sub(r"0x[0-9a-f]+|[\w$.]*\$[\w$.]*", "...", line)[:160] or type(error).__name__


@cache
def recorded() -> Record:
    """What numba-cuda's kernels cost, by variant and function."""
    found: Record = json.loads(RECORD.read_text())
    return found


def code_bytes(launch: offline_build.Launch) -> int:
    """Bytes of machine code by numba-cuda, where they are recorded: long kernels compile for minutes, and come last."""
    variant, function = launch.entry
    return int(recorded().get(variant, {}).get(function, (0, 0))[1])


def compiled(number: int) -> tuple[int, Record, bytes, str]:
    """A launch's kernel: its costs, or why there are none; its machine code, and what its entry is called."""
    launch, target = _launches[number], _target[0]
    try:
        with compiling_for(target):
            code, ptx, log = linked(launch.kernel, launch.kinds, target)
    except Exception as error:
        return number, {"failed": reason(error)}, b"", ""
    costs = cubin.resources(log)
    row = {"registers": costs["registers"], "code": len(cubin.instructions(code))}
    row |= {"spilled": costs["spill_stores"], "local": costs["local_bytes"]}
    entry = re.search(r"\.entry (\S+?)\(", ptx)
    return number, row, code, entry[1] if entry else ""


def all_compiled(jobs: int) -> Iterator[tuple[int, Record, bytes, str]]:
    """Each launch's, as it is done; by forked processes, as kernels cannot be sent."""
    with ProcessPoolExecutor(jobs, get_context("fork"), max_tasks_per_child=None) as pool:
        for done in as_completed([pool.submit(compiled, i) for i in range(len(_launches))]):
            yield done.result()


def main() -> None:
    """Compile, and add to the raw result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help="such as conv1d_naive (default: all)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that compile (default 1)")
    parser.add_argument("--capability", default="sm_90a", metavar="C", help="compute capability (default sm_90a)")
    parser.add_argument("--cubins", type=Path, metavar="FOLDER", help="keep the compiled kernels there")
    parser.add_argument("--out", type=Path, default=FILE, metavar="FILE", help="add to this result (default: ours)")
    parser.add_argument("--many", action="store_true", help="at the sizes of bench/backends_gpu.py; no result is kept")
    missing = "only functions that the result does not have yet"
    parser.add_argument("--missing", action="store_true", help=missing)
    of = "only this part of the functions: each is in one of 0 to N - 1"
    parser.add_argument("--share", type=offline_build.share, default=(0, 1), metavar="K/N", help=of)
    arguments = parser.parse_args()
    if not backend.IS_MLIR:
        raise SystemExit(f"backends: set {backend.VARIABLE}={backend.MLIR}: numba-cuda's costs are recorded")
    target, (part, parts), out = Target.named(arguments.capability), arguments.share, arguments.out
    with mock.patch.object(offline_build, "sizes_of", many) if arguments.many else nullcontext():
        launches = launched(arguments.variants or of_target(target), target)
    found: Record = json.loads(out.read_text()) if out.exists() else {"schema": "backends", "capabilities": {}}
    report = found | {"versions": {name: version(name) for name in (backend.NUMBA_CUDA, backend.MLIR, "numba")}}
    rows = report["capabilities"].setdefault(str(target), {})
    own = {
        (launch.kernel, launch.kinds): launch
        for launch in launches
        if int(source_digest.short("".join(launch.entry)), 16) % parts == part
        and not (arguments.missing and launch.entry[1] in rows.get(launch.variant, {}))
    }
    _launches[:], _target[:] = sorted(own.values(), key=code_bytes), [target]
    left = Counter(launch.entry for launch in _launches)
    made: dict[tuple[str, str], Record] = {}
    for number, row, code, entry in all_compiled(arguments.jobs):
        launch = _launches[number]
        most = made.setdefault(launch.entry, {"kernels": 0, "compiled": 0})
        most["kernels"] += 1
        most["compiled"] += "failed" not in row
        for name, value in row.items():
            most[name] = value if name == "failed" else max(most.get(name, 0), value)
        if arguments.cubins and code:
            arguments.cubins.mkdir(parents=True, exist_ok=True)
            name = key(launch.kernel, launch.kinds)
            (arguments.cubins / f"{name}.cubin").write_bytes(code)
            (arguments.cubins / f"{name}.txt").write_text(entry)
        print(f"{launch.variant} {launch.entry[1]} {row}", file=sys.stderr, flush=True)
        left[launch.entry] -= 1
        if not arguments.many and not left[launch.entry]:
            rows.setdefault(launch.variant, {})[launch.entry[1]] = most
            out.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
