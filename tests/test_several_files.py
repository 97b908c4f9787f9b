"""Several files in one command: where each one's labels go, what a second start does, and files that are bad."""

import gzip
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from commands import SLOW, below, command, left, rows, tree
from conftest import by_turns

from charcnn.classify import done, sinks
from charcnn.classify.classifier import ROWS
from charcnn.cli import DONE, FAILED, UNREADABLE, UNUSABLE, inputs, ranks
from charcnn.text import output


def lines(count, start=0):
    return "".join(f'1,"text {n}"\n' for n in range(start, start + count))


@pytest.fixture
def opened(monkeypatch):
    """Names of inputs that are opened."""
    from charcnn.classify import label_files

    names, open_bytes = [], label_files.open_bytes
    monkeypatch.setattr(
        label_files, "open_bytes", lambda path: (names.append(os.path.basename(path)), open_bytes(path))[1]
    )
    return names


FILES = {
    "a.csv": lines(30),
    "2024/b.csv": lines(1200, 100),
    "2024/c.jsonl": '{"text": "a"}\n{"text": "b"}\n',
    "2024/deep/d.txt": "one\ntwo\n",
    "2023/e.tsv.gz": gzip.compress(b"1\ttext\n" * 20, mtime=0),
}


def test_a_folder_is_mirrored(charcnn, tmp_path):
    data = tree(tmp_path / "data", FILES | {"README.md": "no rows", "_SUCCESS": "", ".hidden.csv": "1,a\n"})
    status, out, err = charcnn("classify", data, "-o", tmp_path / "out", "--json", tmp_path / "report.json")
    assert (status, out) == (DONE, "")
    assert err.count(": no header; delimiter ','; text: column 2; label: column 1") == 1, "files that are read alike"
    assert err.splitlines()[-2].startswith("1,254 rows of 5 files in ")
    assert err.splitlines()[-1] == f"wrote {tmp_path / 'report.json'}"
    names = ["2023/e.tsv", "2024/b.csv", "2024/c.jsonl", "2024/deep/d.txt", "a.csv"]
    assert below(tmp_path / "out") == names
    for name in names:
        source = data / (f"{name}.gz" if name.endswith("tsv") else name)
        out_alone = tmp_path / "alone"
        words = ("--format", "tsv") if name.endswith("tsv") else ()
        charcnn("classify", source, "-o", out_alone, "--force", "--quiet", *words)
        assert (tmp_path / "out" / name).read_bytes() == out_alone.read_bytes()
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["rows"], report["unreadable"]) == (1254, 0)
    assert {Path(file["output"]).name: file["rows"] for file in report["files"]} == {
        "a.csv": 30, "b.csv": 1200, "c.jsonl": 2, "d.txt": 2, "e.tsv": 20,
    }  # fmt: skip


def test_names_of_outputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tree(tmp_path, {"x/a.csv": "", "x/y=1/b.pq": "", "x/c.csv.gz": "", "z/a.csv": "", "n": ""}))

    def named(*given, output=None, every_file=False):
        return {task.input: task.output for task in inputs.tasks(given, output, every_file)[0]}

    assert named("x") == {
        "x/a.csv": "x.labelled/a.csv",
        "x/c.csv.gz": "x.labelled/c.csv",
        "x/y=1/b.pq": "x.labelled/y=1/b.pq",
    }
    assert named("x/", output="o") == {"x/a.csv": "o/a.csv", "x/c.csv.gz": "o/c.csv", "x/y=1/b.pq": "o/y=1/b.pq"}
    assert named("x", "z", output="o")["x/a.csv"] == "o/x/a.csv"
    assert named("x", "z", output="o")["z/a.csv"] == "o/z/a.csv"
    assert named("x", "z")["z/a.csv"] == "z.labelled/a.csv"
    assert named("*/a.csv", output="o") == {"x/a.csv": "o/x/a.csv", "z/a.csv": "o/z/a.csv"}
    assert named("x/*", output="o") == named("x", output="o")
    assert named("x/**/*.*", output="o") == named("x", output="o")
    assert named("*/a.csv") == {"x/a.csv": "x/a.labelled.csv", "z/a.csv": "z/a.labelled.csv"}
    assert named("n", "x/a.csv", output="o") == {"n": "o/n", "x/a.csv": "o/a.csv"}
    assert named("x/a.csv", "x/c.csv.gz") == {"x/a.csv": "x/a.labelled.csv", "x/c.csv.gz": "x/c.labelled.csv"}
    assert named("x", "x/a.csv", "./x/a.csv", output="o")["x/a.csv"] == "o/x/a.csv"
    assert named(".", output="o", every_file=True)["./n"] == "o/n"
    assert [inputs.several([name], None) for name in ("x", "x/a.csv", "x/*.csv", "-", "none.csv")] == [
        True, False, True, False, False,
    ]  # fmt: skip
    assert inputs.several(["x/a.csv"], "o/")
    assert inputs.several(["x/a.csv"], "z")
    assert not inputs.several(["x/a.csv"], "o.csv")
    tree(tmp_path, {"news.parquet/part-0.parquet": "", "odd[1].csv": ""})
    assert named("news.parquet") == {"news.parquet/part-0.parquet": "news.labelled.parquet/part-0.parquet"}
    assert not inputs.several(["odd[1].csv"], None), "a file that is called so is no pattern"


