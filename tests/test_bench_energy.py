"""What rows of a bench draw: counters of a processor, rounds by turns, and the fields that raw results get."""

from __future__ import annotations

import byte_energy
import energy
import numpy as np
import peers
import pytest
import tensor_energy
import turns
from test_peers import job

from charcnn import catalog
from charcnn.gpu import device


class Counted:
    """A counter of so many W that shows joules only every few calls, by a clock that calls move on."""

    name = "made up"

    def __init__(self, watts):
        self.watts, self.calls, self.waits = watts, 0, 0

    def millijoules(self):
        return int(1000 * self.watts * self.now()) // 100 * 100

    def mhz(self):
        return 1500

    def now(self):
        return self.calls / 1000

    def call(self):
        """A millisecond."""
        self.calls += 1

    def marked(self):
        return self.wait

    def wait(self):
        self.waits += 1


@pytest.fixture
def counted(monkeypatch):
    counter = Counted(200)
    monkeypatch.setattr(energy.time, "perf_counter", counter.now)
    monkeypatch.setattr(energy.drawn, "__kwdefaults__", {"now": counter.now})
    return counter


def test_rows_get_joules_a_million_and_their_rounds(counted):
    meter = energy.Meter(counted, seconds=0.5, idle=75.0)
    found = meter.by_turns([meter.repeated(counted.call, items) for items in (1, 4)])
    assert [row["energy"]["joules_per_million"] for row in found] == pytest.approx([0.2e6, 0.05e6], rel=1e-3)
    assert [row["energy"]["per_second"] for row in found] == pytest.approx([1000, 4000], rel=1e-3)
    for row in found:
        assert row["energy"]["watts"] == pytest.approx(200, rel=1e-3)
        assert (row["energy"]["mhz"], row["energy"]["idle_watts"]) == (1500, 75.0)
        assert len(row["energy"]["rounds"]) == energy.ROUNDS
    assert counted.waits > 6 * energy.ROUNDS


def test_calls_that_wait_are_long(counted):
    calls = []

    def start(times, wait):
        calls.append(times)
        counted.calls += times
        return wait

    prepared = []
    for wait in (counted.wait, energy.done):
        energy.Meter(counted, 0.5).by_turns(
            [energy.Work(lambda times, wait=wait: start(times, wait), 1, prepared.append)]
        )
    assert set(calls) >= {int(1000 * energy.CALL), int(1000 * energy.LONG_CALL)}
    assert calls[-1] == prepared[-1] == int(1000 * energy.LONG_CALL)


def test_where_nobody_counts_rows_get_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "Packages", lambda: energy_of(tmp_path))
    assert energy.meter(1.0, "cpu") is energy.NONE
    assert "no joules: " in capsys.readouterr().err
    assert energy.meter(0.0, "cpu").by_turns([energy.Work(lambda times: energy.done, 1)] * 2) == [{}, {}]


Packages = energy.Packages


def energy_of(folder):
    return Packages(folder, folder / "clock")


def test_a_processors_counters_are_added_and_begin_anew(tmp_path):
    (tmp_path / "clock").write_text("2600000\n")
    for name, value in (("intel-rapl:0", 900), ("intel-rapl:1", 100_000), ("intel-rapl:0:0", 7)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{value}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("1000000\n")
    counter = energy_of(tmp_path)
    assert (counter.millijoules(), counter.mhz(), counter.marked()) == (0, 2600, energy.done)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("2900")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("99000")
    assert counter.millijoules() == 2 + 999


def test_ready_work_and_networks_get_them(counted):
    meter = energy.Meter(counted, seconds=0.5, idle=75.0)
    (row,) = turns.by_turns([turns.Ready("one", counted.call, 10, {}, items=2)], now=counted.now, rounds=1, meter=meter)
    assert row["energy"]["joules_per_million"] == pytest.approx(0.1e6)
    assert len(row["rounds"]) == 1


def test_networks_get_them(monkeypatch):
    seen = []

    class Seen(energy.Meter):
        def by_turns(self, every):
            for one in every:
                one.prepare(1)
                one.start(1)()
                seen.append(one.items)
            return [{"energy": {"joules_per_million": 1.0}}]

    rows, _ = peers.measure(
        peers.entries(catalog.level("l2"))[:1], job(), seconds=0.01, rounds=5, compile_seconds=9, meter=Seen()
    )
    assert seen == [3]
    assert rows[0]["energy"] == {"joules_per_million": 1.0}


@pytest.mark.skipif(not (device.SIMULATED or device.has_tensor_cores(hopper=True)), reason="needs a Hopper GPU")
@pytest.mark.parametrize("ptx_type", tensor_energy.DEPTH)
def test_dense_products_of_each_type_are_numpys(ptx_type):
    assert tensor_energy.wrong(ptx_type, 16, 1, turns=range(1), sparse=False) == []


def test_features_have_their_share_of_zeros():
    rng = np.random.default_rng(0)
    for share in tensor_energy.ZEROS:
        values = tensor_energy.features_of(share, rng.standard_normal((256, 256)), rng)
        assert (values == 0).mean() == pytest.approx(tensor_energy.ZEROS[share], abs=0.01)
    assert (tensor_energy.features_of("relu", np.array([-1.0, 2.0]), rng) == [0, 2]).all()


def test_bytes_are_read_and_a_wrong_sum_is_told(monkeypatch, capsys):
    if not device.SIMULATED:
        device.choose(1)
    assert byte_energy.main(["--tiny"]) == 0
    assert "sums are NumPy's" in capsys.readouterr().out
    right = byte_energy.Reading.expected
    monkeypatch.setattr(byte_energy.Reading, "expected", lambda self, steps: right(self, steps) + 0.01)
    assert byte_energy.main(["--tiny"]) == 1
    assert "DRAM: a sum is off by 0.01" in capsys.readouterr().err
