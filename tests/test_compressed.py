"""Compressed inputs: the labels of what they hold, after a kill too; what is not whole is an error, at every byte."""

import gzip
import io
import json
import os
import sys

import pytest
from commands import left
from reading import CREPE, opened, read

from charcnn.cli import DONE, UNREADABLE, UNUSABLE
from charcnn.host.install import pip_install
from charcnn.text.layout import Layout
from charcnn.text.readers import source as sources
from charcnn.text.readers.compressed import DamagedError, Unpacked
from charcnn.text.readers.formats import COMPRESSIONS, format_by_name, split_name
from charcnn.text.readers.open import open_reader
from charcnn.text.texts import read_texts
from charcnn.training.data import read_rows

LINES = {
    "csv": b'{n},"text {n}"\n',
    "tsv": b"{n}\ttext {n}\n",
    "jsonl": b'{{"text": "text {n}"}}\n',
    "txt": b"text {n}\n",
}


def pack(data, ending):
    if ending == ".gz":
        return gzip.compress(data, mtime=0)
    pyarrow = pytest.importorskip("pyarrow")
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def rows_of(kind, count):
    line = LINES[kind].decode()
    return "".join("broken\n" if n % 100 == 99 else line.format(n=n) for n in range(count)).encode()


def unpacked(path, data, ending):
    path.write_bytes(data)
    return Unpacked(open(path, "rb", buffering=0), str(path), ending)


@pytest.mark.parametrize("ending", COMPRESSIONS)
@pytest.mark.parametrize("kind", LINES)
def test_labels_are_those_of_what_is_within(charcnn, tmp_path, kind, ending):
    data = rows_of(kind, 3000)
    plain, packed, out = tmp_path / f"plain.{kind}", tmp_path / f"in.{kind}{ending}", tmp_path / f"in.labelled.{kind}"
    plain.write_bytes(data)
    packed.write_bytes(pack(data, ending))
    expected = charcnn("classify", plain)[0]
    assert charcnn("classify", packed)[0] == expected == (DONE if kind == "txt" else UNREADABLE)
    assert out.read_bytes() == (tmp_path / f"plain.labelled.{kind}").read_bytes()
    if kind != "txt":
        report = (tmp_path / f"plain.labelled.{kind}.unreadable.csv").read_bytes()
        assert (tmp_path / f"in.labelled.{kind}.unreadable.csv").read_bytes() == report


