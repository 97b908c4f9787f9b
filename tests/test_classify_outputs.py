"""Where `charcnn classify` writes to: files that are there, streams, full disks, two starts at once."""

import errno
import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from commands import SLOW, TEXTS, command, left, rows, tree
from conftest import CPU_LEVELS, by_turns

from charcnn import files
from charcnn.cli import DONE, FAILED, UNREADABLE, UNUSABLE
from charcnn.gpu import device
from charcnn.text import output
from charcnn.text.readers.formats import format_of
from charcnn.text.writers import parquet as parquet_writer


def test_an_output_that_is_there_is_kept(charcnn, tmp_path):
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\n")
    out.write_text("mine")
    status, _, err = charcnn("classify", source, "-o", out)
    assert status == UNUSABLE
    assert "already exists: name another output, or add --force" in err
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
    assert found["level"] == CPU_LEVELS[-1].name
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
    assert process.stdout.read().endswith(b"\tlast"), "no line end, as the input has none"
    assert process.wait() == DONE


@by_turns
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
        format_of("-", "parquet")


@by_turns
def test_standard_input_from_a_file_is_begun_anew(weights, tmp_path):
    out = tmp_path / "out.txt"
    for given in ("text\n" * 20_000, "other\n" * 2):
        source = tmp_path / "in.txt"
        source.write_text(given)
        words = ("classify", "-", "-o", out, "--model", weights)
        with open(source, "rb") as file:
            process = command(*words, code=SLOW, stdin=file, stderr=subprocess.PIPE)
            limit = time.monotonic() + 300
            while len(given) > 100 and not Path(f"{out}.part").exists() and time.monotonic() < limit:
                time.sleep(0.01)
            time.sleep(0.3)
            if len(given) > 100:
                process.send_signal(signal.SIGINT)
            process.communicate()
    assert process.returncode == DONE
    assert [line.split("\t")[2] for line in out.read_text().splitlines()] == ["other", "other"]


@pytest.mark.exhaustive
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


@by_turns
def test_a_reader_that_has_seen_enough(weights, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("line\n" * 20_000)
    process = command("classify", source, "-o", "-", "--model", weights, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 128 + signal.SIGPIPE
    assert process.stderr.read() == b""


@by_turns
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


def test_two_runs_do_not_write_one_output(tmp_path):
    path = str(tmp_path / "out")
    first = output.Partial(path, f"{path}.report", {})
    with pytest.raises(ValueError, match="another run is writing it now"):
        output.Partial(path, f"{path}.report", {})
    first.finish()
    assert left(tmp_path) == ["out"]


def test_a_file_system_without_locks_is_told(charcnn, tmp_path, monkeypatch):
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\n")

    def none(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.fcntl, "flock", none)
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
    with pytest.raises(ValueError, match="another run"):
        output.Partial(path, f"{path}.report", {})
    assert Path(path).read_bytes() == b"row\n"
    assert left(tmp_path) == ["out"]


def test_a_full_disk_of_the_parquet_writer(charcnn, tmp_path, monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": TEXTS}), tmp_path / "in.parquet")

    def full(self, rendered):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet_writer.ParquetWriter, "write", full)
    status, _, err = charcnn("classify", tmp_path / "in.parquet")
    assert status == FAILED
    assert err.endswith("No space left on device\n")
    monkeypatch.undo()
    assert charcnn("classify", tmp_path / "in.parquet")[0] == DONE
    assert left(tmp_path) == ["in.labelled.parquet", "in.parquet"]


@pytest.mark.parametrize("several", [False, True])
def test_an_output_that_another_program_makes_meanwhile(charcnn, tmp_path, monkeypatch, several):
    data = tree(tmp_path / "data", {"a.csv": "1,a\n", "b.csv": "1,b\n"} if several else {"a.csv": "1,a\n"})
    out, write = tmp_path / "out", output.Partial.sync
    tree(out, {"none": ""})
    words = ("classify", data if several else data / "a.csv", "-o", out if several else out / "a.csv")

    def made(self):
        (out / "a.csv").write_text("theirs")
        return write(self)

    with monkeypatch.context() as patch:
        patch.setattr(output.Partial, "sync", made)
        status, _, err = charcnn(*words)
    assert status == FAILED
    assert f"{out}/a.csv: another program made it meanwhile, and it is kept" in err
    assert (out / "a.csv").read_text() == "theirs"
    assert (out / "b.csv").exists() == several
    (out / "a.csv").unlink()
    assert charcnn(*words)[0] == DONE
    assert (out / "a.csv").read_text().startswith("1,a,")
    assert not list(out.glob("*.part*"))


def test_a_kill_between_two_names_of_an_output(tmp_path):
    path = tmp_path / "out"
    first = output.Partial(str(path), f"{path}.report", {})
    first.file.write(b"row\n")
    first.close()
    os.link(f"{path}.part", path)  # what the kill left
    with pytest.raises(ValueError, match="already exists"):
        output.Partial(str(path), f"{path}.report", {})
    assert path.read_text() == "row\n"
    os.link(path, f"{path}.part")
    again = output.Partial(str(path), f"{path}.report", {"a": 1}, overwrite=True)
    assert path.read_text() == "row\n", "it stays until the new one is whole"
    again.finish()
    assert path.read_text() == ""
