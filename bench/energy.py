"""Joules by the driver's counter of a GPU, or by the processor's own, while something runs for seconds.

While the host reads the counter, the GPU computes the next call: it is never idle. A bench makes a `meter`, which gives
its rows what they drew; where nobody counts, they get nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from numba import cuda

SM_CLOCK = 1
"""NVML_CLOCK_SM"""

ROUNDS, WARM, SECONDS = 3, 0.1, 1.0
"""A row's; seconds before a round, and of it."""

CALL, LONG_CALL = 0.02, 0.2
"""Seconds that a call is to take, as reading the counter takes milliseconds; and one that leaves nothing queued."""

POWERCAP = Path("/sys/class/powercap")

CPU_CLOCK = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")


class Drawn(NamedTuple):
    """What calls drew, from one change of the counter to another."""

    seconds: float
    joules: float
    calls: int
    mhz: float
    """Mean of samples of the multiprocessors' clock."""


class Counter:
    """NVML's counter of the board of the current GPU.

    Raises:
        OSError: there is no NVML.
        RuntimeError: NVML does not know the GPU, or it has no such counter.
    """

    name = "NVML, which counts the whole board"

    def __init__(self) -> None:
        self._library, self._gpu = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        self._ask("nvmlInit_v2")
        uuid = cuda.get_current_device().uuid.encode()
        self._ask("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid), ctypes.byref(self._gpu))

    def millijoules(self) -> int:
        """Since the driver was loaded; it changes every few milliseconds."""
        found = ctypes.c_ulonglong()
        self._ask("nvmlDeviceGetTotalEnergyConsumption", self._gpu, ctypes.byref(found))
        return found.value

    def mhz(self) -> int:
        """The clock of the multiprocessors."""
        found = ctypes.c_uint()
        self._ask("nvmlDeviceGetClockInfo", self._gpu, SM_CLOCK, ctypes.byref(found))
        return found.value

    def marked(self) -> Callable[[], object]:
        """What waits until all is done that the GPU was given so far."""
        return marked()

    def _ask(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise RuntimeError(f"{name}: NVML's error {status}")


class Packages:
    """RAPL's counters of all processors' packages; memory has others, and is left out.

    Args:
        folder: where the kernel shows them.
        clock: the file of the first core's clock, in kHz.

    Raises:
        OSError: there is none, or not for this user.
    """

    name = "RAPL, which counts the processors' packages"

    def __init__(self, folder: Path = POWERCAP, clock: Path = CPU_CLOCK) -> None:
        self._files, self._clock = sorted(folder.glob("intel-rapl:[0-9]*/energy_uj")), clock
        self._files = [file for file in self._files if file.parent.name.count(":") == 1]
        if not self._files:
            raise OSError(f"{folder} has no intel-rapl")
        self._most = [int(file.with_name("max_energy_range_uj").read_text()) for file in self._files]
        self._last, self._sum = self._read(), 0
        self.mhz()

    def millijoules(self) -> int:
        """Since this object was made; a counter begins anew at its greatest number."""
        now = self._read()
        self._sum += sum((new - old) % most for new, old, most in zip(now, self._last, self._most, strict=True))
        self._last = now
        return self._sum // 1000

    def mhz(self) -> int:
        """The clock of the first core."""
        return int(self._clock.read_text()) // 1000

    def marked(self) -> Callable[[], object]:
        """Nothing: what a CPU computes is done when the call returns."""
        return done

    def _read(self) -> list[int]:
        return [int(file.read_text()) for file in self._files]


def done() -> None:
    """Wait for nothing."""


def marked() -> Callable[[], object]:
    """What waits until all is done that the current GPU was given so far."""
    event = cuda.event()
    event.record()  # on the default stream, and so behind all others
    waits: Callable[[], object] = event.synchronize
    return waits


def drawn(
    start: Callable[[], Callable[[], object]], counter: Any, *, warm: float, seconds: float,
    now: Callable[[], float] = time.perf_counter,
) -> Drawn:  # fmt: skip
    """Call again and again, at first unmeasured; each call is started before the one before it is waited for.

    Args:
        start: starts some milliseconds of work, and gives what waits for it, such as `marked`.
        counter: `Counter`.
        warm: seconds before.
        seconds: at least so many are measured.
        now: the time in seconds.
    """
    under_way = start()

    def call() -> None:
        nonlocal under_way
        before, under_way = under_way, start()
        before()

    begin = now()
    while now() - begin < warm:
        call()

    def read() -> tuple[float, int]:
        call()
        return now(), counter.millijoules()

    last = counter.millijoules()
    begin, first = read()
    while first == last:
        begin, first = read()
    last, calls, clocks = first, 0, list[int]()
    while True:
        (end, found), calls = read(), calls + 1
        if found != last:
            last = found
            clocks.append(counter.mhz())
            if end - begin >= seconds:
                under_way()
                return Drawn(end - begin, (last - first) / 1000, calls, statistics.fmean(clocks))


class Work(NamedTuple):
    """What a row of a result computes again and again."""

    start: Callable[[int], Callable[[], object]]
    """Starts it so many times, and gives what waits for it."""
    items: float
    """Inputs, texts, samples or products of one time."""
    prepare: Callable[[int], object] = lambda times: None
    """Called before a round, as others have run since the last one."""


class Meter:
    """What gives rows their joules.

    Args:
        counter: `Counter`, `Packages`, or None: rows get nothing.
        seconds: of a round.
        idle: W drawn while nothing runs.
    """

    def __init__(self, counter: Any = None, seconds: float = 0.0, idle: float = 0.0) -> None:
        self._counter, self.seconds, self.idle = counter, seconds, idle

    def repeated(
        self, call: Callable[[], object], items: float, queued: Callable[[], Callable[[], object]] | None = None
    ) -> Work:
        """Work of calls that are queued, or on a CPU done; `queued`, in place of an event, gives what waits."""

        def start(times: int) -> Callable[[], object]:
            for _ in range(times):
                call()
            return (queued or self._counter.marked)()

        return Work(start, items)

    def by_turns(self, every: Sequence[Work]) -> list[dict[str, Any]]:
        """What each row gets, {} or {"energy": ...}: means of rounds, in an order drawn for each, and the rounds.

        It says joules a million items, W, the clock in MHz, items a second while they were counted, who counted, and
        the idle W.
        """
        if self._counter is None:
            return [{} for _ in every]
        said = {"idle_watts": self.idle, "counter": self._counter.name}
        times = [_times(one) for one in every]
        rounds: list[list[dict[str, float]]] = [[] for _ in every]
        order = random.Random(0)
        for _ in range(ROUNDS):
            for i in order.sample(range(len(every)), len(every)):
                every[i].prepare(times[i])
                found = drawn(partial(every[i].start, times[i]), self._counter, warm=WARM, seconds=self.seconds)
                items = found.calls * times[i] * every[i].items
                rounds[i].append({
                    "joules_per_million": found.joules / items * 1e6, "watts": found.joules / found.seconds,
                    "mhz": found.mhz, "per_second": items / found.seconds,
                })  # fmt: skip
        return [{"energy": {**_means(of), "rounds": of, **said}} for of in rounds]


NONE = Meter()
"""Of benches that count no joules."""


def _times(one: Work) -> int:
    """How many times fill a call."""
    times, spent = 1, 0.0
    one.prepare(times)
    wait = one.start(times)
    wait()
    wanted = LONG_CALL if wait is done else CALL
    while spent < wanted / 2:
        times *= 2
        one.prepare(times)
        begin = time.perf_counter()
        one.start(times)()
        spent = time.perf_counter() - begin
    return max(1, round(times * wanted / spent))


def _means(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.fmean(one[name] for one in rounds) for name in rounds[0]}


def add_option(add: Callable[..., Any]) -> None:
    """Add --joules to a bench's options, by its parser's `add_argument`."""
    what = f"seconds of each of {ROUNDS} rounds in which joules are counted (default {SECONDS:g}; 0: they are not)"
    add("--joules", type=at_least_0, default=SECONDS, metavar="S", help=what)


def at_least_0(given: str) -> float:
    """The option's value."""
    seconds = float(given)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{given}: need seconds, or 0")
    return seconds


def pause() -> Callable[[], object]:
    """Compute nothing."""
    time.sleep(CALL)
    return done


def meter(seconds: float, where: str = "cuda", idle: float | None = None) -> Meter:
    """Of this machine's GPU or "cpu"; of nothing, with a line that says so, where it counts no joules.

    It is made before anything is computed: for twice as long as a round it counts what is drawn idle, if not told.
    """
    if not seconds:
        return NONE
    try:
        counter = Packages() if where == "cpu" else Counter()
        counter.millijoules()
    except (OSError, RuntimeError) as reason:
        print(f"no joules: {reason}", file=sys.stderr, flush=True)
        return NONE
    if idle is None:
        found = drawn(pause, counter, warm=WARM, seconds=2 * seconds)
        idle = found.joules / found.seconds
        print(f"idle: {idle:.1f} W", flush=True)
    return Meter(counter, seconds, idle)
