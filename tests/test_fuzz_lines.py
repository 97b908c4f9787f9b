"""A share of the fuzz of `fuzz_lines.py`: five seconds, or a minute where exhaustive tests run; CHARCNN_FUZZ_SECONDS
and CHARCNN_FUZZ_SEED say otherwise. What fails names its seed and its file."""  # fmt: skip

import os
import secrets
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fuzz_lines
from conftest import sampled

from charcnn.text import encodings
from charcnn.text.readers import json_scan, scan
from charcnn.text.readers.csv import _gathered
from charcnn.text.readers.jsonl import JsonlReader
from charcnn.text.readers.lines import LinesReader
from charcnn.text.strings import PackedStrings

SEED = os.environ.get("CHARCNN_FUZZ_SEED") or secrets.token_hex(4)  # another one each time: more files are seen


@pytest.mark.parametrize("seconds", sampled(2, 60))
def test_a_row_is_what_it_is_alone(seconds):
    files, opened = fuzz_lines.run(SEED, seconds=float(os.environ.get("CHARCNN_FUZZ_SECONDS") or seconds))
    assert opened > files / 2, "most files can be read"


@pytest.mark.parametrize("commands", sampled(3, 12))
def test_the_command_gone_on_with_at_any_block(commands, tmp_path):
    fuzz_lines.run_commands(SEED, commands, tmp_path)


def lines_as_csv(self, block):
    return _gathered(block, block.places[:, None, :2], np.zeros(1, np.int64))


def texts_of_neighbours(self, block, texts=JsonlReader.texts):
    """The text of the row before where a row has none."""
    column = texts(self, block)
    parts = [bytes(column.buffer[a:b]) for a, b in zip(column.offsets, column.offsets[1:], strict=False)]
    for n in np.flatnonzero(block.kinds == scan.TORN):
        if n and block.kinds[n - 1] == scan.READABLE:
            parts[n], block.kinds[n] = parts[n - 1], scan.READABLE
    return PackedStrings(*encodings.pack(parts))


def reason_as_it_came(self, types, fault, place, value):
    return "\x1b[31m" if fault == json_scan.WHOLE else Jsonl_reason(self, types, fault, place, value)


Jsonl_reason = JsonlReader._reason


@pytest.mark.parametrize(
    ("of", "name", "wrong"),
    [
        (LinesReader, "texts", lines_as_csv),
        (JsonlReader, "texts", texts_of_neighbours),
        (JsonlReader, "_reason", reason_as_it_came),
    ],
)
def test_what_is_wrong_is_found(monkeypatch, of, name, wrong):
    monkeypatch.setattr(of, name, wrong)
    with pytest.raises(AssertionError, match=r"^seed 0, file \d+: "):
        fuzz_lines.run(0, files=300)
