"""The command `charcnn`, as a user runs it: files of every kind, broken ones, full disks, kills and second starts."""

import argparse
import csv
import errno
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import runs_here

from charcnn import catalog
from charcnn.__main__ import main
from charcnn.classify.classifier import ROWS, Classifier
from charcnn.cli import COMMANDS, DONE, FAILED, UNREADABLE, UNUSABLE, classify, model, sinks
from charcnn.config import TINY
from charcnn.gpu import device, simulator
from charcnn.model import params
from charcnn.text import encodings, layout, output
from charcnn.text.readers import parquet as parquet_reader
from charcnn.text.readers.base import Block

ROOT = Path(__file__).parent.parent
TEXTS = [f"{word} number {n}" for n in range(40) for word in ("stocks", "match", "talks", "chips")]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    params.save(path, params.init(TINY, seed=3), TINY, encoding="crepe", classes=encodings.CLASSES)
    return str(path)


@pytest.fixture(scope="module")
def classifier(weights):
    return Classifier.load(weights, device="cpu")


@pytest.fixture
def charcnn(weights, capsys):
    """Run a command here: status, standard output, standard error."""

    def run(*words, model=weights):
        words = [str(word) for word in words]
        status = main([*words, "--model", model, "--device", "cpu"] if model else words)
        done = capsys.readouterr()
        return status, done.out, done.err

    return run


HEARS = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
"""What a process that is interrupted begins with: it inherits that SIGINT is ignored where pytest runs by `nohup`."""


def command(*words, code="", **options):
    """The command in a process of its own, after this code."""
    code = f"import sys\n{HEARS}\nfrom charcnn.__main__ import main\n{code}\nsys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], env=environment, **options)


def rows(path, **options):
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.reader(file, **options))


