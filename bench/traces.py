"""What traces of kernels have in common: a run's time, and the raw result that each leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import raw
from numba import cuda

from charcnn.gpu import device
from charcnn.host import machine


def microseconds(start: Callable[[], object]) -> float:
    """The median time of ten runs, one after the other."""
    times = []
    for _ in range(11):
        begin, end = cuda.event(), cuda.event()
        begin.record()
        start()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return float(np.median(times[1:]))


def kept(name: str, trace: Callable[[], dict[str, Any] | None], folder: Path) -> int:
    """Write what a trace on Hopper gives to a folder, by the name of its schema; None: it changed a bit.

    Returns:
        The exit status: 0 traced, 1 the bits differ, 2 unusable machine.
    """
    try:
        device.choose(1)
        device.require_hopper(name, emulated=False)
    except device.DeviceError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    made, here = trace(), machine.describe()
    if made is None:
        print(f"{name}: the traced kernel's results differ", file=sys.stderr)
        return 1
    file = folder / f"{machine.name(here)}-{name.replace('_', '-')}.json"
    raw.write(file, name, {**made, "machine": here, "commit": machine.commit()})
    times = f"{made['microseconds']:.0f} us, traced {made['microseconds_traced']:.0f} us"
    print(f"{len(made['events']):,} waits; {times}\nraw result: {file}")
    return 0
