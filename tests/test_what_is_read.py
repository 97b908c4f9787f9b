"""What `charcnn classify` takes for a text: formats by names and first lines, columns, and texts that are none."""

import gzip
import json
import re
import subprocess

import pytest
from commands import command, left, rows
from reading import opened

from charcnn.__main__ import main
from charcnn.classify import labelling, sinks
from charcnn.classify.classifier import ROWS
from charcnn.classify.labelling import logits_of
from charcnn.cli import DONE, UNREADABLE, UNUSABLE
from charcnn.text.encodings import ENCODINGS
from charcnn.text.readers.scan import READABLE
from charcnn.training import data

BLANK = ["a", "", " \t\x0b", "\u00a0\u3000", "b", "\u200b"]
"""Texts, of which those of index 1 to 3 are none."""


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "txt", "-"])
def test_a_text_that_is_empty_or_blank_has_no_label(charcnn, tmp_path, kind):
    source, out = tmp_path / f"in.{kind}", tmp_path / f"out.{kind}"
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(
            pytest.importorskip("pyarrow").table({"text": BLANK}), source
        )
    else:
        line = {"csv": '"{}",\n', "jsonl": '{{"text": "{}"}}\n'}.get(kind, "{}\n")
        written = [json.dumps(text)[1:-1] if kind == "jsonl" else text for text in BLANK]
        head = "text,title\n" if kind == "csv" else ""
        source.write_text(head + "".join(map(line.format, written)), encoding="utf-8")
    if kind == "-":
        with source.open("rb") as stdin:
            ran = command("classify", "-", "-o", out, stdin=stdin, stderr=subprocess.PIPE, text=True)
            status, err = ran.wait(), ran.stderr.read()
    else:
        status, _, err = charcnn("classify", source, "-o", out)
    assert status == UNREADABLE
    assert "3 rows are unreadable and have no label" in err
    assert [row[::2] for row in rows(f"{out}.unreadable.csv")[1:]] == [
        [str(n), "no text: it is empty or blank"] for n in (2, 3, 4)
    ]
    if kind == "parquet":
        labels = pytest.importorskip("pyarrow.parquet").read_table(out)["label"].to_pylist()
    elif kind == "jsonl":
        labels = [json.loads(line)["label"] for line in out.read_bytes().splitlines()]
    elif kind == "csv":
        labels = [row[2] for row in rows(out)[1:]]
    else:
        labels = [line.split(b"\t")[0] for line in out.read_bytes().split(b"\n")[:-1]]
    assert [not label for label in labels] == [False, True, True, True, False, False]


def test_rows_without_a_text_are_not_computed(classifier, tmp_path, monkeypatch):
    computed, logits = [], classifier.engine.logits
    monkeypatch.setattr(classifier.engine, "logits", lambda ids: (computed.append(len(ids)), logits(ids))[1])
    for lines, size in (("\n".join(BLANK), 3), ("\n \n", 0)):
        reader = opened(tmp_path, lines.encode(), "lines")
        (block,) = reader.blocks()
        found = logits_of(classifier, block, reader.texts(block))
        assert sum(computed) == size
        computed.clear()
        assert found.any(axis=1).tolist() == [kind == READABLE for kind in block.kinds]


OBJECT, ROW = '{"text": "a"}\n', "title\tdescription\na\tb\n"


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("a.json", OBJECT, "text: text"),
        ("a.jl", OBJECT, "text: text"),
        ("a.jsonlines", OBJECT, "text: text"),
        ("a.JSON.gz", OBJECT, "text: text"),
        ("a.tab", ROW, r"header; delimiter '\t'; text: title, description"),
        ("a.json", '[{"text": "a"},\n{"text": "b"}]', "its first line is not a JSON object: need one per line"),
        ("a.json", '{\n"text": "a"\n}', "its first line is not a JSON object: need one per line"),
        (
            "a.log",
            f"\n{OBJECT}",
            "its first line is a JSON object: name it .jsonl, say --format jsonl, or --format lines",
        ),
        ("-", OBJECT, "its first line is a JSON object: name it .jsonl, say --format jsonl, or --format lines"),
        ("a.txt", ROW, "its first line is a header, title, description: name it .csv, say --format tsv, or"),
        ("a", '"id";"Title";"TEXT"\n', "say --format csv --delimiter ';', or --format lines where"),
        ("a.txt", "text, lies and videotape\n{a}\n", None),
        ("a.txt", f"[1]\n{OBJECT}", None),
        ("a.json", json.dumps({"text": "a" * (1 << 17)}), "text: text"),
    ],
)
def test_a_name_and_the_first_line_agree(charcnn, tmp_path, name, given, found):
    source, out = tmp_path / name, tmp_path / "out"
    source.write_bytes(gzip.compress(given.encode(), mtime=0) if name.endswith("gz") else given.encode())
    if name == "-":
        with source.open("rb") as stdin:
            ran = command("classify", "-", "-o", out, stdin=stdin, stderr=subprocess.PIPE, text=True)
            status, err = ran.wait(), ran.stderr.read()
        source = "standard input"
    else:
        status, _, err = charcnn("classify", source, "-o", out)
    if found is None or "text:" in found:
        assert (status, out.exists()) == (DONE, True)
        assert found is None or err.splitlines()[0] == f"{source}: {found}"
    else:
        assert (status, out.exists()) == (UNUSABLE, False)
        assert found in err
        assert charcnn("classify", source, "-o", out, "--format", "lines")[0] in (DONE, UNREADABLE) or name == "-"


