"""Kernels compiled by several processes at once: each takes the next one that none has taken.

Numba compiles under one lock a process, and most of the time is Python's own. A process finds by itself what there is
to compile (`networks.record`), and takes a kernel by adding its key to a file that all of them have open. The costliest
come first. Functions for the CPU are compiled meanwhile, by one process more (CPU_FUNCTIONS).

A process ends with the one that started it, after the kernel that it has in hand: its standard input is a pipe that
ends then. None leaves a file, and none hears a Ctrl-C that is not its own.

    python -m charcnn.compiling.workers FILE NUMBER        one process, as `compiled` starts it; FILE is a descriptor
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from typing import Any

from charcnn.aliases import Record
from charcnn.compiling.networks import BuiltLevel, ImageNetwork, from_dict, record
from charcnn.compiling.stand_in import Target, compiling_for
from charcnn.gpu import device
from charcnn.gpu.launch import title
from charcnn.host import cores
from charcnn.host.install import module_environment

COSTLY = ("double_buffered", "kernel", "gather", "small_batch", "lag_sums")
"""Modules whose kernels take the longest to compile, those first."""

CPU_FUNCTIONS = "charcnn.classify.cpu_functions"
"""What compiles functions for the CPU, by its name: it labels rows, so it lies above this."""

FILES = ("lines", "csv", "jsonl")
"""Formats of files whose rows such functions find; the one that takes the least comes first."""

CPU = "CPU"
"""What they are compiled for, where kernels have a level and a precision."""

NICER = 10
"""How much lower the priority is of what nobody waits for."""

SELDOM = 50_000, 20, 20
"""How often a process looks for garbage: as often as Python does by itself takes a tenth of what compiling takes."""

READY = "\n"
"""The line with which a process says that what is waited for is there."""


@dataclass(frozen=True)
class Compiled:
    """A kernel that a process compiled; or, once, why a level cannot be built, and has none."""

    network: str
    """For which it was; CPU of a function for the CPU."""
    kernel: str = ""
    seconds: float = 0.0
    problem: str | None = None


def compiled(
    networks: Sequence[BuiltLevel | ImageNetwork],
    target: Target,
    jobs: int | None = None,
    sizes: Sequence[int] | None = None,
    later: Sequence[int] | None = None,
) -> Iterator[Compiled]:
    """Compile what the cache lacks of all that these launch, and of functions for the CPU; gives each as it is done.

    Args:
        networks: the levels, or networks of images.
        target: for which GPU. None need be there.
        jobs: processes for kernels; as many as cores where None.
        sizes: as for `record`.
        later: as `sizes`; kernels that nobody waits for. The same processes go on with them, at a lower priority, until
            this process ends; `kernel_cache` waits for the one kernel that is needed. Of the functions for the CPU,
            those of plain lines are waited for then, and others are not.

    Raises:
        RuntimeError: a process failed; gives the last line that it said.
    """
    from numba import config

    jobs = jobs or len(cores.usable())
    environment = {**module_environment(), "NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": ""}
    if config.CACHE_DIR:
        environment["NUMBA_CACHE_DIR"] = config.CACHE_DIR
    parts = [sizes] if later is None else [sizes, later]
    task = {"networks": [asdict(network) for network in networks], "target": asdict(target), "parts": parts}
    lines: SimpleQueue[str | RuntimeError] = SimpleQueue()
    crew: list[subprocess.Popen[str]] = []

    def start(*command: str, shared: int) -> None:
        errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 : closed by `_read`
        crew.append(subprocess.Popen(
            [sys.executable, "-m", *command], env=environment, pass_fds=[shared], start_new_session=True, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        ))  # fmt: skip
        # A daemon: it must not keep this process from ending, nor let a process that has ended wait to be asked.
        threading.Thread(target=_read, args=(crew[-1], errors, lines), name="compile", daemon=True).start()

    try:
        with tempfile.TemporaryFile() as shared:
            shared.write(json.dumps(task).encode() + b"\n")
            shared.flush()
            if any(isinstance(network, BuiltLevel) for network in networks) or not networks:  # which read texts
                start(CPU_FUNCTIONS, *FILES[: None if later is None else 1], shared=shared.fileno())
            for number in range(jobs):
                start(__name__, str(shared.fileno()), str(number), shared=shared.fileno())
        ready = 0
        while ready < len(crew):
            line = lines.get()
            if isinstance(line, RuntimeError):
                raise line
            if line == READY:
                ready += 1
            else:
                yield Compiled(**json.loads(line))
    except BaseException:  # also where whoever wanted the results has gone
        for process in crew:
            process.kill()
        raise


def _read(process: subprocess.Popen[str], errors: Any, lines: SimpleQueue[str | RuntimeError]) -> None:
    was_ready = False
    with process, errors:
        for line in process.stdout or ():
            was_ready |= line == READY
            lines.put(line)
        status = process.wait()
        if status or not was_ready:
            errors.seek(0)
            last = (errors.read().strip() or "it said nothing").splitlines()[-1]
            lines.put(RuntimeError(f"a process that compiles ended with status {status}: {last}"))


def main(shared: int, number: int) -> None:
    """Compile what no other process has taken, and print each as JSON; READY behind what is waited for."""
    gc.set_threshold(*SELDOM)
    task = _task(shared)
    networks = [from_dict(network) for network in task["networks"]]
    target = Target(**{**task["target"], "capability": tuple(task["target"]["capability"])})
    first = number % len(networks)  # each begins with another one
    for place, sizes in enumerate(task["parts"]):
        for network in networks[first:] + networks[:first]:
            _compile(network, target, sizes, shared)
        if place == 0:
            ready()


def _task(shared: int) -> Record:
    """What the file's first line says. Processes share the place where one reads next, so none may move it."""
    found: Record = json.loads(os.pread(shared, os.fstat(shared).st_size, 0).partition(b"\n")[0])
    return found


