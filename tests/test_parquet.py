"""Parquet files that are written a row group at a time, and gone on with after a kill."""

import datetime
import decimal
import itertools
import json
import os
import signal
import subprocess
import threading
import time

import numpy as np
import pytest
from commands import SLOW, command, left, rows
from conftest import by_turns

from charcnn.classify.labelling import Labelling
from charcnn.cli import FAILED, UNREADABLE, UNUSABLE
from charcnn.text import output
from charcnn.text.writers import parquet as writers
from charcnn.text.writers.parquet_footer import MAGIC, Footer, footer_of, footers

pyarrow = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def news(count):
    """A table with what a table may hold."""
    texts = [None if n % 10 == 9 else f"text {n}" for n in range(count)]
    return pyarrow.table(
        {
            "text": texts,
            "n": range(count),
            "few": pyarrow.array([f"{n % 3}" for n in range(count)]).dictionary_encode(),
            "list": [[n, None] for n in range(count)],
            "pair": [{"a": n, "b": [0.5]} for n in range(count)],
            "price": pyarrow.array([decimal.Decimal(n) for n in range(count)], pyarrow.decimal128(9, 2)),
            "at": [datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)] * count,
            "bytes": pyarrow.array([b"\xff"] * count, pyarrow.large_binary()),
            "real": [float("nan") if n % 5 else 1.0 for n in range(count)],
            "flag": [n % 2 == 0 for n in range(count)],
            "none": pyarrow.nulls(count),
        }
    )


def put(path, table, group=70):
    pq.write_table(table, path, row_group_size=group)
    return path


def written(table):
    sink = pyarrow.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def small_groups(monkeypatch):
    """Blocks of 50 rows, a row group every 100, each encoded when it is full: on many cores several are at once."""
    monkeypatch.setattr(writers, "GROUP_ROWS", 100)
    monkeypatch.setattr(writers, "AT_ONCE", 1)
    monkeypatch.setattr(Labelling, "_block_rows", lambda self: self.classifier.rows)


@pytest.mark.parametrize("blocks", [1, 3, 5])
def test_it_goes_on_by_row_group(charcnn, interrupted, tmp_path, small_groups, blocks):
    """Also where a group of the input ends elsewhere; what is behind the last group that was written is done again."""
    source, out, whole = put(tmp_path / "in.parquet", news(1010)), tmp_path / "out.parquet", tmp_path / "whole.parquet"
    interrupted(blocks, "classify", source, "-o", out)
    state = json.loads((tmp_path / "out.parquet.part.json").read_text())["state"]
    assert state["rows"] == state["input"] >= 100 * blocks
    assert len(footers(str(tmp_path / "out.parquet.part"), state["output"])) == blocks
    with open(f"{out}.part", "ab") as file:
        file.write(b"half a group")
    status, _, err = charcnn("classify", source, "-o", out)
    assert status == UNREADABLE
    assert f"resuming after row {state['rows']:,} of an interrupted run" in err
    charcnn("classify", source, "-o", whole)
    assert repr(pq.read_table(out).to_pylist()) == repr(pq.read_table(whole).to_pylist())  # NaN is none of its own
    assert pq.read_table(out)["n"].to_pylist() == list(range(1010))
    assert (tmp_path / "out.parquet.unreadable.csv").read_bytes() == (
        tmp_path / "whole.parquet.unreadable.csv"
    ).read_bytes()
    assert len(rows(f"{out}.unreadable.csv")) == 102
    assert not [name for name in left(tmp_path) if ".part" in name]


@by_turns
def test_a_kill_in_the_middle_and_a_second_start(charcnn, weights, tmp_path):
    source, out, whole = put(tmp_path / "in.parquet", news(6000)), tmp_path / "out.parquet", tmp_path / "whole.parquet"
    code = f"{SLOW}\nfrom charcnn.text.writers import parquet\nparquet.GROUP_ROWS = 100"
    process = command(
        *("classify", source, "--model", weights, "--device", "cpu", "-o", out), code=code, stderr=subprocess.PIPE
    )
    journal, limit, done = tmp_path / "out.parquet.part.json", time.monotonic() + 300, 0
    while done < 1000 and time.monotonic() < limit and process.poll() is None:
        time.sleep(0.005)
        if journal.exists():
            done = json.loads(journal.read_text())["state"]["rows"]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 1000 <= done < 6000
    status, _, err = charcnn("classify", source, "-o", out)
    assert status == UNREADABLE
    assert "resuming after row " in err
    charcnn("classify", source, "-o", whole)
    assert repr(pq.read_table(out).to_pylist()) == repr(pq.read_table(whole).to_pylist())  # NaN is none of its own