def test_columns_that_nothing_names_are_asked_for(charcnn, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("article id,date,headline,body,topic\n12a,2024-01-02,Stocks fell,More,Business\n")
    for words in ((), ("--label-column", "topic")):
        status, out, err = charcnn("classify", source, *words)
        assert (status, out, left(tmp_path)) == (UNUSABLE, "", ["in.csv"])
        assert err.count("\n") == 1
        assert "article id, date, headline, body, topic: say which hold the text (--text-columns)" in err
    assert charcnn("classify", source, "--label-column", "topic", "--text-columns", "headline,4")[0] == DONE
    assert charcnn("evaluate", source, "--label-column", "topic", "--text-columns", "headline,body")[0] == DONE


@pytest.mark.parametrize(
    ("name", "given", "written"),
    [
        ("a.csv", "title,x\r\na,b\r\nc,d\r\n", "title,x,label,probability\r\na,b,L\r\nc,d,L\r\n"),
        ("a.csv", "title,x\ra,b\rc,d", "title,x,label,probability\ra,b,L\rc,d,L"),
        ("a.csv", "\ufeff\n\r\ntitle\r\na\n", "\ufeff\n\r\ntitle,label,probability\r\na,L\n"),
        ("a.csv", "\ufeff1,a\r\n2,b", "\ufeff1,a,L\r\n2,b,L"),
        ("a.csv", "\ufefftext", "\ufefftext,label,probability"),
        ("a.csv", '1,a\n"', '1,a,L\n",,'),
        ("a.csv", "\ufeff", "\ufeff"),
        ("a.tsv", "text\tx\r\na\tb", "text\tx\tlabel\tprobability\r\na\tb\tL"),
        ("a.jsonl", '\ufeff{"text": "a"}\r\n{"text": "b"}', '\ufeff{"text": "a",L}\r\n{"text": "b",L}'),
        ("a.txt", "\ufeffa\r\n\nb\rc", "\ufeffL\ta\r\n\t\t\nL\tb\rL\tc"),
    ],
)
def test_line_ends_and_the_byte_order_mark_stay(charcnn, tmp_path, monkeypatch, name, given, written):
    """L stands for a label and its probability."""
    source, outs = tmp_path / name, [tmp_path / "one", tmp_path / "two"]
    source.write_bytes(given.encode())
    charcnn("classify", source, "-o", outs[0], "--quiet")
    monkeypatch.setitem(ROWS, "cpu", 1)
    charcnn("classify", source, "-o", outs[1], "--quiet")
    assert outs[0].read_bytes() == outs[1].read_bytes()
    label = r'"label":"[^"]+","probability":[01][.]\d{4}' if name == "a.jsonl" else r"[A-Z][\w/]+[,\t][01][.]\d{4}"
    assert re.sub(label, "L", outs[0].read_bytes().decode()) == written


@pytest.mark.parametrize("kind", ["txt.gz", pytest.param("txt.zst", marks=pytest.mark.exhaustive), "parquet"])
def test_a_damaged_input_leaves_nothing_that_refuses_the_mended_one(charcnn, tmp_path, monkeypatch, kind):
    source, out, texts = tmp_path / f"in.{kind}", tmp_path / "out", [f"text {n} {n * n}" for n in range(20_000)]
    arrow = pytest.importorskip("pyarrow") if kind != "txt.gz" else None
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(arrow.table({"text": texts}), source, row_group_size=2000)
    else:
        plain = "\n".join(texts).encode()
        source.write_bytes(gzip.compress(plain) if arrow is None else arrow.compress(plain, "zstd", asbytes=True))
    whole = source.read_bytes()
    middle = len(whole) // 2
    damaged = whole[:middle] + b"\xff" * 400 + whole[middle + 400 :] if kind == "parquet" else whole[: -len(whole) // 4]
    source.write_bytes(damaged)
    monkeypatch.setitem(labelling.BUFFER, "cpu", 1000)
    monkeypatch.setitem(ROWS, "cpu", 500)
    begun = []
    monkeypatch.setattr(sinks.FileSink, "take", watched(sinks.FileSink.take, begun))
    status, _, err = charcnn("classify", source, "-o", out)
    assert (status, bool(begun)) == (UNUSABLE, True)
    assert f"{source}: is not a whole " in err
    assert left(tmp_path) == [source.name]
    source.write_bytes(whole)
    assert charcnn("classify", source, "-o", out)[0] == DONE


def watched(take, begun):
    return lambda sink, *values: (begun.append(1), take(sink, *values))[1]


def test_labels_that_are_not_utf_8_do_not_become_one(charcnn, tmp_path):
    source = tmp_path / "in.csv"
    source.write_bytes(b"label,text\nb\xe4r,a\nb\xf6r,b\nx,c\n")
    reasons = [f"label b'b\\x{byte}r': need a text in UTF-8 or a whole number" for byte in ("e4", "f6")]
    read = data.read_rows(source, ENCODINGS["forward"])
    assert (read.labels, [row.reason for row in read.bad]) == (["x"], reasons)
    assert f"in.csv: row 1, line 2: {reasons[0]}; no row of the first 3" in charcnn("evaluate", source)[2]


def test_training_tells_the_rows_that_leave_one_class(tmp_path, capsys):
    pytest.importorskip("torch")
    source = tmp_path / "in.csv"
    source.write_bytes(b"label,text\nb\xe4r,a\nx,c\n")
    assert main(["train", "--data", str(source), "--out", str(tmp_path / "m.safetensors"), "--no-curve"]) == UNUSABLE
    assert "in.csv has 1 bad row:\n  line 2: label b'b" in capsys.readouterr().err
