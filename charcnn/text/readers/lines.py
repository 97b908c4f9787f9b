"""Plain lines: a text each."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.text.readers import scan
from charcnn.text.readers.base import Block, Reader
from charcnn.text.strings import PackedStrings


class LinesReader(Reader):
    """A text a line; an empty line has none."""

    def _scan(self) -> Block:
        return self._lines(scan.READABLE)

    def _read_texts(self, block: Block) -> PackedStrings:
        """The lines, byte for byte: a quote is a quote."""
        room = int((block.places[:, 1] - block.places[:, 0]).sum())
        texts, offsets = np.empty(room, np.uint8), np.empty(len(block.places) + 1, np.int64)
        scan.gather_lines(block.buffer, block.places, texts, offsets)
        return PackedStrings(texts, offsets)

    def _label_values(self, block: Block) -> list[Any]:
        raise ValueError("plain lines have no labels: need CSV, JSON Lines or Parquet")