def test_row_groups_that_are_done_are_not_read_again(charcnn, interrupted, tmp_path, small_groups, monkeypatch):
    source, out = put(tmp_path / "in.parquet", news(1010), group=100), tmp_path / "out.parquet"
    interrupted(4, "classify", source, "-o", out)
    asked, batches = [], pq.ParquetFile.iter_batches

    def iter_batches(self, *arguments, **options):
        asked.append(list(options["row_groups"]))
        return batches(self, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    assert charcnn("classify", source, "-o", out)[0] == UNREADABLE
    assert asked == [list(range(4, 11))]


@pytest.mark.parametrize("at_once", [1, 3])
def test_groups_that_are_encoded_together_are_in_order(charcnn, tmp_path, small_groups, monkeypatch, at_once):
    monkeypatch.setattr(writers, "AT_ONCE", at_once)
    source, out = put(tmp_path / "in.parquet", news(1010)), tmp_path / "out.parquet"
    assert charcnn("classify", source, "-o", out)[0] == UNREADABLE
    file = pq.ParquetFile(out)
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [*[140] * 7, 30]
    assert file.read()["n"].to_pylist() == list(range(1010))


def test_groups_that_are_encoded_together_are_gone_on_with(charcnn, interrupted, tmp_path, small_groups, monkeypatch):
    monkeypatch.setattr(writers, "AT_ONCE", 3)
    source, out, whole = put(tmp_path / "in.parquet", news(1010)), tmp_path / "out.parquet", tmp_path / "whole.parquet"
    interrupted(2, "classify", source, "-o", out)
    assert json.loads((tmp_path / "out.parquet.part.json").read_text())["state"]["rows"] == 600
    assert charcnn("classify", source, "-o", out)[0] == UNREADABLE
    charcnn("classify", source, "-o", whole)
    assert repr(pq.read_table(out).to_pylist()) == repr(pq.read_table(whole).to_pylist())


def test_a_slow_machine_ends_groups_by_the_clock(charcnn, tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "GROUP_SECONDS", 0.0)
    source, out = put(tmp_path / "in.parquet", news(2100)), tmp_path / "out.parquet"
    assert charcnn("classify", source, "-o", out)[0] == UNREADABLE
    assert pq.ParquetFile(out).num_row_groups > 1
    assert pq.read_table(out)["n"].to_pylist() == list(range(2100))


def test_a_part_that_is_damaged_is_told(charcnn, interrupted, tmp_path, small_groups):
    source, out = put(tmp_path / "in.parquet", news(1010)), tmp_path / "out.parquet"
    interrupted(3, "classify", source, "-o", out)
    with open(f"{out}.part", "r+b") as file:
        file.write(b"NONE")
    status, _, err = charcnn("classify", source, "-o", out, "--quiet")
    assert status == UNUSABLE
    assert f"{out}.part: is no row of Parquet files, as was written there: remove it" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("count", [0, 1, 49, 100, 200])
def test_a_file_of_any_number_of_groups(charcnn, tmp_path, small_groups, count):
    source, out = put(tmp_path / "in.parquet", news(200).slice(0, count)), tmp_path / "out.parquet"
    charcnn("classify", source, "-o", out)
    table = pq.read_table(out)
    assert table.num_rows == count
    assert table.column_names[-2:] == ["label", "probability"]
    assert table.select(news(0).column_names).to_pydict().keys() == news(0).to_pydict().keys()
    assert repr(table.select(news(0).column_names).to_pylist()) == repr(news(200).slice(0, count).to_pylist())


def test_a_full_disk_in_the_middle_is_gone_on_from(charcnn, tmp_path, small_groups, monkeypatch):
    source, out = put(tmp_path / "in.parquet", news(3000)), tmp_path / "out.parquet"
    write, left_over = writers.ParquetWriter._write_groups, [2]

    def full(self):
        left_over[0] -= 1
        if left_over[0] < 0:
            raise OSError(28, "No space left on device")
        write(self)

    with monkeypatch.context() as patch:
        patch.setattr(writers.ParquetWriter, "_write_groups", full)
        status, _, err = charcnn("classify", source, "-o", out, "--quiet")
    assert (status, err) == (FAILED, f"charcnn classify: {out}.part: No space left on device\n")
    status, _, err = charcnn("classify", source, "-o", out)
    assert "resuming after row " in err
    assert pq.read_table(out)["n"].to_pylist() == list(range(3000))


def test_a_pipe_gets_the_same_file(charcnn, tmp_path, small_groups):
    source, out, pipe = put(tmp_path / "in.parquet", news(3000)), tmp_path / "out.parquet", tmp_path / "pipe.parquet"
    assert charcnn("classify", source, "-o", out)[0] == UNREADABLE
    os.mkfifo(pipe)
    came = []
    reading = threading.Thread(target=lambda: came.append(pipe.read_bytes()))
    reading.start()
    assert charcnn("classify", source, "-o", pipe)[0] == UNREADABLE
    reading.join()
    assert came == [out.read_bytes()]
    assert pq.ParquetFile(out).num_row_groups > 1


def test_a_footer_lists_all_groups():
    tables = [news(40).slice(n, 20) for n in range(18)]  # a list of 15 or more is written in another way
    files = [written(table) for table in tables]
    starts = [0, *itertools.accumulate(map(len, files))]
    footer = footer_of(memoryview(files[0]))
    for file, start in zip(files[1:], starts[1:], strict=False):
        footer.append(footer_of(memoryview(file)), start)
    data = footer.to_bytes()
    whole = b"".join(files) + data + len(data).to_bytes(4, "little") + MAGIC
    found = pq.ParquetFile(pyarrow.BufferReader(whole))
    assert footer.groups == found.num_row_groups == 18
    assert found.metadata.num_rows == 360
    for n, table in enumerate(tables):
        group = found.read_row_group(n)
        assert group.schema.equals(table.schema)
        assert repr(group.to_pylist()) == repr(table.to_pylist())
        for column in (0, 1):
            there, alone = (
                file.metadata.row_group(g).column(column)
                for file, g in ((found, n), (pq.ParquetFile(pyarrow.BufferReader(files[n])), 0))
            )
            assert there.data_page_offset == alone.data_page_offset + starts[n]
            assert there.statistics.min == alone.statistics.min


def test_footers_of_files_one_behind_the_other(tmp_path):
    files = [written(news(count)) for count in (1, 30, 7)]
    path = tmp_path / "parts"
    path.write_bytes(b"".join(files) + b"more")
    end = sum(map(len, files))
    found = footers(str(path), end)
    assert [start for _, start in found] == [0, len(files[0]), len(files[0]) + len(files[1])]
    assert [footer.to_bytes() for footer, _ in found] == [footer_of(memoryview(file)).to_bytes() for file in files]
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for wrong in (end - 1, end + 1, end + 4, 3):
        with pytest.raises(ValueError, match="is no"):
            footers(str(path), wrong)
    for _ in range(200):  # bytes of the footer itself, or of what is around it
        data = bytearray(whole)
        data[end - 1 - rng.integers(0, 400)] ^= 1 << rng.integers(0, 8)
        path.write_bytes(data)
        try:
            again = footers(str(path), end)
        except ValueError as error:
            assert str(error).startswith("is no")  # noqa: PT017
        else:
            assert len(again) >= 1


def test_what_is_no_footer():
    for data in (b"", b"\x15", b"\x1c" * 5000, b"\x00more", bytes(range(256))):
        with pytest.raises(ValueError, match="is no footer"):
            Footer(data)


def test_the_journal_of_a_run_before_row_groups_were_kept_begins_anew(charcnn, tmp_path):
    """It says that nothing is done, whatever stands in the part."""
    source, out = put(tmp_path / "in.parquet", news(100)), tmp_path / "out.parquet"
    journal = tmp_path / "out.parquet.part.json"

    class Stop(Exception):
        pass

    def stop(self):
        raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output.Partial, "finish", stop)
        with pytest.raises(Stop):
            charcnn("classify", source, "-o", out)
    assert json.loads(journal.read_text())["state"]["output"] == 0
    (tmp_path / "out.parquet.part").write_bytes(b"PAR1 and half a group")
    assert charcnn("classify", source, "-o", out)[0] == UNREADABLE
    assert pq.read_table(out).num_rows == 100
