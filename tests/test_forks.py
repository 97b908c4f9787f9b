"""Other processes: a fork of one that computed says what to do, and one that is spawned computes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import by_turns, quick

ROOT = Path(__file__).parent.parent

MODEL = """
import multiprocessing, os, sys
import numpy as np
from charcnn import TINY, Classifier
from charcnn.model import params
from charcnn.text import encodings as text
from charcnn.host.forks import ForkedError

def made():
    weights = params.init(TINY, 3)
    return Classifier(params.Params(weights, TINY, text.ENCODINGS["crepe"], text.CLASSES), device="cpu")
"""

FORKED = """
from charcnn import ops

def asked(ask):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ask()
        except ForkedError as error:
            status = 0 if "start processes by spawn" in str(error) else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)

x, w, b = (np.ones(shape, np.float32) for shape in ((2, 8), (4, 8), (4,)))
with multiprocessing.get_context("fork").Pool(1) as pool:  # nothing has computed yet
    assert pool.apply(ops.linear_cpu_gemm, (x, w, b)).shape == (2, 4)
classifier = made()
label = classifier.predict("a text")
print(asked(lambda: classifier.predict("a text")), asked(lambda: classifier.explain("a text")), end=" ")
if sys.argv[1] == "omp":
    print(asked(lambda: ops.linear_cpu_gemm(x, w, b)), asked(made), end=" ")
with multiprocessing.get_context("fork").Pool(2) as pool:
    try:
        pool.map(predict, ["a text"] * 4)
    except ForkedError as error:
        print(error)
assert classifier.predict("a text") == label
"""

SPAWNED = """
if __name__ == "__main__":
    classifier = made()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(classifier.predict_proba, (["a text", "another"],))
    assert (found == classifier.predict_proba(["a text", "another"])).all()
"""


def run(tmp_path, code, *words, **environment):
    (tmp_path / "script.py").write_text(MODEL + code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", *words],
        env=environment,
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@by_turns
@pytest.mark.parametrize("layer", ["omp", "workqueue"])
@quick(lambda layer: layer == "omp")
def test_a_forked_child_is_told(tmp_path, layer):
    predict = "\ndef predict(text):\n    return classifier.predict(text)\n"
    told = run(tmp_path, predict + FORKED, layer, NUMBA_THREADING_LAYER=layer)
    *statuses, message = told.split(" ", 4 if layer == "omp" else 2)
    assert set(statuses) == {"0"}
    assert message.startswith("this classifier's level was made before this process was forked")


@by_turns
def test_a_spawned_process_is_handed_a_classifier(tmp_path):
    run(tmp_path, SPAWNED)
