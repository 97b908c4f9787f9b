"""`charcnn classify` on files of every kind: what is read, what is written, and rows that cannot be read."""

import gzip
import json
import subprocess

import numpy as np
import pytest
from commands import TEXTS, command, left, rows
from conftest import CPU_LEVELS

from charcnn.__main__ import main
from charcnn.classify.classifier import ROWS
from charcnn.cli import DONE, UNREADABLE, UNUSABLE
from charcnn.config import TINY
from charcnn.model import params
from charcnn.text import encodings, layout
from charcnn.text.readers import parquet as parquet_reader
from charcnn.text.readers.base import Block
from charcnn.text.writers import parquet as parquet_writer


def test_csv_without_a_header(charcnn, classifier, tmp_path):
    source = tmp_path / "news.csv"
    source.write_text("".join(f'{n % 4 + 1},"{value}, ""quoted""",b\n' for n, value in enumerate(TEXTS)))
    status, out, err = charcnn("classify", source)
    assert status == DONE
    assert out == ""
    assert "160 rows in" in err
    assert f"{CPU_LEVELS[-1].name} (CPU, fp32)" in err
    assert left(tmp_path) == ["news.csv", "news.labelled.csv"]
    expected = classifier.predict_proba([f'b {value}, "quoted"' for value in TEXTS])
    found = rows(tmp_path / "news.labelled.csv")
    assert [row[:3] for row in found] == rows(source)
    assert [row[3] for row in found] == classifier.classes_[expected.argmax(axis=1)].tolist()
    np.testing.assert_allclose([float(row[4]) for row in found], expected.max(axis=1), atol=1e-4)


def test_csv_with_a_header_and_a_column_called_label(charcnn, tmp_path):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("id,label,text\r\n1,x,abc\r\n2,y,def")
    status, *_ = charcnn("classify", source, "-o", out, "--probabilities")
    assert status == DONE
    found = rows(out)
    assert found[0] == [
        "id",
        "label",
        "text",
        "predicted label",
        *(f"probability of {name}" for name in encodings.CLASSES),
    ]
    assert [row[:3] for row in found[1:]] == [["1", "x", "abc"], ["2", "y", "def"]]
    for row in found[1:]:
        assert sum(map(float, row[4:])) == pytest.approx(1, abs=3e-4)
        assert float(row[4 + encodings.CLASSES.index(row[3])]) == max(map(float, row[4:]))


def test_tsv_and_names_of_classes_that_need_quotes(tmp_path, capsys):
    weights, source = tmp_path / "m.safetensors", tmp_path / "in.tsv"
    names = ['a "b"', 'c "', "e,f", '"']
    params.save(weights, params.init(TINY), TINY, encoding="forward", classes=names)
    source.write_text("headline\tn\nabc\t1\ndef\t2\n")
    assert main(["classify", str(source), "--model", str(weights), "--text-columns", "headline"]) == DONE
    found = rows(tmp_path / "in.labelled.tsv", delimiter="\t")
    assert found[0] == ["headline", "n", "label", "probability"]
    assert found[1][2] in names


