"""Run `charcnn classify` for a long time at its full rate: rows and memory by minute, and that no row is missing.

    python bench/soak.py --seconds 600 --device cuda --precision fp16

Its standard input gets the same CSV rows again and again, as fast as it reads. They must come out in order, with their
first labels. On a GPU a probability's digits may differ: other kernels compute the few rows that a pipe may bring. The
clock starts --warm-up seconds after the first label: a first start compiles, and records graphs.

Exit status: 1 a row is missing or changed, the command failed, or rate or memory changed by more than --rate, --growth.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import classify
import numpy as np
import raw

from charcnn.classify.engine import default_device
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.text import encodings

ROWS = 20_000
"""That come again and again."""

PIECE = 200
"""Rows written at once."""

PIPE_BYTES = 1 << 20


class Output:
    """What comes out of the command: rows are counted, and compared with those that came before.

    Args:
        rows: those that go in, again and again.
        exact: whether probabilities are compared, too.
    """

    def __init__(self, rows: bytes, exact: bool) -> None:
        self._given, self._exact = rows.splitlines(keepends=True), exact
        self._first = bytearray()
        self._cycle, self._compared = b"", np.empty(0, np.bool_)
        self.bytes = 0
        self.started: float | None = None
        self.wrong: str | None = None

    def take(self, block: bytes) -> None:
        """The next bytes."""
        if self.started is None:
            self.started = time.perf_counter()
        at, self.bytes = self.bytes, self.bytes + len(block)
        if not self._cycle:
            self._first += block
            if self._first.count(b"\n") < len(self._given):
                return
            lines = bytes(self._first).split(b"\n", len(self._given))
            self._cycle = b"\n".join(lines[:-1]) + b"\n"
            self._compared = np.ones(len(self._cycle), np.bool_)
            ends = np.cumsum([len(line) + 1 for line in lines[:-1]])
            for end, line in zip(ends, lines, strict=False):
                self._compared[end - (len(line) - line.rfind(b",")) : end - 1] = self._exact
            for given, line in zip(self._given, lines, strict=False):
                if not line.startswith(given.rstrip(b"\r\n") + b","):
                    self.wrong = self.wrong or f"row {given[:60]!r} came out as {line[:80]!r}"
            at, block = len(self._cycle), bytes(self._first[len(self._cycle) :])
        while block and self.wrong is None:
            place = at % len(self._cycle)
            part = self._cycle[place : place + len(block)]
            if not self._alike(block[: len(part)], part, place):
                self.wrong = f"other bytes after {self.bytes - len(block):,}: {block[:80]!r}"
            at, block = at + len(part), block[len(part) :]

    def _alike(self, block: bytes, part: bytes, place: int) -> bool:
        if block == part or self._exact:
            return block == part
        other = np.frombuffer(block, np.uint8) != np.frombuffer(part, np.uint8)
        return not (other & self._compared[place : place + len(part)]).any()

    @property
    def rows(self) -> int:
        """Rows that have come out."""
        if not self._cycle:
            return self._first.count(b"\n")
        cycles, rest = divmod(self.bytes, len(self._cycle))
        return cycles * len(self._given) + self._cycle.count(b"\n", 0, rest)


def resident(process: int) -> int:
    """Bytes of memory that the process holds."""
    with open(f"/proc/{process}/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(process: int) -> float:
    """Of all of the process's threads."""
    with open(f"/proc/{process}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def soak(
    rows: bytes, words: list[str], seconds: float, report: Path, exact: bool, warm_up: float = 0.0
) -> dict[str, Any]:
    """Run the command for so long behind its first label and `warm_up` seconds; what was seen."""
    command = [sys.executable, "-m", "charcnn", "classify", "-", "--format", "csv", "--no-header", "--quiet"]
    process = subprocess.Popen(
        [*command, "--json", str(report), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert process.stdin
    assert process.stdout
    for pipe in (process.stdin, process.stdout):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    output, enough, given = Output(rows, exact), threading.Event(), 0

    def feed() -> None:
        nonlocal given
        assert process.stdin
        lines = rows.splitlines(keepends=True)
        pieces = [b"".join(lines[at : at + PIECE]) for at in range(0, len(lines), PIECE)]
        try:
            while not enough.is_set():
                for number, piece in enumerate(pieces):
                    view = memoryview(piece)
                    while view:
                        view = view[process.stdin.write(view) :]
                    given += len(lines[number * PIECE : (number + 1) * PIECE])
                    if enough.is_set():
                        break
            process.stdin.close()
        except BrokenPipeError:
            pass  # its exit status tells

    def drain() -> None:
        assert process.stdout
        while block := process.stdout.read(PIPE_BYTES):
            output.take(block)

    threads = [threading.Thread(target=work) for work in (feed, drain)]
    for thread in threads:
        thread.start()
    samples: list[tuple[float, int, int, float]] = []
    while process.poll() is None and (
        output.started is None or time.perf_counter() - output.started < warm_up + seconds
    ):
        time.sleep(0.25)
        if output.started is not None:
            try:
                held, busy = resident(process.pid), cpu_seconds(process.pid)
            except (OSError, IndexError, ValueError):
                break  # it has ended
            if (at := time.perf_counter() - output.started - warm_up) >= 0:
                samples.append((at, output.rows, held, busy))
    enough.set()
    status = process.wait()
    for thread in threads:
        thread.join()
    if output.wrong is None and output.rows != given:
        output.wrong = f"{output.rows:,} rows came out: need {given:,}"
    return {"status": status, "rows": given, "wrong": output.wrong, "minutes": minutes(samples) if samples else []}


def minutes(samples: list[tuple[float, int, int, float]]) -> list[dict[str, float]]:
    """Rates and memory of each whole minute, the last one counted back from the end."""
    end = samples[-1][0]
    spans = [(60.0 * n, 60.0 * (n + 1)) for n in range(int(end // 60))] or [(0.0, end)]
    spans[-1] = (max(0.0, end - 60), end)
    found = []
    for start, stop in spans:
        own = [sample for sample in samples if start <= sample[0] <= stop]
        (first, before, _, busy), (last, after, _, busier) = own[0], own[-1]
        found.append(
            {
                "rows_per_second": (after - before) / (last - first),
                "rows_per_cpu_second": (after - before) / max(busier - busy, 1e-9),
                "resident_bytes": max(sample[2] for sample in own),
            }
        )
    return found


def main() -> None:
    """Soak, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add = parser.add_argument
    add("--seconds", type=float, default=3600, metavar="S", help="seconds measured (default 3600)")
    add("--warm-up", type=float, default=60, metavar="S", help="seconds from the first label to the clock (default 60)")
    add(
        "--text",
        metavar="CSV",
        type=Path,
        default=Path(encodings.__file__).parent / "sample.csv",
        help="rows to repeat (default: the shipped sample)",
    )
    add("--model", default="accurate", metavar="MODEL", help="of a file, or that ships (default: accurate)")
    add("--device", choices=("cpu", "cuda"), help="default: the command's")
    add("--precision", metavar="P", help="default: the command's")
    rate, growth = (
        "largest change of the rate, last minute to first",
        "largest growth of memory after the first minute",
    )
    add("--rate", type=float, default=0.03, metavar="SHARE", help=f"{rate} (default 0.03)")
    add("--growth", type=float, default=0.02, metavar="SHARE", help=f"{growth} (default 0.02)")
    into = "for MACHINE-soak.json (default: bench/results)"
    add("--results-dir", metavar="DIR", type=Path, default=raw.RESULTS, help=into)
    options = parser.parse_args()
    if not options.results_dir.is_dir():
        parser.error(f"--results-dir {options.results_dir}: no such folder")
    words = []
    for name in ("model", "device", "precision"):
        if getattr(options, name) is not None:
            words += [f"--{name}", getattr(options, name)]
    with tempfile.TemporaryDirectory() as folder:
        source, report = Path(folder, "in.csv"), Path(folder, "report.json")
        classify.make(options.text, source, ROWS)
        on_gpu = default_device()[0] == "cuda" if options.device is None else options.device == "cuda"
        result = soak(source.read_bytes(), words, options.seconds, report, not on_gpu, options.warm_up)
        if report.exists():
            said = json.loads(report.read_text())
            result["command"] = {name: said[name] for name in ("level", "precision", "device", "bound") if name in said}
    if not result["minutes"]:
        sys.exit(f"soak: the command ended within --warm-up, with status {result['status']}: {result['wrong']}")
    first, last = result["minutes"][0], result["minutes"][-1]
    result["rate_change"] = last["rows_per_second"] / first["rows_per_second"] - 1
    result["memory_change"] = last["resident_bytes"] / first["resident_bytes"] - 1
    result |= {
        "seconds": options.seconds,
        "warm_up": options.warm_up,
        "machine": machine.describe(),
        "commit": machine.commit(),
    }
    print(json.dumps({**result, "minutes": len(result["minutes"])}, indent=1))
    raw.write(options.results_dir / f"{machine.name(result['machine'])}-soak.json", "soak", result)
    flat = abs(result["rate_change"]) <= options.rate and result["memory_change"] <= options.growth
    if result["status"] or result["wrong"] or not flat:
        sys.exit(1)


if __name__ == "__main__":
    main()