def test_outputs_are_no_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tree(tmp_path, {"x/a.csv": "", "x/a.labelled.csv": "", "x/a.labelled.csv.unreadable.csv": ""}))
    for given, output_folder in ((("x/*.csv",), None), (("x",), "o"), (tuple(f"x/{name}" for name in left("x")), None)):
        found, left_out = inputs.tasks(given, output_folder, False)
        assert [task.input for task in found] == ["x/a.csv"]
        assert left_out == 2
    tree(tmp_path, {"x/out/a.csv": ""})
    assert [task.input for task in inputs.tasks(["x"], "x/out", False)[0]] == ["x/a.csv"]


def test_what_a_run_wrote_can_be_labelled_again(charcnn, interrupted, tmp_path):
    """Reports of unreadable rows, and what a run that was cut off left, are no rows."""
    data, once = tree(tmp_path / "data", {"x.csv": "1,a\n2\n", "y.csv": lines(500)}), tmp_path / "once"
    interrupted(9, "classify", data, "-o", once)
    assert left(once) == [done.NAME, "x.csv", "x.csv.unreadable.csv", "y.csv.part", "y.csv.part.json"]
    status, _, err = charcnn("classify", once, "-o", tmp_path / "twice")
    assert status == UNREADABLE, "what had no text has none"
    assert "left out 2 files: outputs of others, or reports of unreadable rows" in err
    assert rows(tmp_path / "twice" / "x.csv")[0][:2] == ["1", "a"]
    status, _, err = charcnn("classify", once / "*", "-o", tmp_path / "all", "--format", "csv")
    assert "left out 3 files" in err
    assert below(tmp_path / "twice") == below(tmp_path / "all") == ["x.csv", "x.csv.unreadable.csv"]


def test_an_output_is_no_report_of_another(charcnn, tmp_path):
    data = tree(tmp_path / "data", {"x.csv": "1,a\n2\n", "x.csv.unreadable.csv": "1,of a user\n"})
    status, _, err = charcnn("classify", data, "-o", tmp_path / "out")
    assert (status, err.count("\n")) == (UNUSABLE, 1)
    assert f"the report {tmp_path}/out/x.csv.unreadable.csv: is --output: name another file" in err
    assert not (tmp_path / "out").exists()
    status, _, err = charcnn("classify", data / "x.csv", data, "--json", data / "x.csv")
    assert (status, "is the input: name another file" in err) == (UNUSABLE, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a.csv", "none.csv"), "none.csv: No such file or directory"),
        (("*.none",), "*.none: no file matches"),
        (("empty",), "empty: holds no file that ends in .csv, .tsv"),
        (("a.csv", "-"), "-: standard input cannot be combined with files"),
        (("a.csv", "b.csv", "-o", "-"), "--output -: need a folder"),
        (("a.csv", "b.csv", "-o", "c.csv"), "--output c.csv: need a folder"),
        (("a.csv", "b.csv", "--report", "r"), "--report: with several files, each has its own"),
        (("a.csv", "x/a.csv", "-o", "o"), "a.csv and x/a.csv would both be written to o/a.csv: name a folder above"),
        (("x", "-o", "x"), "--output x/a.csv: is the input"),
        (("a.csv", "-o", "."), "--output ./a.csv: is the input"),
        (("..",), "..: is a folder with no name of its own here: name an output folder (-o)"),
    ],
)
def test_what_cannot_be_done_is_one_line(charcnn, tmp_path, monkeypatch, words, message):
    names = ("a.csv", "b.csv", "c.csv", "x/a.csv", "empty/none.md")
    monkeypatch.chdir(tree(tmp_path, dict.fromkeys(names, "1,a\n")))
    status, out, err = charcnn("classify", *words)
    assert (status, out) == (UNUSABLE, "")
    assert err.startswith(f"charcnn classify: {message}")
    assert err.count("\n") == 1
    assert below(tmp_path) == sorted(names)


