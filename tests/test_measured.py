"""What ships of the raw results: it is current, and holds what profiles and `charcnn report` read of it."""

import pytest
from report.measured import measured as written

from charcnn import catalog
from charcnn.catalog import measured


def test_it_is_current():
    assert measured.FILE.read_text(encoding="utf-8") == written(), "run python bench/report.py"


def test_levels_stand_in_order():
    order = [row.name for row in catalog.LEVELS]
    for machine in measured.machines().values():
        assert list(machine["levels"]) == sorted(machine["levels"], key=order.index)
        assert all(row["inputs_per_second"] > 0 for row in machine["levels"].values())
    found = list(measured.machines()["nvidia-h200"]["levels"])
    waiting = [name for name in order[: order.index(found[-1])] if name not in found]
    assert all(catalog.level(name).device == "cpu" for name in waiting), "of a GPU's, only the latest may wait"


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16", "fp8"])
def test_no_layer_is_faster_than_twice_the_peak(precision):
    """Winograd's filtering does about half of the products that it is counted for."""
    rows = [row for row in measured.machines()["nvidia-h200"]["layers"] if row["precision"] == precision]
    peak = measured.peak("NVIDIA H200", precision)
    assert rows
    assert all(0 < row["flop_per_second"] < 2 * peak for row in rows)