@pytest.mark.parametrize("ending", COMPRESSIONS)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "txt"])
def test_it_goes_on_in_what_is_unpacked(charcnn, interrupted, tmp_path, kind, ending):
    source, out, whole = tmp_path / f"in.{kind}{ending}", tmp_path / f"out.{kind}", tmp_path / f"whole.{kind}"
    source.write_bytes(pack(rows_of(kind, 5000), ending))
    charcnn("classify", source, "-o", whole)
    for _ in range(2):
        interrupted(7, "classify", source, "-o", out)
    state = json.loads((tmp_path / f"out.{kind}.part.json").read_text())["state"]
    assert state["rows"] == 700
    assert state["input"] == len(rows_of(kind, 700))
    assert "resuming after row 700" in charcnn("classify", source, "-o", out)[2]
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_a_file_that_is_cut_anywhere_is_an_error(tmp_path, ending):
    """Never fewer rows."""
    packed = pack(rows_of("csv", 60), ending)
    for size in range(len(packed)):
        with pytest.raises(DamagedError, match="in: is not") as caught:
            unpacked(tmp_path / "in", packed[:size], ending).readall()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_a_file_that_is_changed_anywhere_is_an_error_or_the_same(tmp_path, ending):
    """gzip has a checksum of what it holds. Zstandard may have none: there, other bytes of the same number may come."""
    data = rows_of("csv", 60)
    packed = pack(data, ending)
    for place in range(len(packed)):
        changed = bytearray(packed)
        changed[place] ^= 0x55
        try:
            found = unpacked(tmp_path / "in", bytes(changed), ending).readall()
        except DamagedError as error:
            assert str(error).startswith(f"{tmp_path / 'in'}: is not")  # noqa: PT017
        else:
            assert found == data or ending == ".zst"


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_members_one_behind_the_other(tmp_path, ending):
    first, second = pack(b"1,a\n", ending), pack(b"2,b\n", ending)
    assert unpacked(tmp_path / "in", first + second, ending).readall() == b"1,a\n2,b\n"
    for wrong in (first + b"garbage", first + second[:3], first + second[:-1]):
        with pytest.raises(DamagedError, match="is not a whole"):
            unpacked(tmp_path / "in", wrong, ending).readall()
    if ending == ".gz":
        assert unpacked(tmp_path / "in", first + bytes(512), ending).readall() == b"1,a\n"  # as tape drives pad
    else:
        skipped = b"\x50\x2a\x4d\x18\x04\0\0\0pzst"
        assert unpacked(tmp_path / "in", skipped + first, ending).readall() == b"1,a\n"
        assert unpacked(tmp_path / "in", first + skipped + second, ending).readall() == b"1,a\n2,b\n"


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_places_of_what_is_unpacked(tmp_path, ending):
    data = rows_of("csv", 3000)
    file = unpacked(tmp_path / "in", pack(data, ending), ending)
    for place in (0, 1, 20_000, 100, len(data) - 1, len(data), 0):
        assert file.seek(place) == file.tell() == place
        assert file.read(50) == data[place : place + 50]
    with pytest.raises(DamagedError, match=f"holds {len(data):,} bytes, and {len(data) + 9:,} were read before"):
        file.seek(len(data) + 9)
    with pytest.raises(io.UnsupportedOperation):
        file.seek(0, os.SEEK_END)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("in.csv.gz", b"1,plain text\n", "is not compressed by gzip, though its name ends in .gz"),
        ("in.csv.gz", b"", "is not compressed by gzip, though"),
        ("in.csv.gz", pack(b"1,text\n" * 999, ".gz")[:-5], "is not a whole gzip file (Compressed file ended before"),
        ("in.csv.gz", pack(b"1,text\n" * 999, ".gz")[:14], "is not a whole gzip file (Compressed file ended before"),
        ("in.csv.gz", pack(pack(b"text\n", ".gz"), ".gz"), "in.csv.gz: is compressed by gzip: unpack it first"),
        ("in.csv.gz", pack("text\n".encode("utf-16"), ".gz"), "in.csv.gz: is UTF-16"),
        ("in.jsonl.gz", pack(b'{"a": 1}\n', ".gz"), "in.jsonl.gz: its first object has the keys a"),
        ("in.csv.zst", b"1,plain text\n", "is not compressed by Zstandard, though its name ends in .zst"),
        ("in.csv.zst", b"\x28\xb5\x2f\xfd", "is not a whole Zstandard file ("),
        ("in.parquet.gz", pack(b"PAR1", ".gz"), "Parquet files are compressed inside: unpack this one first"),
    ],
    ids=[
        "plain",
        "empty",
        "cut at the end",
        "cut at the beginning",
        "packed twice",
        "UTF-16",
        "other keys",
        "plain, zst",
        "cut, zst",
        "Parquet",
    ],
)
def test_what_is_not_whole_is_one_line(charcnn, tmp_path, name, data, message):
    if ".zst" in name:
        pytest.importorskip("pyarrow")
    source = tmp_path / name
    source.write_bytes(data)
    for words in (("classify", source), ("evaluate", source)):
        status, out, err = charcnn(*words)
        assert (status, out) == (UNUSABLE, "")
        assert err.startswith(f"charcnn {words[0]}: {source}: ")
        assert message in err
        assert err.count(str(source)) == 1
        assert err.count("\n") == 1
    assert not [found for found in left(tmp_path) if ".labelled" in found and ".part" not in found]


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_what_is_not_whole_further_on_gets_no_output(charcnn, tmp_path, monkeypatch, ending):
    monkeypatch.setattr("charcnn.classify.labelling.BUFFER", {"cpu": 1 << 12, "cuda": 1 << 12})
    source = tmp_path / f"in.csv{ending}"
    source.write_bytes(pack(os.urandom(60_000).hex().encode() + b"\n" + rows_of("csv", 9000), ending)[:-9])
    status, out, err = charcnn("classify", source, "--no-header", "--text-columns", "1")
    assert (status, out) == (UNUSABLE, "")
    assert f"charcnn classify: {source}: is not a whole" in err
    assert not (tmp_path / "in.labelled.csv").exists()


def test_one_that_is_cut_short_meanwhile_is_a_failure(tmp_path):
    """At the end of a member, where nothing else shows it."""
    first = pack(os.urandom(1 << 20), ".gz")
    file = unpacked(tmp_path / "in", first + pack(b"more", ".gz"), ".gz")
    file.read(10)
    os.truncate(tmp_path / "in", len(first))
    with pytest.raises(OSError, match="cut short while it was read") as caught:
        file.readall()
    assert caught.value.filename == str(tmp_path / "in")


def test_a_row_that_unpacks_to_more_than_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LONGEST_UNPACKED", 1 << 16)
    (tmp_path / "in.txt.gz").write_bytes(pack(b"short\n" * 99 + b"a" * (1 << 20), ".gz"))
    with open(tmp_path / "in.txt.gz", "rb", buffering=0) as file:
        reader = open_reader("lines", "in.txt.gz", file, Layout(), CREPE, rows=10, capacity=256)
        with pytest.raises(ValueError, match=r"in\.txt\.gz: unpacks to a row of more than 0 MB"):
            list(reader.blocks())
    assert reader.source.buffer.size <= (1 << 16) + 1