def left(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def test_csv_without_a_header(charcnn, classifier, tmp_path):
    source = tmp_path / "news.csv"
    source.write_text("".join(f'{n % 4 + 1},"{value}, ""quoted""",b\n' for n, value in enumerate(TEXTS)))
    status, out, err = charcnn("classify", source)
    assert status == DONE
    assert out == ""
    assert "160 rows in" in err
    assert "l18 (CPU, fp32)" in err
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
    assert charcnn("classify", source)[0] == DONE
    found = (tmp_path / "in.labelled.txt").read_text().splitlines()
    labels = classifier.predict(["a\tb", "", "last"])
    assert [line.split("\t", 2)[::2] for line in found] == [
        [labels[0], "a\tb"],
        [labels[1], ""],
        [labels[2], "last"],
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
    monkeypatch.setattr(parquet_reader, "GROUP_ROWS", 100)
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
        assert err.startswith(f"charcnn classify: {source}: is not a whole Parquet file (")
        assert err.count("\n") == 1
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


def test_an_output_that_is_there_is_kept(charcnn, tmp_path):
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\n")
    out.write_text("mine")
    status, _, err = charcnn("classify", source, "-o", out)
    assert status == UNUSABLE
    assert "is there already: name another output, or add --force" in err
    assert out.read_text() == "mine"
    assert charcnn("classify", source, "-o", out, "--force")[0] == DONE
    assert out.read_text().endswith("\ta\n")
    status, _, err = charcnn("classify", source, "-o", source, "--force")
    assert status == UNUSABLE
    assert "is the input" in err
    assert left(tmp_path) == ["in.txt", "out.txt"]


def test_a_report_of_a_run_before_goes(charcnn, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("1,a\n2\n")
    assert charcnn("classify", source)[0] == UNREADABLE
    source.write_text("1,a\n2,b\n")
    assert charcnn("classify", source, "--force")[0] == DONE
    assert left(tmp_path) == ["in.csv", "in.labelled.csv"]


def test_what_is_done_in_json(charcnn, tmp_path):
    source, report = tmp_path / "in.txt", tmp_path / "report.json"
    source.write_text("a\nb\n")
    assert charcnn("classify", source, "--json", report, "--quiet") == (DONE, "", "")
    found = json.loads(report.read_text())
    assert found["rows"] == 2
    assert found["level"] == "l18"
    assert set(found["busy"]) == {"read and scan", "gather texts", "encode", "compute", "render", "write"}
    assert found["bound"] in found["busy"]


def test_standard_input_is_streamed(weights):
    process = command(
        "classify", "-", "--model", weights, "--device", "cpu", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    for line in (b"first line\n", b"second \xff line\n"):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"\t" + line), "its label comes before the input ends"
    process.stdin.write(b"last")
    process.stdin.close()
    assert process.stdout.read().endswith(b"\tlast\n")
    assert process.wait() == DONE


def test_standard_input_of_other_kinds(weights, tmp_path):
    given = b"text,n\nabc,1\n"
    process = command(
        *("classify", "-", "--format", "csv", "--model", weights, "-o", tmp_path / "out.csv"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _, err = process.communicate(given)
    assert process.returncode == DONE, err
    assert rows(tmp_path / "out.csv")[0] == ["text", "n", "label", "probability"]
    assert left(tmp_path) == ["out.csv"]
    with pytest.raises(ValueError, match="needs a file"):
        model.format_of(type("Options", (), {"format": "parquet", "input": "-"}))


def test_standard_input_from_a_file_is_begun_anew(weights, tmp_path):
    out = tmp_path / "out.txt"
    for given in ("text\n" * 20_000, "other\n" * 2):
        source = tmp_path / "in.txt"
        source.write_text(given)
        words = ("classify", "-", "-o", out, "--model", weights)
        with open(source, "rb") as file:
            process = command(*words, code=SLOW, stdin=file, stderr=subprocess.PIPE)
            limit = time.monotonic() + 60
            while len(given) > 100 and not Path(f"{out}.part").exists() and time.monotonic() < limit:
                time.sleep(0.01)
            time.sleep(0.3)
            if len(given) > 100:
                process.send_signal(signal.SIGINT)
            process.communicate()
    assert process.returncode == DONE
    assert [line.split("\t")[2] for line in out.read_text().splitlines()] == ["other", "other"]


def test_memory_does_not_grow_with_the_file(weights, tmp_path):
    peaks = []
    for count in (20_000, 120_000) if device.SIMULATED else (200_000, 400_000):  # a GPU has many batches in flight
        source, report = tmp_path / f"{count}.txt", tmp_path / "report.json"
        source.write_text(f"{'a text of some length ' * 40}\n" * count)
        process = command("classify", source, "-o", "/dev/null", "--model", weights, "--quiet", "--json", report)
        assert process.wait() == DONE
        found = json.loads(report.read_text())
        assert found["rows"] == count
        peaks.append(found["peak_resident_bytes"])
    assert peaks[1] < peaks[0] + 30e6, "the file alone grows by 90 MB or more"


def test_a_reader_that_has_seen_enough(weights, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("line\n" * 20_000)
    process = command("classify", source, "-o", "-", "--model", weights, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == FAILED
    assert process.stderr.read() == b""


def test_a_full_disk(weights, tmp_path):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("".join(f"1,text {n} {'x' * 90}\n" for n in range(5000)))
    words = ("classify", source, "-o", out, "--model", weights, "--device", "cpu")

    def small():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    process = command(*words, stderr=subprocess.PIPE, preexec_fn=small)
    _, err = process.communicate()
    assert process.returncode == FAILED
    assert f"{out}.part: File too large".encode() in err
    assert b"Traceback" not in err
    assert left(tmp_path) == ["in.csv", "out.csv.part", "out.csv.part.json"]
    process = command(*words, stderr=subprocess.PIPE)
    _, err = process.communicate()
    assert process.returncode == DONE, err
    assert left(tmp_path) == ["in.csv", "out.csv"]
    assert len(rows(out)) == 5000


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_device_that_is_full(charcnn, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("a\n")
    status, _, err = charcnn("classify", source, "-o", "/dev/full")
    assert status == FAILED
    assert err == "charcnn classify: /dev/full: No space left on device\n"


SLOW = """
import time
from charcnn.classify import classifier
from charcnn.text import output
classifier.ROWS = dict.fromkeys(classifier.ROWS, 50)
output.EVERY_SECONDS = 0
advance = output.Partial.advance
output.Partial.advance = lambda *values: (advance(*values), time.sleep(0.01))
"""


@pytest.mark.parametrize("kind", ["csv", "jsonl", "txt"])
def test_a_kill_in_the_middle_and_a_second_start(charcnn, weights, tmp_path, kind):
    source, out = tmp_path / f"in.{kind}", tmp_path / f"out.{kind}"
    line = {"csv": "1,text {n}\n", "jsonl": '{{"text": "text {n}"}}\n', "txt": "text {n}\n"}[kind]
    broken = {"csv": "1\n", "jsonl": "broken\n", "txt": "\n"}[kind]
    source.write_text("".join(broken if n % 100 == 99 else line.format(n=n) for n in range(10_000)))
    words = ("classify", source, "--model", weights, "--device", "cpu", "-o")
    process = command(*words, out, code=SLOW, stderr=subprocess.PIPE)
    journal, limit, done = tmp_path / f"out.{kind}.part.json", time.monotonic() + 60, 0
    while done < 1000 and time.monotonic() < limit and process.poll() is None:
        time.sleep(0.005)
        if journal.exists():
            done = json.loads(journal.read_text())["state"]["rows"]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 1000 <= done < 10_000
    assert not out.exists()
    with open(f"{out}.part", "ab") as file:  # more than the journal knows of
        file.write(b"half a row")
    status, _, err = charcnn("classify", source, "-o", out)
    assert "going on after row " in err
    assert status == (DONE if kind == "txt" else UNREADABLE)
    whole = tmp_path / f"whole.{kind}"
    charcnn("classify", source, "-o", whole)
    assert out.read_bytes() == whole.read_bytes()
    if kind != "txt":
        assert Path(f"{out}.unreadable.csv").read_bytes() == Path(f"{whole}.unreadable.csv").read_bytes()
        assert len(rows(f"{out}.unreadable.csv")) == 101
    assert not [name for name in left(tmp_path) if ".part" in name]


@pytest.fixture
def interrupted(charcnn, monkeypatch):
    """Run a command, and end it by Ctrl-C after so many blocks of 50 rows; the journal knows of all of them."""

    def run(blocks, *words):
        advance, left = output.Partial.advance, [blocks]

        def once(self, *values):
            advance(self, *values)
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setitem(ROWS, "cpu", 50)
            patch.setattr(output, "EVERY_SECONDS", 0)
            patch.setattr(output.Partial, "advance", once)
            assert charcnn(*words)[0] == 130

    return run


def test_lines_of_a_run_that_is_gone_on_with_are_those_of_the_file(charcnn, interrupted, tmp_path):
    source, out, whole = (tmp_path / f"{name}.csv" for name in ("in", "out", "whole"))
    source.write_text('\n"text\nof two lines",b\n' + "".join("a\n" if n % 60 == 59 else "a,b\n" for n in range(200)))
    interrupted(2, "classify", source, "-o", out, "--header")
    status, _, err = charcnn("classify", source, "-o", out, "--header")
    assert status == UNREADABLE
    assert "row 120, line 123: 1 fields: need 2" in err
    charcnn("classify", source, "-o", whole, "--header")
    assert out.read_bytes() == whole.read_bytes()
    assert rows(f"{out}.unreadable.csv") == rows(f"{whole}.unreadable.csv")
    assert [row[1] for row in rows(f"{out}.unreadable.csv")] == ["line", "63", "123", "183"]


def test_a_run_that_was_cut_off_after_empty_lines_alone(charcnn, interrupted, tmp_path):
    source, out, whole = (tmp_path / f"{name}.csv" for name in ("in", "out", "whole"))
    source.write_text("text\n" + "\n" * 200 + "a\n")
    interrupted(2, "classify", source, "-o", out)
    assert charcnn("classify", source, "-o", out)[0] == DONE
    charcnn("classify", source, "-o", whole)
    assert out.read_bytes() == whole.read_bytes()


def changed(journal, found):
    """The journals that are not as they were written, and what stands in them."""
    state, other = found["state"], {**found, "state": None}
    for name in state:
        for value in (None, "7", 1.5, True, -1, [], {}, 10**12, state[name] + 1, 10**400):
            yield f"{name} {value}", json.dumps({**found, "state": {**state, name: value}})
    for value in (None, 7, "", [], {}, {"rows": 1}):
        yield f"state {value}", json.dumps({**other, "state": value})
        yield f"journal {value}", json.dumps(value)
        yield f"identity {value}", json.dumps({**found, "identity": value})
    yield "nested", "[" * 100_000
    yield "no JSON", "{"
    yield "no check", json.dumps({name: found[name] for name in ("identity", "state")})


def test_a_journal_that_is_not_as_it_was_written_is_refused(interrupted, tmp_path):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("text,b\n" + "a,b\n" * 120 + "a\n" + "a,b\n" * 120)
    interrupted(3, "classify", source, "-o", out)
    journal, part, report = (Path(f"{out}{end}") for end in (".part.json", ".part", ".unreadable.csv.part"))
    kept, data, notes = journal.read_text(), part.read_bytes(), report.read_bytes()
    found, size = json.loads(kept), source.stat().st_size
    identity = {name: value for name, value in found["identity"].items() if name != "report"}

    def start(**options):
        output.Partial(str(out), found["identity"]["report"], identity, size=size, **options).close()

    start()
    assert json.loads(journal.read_text()) == found
    for what, content in changed(journal, found):
        journal.write_text(content)
        with pytest.raises(ValueError, match="or a damaged one"):
            start()
        assert part.read_bytes() == data, what
    for name, value in (("input", size + 1), ("input", 0), ("rows", -1)):  # by a hand that knows how
        state = {**found["state"], name: value}
        journal.write_text(json.dumps({**found, "state": state, "check": output._check(found["identity"], state)}))
        with pytest.raises(ValueError, match="or a damaged one"):
            start()
    journal.write_text(kept)
    report.write_bytes(notes[:-1])  # begun anew, as where the data are shorter than the journal says
    start()
    assert (part.read_bytes(), report.exists()) == (b"", False)


def test_a_kill_leaves_no_temporary_file_of_the_journal(charcnn, weights, tmp_path):
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\n" * 200)
    code = """
import os, signal
from charcnn.classify import classifier
from charcnn import files
from charcnn.text import output
classifier.ROWS["cpu"] = 50
output.EVERY_SECONDS = 0
replace, calls = os.replace, []
def struck(*paths):
    calls.append(paths)
    if len(calls) == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*paths)
os.replace = struck
"""
    for killed in (1, 3):  # before the first journal, and between two
        words = ("classify", source, "-o", out, "--model", weights, "--device", "cpu")
        process = command(*words, code=code.replace("KILLED", str(killed)), stderr=subprocess.PIPE)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert set(left(tmp_path)) <= {"in.txt", "out.txt.part", "out.txt.part.json", "out.txt.part.json.new"}
    assert charcnn("classify", source, "-o", out)[0] == DONE
    assert left(tmp_path) == ["in.txt", "out.txt"]


@pytest.mark.parametrize("name", ["in.csv", "in.txt", "in.jsonl"])
def test_an_input_that_is_cut_short_meanwhile_gets_no_output(charcnn, monkeypatch, tmp_path, name):
    source, out = tmp_path / name, tmp_path / "out"
    line = {"in.csv": "text\n", "in.txt": "text\n", "in.jsonl": '{"text": "a"}\n'}[name]
    source.write_text(line * 2000)
    monkeypatch.setitem(model.BUFFER, "cpu", 1000)
    take = sinks.Sink.take

    def cut(self, *values):
        os.truncate(source, len(line) * 700)
        take(self, *values)

    monkeypatch.setattr(sinks.Sink, "take", cut)
    monkeypatch.setitem(ROWS, "cpu", 20)
    status, _, err = charcnn("classify", source, "-o", out, "--format", {"t": "lines"}.get(name[-1], name[3:]))
    assert status == FAILED
    size = len(line) * 2000
    assert f"{source}: ends after {len(line) * 700:,} of {size:,} bytes: it was cut short" in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_what_is_no_text_is_refused(charcnn, weights, tmp_path):
    for name in ("news.csv.gz", "news.csv", "news.jsonl", "news.txt"):
        (tmp_path / name).write_bytes(gzip.compress(b"1,text\n" * 10))
        status, out, err = charcnn("classify", tmp_path / name)
        assert (status, out) == (UNUSABLE, "")
        assert err == f"charcnn classify: {tmp_path / name}: is compressed by gzip: unpack it first (gunzip)\n"
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


def test_what_another_run_left_is_not_gone_on_with(charcnn, tmp_path):
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\nb\n")
    output.Partial(str(out), f"{out}.report", {"input": "another"}).close()
    status, _, err = charcnn("classify", source, "-o", out)
    assert status == UNUSABLE
    assert "is what another run left" in err
    assert charcnn("classify", source, "-o", out, "--force")[0] == DONE
    Path(f"{out}.part").write_text("foreign")
    out.unlink()
    assert charcnn("classify", source, "-o", out)[0] == UNUSABLE
    assert Path(f"{out}.part").read_text() == "foreign"


def test_a_default_that_is_named_goes_on_too(charcnn, tmp_path, monkeypatch):
    source, out, finish = tmp_path / "in.csv", tmp_path / "out.csv", output.Partial.finish

    def full(self):
        monkeypatch.setattr(output.Partial, "finish", finish)
        raise OSError(errno.ENOSPC, "No space left on device")

    source.write_text("id,title,label\n1,a,b\n2,c,d\n")
    monkeypatch.setattr(output.Partial, "finish", full)
    assert charcnn("classify", source, "-o", out)[0] == FAILED
    for other in ("--text-columns=id", "--no-header", "--encoding=forward", "--probabilities"):
        status, _, err = charcnn("classify", source, "-o", out, other)
        assert status == UNUSABLE
        assert "is what another run left" in err
    columns = ("--text-columns", "2", "--label-column", "label", "--header", "--delimiter", ",")
    named = ("--format", "csv", *columns, "--encoding", "crepe", "--precision", "fp32", "--level", "l11")
    status, _, err = charcnn("classify", source, "-o", out, *named)
    assert status == DONE
    assert "going on after row 2 of a run that was cut off" in err
    assert len(rows(out)) == 3


def test_the_journal_counts_whole_blocks_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "EVERY_SECONDS", 0)
    path = str(tmp_path / "out")
    for start in range(2):
        partial = output.Partial(path, f"{path}.report", {})
        assert partial.state["rows"] == start
        partial.file.write(b"row\n")
        partial.note([(start + 1, None, "é")])
        partial.advance(10, 1, 1)
        partial.file.write(b"half a")
        partial.note([(9, None, "of no block yet")])
        partial.close()
    partial = output.Partial(path, f"{path}.report", {})
    partial.finish()
    assert partial.state["unreadable"] == 2
    assert Path(path).read_bytes() == b"row\nrow\n"
    assert rows(f"{path}.report") == [["row", "line", "reason"], ["1", "", "é"], ["2", "", "é"]]


def test_two_runs_do_not_write_one_output(tmp_path):
    path = str(tmp_path / "out")
    first = output.Partial(path, f"{path}.report", {})
    with pytest.raises(ValueError, match="another start is writing it now"):
        output.Partial(path, f"{path}.report", {})
    first.finish()
    assert left(tmp_path) == ["out"]


def test_a_file_system_without_locks_is_told(charcnn, tmp_path, monkeypatch):
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\n")

    def none(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(output.fcntl, "flock", none)
    status, _, err = charcnn("classify", source, "-o", out)
    assert (status, err) == (FAILED, f"charcnn classify: {out}.part: cannot be locked: No locks available\n")
    assert not out.exists()


def test_report_of_a_stream(charcnn, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\nnone\n')
    report = tmp_path / "bad.csv"
    status, _, err = charcnn("classify", tmp_path / "in.jsonl", "-o", "/dev/null", "--report", report)
    assert status == UNREADABLE
    assert f"see {report}" in err
    assert [row[:2] for row in rows(report)] == [["row", "line"], ["2", "2"]]


def test_a_start_that_opens_what_another_one_finishes(tmp_path, monkeypatch):
    path = str(tmp_path / "out")
    first = output.Partial(path, f"{path}.report", {})
    first.file.write(b"row\n")
    lock = output.Partial._lock

    def late(self):
        first.finish()
        lock(self)

    monkeypatch.setattr(output.Partial, "_lock", late)
    with pytest.raises(ValueError, match="another start"):
        output.Partial(path, f"{path}.report", {})
    assert Path(path).read_bytes() == b"row\n"
    assert left(tmp_path) == ["out"]


def test_a_full_disk_of_the_parquet_writer(charcnn, tmp_path, monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": TEXTS}), tmp_path / "in.parquet")

    def full(self, rendered):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet_reader._ParquetWriter, "write", full)
    status, _, err = charcnn("classify", tmp_path / "in.parquet")
    assert status == FAILED
    assert err.endswith("No space left on device\n")
    monkeypatch.undo()
    assert charcnn("classify", tmp_path / "in.parquet")[0] == DONE
    assert left(tmp_path) == ["in.labelled.parquet", "in.parquet"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("classify", "none.csv"), "none.csv: No such file or directory"),
        (("classify", "."), ".: Is a directory"),
        (("classify", "in.csv", "--precision", "fp8"), "no level computes in fp8 on the CPU"),
        (("classify", "in.csv", "--text-columns", "x"), "in.csv: has no column 'x'"),
        (("classify", "in.csv", "-o", "none/out.csv"), "none/out.csv.part: No such file or directory"),
        (("classify", "in.csv", "-o", "out.parquet"), "--output out.parquet: what is written is csv, as INPUT is"),
        (("evaluate", "in.txt"), "plain lines have no labels"),
        (("evaluate", "in.csv"), "row 1, line 1: label '9' is none of the classes; of the first 1 no row can be used"),
        (("evaluate", "zero.csv"), "row 2 has label '0': where that is a class, say --first-label 0"),
        (("evaluate", "four.csv", "--first-label", "0"), "row 1 has label '4': where that is a class"),
        (("evaluate", "none.jsonl"), "row 1, line 1: no label; of the first 1 no row can be used. Labels are World"),
        (("evaluate", "empty.csv"), "empty.csv holds no row"),
        (("explain", "a", "--label", "x"), "label='x'"),
    ],
)
def test_what_cannot_be_done_is_one_line(charcnn, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("9,a\n")
    Path("in.txt").write_text("a\n")
    Path("zero.csv").write_text("1,a\n0,b\n")
    Path("four.csv").write_text("4,a\n")
    Path("empty.csv").write_text("label,text\n")
    Path("none.jsonl").write_text('{"text": "a", "label": null}\n')
    status, out, err = charcnn(*words)
    assert status == UNUSABLE
    assert out == ""
    assert err.startswith(f"charcnn {words[0]}: ")
    assert message in err
    assert err.count("\n") == 1


def test_evaluate(charcnn, classifier, tmp_path):
    pytest.importorskip("matplotlib")
    predicted = classifier.predict(TEXTS)
    labels = [encodings.CLASSES[n % 4] for n in range(len(TEXTS))]
    source = tmp_path / "in.csv"
    with open(source, "w", newline="") as file:
        csv.writer(file).writerows([("label", "text"), *zip(labels, TEXTS, strict=True), ("World",)])
    status, out, err = charcnn("evaluate", source, "--json", tmp_path / "r.json", "--png", tmp_path / "r.png")
    assert status == UNREADABLE
    assert err == f"left out 1 row:\n  row {len(TEXTS) + 1}, line {len(TEXTS) + 2}: 1 fields: need 2\n"
    report = json.loads((tmp_path / "r.json").read_text())
    right = np.mean(predicted == np.array(labels))
    assert report["accuracy"] == pytest.approx(right)
    assert report["accuracy_95"][0] < right < report["accuracy_95"][1]
    for n, label in enumerate(encodings.CLASSES):
        for m, other in enumerate(encodings.CLASSES):
            assert report["confusion"][n][m] == np.sum((np.array(labels) == label) & (predicted == other))
    assert f"accuracy {right:.2%}" in out
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_evaluate_leaves_out_and_names_rows_with_no_class(charcnn, tmp_path, monkeypatch):
    """They are counted as they are in the file, as `classify` counts; the others' figures are as without them."""
    source, clean, report = tmp_path / "in.csv", tmp_path / "clean.csv", tmp_path / "report.json"
    good = [f"{n % 4 + 1},{value}\n" for n, value in enumerate(TEXTS)]
    clean.write_text("".join(good))
    source.write_text("".join([good[0], "\n\n", "9,another\n", ",none\n", "one field\n", *good[1:], "Music,last\n"]))
    assert charcnn("evaluate", clean, "--json", report)[0] == DONE
    expected = json.loads(report.read_text())
    monkeypatch.setitem(ROWS, "cpu", 50)
    status, _, err = charcnn("evaluate", source, "--json", report)
    assert status == UNREADABLE
    assert json.loads(report.read_text()) == expected | {"left_out": 4}
    assert err.splitlines() == [
        "left out 4 rows:",
        "  row 2, line 4: label '9' is none of the classes",
        "  row 3, line 5: no label",
        "  row 4, line 6: 1 fields: need 2",
        f"  row {len(TEXTS) + 4}, line {len(TEXTS) + 6}: label 'Music' is none of the classes",
    ]
    source.write_text("".join(["1,a\n", *["9,b\n"] * 30]))
    assert charcnn("evaluate", source)[2].splitlines()[-2:] == [
        "  row 11, line 11: label '9' is none of the classes",
        "  and 20 more",
    ]


def test_evaluate_with_numbers(charcnn, classifier, tmp_path):
    predicted = [encodings.CLASSES.index(label) for label in classifier.predict(TEXTS)]
    for first, options in ((1, ()), (0, ("--first-label", 0))):
        source = tmp_path / "in.jsonl"
        objects = [{"text": value, "label": n + first} for value, n in zip(TEXTS, predicted, strict=True)]
        source.write_text("".join(json.dumps(value) + "\n" for value in objects))
        status, out, _ = charcnn("evaluate", source, *options)
        assert status == DONE
        assert out.startswith("accuracy 100.00%")


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory):
    """A model that two z side by side are too much for."""
    path = tmp_path_factory.mktemp("model") / "large.safetensors"
    weights = params.init(TINY, seed=3)
    weights["conv1.weight"][:, 25] = 3e38
    params.save(path, weights, TINY, encoding="crepe", classes=encodings.CLASSES)
    return str(path)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "txt", "parquet"])
def test_a_row_whose_logits_are_not_finite_has_no_label(charcnn, overflowing, tmp_path, suffix):
    source, out = tmp_path / f"in.{suffix}", tmp_path / f"in.labelled.{suffix}"
    given = ["good", "zzzz", "also good"]
    if suffix == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pyarrow.parquet = pytest.importorskip("pyarrow.parquet")
        pyarrow.parquet.write_table(pyarrow.table({"text": given}), source)
    else:
        write = {"csv": str, "txt": str, "jsonl": lambda value: json.dumps({"text": value})}[suffix]
        source.write_text("".join(f"{write(value)}\n" for value in (["text"] if suffix == "csv" else []) + given))
    status, _, err = charcnn("classify", source, model=overflowing)
    assert status == UNREADABLE
    reason = "the logits are not finite: a number outgrew fp32; the weights are too large"
    assert reason in err
    assert "1 rows are unreadable and have no label" in err
    note = rows(tmp_path / f"in.labelled.{suffix}.unreadable.csv")
    assert [note[1][0], note[1][2]] == ["2", reason]
    assert len(note) == 2
    if suffix == "parquet":
        found = pyarrow.parquet.read_table(out).to_pylist()
    elif suffix == "jsonl":
        found = [json.loads(line) for line in out.read_text().splitlines()]
    elif suffix == "csv":
        found = [dict(zip(("text", "label", "probability"), row, strict=True)) for row in rows(out)[1:]]
    else:
        found = [
            dict(zip(("label", "probability", "text"), line.split("\t"), strict=True))
            for line in out.read_text().splitlines()
        ]
    assert [row["text"] for row in found] == given
    assert [bool(row["label"]) for row in found] == [True, False, True]
    assert not found[1]["probability"]


def test_evaluate_names_rows_whose_logits_are_not_finite(charcnn, overflowing, tmp_path):
    (tmp_path / "in.csv").write_text("1,good\n2,zzzz\n3,better\n")
    status, out, err = charcnn("evaluate", tmp_path / "in.csv", "--json", tmp_path / "r.json", model=overflowing)
    assert status == UNREADABLE
    assert "of 2 rows" in out
    assert "left out 1 row:\n  row 2, line 2: the logits are not finite" in err
    report = json.loads((tmp_path / "r.json").read_text(), parse_constant=pytest.fail)
    assert (report["rows"], report["left_out"]) == (2, 1)
    (tmp_path / "all.csv").write_text("2,zzzz\n")
    status, out, err = charcnn("evaluate", tmp_path / "all.csv", model=overflowing)
    assert (status, out) == (UNUSABLE, "")
    assert err.rstrip().endswith("the weights are too large; of the first 1 no row can be used")


def test_explain_writes_no_number_that_is_none(charcnn, overflowing):
    status, out, err = charcnn("explain", "zzzz", "--json", model=overflowing)
    assert (status, out) == (UNUSABLE, "")
    assert err.startswith("charcnn explain: text: the logits are not finite")


def test_convert_says_that_logits_are_not_finite(tmp_path, charcnn):
    pytest.importorskip("onnxruntime")
    weights, out = params.init(TINY), tmp_path / "a.onnx"
    for scale, expected in ((0, DONE), (3e38, UNUSABLE)):
        weights["fc3.weight"][:], weights["fc3.bias"][:] = scale, 0
        params.save(tmp_path / "a.safetensors", weights, TINY)
        status, _, err = charcnn("convert", tmp_path / "a.safetensors", out, "--force", model=None)
        assert status == expected, err
    assert "the network's logits are not finite" in err


def test_info_escapes_what_a_model_says_beside(charcnn, tmp_path):
    path = tmp_path / "a.safetensors"
    params.save(path, params.init(TINY), TINY, classes=encodings.CLASSES, note="a\x9b2J\ud800")
    status, out, _ = charcnn("info", "--model", path, model=None)
    assert status == DONE
    assert "2J" in out
    assert out.replace("\n", "").isprintable()


def test_explain(charcnn, classifier, tmp_path):
    status, out, _ = charcnn("explain", "some text", "--json")
    assert status == DONE
    assert len(json.loads(out)["scores"]) == 9
    assert json.loads(out)["label"] == classifier.predict("some text")
    assert charcnn("explain", "some text")[1].endswith("\nsome text\n")
    charcnn("explain", "some text", "--html", tmp_path / "why.html")
    assert (tmp_path / "why.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".bin", ".onnx"])
def test_convert(charcnn, weights, tmp_path, suffix):
    if suffix == ".pt":
        pytest.importorskip("torch")
    if suffix == ".onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    out = tmp_path / f"out{suffix}"
    status, told, err = charcnn("convert", weights, out, model=None)
    assert status == DONE, err
    assert f"{TINY.parameters:,} parameters" in told
    status, _, err = charcnn("convert", weights, out, model=None)
    assert status == UNUSABLE
    assert "is there already" in err
    if suffix != ".onnx":
        again = params.load(out, TINY)
        for name, value in params.load(weights).items():
            np.testing.assert_array_equal(again[name], value)
        back = tmp_path / "back.safetensors"
        sizes = json.dumps(TINY.to_dict())
        words = ("convert", out, back, "--config", sizes, "--encoding", "forward", "--classes", "a,b,c,d")
        assert charcnn(*words, model=None)[0] == DONE
        assert params.load(back).classes == ("a", "b", "c", "d")


@pytest.mark.parametrize("suffix", [".safetensors", ".bin", ".onnx"])
@pytest.mark.parametrize(("names", "message"), [("a,b,a,c", "holds 'a' twice"), ("a,b,c", "need 4 names")])
def test_convert_refuses_names_that_do_not_tell_classes_apart(charcnn, weights, tmp_path, suffix, names, message):
    out = tmp_path / f"out{suffix}"
    status, told, err = charcnn("convert", weights, out, "--classes", names, model=None)
    assert (status, told) == (UNUSABLE, "")
    assert message in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_the_onnx_file_takes_any_batch_and_says_its_classes(charcnn, weights, classifier, tmp_path):
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    out = tmp_path / "out.onnx"
    assert charcnn("convert", weights, out, model=None)[0] == DONE
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    for n in (1, 5):
        ids = encodings.encode(TEXTS[:n], "crepe", TINY.length)
        np.testing.assert_allclose(session.run(None, {"ids": ids})[0], classifier.engine.logits(ids), atol=1e-4)
    says = session.get_modelmeta().custom_metadata_map
    assert json.loads(says["classes"]) == list(encodings.CLASSES)
    assert json.loads(says["encoding"])["name"] == "crepe"


def test_info(charcnn, weights):
    status, out, _ = charcnn("info", model=None)
    assert status == DONE
    assert "what runs at each precision" in out
    status = main(["info", "--json", "--model", weights])
    assert status == DONE


def test_what_a_level_changed(charcnn):
    status, out, _ = charcnn("levels", "--diff", "l15", model=None)
    assert status == DONE
    assert out.startswith("--- l14.py\n+++ l15.py\n")
    assert charcnn("levels", "--diff", "l0", model=None)[1] == "l0 is the first level\n"
    status, _, err = charcnn("levels", "--diff", "l99", model=None)
    assert status == UNUSABLE
    assert "--diff l99: need one of l0, l1" in err


def test_levels(charcnn):
    status, out, _ = charcnn("levels", "--json", model=None)
    assert status == DONE
    assert [row["level"] for row in json.loads(out)] == [row.name for row in catalog.LEVELS]
    assert catalog.LEVELS[0].title in charcnn("levels", model=None)[1]
    if not simulator.gpu_present():
        said = {row["level"]: row["runs here"] for row in json.loads(out)}
        assert [said[row.name] == "no" for row in catalog.LEVELS] == [not runs_here(row) for row in catalog.LEVELS]


def test_completion(charcnn):
    pytest.importorskip("shtab")
    status, out, _ = charcnn("completion", "bash", model=None)
    assert status == DONE
    assert "--probabilities" in out
    assert subprocess.run(["bash", "-n"], input=out.encode(), check=False).returncode == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_and_exit_statuses(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"  charcnn {name}" in out or f"charcnn {name} " in out
    assert "exit status: 0" in out


def test_help_is_quick():
    check = (
        "import charcnn.__main__ as m, sys; m.parser(''); sys.exit('numba' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0
    for name in ("classify", "evaluate", "explain", "convert", "info", "levels", "tune", "compile", "completion"):
        check = f"import charcnn.__main__ as m, sys; m.parser('{name}'); sys.exit('numba' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0, name


def test_a_first_label_on_the_cpu_waits_for_nothing_that_it_does_not_need(weights):
    unneeded = ["numba.cuda", "charcnn.gpu.device", "pyarrow", "mpi4py", "torch"]
    code = f"import atexit; atexit.register(lambda: print(sorted(sys.modules.keys() & {set(unneeded)})))"
    for level in ("l18", "l11"):
        process = command(
            "classify", "-", "--model", weights, "--device", "cpu", "--level", level,
            code=code, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        out, _ = process.communicate(b"a text\n")
        assert process.returncode == DONE
        assert out.splitlines()[0].endswith(b"\ta text")
        assert out.splitlines()[1:] == [b"[]"], level


def test_wrong_options_are_unusable(capsys):
    for words in ([], ["classify"], ["nothing"], ["classify", "a", "--batch", "0"], ["classify", "a", "--device", "x"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == UNUSABLE
    capsys.readouterr()


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == DONE
    assert capsys.readouterr().out.startswith("charcnn")


def test_choices_of_options_are_those_of_the_package():
    assert tuple(catalog.PRECISIONS) == model.PRECISIONS


def test_commands_are_the_modules_on_disk():
    on_disk = {path.stem for path in (ROOT / "charcnn" / "cli").glob("*.py")} - {"__init__", "model", "ranks", "sinks"}
    assert on_disk == set(COMMANDS)


def test_interrupted(weights, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("text\n" * 100_000)
    process = command("classify", source, "--model", weights, code=SLOW, stderr=subprocess.PIPE)
    journal, limit = tmp_path / "in.labelled.txt.part.json", time.monotonic() + 60
    while not journal.exists() and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err.endswith(b"charcnn classify: interrupted\n")
    state = json.loads(journal.read_text())["state"]
    assert os.path.getsize(str(journal).removesuffix(".json")) >= state["output"]


@pytest.mark.parametrize("quiet", [False, True])
def test_a_slow_start_is_told_on_a_terminal(monkeypatch, capsys, quiet):
    monkeypatch.setattr(classify, "SLOW", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with classify._said_where_slow(argparse.Namespace(quiet=quiet)):
        time.sleep(0.2)
    assert ("code is compiled for it" in capsys.readouterr().err) == (not quiet)


def test_default_names_of_outputs():
    assert classify._default_output("a/b.csv") == "a/b.labelled.csv"
    assert classify._default_output("-") == "-"
