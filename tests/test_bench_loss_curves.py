"""bench/loss_curves.py: what it writes, and what the page says of it."""

import csv
import json
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench"
import loss_curves  # noqa: E402
from report import loss_curves as block  # noqa: E402


def test_a_rate_leaves_out_the_first_epoch():
    history = [{"seconds": seconds} for seconds in (30.0, 31.0, 32.0)]
    assert block.rate({"training": {"rows": 500}, "history": history}) == 500


@pytest.mark.exhaustive
def test_a_training_is_measured(tmp_path, monkeypatch):
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            (c, f"the {word} of {n}") for n in range(30) for c, word in enumerate(("goal", "bank"), 1)
        )
    words = f"--data {tmp_path}/rows.csv --test {tmp_path}/rows.csv --rows 50 --engines own --json {tmp_path}/a.json"
    how = ["--", "--epochs", "2", "--config", '{"length": 123, "channels": 32, "units": 32}']
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    assert loss_curves.main([*words.split(), *how]) == 0
    raw = json.loads((tmp_path / "a.json").read_text())
    assert (raw["schema"], raw["rows"], raw["words"]) == ("loss_curves", 50, how[1:])
    (run,) = raw["runs"]
    assert (run["engine"], [row["epoch"] for row in run["history"]], run["test"]["rows"]) == ("own", [1, 2], 60)
    assert len(block._cells(raw, run)) == 8
