"""What a user installs, the README's commands, and what the project says of itself."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import by_turns

from charcnn import catalog
from charcnn.__main__ import parser
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
    """What git has, and what is new in the package: whoever writes a module need not add it first."""
    names = set()
    for words in ([], ["--others", "--exclude-standard", "charcnn"]):
        done = subprocess.run(
            ["git", "-C", ROOT, "ls-files", "-z", *words], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip("not a git checkout")
        names |= set(done.stdout.split("\0"))
    return [ROOT / name for name in sorted(names) if name and (ROOT / name).is_file()]


def built(kind, checkout, folder):
    """The archive of a kind, sdist or wheel, that a checkout's build makes."""
    build_step(f"build_{kind}", checkout, folder)
    (archive,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return archive


def build_step(name, checkout, folder):
    """What a frontend such as pip or build asks of the build's backend."""
    pytest.importorskip("setuptools", "77")
    build = "import sys, setuptools.build_meta as of; getattr(of, sys.argv[1])(sys.argv[2])"
    done = subprocess.run(
        [sys.executable, "-c", build, name, folder], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("repository", [None, "https://example.org/charcnn"])
def test_a_package_index_shows_links_that_hold(repository, tmp_path):
    for name in ("setup.py", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    project = re.sub(r"^\[project\.urls\]\n(?:.+\n)*", "", (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    if repository is not None:
        project += f'\n[project.urls]\nRepository = "{repository}"\n'
    (tmp_path / "pyproject.toml").write_text(project)
    build_step("prepare_metadata_for_build_wheel", tmp_path, tmp_path)
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    shown = metadata.read_text().partition("\n\n")[2]
    relative = re.findall(r"\]\((?!https://)", README)
    of_tag = re.findall(rf"\]\({repository}/(?:blob|raw)/v{re.escape(PROJECT['version'])}/([^)#]+)", shown)
    assert len(relative) > 50
    assert not re.search(r"\]\((?!https://)", shown)
    assert len(of_tag) == (0 if repository is None else len(relative))
    assert all((ROOT / file).exists() for file in of_tag)
    assert ("![" in shown) == (repository is not None)
    assert all(command in shown for command in COMMANDS)


def test_an_editable_install_is_found_from_the_folder_above_the_clone(tmp_path):
    clone = tmp_path / "charcnn"
    (clone / "charcnn").mkdir(parents=True)
    (clone / "charcnn/__init__.py").write_text("")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, clone / name)
    build_step("build_editable", clone, tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (pth,) = [name for name in archive.namelist() if name.endswith(".pth")]
        assert archive.read(pth).decode().strip() == str(clone)  # a finder would come after the folder of that name


@by_turns
def test_a_source_distribution_is_the_checkout(tmp_path):
    files = tracked()
    for file in files:
        to = tmp_path / "checkout" / file.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".safetensors":
            to.touch()  # it would take seconds to compress
        else:
            to.symlink_to(file)
    with tarfile.open(built("sdist", tmp_path / "checkout", tmp_path)) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {str(file.relative_to(ROOT)) for file in files} <= held


TRIED = (
    ("-m", "charcnn", "--version"),
    ("-m", "charcnn", "--help"),
    ("-m", "charcnn", "info"),
    ("-m", "charcnn", "classify", "-"),
    ("-m", "charcnn", "levels"),
    ("-m", "charcnn", "levels", "--diff", "l15"),
    ("-m", "charcnn", "show"),
    ("-m", "charcnn", "report", "--levels", "l11", "--seconds", "0.05"),
    ("-m", "charcnn.levels.l0", "--config", "tiny"),
    ("-m", "charcnn.levels.l11", "--inputs", "2"),
    ("-m", "charcnn.levels.l12", "--inputs", "1"),
    ("-m", "charcnn.networks.mnist", "--as", "winograd_cpu", "--inputs", "2"),
)
"""What a user does with a wheel: a start of each part that reads files of the package."""

PLATFORMS = {
    "Linux": ("manylinux_2_17_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64"),
    "macOS": ("macosx_11_0_arm64", "macosx_12_0_arm64", "macosx_14_0_arm64"),
    "Windows": ("win_amd64",),
}
"""Where a plain installation needs no compiler: the tags of wheels that fit."""

OWN = (
    "test_config.py",
    "test_docs.py",
    "test_measured.py",
    "test_notebooks.py",
    "test_puzzles.py",
    "test_page_commands.py",
)
"""Tests that read files beside the package, as a source distribution has them. Pages' examples read none."""


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A source distribution, unpacked, with the package as a wheel has it; and that wheel, installed in a folder."""
    folder = tmp_path_factory.mktemp("released")
    checkout = folder / "checkout"
    for file in tracked():
        to = checkout / file.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, to)
    with tarfile.open(built("sdist", checkout, folder)) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    with zipfile.ZipFile(built("wheel", source, folder)) as archive:
        archive.extractall(folder / "installed")
    shutil.rmtree(source / "build", ignore_errors=True)
    shutil.rmtree(source / "charcnn")
    shutil.copytree(folder / "installed" / "charcnn", source / "charcnn")
    shutil.rmtree(checkout)
    return source, folder / "installed"


def outside(folder, *words):
    """A process whose charcnn is the one in this folder, and which knows of no checkout."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CHARCNN"))}
    environment |= {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    return environment, [sys.executable, *words]


@pytest.mark.exhaustive
def test_a_wheel_has_all_of_the_package(released):
    _, installed = released
    of_package = {file.relative_to(ROOT) for file in tracked() if file.is_relative_to(ROOT / "charcnn")}
    assert {file for file in of_package if not (installed / file).is_file()} == set()


@pytest.mark.exhaustive
@pytest.mark.parametrize("python", ["3.14", "3.15"])
@pytest.mark.parametrize("system", PLATFORMS)
def test_the_index_has_all_wheels_of_the_core(system, python, tmp_path):
    if python == "3.15" and sys.version_info < (3, 12):
        pytest.skip("pip takes no NumPy that this Python cannot run, and older ones have no wheels for 3.15")
    words = [word for tag in PLATFORMS[system] for word in ("--platform", tag)]
    words += ["--python-version", python, "--only-binary", ":all:", "--target", str(tmp_path)]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", *words]
    done = subprocess.run([*command, *PROJECT["dependencies"]], capture_output=True, text=True, check=False)
    if re.search("No module named pip|connection broken|ConnectionError", done.stderr):
        pytest.skip("no package index can be asked")
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", TRIED, ids=" ".join)
def test_a_wheel_works_outside_the_checkout(words, released, tmp_path):
    environment, started = outside(released[1], *words)
    done = subprocess.run(
        started,
        input="Stocks fell on Monday.\n",
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert str(ROOT) not in done.stdout + done.stderr
    assert done.stdout


@pytest.mark.exhaustive
def test_a_source_distribution_passes_its_own_tests(released):
    source, _ = released
    environment, started = outside(source, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0")
    del environment["PYTHONSAFEPATH"]  # scripts of its own find what lies beside them
    started += ["-k", "not example_runs", *(str(source / "tests" / name) for name in OWN)]
    done = subprocess.run(started, env=environment, cwd=source, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_citation_and_the_changelog_are_of_this_version():
    said = dict(
        line.split(": ", 1) for line in (ROOT / "CITATION.cff").read_text().splitlines() if re.match(r"\w.*: ", line)
    )
    assert said["version"] == PROJECT["version"]
    assert said["license"] == PROJECT["license"]
    assert f"\n## [{said['version']}] - {said['date-released']}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert PROJECT["authors"] == [{"name": "The charcnn authors"}]
    assert "  - name: The charcnn authors\n" in (ROOT / "CITATION.cff").read_text()


def test_issue_templates_ask_for_what_there_is():
    yaml = pytest.importorskip("yaml")
    forms = {
        file.stem: yaml.safe_load(file.read_text()) for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")
    }
    assert forms.pop("config") == {"blank_issues_enabled": True}
    assert set(forms) == {"fails", "question", "slow", "wrong"}
    for form in forms.values():
        assert {"name", "description", "body"} <= form.keys()
        assert len({part["id"] for part in form["body"]}) == len(form["body"])
    text = "".join(file.read_text() for file in (ROOT / ".github").rglob("*.yml"))
    for command in re.findall(r"`charcnn (.*?)`", text):
        words = command.split()
        parser(words[0]).parse_args(words)


def test_extra_all_holds_every_other_one():
    (everything,) = EXTRAS["all"]
    named = re.fullmatch(r"charcnn\[(.*)\]", everything)[1].split(",")
    assert sorted(named) == sorted(set(EXTRAS) - {"all"})


def test_the_readme_has_the_two_commands():
    assert [command.split("/")[-1] for command in COMMANDS] == ["charcnn classify -", "pytest -n auto"]


def test_readme_commands_name_extras_that_exist():
    named = [extra for extras in re.findall(r"'\.\[(.*?)\]'", README) for extra in extras.split(",")]
    assert named == ["cuda", "mpi", "test", "cuda", "simulator"]
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
        parts = raw, *(part for part in raw.values() if isinstance(part, dict))  # each may be of a run of its own
        found = [part[name] for part in parts for name in ("machine_info", "machine") if name in part]
        assert {frozenset(described) for described in found} == {frozenset(machine.describe())}, file.name


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
