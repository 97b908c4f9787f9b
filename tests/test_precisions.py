"""bench/precisions.py: precisions beside fp32, on labelled texts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import precisions
import pytest
from conftest import CPU_LEVELS

from charcnn.ops.common import cpu_dot

ROWS = """3,Profit rises,The bank said its profit rose in the third quarter.
2,Home side wins,The striker scored twice in extra time.
4,New browser,The company released software for phones.
"""


def test_a_row_for_each_precision_that_runs_here(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text(ROWS)
    assert (
        precisions.main(["--data", str(tmp_path / "rows.csv"), "--device", "cpu", "--results-dir", str(tmp_path)]) == 0
    )
    (file,) = tmp_path.glob("*-precisions.json")
    raw = json.loads(file.read_text())
    row, *others = raw["precisions"]
    assert (row["precision"], row["level"], row["rows"], row["agreement"]) == ("fp32", CPU_LEVELS[-1].name, 3, 1.0)
    assert row["accuracy"] > 0.5
    assert row["error"] < 2e-6
    left_out = {out["precision"] for out in raw["left_out"]}
    assert left_out == {name for name in cpu_dot.DOT_FORMATS if cpu_dot.missing(name)}
    assert {row["precision"] for row in others} == set(cpu_dot.DOT_FORMATS) - left_out
    assert all(row["agreement"] == 1.0 and row["sigmas"] <= row["bound"] for row in others)
    assert f"fp32     {CPU_LEVELS[-1].name}  agrees 100.00%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "--data is missing"),
        (["--data", "none.csv"], "--data none.csv: "),
        (["--data", "rows.txt"], "have no labels"),
    ],
)
def test_what_it_needs(given, said, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("CHARCNN_AG_NEWS", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("rows.txt").write_text("a text\n")
    with pytest.raises(SystemExit) as left:
        precisions.main(given)
    assert left.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(
    "CHARCNN_AG_NEWS" not in os.environ, reason="CHARCNN_AG_NEWS names no folder with AG News' test.csv"
)
def test_ag_news():
    model = precisions.params.load(precisions.WEIGHTS / precisions.FILES["accurate"])
    data = precisions.read_texts(Path(os.environ["CHARCNN_AG_NEWS"]) / "test.csv", model.encoding)
    rows, _ = precisions.measure(model, data, precisions.engine.default_device()[0])
    for row in rows:
        assert row["agreement"] >= 0.995
        assert row["accuracy"] >= rows[0]["accuracy"] - 0.003
