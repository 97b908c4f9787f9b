"""Each kernel of `emulator_bugs` has one mistake, and the emulator names its kind and its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from charcnn.gpu import device

pytestmark = pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: nothing to emulate")

if device.SIMULATED:
    import emulator_bugs
    import emulator_bugs_hopper
    from emulator_bugs import arguments

    from charcnn.gpu import emulator

    BUGS = emulator_bugs.BUGS + emulator_bugs_hopper.BUGS
else:
    BUGS = []

MARK = "# bug: "
SEEDS = 6


def said(kernel):
    """The kind and the line of the mistake, as the kernel's source says."""
    code = kernel.py_func.__code__
    lines = Path(code.co_filename).read_text().splitlines()
    first = code.co_firstlineno
    return next((lines[i - 1].split(MARK)[1], i) for i in range(first, len(lines)) if MARK in lines[i - 1])


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.kernel.py_func.__name__)
def test_each_is_found(bug):
    found, expected = [], said(bug.kernel)
    for seed in range(SEEDS):
        args, (*written, _map) = arguments(bug.words)
        found += emulator.run(
            bug.kernel,
            bug.cluster,
            bug.threads,
            args,
            seed=seed,
            cluster=bug.cluster,
            shared=bug.shared,
            after=written if bug.early else (),
        )
        if expected in {(one.kind, one.line) for one in found}:
            break
    assert all(one.file == bug.kernel.py_func.__code__.co_filename for one in found)
    assert expected in {(one.kind, one.line) for one in found}, "\n".join(map(str, found))
