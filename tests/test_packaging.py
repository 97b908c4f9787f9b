"""What a user installs, the README's commands, and what the project says of itself."""

import ast
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from charcnn import catalog
from charcnn.host import machine

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest brings tomli there
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
README = (ROOT / "README.md").read_text()
COMMANDS = [line for line in README.splitlines() if line.startswith("python3 -m venv ")]


def tracked():
    done = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_a_source_distribution_is_the_checkout(tmp_path):
    pytest.importorskip("setuptools", "77")
    files = tracked()
    for file in files:
        to = tmp_path / "checkout" / file.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".safetensors":
            to.touch()  # it would take seconds to compress
        else:
            to.symlink_to(file)
    build = "import sys, setuptools.build_meta; setuptools.build_meta.build_sdist(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, tmp_path], cwd=tmp_path / "checkout", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as built:
        held = {name.partition("/")[2] for name in built.getnames()}
    assert {str(file.relative_to(ROOT)) for file in files} <= held


def test_extra_all_holds_every_other_one():
    (everything,) = EXTRAS["all"]
    named = re.fullmatch(r"charcnn\[(.*)\]", everything)[1].split(",")
    assert sorted(named) == sorted(set(EXTRAS) - {"all"})


def test_the_readme_has_the_two_commands():
    assert [command.split("/")[-1] for command in COMMANDS] == ["charcnn classify -", "pytest -n auto"]


@pytest.mark.parametrize("command", COMMANDS)
def test_readme_commands_name_extras_that_exist(command):
    named = re.search(r"pip install -e '\.\[(.*?)\]'", command)[1].split(",")
    assert set(named) <= set(EXTRAS)


def test_ci_takes_the_test_command_from_the_readme():
    pattern = re.search(r"grep -m 1 -E '(.*)' README\.md", (ROOT / ".ci" / "run").read_text())[1]
    assert re.findall(pattern, README, re.MULTILINE) == COMMANDS[1:]


def test_levels_named_in_the_readme_exist():
    named = set(re.findall(r"charcnn\.levels\.(l\d+)", README))
    assert named
    assert named <= {level.name for level in catalog.LEVELS}


def test_sources_parse_on_the_oldest_python():
    oldest = tuple(int(part) for part in PROJECT["requires-python"].removeprefix(">=").split("."))
    for file in ROOT.glob("charcnn/**/*.py"):
        ast.parse(file.read_text(), str(file), feature_version=oldest)


def test_json_that_is_written_holds_no_number_that_is_none():
    reports = [*(ROOT / "charcnn").glob("*.py")]
    for folder in ("cli", "levels", "training"):
        reports += (ROOT / "charcnn" / folder).glob("*.py")
    found = 0
    for file in reports:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dump", "json.dumps"):
                found += 1
                refused = any(ast.unparse(keyword) == "allow_nan=False" for keyword in node.keywords)
                assert refused, f"{file.relative_to(ROOT)}:{node.lineno}: need allow_nan=False, or files.as_json"
    assert found > 5


def test_no_file_names_a_path_of_a_machine():
    # Folders of people's and services' homes, of mounts and of temporary files, where a line names one in full.
    pattern = re.compile(rb"(?<![\w.~/-])/(?:home|root|Users|work|workspace|mnt|srv|opt|tmp|data)/[\w.-]+")
    for file in tracked():
        for number, line in enumerate(file.read_bytes().splitlines(), 1):
            found = pattern.search(line)
            assert not found, f"{file.relative_to(ROOT)}:{number} names {found[0].decode()}"


def test_results_name_no_host():
    for file in (ROOT / "bench" / "results").glob("*.json"):
        raw = json.loads(file.read_text())
        described = raw.get("machine_info", raw.get("machine"))
        assert set(described) == set(machine.describe()), file.name


def test_machine_is_described_in_json():
    described = machine.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["cores"] >= 1
    assert described["versions"]["numpy"]
    assert os.uname().nodename not in json.dumps(described).split('"')


def test_machine_is_described_with_no_driver(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(machine.ctypes, "CDLL", missing)
    described = machine.describe()
    assert described["gpus"] == []
    assert described["driver"] is None


@pytest.mark.parametrize(
    ("gpus", "used", "name"),
    [
        ([], 1, "cpu-2-cores"),
        (["NVIDIA H200"], 1, "nvidia-h200"),
        (["NVIDIA H200"] * 4, 4, "nvidia-h200-x4"),
        (["NVIDIA H200"] * 4, 0, "nvidia-h200"),
    ],
)
def test_machine_name(gpus, used, name):
    assert machine.name({"gpus": gpus, "cores": 2}, used) == name


def test_commit_can_be_given(monkeypatch):
    monkeypatch.setenv("CHARCNN_COMMIT", "abc")
    assert machine.commit() == "abc"


def test_importing_the_package_imports_neither_numba_nor_cuda():
    check = "import charcnn, charcnn.host.machine, sys; sys.exit(any(m.split('.')[0] == 'numba' for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0


def test_importing_chooses_no_simulator():
    check = (
        "import charcnn.classify.classifier, charcnn.levels.l5, numba, sys; sys.exit(bool(numba.config.ENABLE_CUDASIM))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_ENABLE_CUDASIM"}
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, env=environment, check=False).returncode == 0
