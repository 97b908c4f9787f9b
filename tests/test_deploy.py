"""The container and the Slurm job of docs/deploy: what they start, with a command that writes down how it is called."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "docs" / "deploy"
SCRIPT, DOCKERFILE = DEPLOY / "classify.sbatch", DEPLOY / "Dockerfile"


@pytest.fixture
def job(tmp_path):
    """Runs one job of an array; what `charcnn` was called with."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "charcnn").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$CALLS"\n')
    (tmp_path / "bin" / "charcnn").chmod(0o755)
    for name in ("a b.csv", "c.jsonl", "sub/d.parquet", "sub/e.csv.gz", "notes.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()

    def run(task, tasks, *words, **environment):
        calls = tmp_path / f"calls-{task}"
        set_by_slurm = {f"SLURM_ARRAY_TASK_{name}": str(n) for name, n in (("ID", task), ("COUNT", tasks), ("MIN", 0))}
        found = {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "CALLS": str(calls),
            "INPUT": "in",
            "OUTPUT": "out",
        }
        result = subprocess.run(
            ["bash", str(SCRIPT), *words],
            cwd=tmp_path,
            env=found | set_by_slurm | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return result, calls.read_text().splitlines() if calls.exists() else []

    return run


def test_each_file_has_one_job_of_an_array(job):
    taken = []
    for task in range(3):
        result, words = job(task, 3, "--model", "m.safetensors")
        assert result.returncode == 0, result.stderr
        assert words[0] == "classify"
        files = words[1 : words.index("--output")]
        assert words[len(files) + 1 :] == [
            "--output", f"out/{task}/", "--openmetrics", f"out/{task}.prom", "--log-every", "60",
            "--model", "m.safetensors",
        ]  # fmt: skip
        taken += files
    assert sorted(taken) == ["in/a b.csv", "in/c.jsonl", "in/sub/d.parquet", "in/sub/e.csv.gz"]


def test_more_jobs_than_files_and_missing_folders(job):
    result, words = job(7, 8)
    assert (result.returncode, words) == (0, [])
    assert "no file is left for it" in result.stderr
    result, words = job(0, 1, INPUT="")
    assert result.returncode != 0
    assert "a folder of files to label" in result.stderr


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
def test_the_script_passes_shellcheck():
    assert subprocess.run(["shellcheck", str(SCRIPT)], check=False).returncode == 0


@pytest.mark.skipif(not shutil.which("hadolint"), reason="needs hadolint")
def test_the_container_passes_hadolint():
    assert subprocess.run(["hadolint", str(DOCKERFILE)], check=False).returncode == 0


def test_what_the_container_copies_and_installs_is_there():
    text = DOCKERFILE.read_text()
    for sources in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / source).exists() for source in sources.split())
    extras = re.search(r"ARG EXTRAS=(\S+)", text)[1].split(",")
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras)
