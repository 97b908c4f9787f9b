"""What a compiled kernel's file says of it: an ELF file, whose sections NVIDIA's tools name, and its disassembly."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator

from charcnn.aliases import Record

REGISTERS = 0x2F
"""The attribute of a function in the section .nv.info that has its registers."""

TOOLS = {"nvdisasm": ("-c",), "cuobjdump": ("-sass",)}
"""What disassembles, and by which options: the first that is there."""


def sections(cubin: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and content of each section of an ELF file."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + size * place) for place in range(count)]
    for name, _, _, _, at, length in headers:
        begin = headers[names][4] + name
        yield cubin[begin : cubin.index(b"\0", begin)], cubin[at : at + length]


def attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """Each attribute of .nv.info, and its value: of two bytes, or as many as stand before it."""
    at = 0
    while at < len(info):
        layout, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if layout == 4:  # of any size
            yield attribute, info[at : at + length]
            at += length


def instructions(cubin: bytes) -> bytes:
    """All of a compiled kernel's machine code."""
    return b"".join(sorted(content for name, content in sections(cubin) if name.startswith(b".text.")))


def registers(cubin: bytes) -> int:
    """Of a thread."""
    values = (value for name, content in sections(cubin) if name == b".nv.info" for value in attributes(content))
    return max(int(struct.unpack("<II", value)[1]) for attribute, value in values if attribute == REGISTERS)


def resources(log: str) -> Record:
    """Resources and warnings from the linker's log; bytes that it does not mention are 0."""

    def number(pattern: str, default: int | None = 0) -> int | None:
        match = re.search(pattern, log)
        return int(match.group(1)) if match else default

    return {
        "registers": number(r"[Uu]sed (\d+) registers", None),
        "spill_stores": number(r"(\d+) bytes spill stores", None),
        "spill_loads": number(r"(\d+) bytes spill loads", None),
        "local_bytes": number(r"(\d+) bytes stack frame", None),
        "shared_bytes": number(r"(\d+) bytes smem"),
        # C75xx: wgmma was serialised, or setmaxnreg ignored
        "warnings": [line for line in log.splitlines() if "warn" in line.lower() or "C75" in line],
    }


def sass(cubin: bytes) -> str:
    """Its machine code in words.

    Raises:
        ValueError: neither of TOOLS is installed, or it fails; says what to install.
    """
    found = next((tool for name in TOOLS if (tool := _tool(name)) is not None), None)
    if found is None:
        raise ValueError("--sass: needs nvdisasm: pip install nvidia-cuda-nvdisasm, or NVIDIA's CUDA toolkit on PATH")
    options = next(options for name, options in TOOLS.items() if name in found.rpartition("/")[2])
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([found, *options, file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        raise ValueError(f"--sass: {found} ended with status {done.returncode}: {last}")
    return done.stdout


def _tool(name: str) -> str | None:
    """Where it is: in one of NVIDIA's wheels, or on PATH."""
    from cuda.pathfinder import find_nvidia_binary_utility

    return find_nvidia_binary_utility(name) or shutil.which(name)
