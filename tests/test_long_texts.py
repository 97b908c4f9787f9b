"""bench/long_texts.py: rows of a class put together, and a row for each size of windows."""

import json

import long_texts
import numpy as np
import pytest

from charcnn.config import TINY
from charcnn.model import params
from charcnn.text.texts import Texts


def test_rows_of_a_class_are_put_together():
    data = Texts([b"a%d" % n for n in range(10)], np.array([0, 1] * 4 + [1, 1]))
    texts, labels = long_texts.joined(data, 2)
    assert labels.tolist() == [0, 0, 1, 1, 1]
    for text, label in zip(texts, labels, strict=True):
        assert [data.labels[int(word[1:])] for word in text.split()] == [label] * 2
    used = b" ".join(texts).split()
    assert len(set(used)) == len(used) == 10
    assert long_texts.joined(data, 5)[1].tolist() == [1]


def test_a_row_for_each_size(tmp_path, capsys, monkeypatch):
    model, data, found = tmp_path / "m.safetensors", tmp_path / "in.csv", tmp_path / "r.json"
    params.save(model, params.init(TINY, 3), TINY, encoding="forward", classes=("a", "b", "c", "d"))
    data.write_text("".join(f"{n % 4 + 1},{'some words of news ' * 3}{n}\n" for n in range(24)))
    monkeypatch.setattr(long_texts, "SIZES", (200, 100, 50))
    words = ["--data", str(data), "--model", str(model), "--json", str(found)]
    assert long_texts.main([*words, "--joined", "3"]) == 0
    rows = json.loads(found.read_text())["windows"]
    assert [row["window"] for row in rows] == [None, 123, 100, 50]
    assert [row["computed"] for row in rows] == [8, 8 * 2, 8 * 3, 8 * 5]
    assert "8 texts of 3 rows, 177 to 179 bytes" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        long_texts.main([*words, "--joined", "7"])
    assert "no class has 7 rows" in capsys.readouterr().err
