"""A few strikes of `tests/strikes.py`, which does as many as one likes."""

import os

import pytest
import strikes
from test_farm import needs_ulfm
from test_mpi import ENVIRONMENT, MPIEXEC, needs_mpi

PLAIN = {"number": 0, "ranks": 3, "victims": [1], "delay": 0.0, "call": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    strikes.LIMIT = 300.0  # on a machine that others use
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(["", str(strikes.Path(__file__).parents[1])])}
    return strikes.Strikes(tmp_path_factory.mktemp("strikes"), MPIEXEC, environment)


@pytest.mark.exhaustive
@needs_mpi
@needs_ulfm
@pytest.mark.parametrize(
    ("phase", "mode", "how", "command", "ulfm", "expected"),
    [
        ("compute", "farm", "SIGKILL", "classify", True, "complete"),
        ("gather", "static", "SIGKILL", "level", False, "ended"),
        ("start", "async", "SIGKILL", "classify", True, "ended"),
        ("gather", "pipeline", "SIGSTOP", "network", False, "ended"),
        ("put", "tensor", "SIGKILL", "emulated", True, "ended"),
        ("wait", "pipeline", "SIGSTOP", "emulated", True, "ended"),
    ],
)
def test_a_struck_run_is_complete_or_ends_and_goes_on(runs, phase, mode, how, command, ulfm, expected):
    fate = {"phase": phase, "mode": mode, "signal": how, "command": command, "ulfm": ulfm, **PLAIN}
    run = runs.run(fate)
    assert run["outcome"] == expected, run


def test_strikes_are_of_every_kind():
    count = 6 * 3 * 2 * 2 * 2 + (6 + 6 + 4 + 6 + 6 + 2) * 2 * 2  # parts on a CPU and emulated GPUs, and in collectives
    fates = [strikes.fate(number, 0) for number in range(count)]
    kinds = {tuple(fate[name] for name in ("phase", "mode", "signal", "command", "ulfm")) for fate in fates}
    assert len(kinds) == count
    assert strikes.fate(7, 0) == strikes.fate(7, 0)


def test_what_is_lost_counts_against_a_farm_that_can_go_on():
    farm = {"mode": "farm", "ulfm": True, "victims": [1], "phase": "compute"}
    assert strikes.can_go_on(farm)
    for other in ({"mode": "async"}, {"ulfm": False}, {"victims": [0]}, {"phase": "init"}):
        assert not strikes.can_go_on({**farm, **other})
    done = [
        {**farm, "outcome": what, "seconds": 1.5, "signal": "SIGKILL", "command": "level"} for what in ("ended", "hang")
    ]
    found = strikes.summary(done)
    assert found["strikes"] == {"runs": 2, "ended": 1, "hang": 1, "longest": 1.5}
    assert found["phase"]["compute"]["runs"] == found["farm_that_outlives_workers"]["runs"] == 2
