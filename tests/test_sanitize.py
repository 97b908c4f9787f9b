"""bench/sanitize.py: what is done is kept, and a second start goes on from there."""

import json
import os
import sys

import pytest
import sanitize

from charcnn.host import machine


@pytest.fixture
def ran(monkeypatch):
    """Tools that find nothing, and what they were asked for: (tool, first test, GPU)."""
    calls = []

    def check(tool, tests, gpu):
        calls.append((tool, tests[0], gpu))
        return {"summary": f"{tool}: 0 errors", "processes": 1, "tests": len(tests)}

    here = {**machine.describe(), "gpus": ["NVIDIA H200"] * 2, "cores": 8}
    monkeypatch.setattr(sanitize.machine, "describe", lambda: here)
    monkeypatch.setattr(sanitize.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(sanitize, "collect", lambda: [f"tests/test_ops.py::test[{i}]" for i in range(60)])
    monkeypatch.setattr(sanitize, "check", check)
    return calls


def start(monkeypatch, folder, *options):
    monkeypatch.setattr("sys.argv", ["sanitize.py", "--results-dir", str(folder), *options])
    return sanitize.main()


def test_all_parts_under_both_tools(ran, monkeypatch, tmp_path):
    assert start(monkeypatch, tmp_path) == 0
    (file,) = tmp_path.iterdir()
    assert file.name == "nvidia-h200-sanitizer.json"
    tools = json.loads(file.read_text())["tools"]
    assert tools["memcheck"] == {"summary": "memcheck: 0 errors", "processes": 3, "tests": 60}
    assert tools["racecheck"]["tests"] == 60
    assert {(tool, gpu) for tool, _, gpu in ran} == {("memcheck", 0), ("racecheck", 1)}


def test_a_start_that_was_out_of_time_or_found_something_goes_on(ran, monkeypatch, tmp_path, capsys):
    assert start(monkeypatch, tmp_path, "--seconds", "-1") == 3
    assert not ran
    check = sanitize.check

    def finds(tool, tests, gpu):
        if tool == "racecheck" and tests[0].endswith("[24]"):
            raise sanitize.Found("racecheck: hazard")
        return check(tool, tests, gpu)

    monkeypatch.setattr(sanitize, "check", finds)
    assert start(monkeypatch, tmp_path) == 1
    assert "hazard" in capsys.readouterr().err
    assert len(ran) == 5
    monkeypatch.setattr(sanitize, "check", check)
    ran.clear()
    assert start(monkeypatch, tmp_path) == 0
    assert ran == [("racecheck", "tests/test_ops.py::test[24]", 1)]


def test_other_sources_begin_anew(ran, monkeypatch, tmp_path):
    (tmp_path / "nvidia-h200-sanitizer.part").write_text(
        json.dumps({"sources": "of before", "done": {"memcheck": {"0": {}}, "racecheck": {}}})
    )
    assert start(monkeypatch, tmp_path) == 0
    assert len(ran) == 6


@pytest.mark.exhaustive
def test_collecting_names_the_tests():
    names = sanitize.collect()
    assert any("test_edges" in name for name in names)
    assert len(names) == len(set(names))


@pytest.mark.exhaustive
def test_a_part_is_a_process_that_leaves_a_summary(monkeypatch, tmp_path):
    tool = tmp_path / "compute-sanitizer"  # a stand-in: runs what follows its options, and writes a summary
    tool.write_text(
        f"""#!{sys.executable}
import subprocess, sys
rest = sys.argv[1:]
log = rest[rest.index("--log-file") + 1].replace("%p", "1")
open(log, "w").write("========= ERROR SUMMARY: 0 errors\\n")
sys.exit(subprocess.run(rest[rest.index("--log-file") + 2 :]).returncode)
"""
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said = sanitize.check("memcheck", ["tests/test_sanitize.py::test_other_sources_begin_anew"], 0)
    assert said == {"summary": "ERROR SUMMARY: 0 errors", "processes": 1, "tests": 1}
    with pytest.raises(sanitize.Found, match="test_nothing"):
        sanitize.check("memcheck", ["tests/test_sanitize.py::test_nothing"], 0)
