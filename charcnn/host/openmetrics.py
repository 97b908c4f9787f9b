"""How far a command is, in a file for a monitoring system: the text of OpenMetrics, which Prometheus reads."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

from charcnn.files import replacing
from charcnn.host.terminal import tell

EVERY = 10.0
"""Seconds from one writing of a file to the next."""

MARK = rb"# HELP charcnn_"
"""How our files begin, as `files.is_free` takes it."""

CLOSING = 5.0
"""Seconds that the end waits for a writing that is under way."""


@dataclass(frozen=True)
class Sample:
    """A value of a metric.

    Args:
        name: of the metric, less charcnn_; samples of one name stand together.
        help: what it is, in a line.
        value: a number.
        labels: what tells samples of one name apart.
        counter: whether it only grows; else it is a gauge.
    """

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    counter: bool = False


def render(samples: Iterable[Sample]) -> str:
    """The samples as OpenMetrics 1.0 has them, UTF-8."""
    lines, last = [], ""
    for sample in samples:
        name = f"charcnn_{sample.name}"
        if name != last:
            kind = "counter" if sample.counter else "gauge"
            lines += [f"# HELP {name} {_escaped(sample.help)}", f"# TYPE {name} {kind}"]
            last = name
        labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in sample.labels.items())
        total = "_total" * sample.counter
        lines.append(f"{name}{total}{f'{{{labels}}}' * bool(labels)} {_number(sample.value)}")
    return "\n".join([*lines, "# EOF", ""])


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) else repr(float(value))


class OpenMetrics:
    """A file that is written anew from time to time, from the start of a `with` block to its end.

    What cannot be written is told once, and stops nothing.

    Args:
        path: of the file; None for none.
        command: whose it is: "train" or "classify".
        samples: gives what it says, but for whether the command runs.
        every: seconds from one writing to the next.
        force: whether to replace a file that is not ours.
    """

    def __init__(
        self,
        path: str | None,
        command: str,
        samples: Callable[[], Iterable[Sample]],
        *,
        every: float = EVERY,
        force: bool = False,
    ) -> None:
        self._path, self._command, self._samples, self._every, self._force = path, command, samples, every, force
        self._over, self._told = threading.Event(), False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> OpenMetrics:
        if self._path is not None:
            self.write(running=True)
            self._thread = threading.Thread(target=self._run, name="openmetrics", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._over.set()
            self._thread.join(CLOSING)
            self.write(running=False, failed=error is not None)

    def write(self, *, running: bool, failed: bool = False) -> None:
        """Write the file now."""
        if self._path is None:
            return
        state = [
            Sample(f"{self._command}_running", "1 while the command runs", running),
            Sample(f"{self._command}_failed", "1 where it ended with an error", failed),
            Sample(f"{self._command}_written_timestamp_seconds", "when this was written", round(time.time(), 3)),
        ]
        try:
            with replacing(self._path, force=self._force, mark=MARK) as file:
                file.write(render([*state, *self._samples()]))
        except OSError as error:
            if not self._told:
                self._told = True
                said = error.strerror or str(error)
                tell(f"charcnn {self._command}: warning: --openmetrics {os.fspath(self._path)}: {said}")

    def _run(self) -> None:
        while not self._over.wait(self._every):
            self.write(running=True)
