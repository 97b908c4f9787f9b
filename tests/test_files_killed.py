"""Commands on several files that are killed again and again: in the end all rows, once."""

import gzip
import random
import time

import pytest
from commands import below, command, tree

from charcnn.cli import UNREADABLE

FAST_JOURNAL = """
import time
from charcnn.classify import classifier
from charcnn.text import output
from charcnn.text.writers import parquet
parquet.GROUP_ROWS, output.EVERY_SECONDS = 300, 0.01
classifier.ROWS = dict.fromkeys(classifier.ROWS, 200)
advance = output.Partial.advance
output.Partial.advance = lambda *values: (advance(*values), time.sleep(0.02))
"""


@pytest.mark.exhaustive
def test_kills_at_random(weights, tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    data, rng = tmp_path / "data", random.Random(7)
    data.mkdir()
    for n in range(9):
        texts = [f"text {n} {row}" for row in range(rng.randint(1, 6000))]
        given = "".join("broken\n" if row % 50 == 49 else f'1,"{text}"\n' for row, text in enumerate(texts)).encode()
        tree(data, [{}, {f"{n}.csv.gz": gzip.compress(given, mtime=0)}, {f"{n}.csv": given}][n % 3])
        if n % 3 == 0:
            column = pyarrow.array([None if row % 50 == 49 else text for row, text in enumerate(texts)])
            parquet.write_table(pyarrow.table({"text": column}), data / f"{n}.parquet", row_group_size=700)
    words = ("classify", data, "--model", weights, "--device", "cpu", "--quiet", "-o")
    assert command(*words, tmp_path / "whole", code=FAST_JOURNAL).wait() == UNREADABLE
    status, kills = None, 0
    while status is None and kills < 12:
        process, until = command(*words, tmp_path / "out", code=FAST_JOURNAL), time.monotonic() + rng.uniform(0.5, 2)
        while status is None and time.monotonic() < until:
            time.sleep(0.005)
            status = process.poll()
        process.kill()
        process.wait()
        kills += status is None
    assert kills > 1, "else the machine is too fast for this test"
    if status is None:
        status = command(*words, tmp_path / "out", code=FAST_JOURNAL).wait()
    assert status == UNREADABLE
    assert below(tmp_path / "out") == below(tmp_path / "whole")
    for name in below(tmp_path / "whole"):
        whole, out = tmp_path / "whole" / name, tmp_path / "out" / name
        if name.endswith(".parquet"):
            assert parquet.read_table(out).equals(parquet.read_table(whole))
        else:
            assert out.read_bytes() == whole.read_bytes()