def test_one_bad_file_costs_no_others(charcnn, tmp_path, opened, monkeypatch):
    monkeypatch.setattr("charcnn.classify.labelling.BUFFER", {"cpu": 1 << 12, "cuda": 1 << 12})  # b.csv.gz begins well
    whole = gzip.compress(lines(3000).encode(), mtime=0)
    given = {
        "a.csv": lines(40),
        "b.csv.gz": whole[:-20],
        "c.csv": "text\n".encode("utf-16"),
        "d.parquet": b"PAR1 is none",
        "e.jsonl": '{"n": 1, "m": 2}\n',
        "f.csv": lines(40) + "1\n",
        "g.csv": lines(2500),
    }
    data, out = tree(tmp_path / "data", given), tmp_path / "out"
    status, _, err = charcnn("classify", data, "-o", out, "--json", tmp_path / "r.json")
    assert status == UNUSABLE
    assert below(out) == ["a.csv", "f.csv", "f.csv.unreadable.csv", "g.csv"]
    told = [line for line in err.splitlines() if line.startswith("charcnn classify: ")]
    assert [line.split("/")[-1].partition(":")[0] for line in told] == ["b.csv.gz", "c.csv", "d.parquet", "e.jsonl"]
    assert f"{data}/f.csv: row 41, line 41: 1 fields: need 2" in err
    assert "rows of 3 files" in err
    assert "; 4 could not be labelled" in err
    report = json.loads((tmp_path / "r.json").read_text())
    assert [("error" in file) for file in report["files"]] == [False, True, True, True, True, False, False]
    assert (report["unreadable"], report["files"][5]["unreadable"]) == (1, 1)

    (data / "b.csv.gz").write_bytes(whole)
    for name in ("c.csv", "d.parquet", "e.jsonl"):
        (data / name).unlink()
    opened.clear()
    status, _, err = charcnn("classify", data, "-o", out)
    assert opened == ["b.csv.gz"], "what is done is not read again"
    assert status == UNREADABLE, "of f.csv, which was done before"
    assert "3,000 rows of 1 file" in err
    assert "; 3 files done before" in err
    assert len(rows(out / "b.csv")) == 3000


def test_a_second_start_goes_on_by_file(charcnn, interrupted, tmp_path, opened):
    given = {f"{name}.csv": lines(500, 1000 * n) for n, name in enumerate("abcde")}
    data, out, whole = tree(tmp_path / "data", given), tmp_path / "out", tmp_path / "whole"
    charcnn("classify", data, "-o", whole)
    interrupted(24, "classify", data, "-o", out)  # ten blocks a file
    assert (out / "a.csv").exists()
    assert (out / "b.csv").exists()
    assert not (out / "c.csv").exists()
    opened.clear()
    status, _, err = charcnn("classify", data, "-o", out)
    assert status == DONE
    assert opened == ["c.csv", "d.csv", "e.csv"]
    assert f"{data}/c.csv: resumed after row 200 of an interrupted run" in err
    assert "; 2 files done before" in err
    assert below(out) == below(whole) == sorted(given)
    for name in given:
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    opened.clear()
    status, _, err = charcnn("classify", data, "-o", out)
    assert (status, opened) == (DONE, [])
    assert "0 rows of 0 files" in err
    assert "; 5 files done before" in err


