"""What bench/classify.py makes, and what bench/report.py writes of its result and of the model that ships."""

import csv
import json

import classify
import pytest
from report import classify as blocks
from report import schema

from charcnn.config import TINY
from charcnn.host import machine
from charcnn.model import params
from charcnn.text.texts import read_texts


def test_the_file_repeats_rows_with_other_letters(tmp_path):
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text('"1","Some text, quoted"\n"2","Another one"\n')
    classify.make(source, target, 20_003)
    with open(target, newline="") as file:
        rows = list(csv.reader(file, strict=True))
    assert len(rows) == 20_003
    assert {row[0] for row in rows} == {"1", "2"}
    assert len({row[1] for row in rows}) > 2_000
    assert all(len(row[1]) == len("Some text, quoted") for row in rows[::2])


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_other_formats_have_the_same_rows(suffix, tmp_path):
    pytest.importorskip("pyarrow")
    source, target = tmp_path / "in.csv", tmp_path / f"out.{suffix}"
    source.write_text('"1","Some, \\ text","A ""quoted"" one"\n"2","Another","of\n two lines"\n')
    classify.convert(source, target)
    assert classify.rows_of(target) == 2
    assert read_texts(target).texts == [b'A "quoted" one Some, \\ text', b"of\n two lines Another"]


def test_its_result_becomes_a_row(tmp_path, monkeypatch):
    raw = {
        "schema": "classify",
        "files_alone": False,
        "level_rows_per_second": 1000.0,
        "first_label_seconds": {"first": 9.0, "later": [1.5, 1.25]},
        "command": {
            "rows": 5000,
            "rows_per_second": 950.0,
            "level": "l11",
            "precision": "float32",
            "encode_on": "cpu",
            "busy": {"compute": 0.97, "write": 0.01},
            "bound": "compute",
            "peak_resident_bytes": 350_000_000,
        },
        "machine": {**machine.describe(), "gpus": [], "cores": 2},
    }
    (tmp_path / "cpu-2-cores-classify-float32.json").write_text(json.dumps(raw))
    monkeypatch.setattr(schema, "RESULTS", tmp_path)
    schema.results.cache_clear()
    try:
        row = blocks.classify(schema.ROOT / "docs" / "classify.md").splitlines()[-1]
    finally:
        schema.results.cache_clear()
    assert (
        "| CSV | l11 | float32 | the CPU | 5,000 | 950.0 | 1,000 (95%) | compute, 97% of the time | 350 MB | 1.2 s |"
        in row
    )


def test_the_card_of_a_model(monkeypatch):
    recipe = {"seed": 3, "epochs": 120}
    said = {"command": "charcnn train --data a.csv --classes World,Sci/Tech --decay 0.1"}
    said |= {
        "recipe": recipe,
        "rows": 28_079,
        "precision": "bf16",
        "device": "NVIDIA H200",
        "torch": "2.11",
        "epoch": 99,
    }
    confusion = [[90, 5, 3, 2], [0, 99, 1, 0], [4, 0, 80, 16], [1, 1, 9, 89]]
    model = params.init(TINY)
    model.classes = ("World", "Sports", "Business", "Sci/Tech")
    model.metadata = {"training": said, "test": {"confusion": confusion}}
    monkeypatch.setattr(blocks, "_shipped", lambda name: model)
    document = schema.WEIGHTS / "README.md"
    lines = blocks.training(document, "accurate").splitlines()
    assert lines[1] == "charcnn train --data a.csv --classes World,Sci/Tech --decay 0.1 --out ag_news.safetensors"
    assert "Seed 3; 28,079 rows to learn from; bf16 on one NVIDIA H200 with PyTorch 2.11." in lines
    found = blocks.accuracy(document, "accurate", "test")
    assert "Right for 358 of 400 test rows, **89.50%**, 95 % interval 86.11% to 92.14% (Wilson)." in found
    assert "| Business | 100 | 80.0% | 86.0% | Sci/Tech (16) |" in found
    with pytest.raises(schema.ReportError, match="says nothing of its validation rows"):
        blocks.accuracy(document, "accurate", "validation")