def test_lines(charcnn, classifier, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("a\tb\n\nlast")
    assert charcnn("classify", source)[0] == UNREADABLE
    found = (tmp_path / "in.labelled.txt").read_text().splitlines()
    labels = classifier.predict(["a\tb", "last"])
    assert [line.split("\t", 2)[::2] for line in found] == [
        [labels[0], "a\tb"],
        ["", ""],
        [labels[1], "last"],
    ]


def test_json_lines(charcnn, classifier, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a", "n": {"m": [1]} }\n{"text": "é"}\nbroken\n{"n": 1}\n{}\n')
    status, _, err = charcnn("classify", source)
    assert status == UNREADABLE
    assert "row 3, line 3: not JSON" in err
    found = (tmp_path / "in.labelled.jsonl").read_text().splitlines()
    assert found[2] == "broken"
    first, second, third, last = (json.loads(found[n]) for n in (0, 1, 3, 4))
    assert list(first) == ["text", "n", "label", "probability"]
    assert [first["label"], second["label"]] == classifier.predict(["a", "é"]).tolist()
    assert third == {"n": 1, "label": None, "probability": None}
    assert last == {"label": None, "probability": None}
    report = rows(tmp_path / "in.labelled.jsonl.unreadable.csv")
    assert [row[:2] for row in report] == [["row", "line"], ["3", "3"], ["4", "4"], ["5", "5"]]


def test_json_lines_that_are_no_objects(charcnn, classifier, tmp_path):
    """They cost their own rows alone: none takes the label of another, and none is shown as it is."""
    source = tmp_path / "in.jsonl"
    lines = [
        "null",
        '{"text": "a"}',
        '{"text": "b"} {"text": "c"}',
        "",
        '{"text": "d"}',
        '"\\u001b[31m"',
        '{"text": "e"}',
    ]
    source.write_text("".join(f"{line}\n" for line in lines))
    status, _, err = charcnn("classify", source)
    assert status == UNREADABLE
    assert "row 5, line 6: a string: need a JSON object\n" in err
    found = (tmp_path / "in.labelled.jsonl").read_text().splitlines()
    labels = [json.loads(found[n])["label"] for n in (1, 4, 6)]
    assert labels == classifier.predict(["a", "d", "e"]).tolist()
    assert [found[n] for n in (0, 2, 3, 5)] == [lines[n] for n in (0, 2, 3, 5)]


def test_a_plain_line_in_quotes(charcnn, classifier, tmp_path):
    source = tmp_path / "in.txt"
    texts = ['"Phishing" scams cost banks $500m a year', '"Quoted"']
    source.write_text("\n".join(texts))
    assert charcnn("classify", source)[0] == DONE
    expected = classifier.predict_proba(texts)
    found = [line.split("\t") for line in (tmp_path / "in.labelled.txt").read_text().splitlines()]
    assert [row[0] for row in found] == classifier.classes_[expected.argmax(axis=1)].tolist()
    np.testing.assert_allclose([float(row[1]) for row in found], expected.max(axis=1), atol=5.1e-5)
    assert [row[2] for row in found] == texts


@pytest.mark.parametrize("probabilities", [False, True])
def test_every_object_has_each_key_once(charcnn, classifier, tmp_path, monkeypatch, probabilities):
    """Keys of its own keep their values, whatever the first object has; what is added goes by another name there."""
    other = "probability of World" if probabilities else "probability"
    objects = [
        {"text": "a"},
        {"text": "b", "label": "mine"},
        {"label": None, "text": "c", other: [0]},
        {"text": "d", "label": 1, "predicted label": 2},
        {"text": "e", "inner": {"label": 3}},
        {"label": "no text"},
    ]
    lines = [*map(json.dumps, objects), '{"text": "f", "l\\u0061bel": "mine"}', '["label"]']
    objects += [{"text": "f", "label": "mine"}]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(lines) + "\n")
    monkeypatch.setitem(ROWS, "cpu", 3)
    assert charcnn("classify", source, *["--probabilities"] * probabilities)[0] == UNREADABLE
    found = (tmp_path / "in.labelled.jsonl").read_text().splitlines()
    assert found[-1] == lines[-1]
    added = ["label", *(f"probability of {name}" for name in encodings.CLASSES)] if probabilities else ["label", other]
    for value, line, written in zip(objects, lines, found, strict=False):
        assert written.startswith(line[:-1]), "its own bytes stay"
        pairs = json.loads(written, object_pairs_hook=list)
        keys = [key for key, _ in pairs]
        assert len(set(keys)) == len(keys)
        expected = []
        for name in added:
            while name in value:
                name = f"predicted {name}"
            expected.append(name)
        assert keys == [*value, *expected]
        label = dict(pairs)[expected[0]]
        assert label == (classifier.predict(value["text"]) if "text" in value else None)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_an_output_is_labelled_again(charcnn, tmp_path, suffix):
    source, out = tmp_path / f"in.{suffix}", tmp_path / f"out.{suffix}"
    given = {"csv": "text,label,predicted label\na,b,c\n", "jsonl": '{"text":"a","label":"b","predicted label":"c"}\n'}
    source.write_text(given[suffix])
    assert charcnn("classify", source, "-o", out)[0] == DONE
    keys = list(json.loads(out.read_text())) if suffix == "jsonl" else rows(out)[0]
    assert keys == ["text", "label", "predicted label", "predicted predicted label", "probability"]


def test_parquet(charcnn, classifier, tmp_path, monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table(
        {
            "n": range(len(TEXTS)),
            "title": pyarrow.array([None if n == 7 else value for n, value in enumerate(TEXTS)]).dictionary_encode(),
            "description": [None if n in (7, 9) else f"d{n}" for n in range(len(TEXTS))],
        }
    )
    parquet.write_table(table, tmp_path / "in.parquet")
    monkeypatch.setitem(ROWS, "cpu", 50)
    monkeypatch.setattr(parquet_writer, "GROUP_ROWS", 100)
    status, _, err = charcnn("classify", tmp_path / "in.parquet", "--probabilities")
    assert status == UNREADABLE
    assert "row 8: 'description' and 'title' are missing" in err
    written = parquet.ParquetFile(tmp_path / "in.labelled.parquet")
    assert [written.metadata.row_group(n).num_rows for n in range(written.num_row_groups)] == [100, 60]
    found = written.read()
    assert found.column_names[:3] == table.column_names
    assert found.select(table.column_names).cast(table.schema).equals(table)
    expected = classifier.predict([f"{'' if n == 9 else f'd{n}'} {value}" for n, value in enumerate(TEXTS)]).tolist()
    expected[7] = None
    assert found["label"].to_pylist() == expected
    assert found["probability of World"].null_count == 1
    status, _, err = charcnn("classify", tmp_path / "in.parquet", "-o", "-")
    assert (status, err) == (UNUSABLE, "charcnn classify: --output -: a Parquet file needs a name\n")


def test_a_parquet_file_that_is_none(charcnn, tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "in.parquet").write_bytes(b"no")
    status, _, err = charcnn("classify", tmp_path / "in.parquet")
    assert status == UNUSABLE
    assert "is not a whole Parquet file" in err
    assert left(tmp_path) == ["in.parquet"]


def test_parquet_with_two_columns_of_one_name(charcnn, tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    source = tmp_path / "in.parquet"
    for names in (["text", "text", "n"], ["text", "n", "n"]):
        columns = [pyarrow.array(["a"])] * 3
        parquet.write_table(pyarrow.Table.from_arrays(columns, names=names), source)
        status, _, err = charcnn("classify", source)
        assert status == UNUSABLE
        assert err == f"charcnn classify: {source}: has more than one column called {names[1]}: rename all but one\n"


def test_parquet_that_is_damaged_is_one_line(charcnn, tmp_path):
    """Whatever is damaged, the footer or the pages, says so with the file's name, and gives no output."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    parquet.write_table(pyarrow.table({"text": TEXTS}), source, compression="gzip", write_page_checksum=True)
    whole, damaged = source.read_bytes(), []
    for start, size in ((-30, 22), (-200, 100), (-8, 4), (-len(whole) + 60, 200), (-len(whole) + 20, 4)):
        data = bytearray(whole)
        data[start : start + size] = b"\xff" * size
        damaged.append(bytes(data))
    for data in (*damaged, whole[:-4], whole[:100] + whole[-100:], b"", b"PAR1"):
        source.write_bytes(data)
        status, _, err = charcnn("classify", source, "-o", out, "--force")
        if status == DONE:  # what it hit is not needed
            continue
        assert status == UNUSABLE
        assert err.removeprefix(f"{source}: text: text\n").startswith(
            f"charcnn classify: {source}: is not a whole Parquet file ("
        )
        assert err.count("charcnn") == err.count("\n") - err.count("text: text") == 1
        out.unlink(missing_ok=True)


def test_a_null_of_an_arrow_dictionary_is_no_text(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "in.parquet")
    kind = parquet_reader.ParquetReader(str(tmp_path / "in.parquet"), layout.Layout(), 10, encodings.ENCODINGS["crepe"])
    array = pyarrow.DictionaryArray.from_arrays([0, 1, None], ["a", None])
    batch = pyarrow.RecordBatch.from_arrays([array], names=["text"])
    block = Block(0, 0, 3, 3, kinds=np.zeros(3, np.uint8), batch=batch)
    kind.texts(block)
    assert block.unreadable() == [(2, None, "'text' is missing"), (3, None, "'text' is missing")]


def test_broken_utf_8_keeps_its_bytes(charcnn, classifier, tmp_path):
    source = tmp_path / "in.csv"
    source.write_bytes(b"1,caf\xe9 \xff\xfe\n2,b\n")
    assert charcnn("classify", source)[0] == DONE
    found = (tmp_path / "in.labelled.csv").read_bytes().splitlines()
    label = classifier.predict([b"caf\xe9 \xff\xfe"])[0].encode()
    assert found[0].startswith(b"1,caf\xe9 \xff\xfe," + label + b",0.")


def test_unreadable_rows_keep_their_place(charcnn, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text('1,a\n2\n3,"open\n4,b,c\n5,e\n\n6,f\n')
    status, _, err = charcnn("classify", source)
    assert status == UNREADABLE
    assert "row 2, line 2: 1 fields: need 2" in err
    assert "3 rows are unreadable" in err
    found = (tmp_path / "in.labelled.csv").read_text().splitlines()
    assert found[1:4] == ["2,,,", '3,"open,,', "4,b,c,,"]
    assert found[5] == ""
    assert [line[:4] for line in (found[0], found[4], found[6])] == ["1,a,", "5,e,", "6,f,"]
    report = (tmp_path / "in.labelled.csv.unreadable.csv").read_text()
    assert report == "row,line,reason\n2,2,1 fields: need 2\n3,3,broken quoting\n4,4,3 fields: need 2\n"


def test_fields_of_a_megabyte(charcnn, classifier, tmp_path):
    source, long = tmp_path / "in.csv", "ab, " * (1 << 18)
    source.write_text(f'1,"{long}"\n2,b\n3,"{long}"\n')
    assert charcnn("classify", source)[0] == DONE
    found = (tmp_path / "in.labelled.csv").read_text().splitlines()
    labels = classifier.predict([long, "b", long])
    assert [line.rsplit(",", 2)[1] for line in found] == labels.tolist()
    assert found[0].startswith(f'1,"{long}",')


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".txt"])
def test_an_empty_file(charcnn, tmp_path, suffix):
    source = tmp_path / f"in{suffix}"
    source.write_bytes(b"")
    status, _, err = charcnn("classify", source)
    assert status == DONE
    assert err.startswith("0 rows in")
    assert (tmp_path / f"in.labelled{suffix}").read_bytes() == b""


def test_what_is_no_text_is_refused(charcnn, weights, tmp_path):
    for name in ("news.tsv", "news.csv", "news.jsonl", "news.txt"):
        (tmp_path / name).write_bytes(gzip.compress(b"1,text\n" * 10, mtime=0))
        status, out, err = charcnn("classify", tmp_path / name)
        assert (status, out) == (UNUSABLE, "")
        said = "is compressed by gzip: unpack it first (gunzip), or let its name end in .gz"
        assert err == f"charcnn classify: {tmp_path / name}: {said}\n"
    assert len(left(tmp_path)) == 4
    for words in (("classify", "-"), ("explain", "-")):
        process = command(
            *words, "--model", weights, "--device", "cpu",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, err = process.communicate("text\n".encode("utf-16"))
        assert (process.returncode, out) == (UNUSABLE, b"")
        assert err.endswith(b"standard input: is UTF-16: need UTF-8 (iconv -f UTF-16 -t UTF-8)\n")
        assert err.count(b"\n") == 1