@by_turns
def test_a_kill_and_a_second_start(charcnn, weights, tmp_path):
    given = {f"{n}.csv": lines(400, n) for n in range(30)}
    data, out, whole = tree(tmp_path / "data", given), tmp_path / "out", tmp_path / "whole"
    words = ("classify", data, "-o", out, "--model", weights, "--device", "cpu")
    process, limit = command(*words, code=SLOW, stderr=subprocess.PIPE), time.monotonic() + 300
    while len(list(out.glob("*.csv"))) < 4 and time.monotonic() < limit and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finished = {path.name: path.stat().st_mtime_ns for path in out.glob("*.csv")}
    assert 4 <= len(finished) < 30
    assert charcnn("classify", data, "-o", out)[0] == DONE
    charcnn("classify", data, "-o", whole)
    assert below(out) == below(whole)
    for name in given:
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert finished.items() <= {path.name: path.stat().st_mtime_ns for path in out.glob("*.csv")}.items()


def test_new_files_alone_are_labelled(charcnn, tmp_path, opened):
    data, out = tree(tmp_path / "data", {"a.csv": lines(5)}), tmp_path / "out"
    charcnn("classify", data, "-o", out)
    tree(data, {"b.csv": lines(6)})
    assert charcnn("classify", data, "-o", out)[0] == DONE
    assert opened == ["a.csv", "b.csv"]


@pytest.mark.parametrize("change", ["input", "option", "output"])
def test_what_was_done_otherwise_is_not_taken_for_done(charcnn, tmp_path, change):
    data, out = tree(tmp_path / "data", {"a.csv": lines(5), "b.csv": lines(5)}), tmp_path / "out"
    charcnn("classify", data, "-o", out)
    more = ["--probabilities"] if change == "option" else []
    if change == "input":
        (data / "a.csv").write_text(lines(6))
    if change == "output":
        (out / "a.csv").write_text("mine")
    before = (out / "a.csv").read_bytes()
    status, _, err = charcnn("classify", data, "-o", out, *more)
    assert status == UNUSABLE
    assert f"charcnn classify: {out}/a.csv already exists: name another output, or add --force\n" in err
    assert ("b.csv already exists" in err) == (change == "option")
    assert (out / "a.csv").read_bytes() == before
    assert charcnn("classify", data, "-o", out, "--force", *more)[0] == DONE
    assert (out / "a.csv").read_bytes() != before
    (out / "a.csv").unlink()
    assert charcnn("classify", data, "-o", out, *more)[0] == DONE
    assert (out / "a.csv").exists()


def test_a_kill_between_the_list_and_the_name(charcnn, tmp_path, monkeypatch):
    data, out = tree(tmp_path / "data", {"a.csv": lines(5), "b.csv": lines(5)}), tmp_path / "out"
    finish = output.Partial.finish

    def killed(self):
        monkeypatch.setattr(output.Partial, "finish", finish)
        raise KeyboardInterrupt

    monkeypatch.setattr(output.Partial, "finish", killed)
    assert charcnn("classify", data, "-o", out)[0] == 130
    with open(out / done.NAME, "a") as file:
        file.write('{"output": "b.csv", "ident')
    assert charcnn("classify", data, "-o", out)[0] == DONE
    assert below(out) == ["a.csv", "b.csv"]
    found = done.Done(str(out))
    assert found.find(str(out / "a.csv"), "another") is None
    assert sorted(found._entries) == ["a.csv", "b.csv"]


def test_lists_that_others_wrote(tmp_path):
    wrong = ["[]", "null", "{}", '{"output": [], "identity": "a", "bytes": 1, "rows": 1, "unreadable": 0}', "[" * 9999]
    (tmp_path / done.NAME).write_text("\n".join(wrong))
    found = done.Done(str(tmp_path))
    assert found._entries == {}
    (tmp_path / "a.csv").write_text("ab")
    found.add(str(tmp_path / "a.csv"), {"x": 1}, 2, 5, 1)
    again = done.Done(str(tmp_path))
    assert again.find(str(tmp_path / "a.csv"), {"x": 1})["rows"] == 5
    assert again.find(str(tmp_path / "a.csv"), {"x": 2}) is None
    (tmp_path / "a.csv").write_text("abc")
    assert again.find(str(tmp_path / "a.csv"), {"x": 1}) is None


