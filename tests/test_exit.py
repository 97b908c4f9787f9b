"""A process ends with its own status: where kernels ran on several GPUs, Numba unloaded their libraries twice."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import charcnn
from charcnn.config import TINY
from charcnn.gpu import device
from charcnn.gpu.unload import count_users
from charcnn.model import params

ROOT = Path(__file__).parents[1]

STARTS = int(os.environ.get("CHARCNN_STARTS", "2"))
"""Runs of each kind of command: a crash at the end is a matter of chance."""


class Driver:
    """What of Numba's driver makes modules and ends them."""

    def __init__(self):
        self.unloaded = []

    def module_finalizer(self, context, object_code):
        return lambda: self.unloaded.append((context, object_code.handle))


def test_a_library_that_two_gpus_use_is_unloaded_once():
    driver = Driver()
    counted = count_users(driver.module_finalizer)
    shared, own = SimpleNamespace(handle=1), SimpleNamespace(handle=2)
    ends = [counted("GPU 0", shared), counted("GPU 1", shared), counted("GPU 1", own)]
    ends[0]()
    assert driver.unloaded == []  # GPU 1 still runs its kernels
    ends[2]()
    ends[1]()
    assert driver.unloaded == [("GPU 1", 2), ("GPU 1", 1)]


def test_a_library_that_is_loaded_again_is_unloaded_again():
    driver = Driver()
    counted = count_users(driver.module_finalizer)
    for _ in range(2):
        counted("GPU 0", SimpleNamespace(handle=1))()
        gc.collect()
    assert driver.unloaded == [("GPU 0", 1)] * 2


@pytest.mark.skipif(device.SIMULATED, reason="needs Numba's driver")
def test_the_driver_counts():
    from numba.cuda.cudadrv import driver

    from charcnn.gpu import unload

    assert driver._module_finalizer.__module__ == unload.__name__
    mended = driver._module_finalizer
    unload.mend()
    assert driver._module_finalizer is mended


ENDING = """
import sys
from charcnn import Classifier
class Late:
    def __init__(self):
        self.classifier = Classifier.load(sys.argv[1], device="cpu")
    def __del__(self):
        for n in (1, 100):
            try:
                self.classifier.predict(["a"] * n)
            except RuntimeError as error:
                print(error, flush=True)
late = Late()
print(late.classifier.predict(["a"] * 100).size)
"""


def test_a_label_asked_for_while_python_ends_is_an_error(tmp_path):
    params.save(tmp_path / "a.safetensors", params.init(TINY), TINY, encoding="crepe")
    command = [sys.executable, "-c", ENDING, tmp_path / "a.safetensors"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (0, "")
    first, *late = ended.stdout.splitlines()
    told = "cannot run while Python ends, which has ended all threads: call it before, not in __del__"
    assert (first, late) == ("100", [f"this classifier's level {told}", f"work in several threads {told}"])


def gpus() -> int:
    """GPUs that Numba sees."""
    if device.SIMULATED:
        return 0
    from numba import cuda

    try:
        return len(cuda.gpus)
    except Exception:  # no driver
        return 0


SCRIPT = """
from charcnn import Classifier
classifier = Classifier.load()
print(classifier.predict(["Stocks fell on Monday as oil rose."] * 3000)[0])
classifier.close()
left_open = Classifier.load(precision="fp32")
print(left_open.predict(["The home side won in extra time."])[0])
"""

SAMPLE = str(Path(charcnn.__file__).parent / "text" / "sample.csv")

TINY_TRAINING = ("--config", "tiny", "--epochs", "1", "--no-curve")

COMMANDS = {
    "level": ["-m", "charcnn.levels.l16", "--inputs", "8192"],
    "level-fp32": ["-m", "charcnn.levels.l13", "--inputs", "4096"],
    "classify-one": ["-m", "charcnn", "classify", "-"],
    "classify-fp8": ["-m", "charcnn", "classify", "-", "--precision", "fp8"],
    "classify-file": ["-m", "charcnn", "classify", SAMPLE, "--text-columns", "2,3", "-o", "{folder}/labelled.csv"],
    "evaluate": ["-m", "charcnn", "evaluate", SAMPLE],
    "train": ["-m", "charcnn", "train", "--data", SAMPLE, "--out", "{folder}/model.safetensors", *TINY_TRAINING],
    "tune": ["-m", "charcnn", "tune", "--config", "tiny", "--levels", "l16", "--dry-run"],
    "script": ["-c", SCRIPT],
}


@pytest.mark.skipif(gpus() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("kind", COMMANDS)
def test_commands_on_two_gpus_end_with_their_own_status(kind, tmp_path):
    def start(number):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = [sys.executable, *(word.replace("{folder}", str(folder)) for word in COMMANDS[kind])]
        ended = subprocess.run(
            command, input="Stocks fell on Monday.\n", capture_output=True, text=True, timeout=300, cwd=ROOT
        )
        return ended.returncode, ended.stderr

    if kind == "train":
        pytest.importorskip("torch")
    ends = [start(0)]  # compiles what the others load
    with ThreadPoolExecutor(2) as several:
        ends += several.map(start, range(1, STARTS))
    failed = [(status, stderr[-2000:]) for status, stderr in ends if status != 0]
    assert not failed, f"{len(failed)} of {len(ends)} starts: {failed[0]}"


@pytest.mark.skipif(gpus() < 2, reason="needs two GPUs")
def test_the_program_of_the_report_ends_well_with_the_mend_that_it_proposes(tmp_path):
    program = tmp_path / "two_gpus.py"
    page = (ROOT / "docs/upstream/numba-cuda-double-unload.md").read_text()
    program.write_text(page.split("```python\n")[1].split("```")[0])
    ended = subprocess.run([sys.executable, program, "--counted"], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "AGAIN" not in ended.stderr
    assert "cuLibraryUnload" in ended.stderr


@pytest.mark.skipif(gpus() < 1, reason="needs a GPU")
def test_no_warning_of_small_grids_reaches_users():
    command = [sys.executable, "-W", "error", "-m", "charcnn", "classify", "-"]
    ended = subprocess.run(command, input="Stocks fell on Monday.\n", capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "Warning" not in ended.stderr


@pytest.mark.skipif(gpus() < 1, reason="needs a GPU")
def test_a_users_own_small_grid_still_warns():
    from numba import cuda
    from numba.cuda.core.errors import NumbaPerformanceWarning

    from charcnn import ops

    @cuda.jit
    def nothing():
        pass

    ops.relu_naive(np.zeros(1, np.float32))
    with pytest.warns(NumbaPerformanceWarning):
        nothing[1, 1]()


def test_the_commands_sample_is_where_they_look_for_it():
    assert Path(SAMPLE).is_file()
