"""Readers over given bytes, and all that they read, for tests."""

from charcnn.text import encodings
from charcnn.text.layout import Layout
from charcnn.text.readers import scan
from charcnn.text.readers.open import open_reader

FORWARD = encodings.ENCODINGS["forward"]
CREPE = encodings.ENCODINGS["crepe"]


def opened(tmp_path, data, kind="csv", rows=1000, capacity=1 << 16, encoding=FORWARD, **layout):
    path = tmp_path / "input"
    path.write_bytes(data)
    file = open(path, "rb", buffering=0)  # noqa: SIM115 - for the test's length
    return open_reader(kind, str(path), file, Layout(**layout), encoding, rows=rows, capacity=capacity)


def read(kind):
    """Texts (None where unreadable), numbers of unreadable rows, and the rows' bytes."""
    found, unreadable, whole = [], [], b""
    for block in kind.blocks():
        column = kind.texts(block)
        data = column.buffer.tobytes()
        for n in range(len(column)):
            part = data[column.offsets[n] : column.offsets[n + 1]]
            if block.kinds[n] != scan.BLANK:
                found.append(part if block.kinds[n] == scan.READABLE else None)
        unreadable += block.unreadable()
        if len(block.places):
            whole += block.buffer[block.places[0, 0] : block.places[-1, 2]].tobytes()
    return found, unreadable, whole