def test_a_full_disk_ends_all(charcnn, tmp_path, monkeypatch):
    data, out = tree(tmp_path / "data", {f"{n}.csv": lines(5) for n in range(9)}), tmp_path / "out"
    take, times = sinks.FileSink.take, [3]

    def full(self, *block):
        times[0] -= 1
        if times[0] < 0:
            raise OSError(28, "No space left on device", "out")
        take(self, *block)

    with monkeypatch.context() as patch:
        patch.setattr(sinks.FileSink, "take", full)
        status, _, err = charcnn("classify", data, "-o", out)
    assert status == FAILED
    assert err.endswith("\ncharcnn classify: out: No space left on device\n")
    assert [path for path in below(out) if path.endswith(".csv")] == ["0.csv", "1.csv", "2.csv"]
    assert charcnn("classify", data, "-o", out)[0] == DONE
    assert below(out) == sorted(path.name for path in data.iterdir())


def test_hive_folders_of_parquet(charcnn, interrupted, tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    dataset = pytest.importorskip("pyarrow.dataset")
    count = 240
    table = pyarrow.table(
        {
            "text": [f"text {n}" for n in range(count)],
            "n": range(count),
            "year": [2020 + n % 2 for n in range(count)],
            "label": [f"l{n % 3}" for n in range(count)],
        }
    )
    parquet.write_to_dataset(table, tmp_path / "news", ["year", "label"])
    tree(tmp_path / "news", {"_metadata": b"PAR1", "_SUCCESS": ""})
    assert charcnn("classify", tmp_path / "news")[0] == DONE
    found = dataset.dataset(tmp_path / "news.labelled", partitioning="hive").to_table().sort_by("n")
    assert found["n"].to_pylist() == list(range(count))
    assert found["label"].to_pylist() == table["label"].to_pylist(), "what the folders say is not hidden"
    assert {"predicted label", "probability", "year"} < set(found.column_names)
    assert [Path(path).parent for path in below(tmp_path / "news.labelled")] == [
        Path(path).parent for path in below(tmp_path / "news") if path.endswith(".parquet")
    ]


def test_small_files_share_the_threads(charcnn, tmp_path, monkeypatch):
    """One is computed while the next is read: blocks of several are under way."""
    data = tree(tmp_path / "data", {f"{n:02}.txt": f"{n}\n" for n in range(40)})
    monkeypatch.setitem(ROWS, "cpu", 50)
    assert charcnn("classify", data)[0] == DONE
    assert len(below(tmp_path / "data.labelled")) == 40
    for n in range(40):
        assert (tmp_path / "data.labelled" / f"{n:02}.txt").read_text().endswith(f"\t{n}\n")


@pytest.mark.parametrize("how", ranks.MODES)
def test_however_offloaded(charcnn, tmp_path, how):
    data = tree(tmp_path / "data", {name: FILES[name] for name in ("a.csv", "2024/b.csv")})
    assert charcnn("classify", data, "-o", tmp_path / "alone")[0] == DONE
    assert charcnn("classify", data, "-o", tmp_path / "out", "--offload", how)[0] == DONE
    for name in below(data):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_one_file_to_a_folder(charcnn, tmp_path):
    (tmp_path / "a.csv").write_text(lines(3))
    assert charcnn("classify", tmp_path / "a.csv", "-o", f"{tmp_path}/new/")[0] == DONE
    assert below(tmp_path / "new") == ["a.csv"]


def test_a_folder_that_cannot_be_written_is_told_for_each(charcnn, tmp_path):
    data = tree(tmp_path / "data", {"a.csv": lines(3), "b/c.csv": lines(3)})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b").write_text("a file")
    status, _, err = charcnn("classify", data, "-o", tmp_path / "out")
    assert status in (FAILED, UNUSABLE)
    assert f"{tmp_path}/out/b: File exists" in err
    assert (tmp_path / "out" / "a.csv").exists()