def _compile(network: BuiltLevel | ImageNetwork, target: Target, sizes: Sequence[int] | None, shared: int) -> None:
    found: dict[tuple[Any, ...], None] = {}
    try:
        record(network, target, lambda *launch: found.setdefault(launch), sizes)
    except (ValueError, device.DeviceError) as error:
        if _take(shared, str(network)):
            tell(Compiled(str(network), problem=" ".join(str(error).split())))
        return
    with compiling_for(target):
        for kernel, kinds in sorted(found, key=_place):
            leave_alone()
            key = kernel._cache.key(kinds, kernel.targetctx)
            if kernel._cache.holds(kinds, kernel.targetctx) or not _take(shared, key):
                continue
            started = time.perf_counter()
            kernel.compile(kinds)
            tell(Compiled(str(network), title(kernel), time.perf_counter() - started))


def tell(done: Compiled) -> None:
    """Print it for the process that waits."""
    print(json.dumps(asdict(done)), flush=True)


def ready() -> None:
    """Say that what is waited for is there, and go on behind all others."""
    print(READY, end="", flush=True)
    os.nice(NICER)


def leave_alone() -> None:
    """End where the process has ended that started this one."""
    if select.select([0], [], [], 0)[0]:
        sys.exit()


def _place(found: tuple[Any, Any]) -> int:
    module = found[0].py_func.__module__.rpartition(".")[2]
    return COSTLY.index(module) if module in COSTLY else len(COSTLY)


def _take(shared: int, name: str) -> bool:
    """Whether this process is the first to want it: names stand behind each other in the file, as digests."""
    own = hashlib.sha256(name.encode()).hexdigest().encode() + b"\n"
    fcntl.lockf(shared, fcntl.LOCK_EX)
    try:
        size = os.fstat(shared).st_size
        if own in os.pread(shared, size, 0):
            return False
        os.pwrite(shared, own, size)
        return True
    finally:
        fcntl.lockf(shared, fcntl.LOCK_UN)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
