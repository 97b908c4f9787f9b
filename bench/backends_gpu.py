"""Kernels of both compilers on one GPU, the same launch for each: whether bits are equal, and the times.

Beside numba-cuda's kernel it starts the machine code that `bench/backends.py --cubins FOLDER --many` has kept.

python bench/backends_gpu.py FOLDER VARIANT ... > backends.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import ClassVar

import numpy as np

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "tests")]

from backends import cases, key
from kernel_costs import function
from numba import cuda

from charcnn import catalog
from charcnn.aliases import Array, Kernel, KernelArgument, NumbaType, Record
from charcnn.gpu import device, launch, launch_block
from charcnn.gpu.collectives.regions import driven
from charcnn.host.arguments import HelpFormatter

ROUNDS, LAUNCHES = 9, 30
"""How often the two take turns at each kernel, and how many launches are timed at once."""


class Both:
    """Stands in for a launch block: both compilers' kernels, of which `chosen` starts one."""

    folder: ClassVar[Path]
    chosen: ClassVar[str]
    missing: ClassVar[set[str]]
    times: ClassVar[dict[str, Record] | None]

    def __init__(
        self, kernel: Kernel, handle: int, kinds: Sequence[NumbaType], args: Sequence[KernelArgument], *rest: object
    ) -> None:
        self.name, self.kernel = f"{function(kernel)} {key(kernel, tuple(kinds))}", kernel
        first = launch_block.LaunchBlock(kernel, handle, kinds, args, *rest)
        self.arrays, self.blocks = first.arrays, {"numba-cuda": first}
        if (other := loaded(self.folder / f"{key(kernel, tuple(kinds))}.cubin", rest[2])) is None:
            Both.missing.add(self.name)
        else:
            self.blocks["numba-cuda-mlir"] = launch_block.LaunchBlock(kernel, other, kinds, args, *rest, memrefs=True)

    def start(self, stream: int, values: Sequence[KernelArgument]) -> None:
        """Start the chosen one, if it is there; before that, where times are wanted, time both."""
        if self.times is not None and len(self.blocks) == 2:
            self.times[self.name] = {name: round(time, 3) for name, time in self.timed(stream, values).items()}
        self.blocks.get(self.chosen, self.blocks["numba-cuda"]).start(stream, values)

    def timed(self, stream: int, values: Sequence[KernelArgument]) -> dict[str, float]:
        """The median of microseconds a launch, by compiler; they take turns."""
        found: dict[str, list[float]] = {name: [] for name in self.blocks}
        first, last = cuda.event(), cuda.event()
        for _ in range(ROUNDS):
            for name, block in self.blocks.items():
                block.start(stream, values)
                first.record()
                for _ in range(LAUNCHES):
                    block.start(stream, values)
                last.record()
                last.synchronize()
                found[name].append(1000 * first.elapsed_time(last) / LAUNCHES)
        return {name: median(times) for name, times in found.items()}


@cache
def loaded(file: Path, shared: int) -> int | None:
    """The driver's handle of a kernel in a file, with so much dynamic shared memory; None where there is no file."""
    from cuda.bindings import driver

    if not file.exists():
        return None
    library = driven(driver.cuLibraryLoadData(file.read_bytes(), None, None, 0, None, None, 0), "to load it")
    entry = file.with_suffix(".txt").read_text().encode()
    kernel = driven(driver.cuLibraryGetKernel(library, entry), "to find it")
    made = driven(driver.cuKernelGetFunction(kernel), "to make it ready")
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driven(driver.cuFuncSetAttribute(made, limit, shared), "shared memory")
    return int(made)


@contextmanager
def replaced() -> Iterator[None]:
    """Launches go through `Both`."""
    before, launch.LaunchBlock = launch.LaunchBlock, Both
    try:
        yield
    finally:
        launch.LaunchBlock = before
        launch._blocks.clear()


def run(launcher: Callable[[], Array | tuple[Array, ...]], chosen: str) -> list[np.ndarray]:
    """The results by one compiler's kernels."""
    Both.chosen = chosen
    results = launcher()
    return [np.asarray(one) for one in (results if isinstance(results, tuple) else (results,))]


def compared(launcher: Callable[[], Array | tuple[Array, ...]]) -> Record:
    """A variant's results by both, and its kernels' times."""
    Both.missing, Both.times = set(), None
    expected, found = (run(launcher, name) for name in ("numba-cuda", "numba-cuda-mlir"))
    pairs = list(zip(expected, found, strict=True))
    equal = all(one.tobytes() == other.tobytes() for one, other in pairs)
    wide = [(one.astype(np.float64), other.astype(np.float64)) for one, other in pairs]
    off = max(float(np.nanmax(abs(one - other)) / (np.nanmax(abs(one)) or 1)) for one, other in wide)
    Both.times = {}
    run(launcher, "numba-cuda")
    return {"bits_equal": equal, "most_off": off, "microseconds": Both.times, "missing": sorted(Both.missing)}


def main() -> None:
    """Print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what bench/backends.py --cubins has kept")
    parser.add_argument("variants", nargs="+", metavar="VARIANT", help="such as conv1d_naive")
    arguments = parser.parse_args()
    Both.folder, report = arguments.folder, {"gpu": device.gpu_name(), "variants": {}}
    rows = {row.name: row for row in catalog.VARIANTS}
    with replaced():
        for name in arguments.variants:
            case = cases(rows[name])[-1]
            try:
                report["variants"][name] = compared(partial(rows[name].launcher, **case.inputs, **case.options))
            except Exception as error:
                report["variants"][name] = {"failed": f"{type(error).__name__}: {error}"[:300]}
            print(name, report["variants"][name], file=sys.stderr, flush=True)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
