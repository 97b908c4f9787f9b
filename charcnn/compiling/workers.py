"""Kernels compiled by several processes at once: each takes the next one that none has taken.

Numba compiles under one lock a process, and most of the time is Python's own. A process finds by itself what there is
to compile (`networks.record`, tenths of a second a level), so that nothing has to be sent but the list of levels; and
takes a kernel by making an empty file of its key's name, which only one can. The costliest come first.

    python -m charcnn.compiling.workers JSON        one process, as `compiled` starts it
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from charcnn.compiling.networks import Network, record
from charcnn.compiling.stand_in import Target, compiling_for
from charcnn.config import Config

COSTLY = ("double_buffered", "wgmma_kernel", "kernel", "gather", "gather_warps", "conv", "linear", "lag_sums")
"""Modules whose kernels take the longest to compile, those first."""


@dataclass(frozen=True)
class Compiled:
    """A kernel that a process compiled; or, once, why a level cannot be built, and has none."""

    network: str
    """For which it was."""
    kernel: str = ""
    seconds: float = 0.0
    problem: str | None = None


def cores() -> int:
    """Of those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compiled(
    networks: Sequence[Network], target: Target, jobs: int | None = None, sizes: Sequence[int] | None = None
) -> Iterator[Compiled]:
    """Compile what is not in the cache yet of all that these launch; gives each kernel as it is done.

    Args:
        networks: the levels.
        target: for which GPU. None need be there.
        jobs: processes; as many as cores where None.
        sizes: as for `record`.

    Raises:
        RuntimeError: a process failed; gives the last line that it said.
    """
    from numba import config

    jobs = jobs or cores()
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": ""}
    home = str(Path(__file__).parent.parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    if config.CACHE_DIR:
        environment["NUMBA_CACHE_DIR"] = config.CACHE_DIR
    with tempfile.TemporaryDirectory(prefix="charcnn-") as folder, ExitStack() as stack:
        task = {"networks": [asdict(network) for network in networks], "target": asdict(target), "sizes": sizes}
        Path(folder, "task").write_text(json.dumps(task), encoding="utf-8")
        lines: SimpleQueue[str | RuntimeError | None] = SimpleQueue()
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        for number in range(jobs):
            errors = stack.enter_context(open(Path(folder, f"{number}.errors"), "w+", encoding="utf-8"))
            process = stack.enter_context(subprocess.Popen(
                [sys.executable, "-m", __name__, folder, str(number)], env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
            ))  # fmt: skip
            stack.callback(process.kill)  # where whoever wanted the results has gone
            pool.submit(_read, process, errors, lines)
        left = jobs
        while left:
            line = lines.get()
            if isinstance(line, RuntimeError):
                raise line
            if line is None:
                left -= 1
            else:
                yield Compiled(**json.loads(line))


def _read(process: subprocess.Popen[str], errors: Any, lines: SimpleQueue[str | RuntimeError | None]) -> None:
    for line in process.stdout or ():
        lines.put(line)
    if status := process.wait():
        errors.seek(0)
        last = (errors.read().strip() or "it said nothing").splitlines()[-1]
        lines.put(RuntimeError(f"a process that compiles ended with status {status}: {last}"))
    lines.put(None)


def main(folder: str, number: str) -> None:
    """Compile what no other process has taken, and print each as JSON."""
    task = json.loads(Path(folder, "task").read_text(encoding="utf-8"))
    networks = [Network(**{**network, "config": Config(**network["config"])}) for network in task["networks"]]
    target = Target(**{**task["target"], "capability": tuple(task["target"]["capability"])})
    first = int(number) % len(networks)  # each begins with another one
    for network in networks[first:] + networks[:first]:
        found: dict[tuple[Any, ...], None] = {}
        try:
            record(network, target, lambda *launch: found.setdefault(launch), task["sizes"])  # noqa: B023 : ends here
        except ValueError as error:
            if _take(Path(folder, str(network))):
                _tell(Compiled(str(network), problem=" ".join(str(error).split())))
            continue
        with compiling_for(target):
            for kernel, kinds in sorted(found, key=_place):
                name = hashlib.sha256(kernel._cache.key(kinds, kernel.targetctx).encode()).hexdigest()
                if kernel._cache.holds(kinds, kernel.targetctx) or not _take(Path(folder, name)):
                    continue
                started = time.perf_counter()
                kernel.compile(kinds)
                _tell(Compiled(str(network), title(kernel), time.perf_counter() - started))


def _tell(done: Compiled) -> None:
    print(json.dumps(asdict(done)), flush=True)


def title(kernel: Any) -> str:
    """A kernel's module and function, or the function that made it: conv1d_nlc.wgmma_kernel.build."""
    module = kernel.py_func.__module__.removeprefix("charcnn.").removeprefix("ops.")
    return f"{module}.{kernel.py_func.__qualname__.split('.')[0]}"


def _place(found: tuple[Any, Any]) -> int:
    module = found[0].py_func.__module__.rpartition(".")[2]
    return COSTLY.index(module) if module in COSTLY else len(COSTLY)


def _take(path: Path) -> bool:
    """Whether this process is the first to want it."""
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
