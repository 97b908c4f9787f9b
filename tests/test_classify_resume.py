"""Runs of `charcnn classify` that are killed, interrupted or cut short, and gone on with."""

import errno
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from commands import SLOW, command, left, rows
from conftest import by_turns, quick

from charcnn.classify import labelling, sinks
from charcnn.classify.classifier import ROWS
from charcnn.cli import DONE, FAILED, UNREADABLE, UNUSABLE
from charcnn.text import output
from charcnn.text.readers import base


@pytest.mark.parametrize("kind", ["csv", "jsonl", "txt"])
@quick(lambda kind: kind == "csv")
def test_a_kill_in_the_middle_and_a_second_start(charcnn, weights, tmp_path, kind):
    source, out = tmp_path / f"in.{kind}", tmp_path / f"out.{kind}"
    line = {"csv": "1,text {n}\n", "jsonl": '{{"text": "text {n}"}}\n', "txt": "text {n}\n"}[kind]
    broken = {"csv": "1\n", "jsonl": "broken\n", "txt": "\n"}[kind]
    source.write_text("".join(broken if n % 100 == 99 else line.format(n=n) for n in range(10_000)))
    words = ("classify", source, "--model", weights, "--device", "cpu", "-o")
    process = command(*words, out, code=SLOW, stderr=subprocess.PIPE)
    journal, limit, done = tmp_path / f"out.{kind}.part.json", time.monotonic() + 300, 0
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
    assert "resuming after row " in err
    assert status == UNREADABLE
    whole = tmp_path / f"whole.{kind}"
    charcnn("classify", source, "-o", whole)
    assert out.read_bytes() == whole.read_bytes()
    assert Path(f"{out}.unreadable.csv").read_bytes() == Path(f"{whole}.unreadable.csv").read_bytes()
    assert len(rows(f"{out}.unreadable.csv")) == 101
    assert not [name for name in left(tmp_path) if ".part" in name]


def test_lines_of_a_run_that_is_gone_on_with_are_those_of_the_file(charcnn, interrupted, tmp_path):
    source, out, whole = (tmp_path / f"{name}.csv" for name in ("in", "out", "whole"))
    source.write_text('\n"text\nof two lines",b\n' + "".join("a\n" if n % 60 == 59 else "a,b\n" for n in range(200)))
    columns = ("--header", "--text-columns", "1,2")
    interrupted(2, "classify", source, "-o", out, *columns)
    status, _, err = charcnn("classify", source, "-o", out, *columns)
    assert status == UNREADABLE
    assert "row 120, line 123: 1 fields: need 2" in err
    charcnn("classify", source, "-o", whole, *columns)
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


@by_turns
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
    monkeypatch.setitem(labelling.BUFFER, "cpu", 1000)
    take = sinks.Sink.take

    def cut(self, *values):
        os.truncate(source, len(line) * 700)
        take(self, *values)

    monkeypatch.setattr(sinks.Sink, "take", cut)
    monkeypatch.setitem(ROWS, "cpu", 20)
    status, _, err = charcnn(
        "classify", source, "-o", out, "--quiet", "--format", {"t": "lines"}.get(name[-1], name[3:])
    )
    assert status == FAILED
    size = len(line) * 2000
    assert f"{source}: ends after {len(line) * 700:,} of {size:,} bytes: it was cut short" in err
    assert err.count("\n") == 1
    assert not out.exists()


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
    named = ("--format", "csv", *columns, "--encoding", "crepe", "--precision", "fp32", "--level", "l18")
    status, _, err = charcnn("classify", source, "-o", out, *named)
    assert status == DONE
    assert "resuming after row 2 of an interrupted run" in err
    assert len(rows(out)) == 3


def test_another_level_does_not_go_on(charcnn, interrupted, tmp_path):
    """Levels round each in its own way: the rows of one file are all of one level."""
    source, out, whole = (tmp_path / f"{name}.csv" for name in ("in", "out", "whole"))
    source.write_text("".join(f"1,text {n}\n" for n in range(400)))
    interrupted(2, "classify", source, "-o", out, "--level", "l11")
    data = Path(f"{out}.part").read_bytes()
    status, _, err = charcnn("classify", source, "-o", out, "--level", "l2")
    assert status == UNUSABLE
    assert f"{out}.part is what another run left (of another level; it had --level l11): run that again" in err
    status, _, err = charcnn("classify", source, "-o", out, "--level", "l11", "--min-probability", 0.5)
    assert (status, "(of another --min-probability or --unsure-label)" in err) == (UNUSABLE, True)
    assert Path(f"{out}.part").read_bytes() == data
    status, _, err = charcnn("classify", source, "-o", out, "--level", "l11")
    assert (status, "resuming after row 100" in err) == (DONE, True)
    interrupted(2, "classify", source, "-o", out, "--level", "l11", "--force")
    status, _, err = charcnn("classify", source, "-o", out, "--level", "l2", "--force")
    assert (status, "going on" in err) == (DONE, False)
    charcnn("classify", source, "-o", whole, "--level", "l2")
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("how", ["grows", "changes", "several"])
def test_an_input_that_changes_meanwhile_gets_no_output(charcnn, monkeypatch, tmp_path, how):
    """The last block shows it, too: what was read before it may be of the old content, and what comes of the new."""
    source, out = tmp_path / "data" / "in.csv", tmp_path / "out"
    source.parent.mkdir()
    source.write_text("text\n" * 60)
    monkeypatch.setitem(ROWS, "cpu", 20)
    take, left_over = sinks.Sink.take, [how]

    def written(self, *values):
        if left_over and left_over.pop() == "grows":
            with open(source, "a") as file:
                file.write("more\n" * 5)
        else:
            os.utime(source, ns=(1, 1))
            with open(source, "r+") as file:
                file.write("TEXT")
        take(self, *values)

    words = ("classify", source.parent if how == "several" else source, "-o", out)
    with monkeypatch.context() as patch:
        patch.setattr(sinks.Sink, "take", written)
        status, _, err = charcnn(*words, "--quiet")
    assert status == UNUSABLE
    assert f"{source}: changed while it was read, from 300 to {325 if how == 'grows' else 300} bytes" in err
    assert err.count("\n") == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [source]
    assert charcnn(*words)[0] == DONE, "there is nothing left that another run began"


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


@pytest.mark.parametrize("command", ["evaluate", "train"])
def test_an_input_that_changes_while_it_is_read_is_refused(charcnn, tmp_path, monkeypatch, command):
    source = tmp_path / "in.csv"
    source.write_text("label,text\n" + "World,a\nSports,b\n" * 9)
    blocks = base.Reader.blocks

    def changing(self):
        with open(source, "a") as file:
            file.write("World,c\n")
        yield from blocks(self)

    monkeypatch.setattr(base.Reader, "blocks", changing)
    if command == "train":
        pytest.importorskip("torch")
        words = ("train", "--data", source, "--out", tmp_path / "m.safetensors", "--no-curve", "--config", "tiny")
        status, _, err = charcnn(*words, model=None)
    else:
        status, _, err = charcnn("evaluate", source)
    assert status == UNUSABLE
    assert f"{source}: changed while it was read, from 164 to 172 bytes" in err
    assert left(tmp_path) == ["in.csv"]
