"""Processes that say lines of JSON, wait to be told to go on, and may fail or take too long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any


class Ended(Exception):
    """Why a process says no more, in a line: its last one, or that it took too long."""


class Process:
    """A command, not yet started, that gets a group of its own: what it starts ends with it.

    Args:
        command: the words.
        log: file for what it prints to standard error.
        environment: beside what this process has.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._command, self._log, self._environment = command, log, {**os.environ, **environment}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it."""
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=self._environment, start_new_session=True,
            )  # fmt: skip

    def tell(self) -> None:
        """Let it go on."""
        process = self._started()
        assert process.stdin is not None
        with suppress(OSError):  # it has ended, which `line` tells
            process.stdin.write("\n")
            process.stdin.flush()

    def line(self, seconds: float) -> dict[str, Any]:
        """What it says next.

        Raises:
            Ended: it has ended, or said nothing for so long, and is ended.
        """
        process = self._started()
        assert process.stdout is not None
        late = Timer(max(0.0, seconds), self._kill)
        late.start()
        said = process.stdout.readline()
        in_time = late.is_alive()
        late.cancel()
        if said:
            found: dict[str, Any] = json.loads(said)
            return found
        status = process.wait()
        if not in_time:
            raise Ended(f"took longer than {seconds:.0f} s")
        lines = self._log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing was said")
        raise Ended(f"ended with status {status}: {last[:200]}")

    def close(self) -> None:
        """End it, if it was started and still runs, and wait for that."""
        if self._process is not None:
            self._kill()
            self._process.communicate()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise Ended("was not started")
        return self._process

    def _kill(self) -> None:
        if self._started().poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._started().pid, signal.SIGKILL)