@pytest.mark.parametrize(("longer", "fits"), [(0, True), (1, False)])
def test_the_longest_row_that_is_unpacked(tmp_path, monkeypatch, longer, fits):
    """Between the limit and twice as much, too: the buffer that grows by doubling must not hold it."""
    monkeypatch.setattr(sources, "LONGEST_UNPACKED", 1 << 12)
    (tmp_path / "in.txt.gz").write_bytes(pack(b"a" * ((1 << 12) + longer) + b"\n" + b"b\n" * 9, ".gz"))
    with open(tmp_path / "in.txt.gz", "rb", buffering=0) as file:
        reader = open_reader("lines", "in.txt.gz", file, Layout(), CREPE, rows=10, capacity=256)
        if fits:
            assert sum(block.rows for block in reader.blocks()) == 10
        else:
            with pytest.raises(ValueError, match="unpacks to a row of more than"):
                list(reader.blocks())
    assert reader.source.buffer.size <= (1 << 12) + 1


def test_blocks_are_full_and_the_buffer_does_not_matter(tmp_path):
    data = rows_of("csv", 500)
    (tmp_path / "in.csv.gz").write_bytes(pack(data, ".gz"))
    expected = read(opened(tmp_path, data, "csv", header=False, rows=100))
    for capacity in (64, 1000, 1 << 20):
        with open(tmp_path / "in.csv.gz", "rb", buffering=0) as file:
            layout = Layout(header=False)
            reader = open_reader("csv", "in.csv.gz", file, layout, CREPE, rows=100, capacity=capacity)
            assert reader.size is None
            assert read(reader) == expected
        with open(tmp_path / "in.csv.gz", "rb", buffering=0) as file:
            reader = open_reader("csv", "in.csv.gz", file, layout, CREPE, rows=100, capacity=capacity)
            sizes = [block.rows for block in reader.blocks()]
            assert sum(sizes) == 500
            assert sizes == [100] * 5 or capacity < len(data)


def test_evaluate_and_train_read_them(charcnn, tmp_path):
    data = b"".join(b"%d,text %d\n" % (1 + n % 4, n) for n in range(40))
    for name, given in (("in.csv", data), ("in.csv.gz", pack(data, ".gz"))):
        (tmp_path / name).write_bytes(given)
    assert charcnn("evaluate", tmp_path / "in.csv.gz")[:2] == charcnn("evaluate", tmp_path / "in.csv")[:2]
    plain, packed = (read_rows(tmp_path / name, CREPE) for name in ("in.csv", "in.csv.gz"))
    assert packed.texts == plain.texts
    assert packed.labels == plain.labels
    assert read_texts(tmp_path / "in.csv.gz").texts == read_texts(tmp_path / "in.csv").texts


def test_without_pyarrow_zst_says_what_to_install(charcnn, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "in.csv.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    status, _, err = charcnn("classify", tmp_path / "in.csv.zst")
    assert status == UNUSABLE
    assert err == f"charcnn classify: {tmp_path / 'in.csv.zst'}: Zstandard: needs pyarrow: {pip_install('arrow')}\n"


def test_a_pipe_with_such_a_name_says_what_to_do(charcnn, tmp_path):
    os.mkfifo(tmp_path / "in.csv.gz")
    theirs = os.open(tmp_path / "in.csv.gz", os.O_RDWR)
    status, _, err = charcnn("classify", tmp_path / "in.csv.gz")
    os.close(theirs)
    assert status == UNUSABLE
    assert "is not a regular file: unpack it in a pipe" in err


def test_an_output_is_not_compressed_and_says_so(charcnn, tmp_path):
    (tmp_path / "in.csv").write_text("1,a\n")
    status, _, err = charcnn("classify", tmp_path / "in.csv", "-o", tmp_path / "out.csv.gz")
    assert status == UNUSABLE
    said = "outputs are not compressed: need a name without .gz"
    assert err == f"charcnn classify: --output {tmp_path / 'out.csv.gz'}: {said}\n"


def test_names():
    assert split_name("a.b/c.csv.gz") == ("a.b/c", ".csv", ".gz")
    assert split_name("c.JSONL.ZST") == ("c", ".JSONL", ".ZST")
    assert split_name("c.gz") == ("c", "", ".gz")
    assert split_name("c.csv") == ("c", ".csv", "")
    assert [format_by_name(name) for name in ("a.tsv.gz", "a.gz", "a.jsonl.zst", "a.pq")] == [
        "tsv",
        "lines",
        "jsonl",
        "parquet",
    ]
