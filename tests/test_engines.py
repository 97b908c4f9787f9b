"""Programs of docs/engines.md: the labels of one process, each row once, also where a worker is killed at its work."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

import engines
import pytest
from conftest import by_turns, quick
from dying_classifier import MARKER

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import dataset, parquet  # noqa: E402

ROOT = Path(__file__).parent.parent
LIMIT = 60.0
"""Seconds of a run."""
PACKAGES = {"ray": "ray", "dask": "distributed", "spark": "pyspark", "processes": "pyarrow"}
PROGRAMS = engines.programs()
FINER = {"ray": ("target_num_rows_per_block=16384", "target_num_rows_per_block=100")}
"""What a program says, and what a test puts in its place, so that four hundred rows are several tasks."""
MADE = {"ray": 3, "dask": 2, "spark": 3, "processes": 3}
"""Processes that make the classifier: two workers, and those programs that ship one."""
TEXTS = [f"{word} number {n}" for n in range(100) for word in ("stocks", "match", "talks", "chips")]
TEXTS[250] = MARKER
DAYS = [f"2026-01-{day:02}" for day in range(1, 5)]


@pytest.fixture
def news(tmp_path):
    """A dataset of 400 rows in four folders, in the third of which one row is marked."""
    for n, day in enumerate(DAYS):
        (tmp_path / "news" / f"day={day}").mkdir(parents=True)
        rows = pyarrow.table({"id": range(100 * n, 100 * n + 100), "text": TEXTS[100 * n : 100 * n + 100]})
        parquet.write_table(rows, tmp_path / "news" / f"day={day}" / "part-0.parquet")
    return tmp_path


def processes(mark):
    """Those that have this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has ended, or is somebody else's
            continue
    return found


@pytest.fixture
def run(news, weights):
    """Run the program of an engine on the dataset: its status and what it said. No process of it may be left."""
    mark = f"TEST_ENGINES={uuid.uuid4()}"
    scratch = tempfile.mkdtemp(prefix="engines", dir="/tmp")  # sockets have short names

    def start(name, **environment):
        code = PROGRAMS[name].replace("from charcnn import Classifier", "from dying_classifier import Classifier")
        assert code != PROGRAMS[name]
        if name in FINER:
            assert FINER[name][0] in code
            code = code.replace(*FINER[name])
        (news / f"label_{name}.py").write_text(code)
        key, _, value = mark.partition("=")
        environment = {
            **os.environ, key: value, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
            "NUMBA_NUM_THREADS": "1", "CLASSIFIER_LOG": str(news / "made"), "RAY_TMPDIR": scratch,
            "SPARK_LOCAL_DIRS": scratch, "DASK_TEMPORARY_DIRECTORY": scratch, **environment,
        }  # fmt: skip
        with open(news / "said", "w+") as said:
            words = [sys.executable, f"label_{name}.py", "news", "labelled", weights]
            status = subprocess.run(
                words, cwd=news, env=environment, stdout=said, stderr=said, timeout=LIMIT, check=False
            ).returncode
            said.seek(0)
            return status, said.read()

    yield start
    until = time.monotonic() + 300
    while (left := processes(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    for process in left:
        os.kill(process, signal.SIGKILL)
    shutil.rmtree(scratch, ignore_errors=True)
    assert not left


def made(folder):
    """How many classifiers each process has made."""
    return Counter((folder / "made").read_text().split())


def check_labels(folder, classifier):
    """Each row is there once, in its folder, and has the label and probability that one process gives it."""
    rows = dataset.dataset(folder / "labelled", partitioning="hive", exclude_invalid_files=False).to_table()
    rows = rows.sort_by("id").to_pydict()
    names, shares = classifier.predict_topk(TEXTS, 1)
    assert rows["id"] == list(range(400))
    assert rows["text"] == TEXTS
    assert rows["day"] == [DAYS[n // 100] for n in range(400)]
    assert rows["label"] == names[:, 0].tolist() == classifier.predict(TEXTS).tolist()
    assert rows["probability"] == pytest.approx(shares[:, 0].tolist(), rel=1e-6)


def test_the_page_has_these_programs():
    assert PROGRAMS.keys() == PACKAGES.keys()
    for name, code in PROGRAMS.items():
        assert sum(map(bool, code.splitlines()[1:])) <= 25, name


@by_turns
@pytest.mark.parametrize("name", PACKAGES)
def test_labels_are_those_of_one_process(name, news, run, classifier):
    pytest.importorskip(PACKAGES[name])
    classifier.predict(TEXTS)  # compiles, which is not the engine's time
    status, said = run(name)
    assert status == 0, said
    check_labels(news, classifier)
    assert sorted(made(news).values()) == [1] * MADE[name], "each worker makes it once"


@pytest.mark.parametrize("name", PACKAGES)
@quick(lambda name: name != "processes")
def test_a_worker_is_killed(name, news, run, classifier):
    pytest.importorskip(PACKAGES[name])
    classifier.predict(TEXTS)
    strike = news / "strike"
    status, said = run(name, CLASSIFIER_STRIKE=str(strike))
    assert strike.read_text() in made(news), said
    if name == "processes":  # a pool goes on with none of its workers: a second start does what is left
        assert status != 0
        assert "BrokenProcessPool" in said
        status, said = run(name, CLASSIFIER_STRIKE=str(strike))
    assert status == 0, said
    check_labels(news, classifier)
