"""The CPU's GEMM by any number of threads, and levels 11 and 18, which are made of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from test_cpu_gemm import each_tile, error, random_ids

from charcnn import ops
from charcnn.catalog import FLOAT32
from charcnn.config import SMALL, TINY, Config
from charcnn.levels import l0, l11, l18
from charcnn.model import network, params
from charcnn.ops.common import threads

ROOT = Path(__file__).parents[1]
each_level = pytest.mark.parametrize("level", [l11, l18], ids=lambda level: level.__name__[-3:])

THREADS = """
import sys
from importlib import import_module
import numba
import numpy as np
from charcnn import ops
from charcnn.model import params
from charcnn.config import Config

level = import_module(f"charcnn.levels.{sys.argv[1]}")
config = Config(length=200, channels=70, units=130)
weights, rng = params.init(config, seed=1), np.random.default_rng(0)
ids = rng.integers(0, 71, (7, config.length), np.uint8)
for threads in (1, 2, 3, 5):
    numba.set_num_threads(threads)
    run = level.build(weights, config, batch=4)
    logits = np.concatenate([run(ids), run(ids[:1])])
    y = ops.one_hot_conv1d_cpu_gather(ids, weights["conv1.weight"], weights["conv1.bias"])
    print(logits.tobytes().hex()[:4000], y.tobytes().hex()[:4000])
"""


def python(code, *words, **environment):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("level", [pytest.param("l11", marks=pytest.mark.exhaustive), "l18"])
def test_bits_do_not_depend_on_the_number_of_threads(level):
    lines = python(THREADS, level, NUMBA_NUM_THREADS="5").stdout.splitlines()
    assert len(lines) == 4
    assert len(set(lines)) == 1


WORKQUEUE = """
import threading, warnings
import numpy as np
from charcnn import ops
from charcnn.ops.common import threads

warnings.simplefilter("always")
print(threads.layer(), threads.layer())
rng = np.random.default_rng(0)
x, weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 16, 90), (70, 16, 3), 70))
results = []
def work():
    for _ in range(20):
        results.append(ops.conv1d_cpu_gemm(x, weight, bias).tobytes())
workers = [threading.Thread(target=work) for _ in range(3)]
for worker in workers: worker.start()
for worker in workers: worker.join()
assert len(results) == 60 and len(set(results)) == 1
"""


def test_workqueue_warns_once_and_survives_callers_in_several_threads():
    done = python(WORKQUEUE, NUMBA_THREADING_LAYER="workqueue")
    assert done.stdout == "workqueue workqueue\n"
    assert done.stderr.count("RuntimeWarning") == 1
    assert "libgomp" in done.stderr


def test_a_better_layer_does_not_warn():
    if threads.layer() == "workqueue":
        pytest.skip("neither omp nor tbb is installed")
    threads.layer.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert threads.layer() in ("omp", "tbb")


def test_calls_from_several_threads():
    rng = np.random.default_rng(6)
    x, weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 9, 50), (11, 9, 3), 11))
    expected, results = ops.conv1d_cpu_gemm(x, weight, bias), []
    workers = [threading.Thread(target=lambda: results.append(ops.conv1d_cpu_gemm(x, weight, bias))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [np.array_equal(result, expected) for result in results] == [True] * 4


# Levels 11 and 18.

CONFIGS = {
    "tiny": TINY,
    "odd": Config(length=131, alphabet=9, channels=67, kernel_sizes=(2, 5, 1, 4, 2, 3), units=65, classes=17),
    "plain": Config(length=130, channels=5, units=7, classes=3, layernorm=False),
}


@each_level
@each_tile
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_level_with_every_tile(level, tile, config, monkeypatch):
    monkeypatch.setenv("CHARCNN_CPU_TILE", tile)
    weights, ids = params.init(config, seed=3), random_ids(5, config)
    logits = level.build(weights, config, batch=3)(ids)
    assert error(logits, network.forward(ids, weights, config)) <= FLOAT32
    assert error(logits, l0.build(weights, config)(ids)) <= FLOAT32


@each_level
@each_tile
def test_level_at_small(level, tile, monkeypatch):
    monkeypatch.setenv("CHARCNN_CPU_TILE", tile)
    weights, ids = params.init(SMALL, seed=5), random_ids(3, SMALL)
    ids[1, 200:] = SMALL.alphabet
    ids[2] = SMALL.alphabet
    expected = network.forward(ids, weights, SMALL)
    run = level.build(weights, SMALL, batch=2)
    assert error(run(ids), expected) <= FLOAT32
    assert np.array_equal(run(ids[:1]), run(ids)[:1])


MEMORY = """
import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # each thread has rooms of its own
import sys; sys.modules["scipy"] = None  # which Numba imports where it is installed: 9 MB
from importlib import import_module
from pathlib import Path
import numpy as np
from charcnn.model import params
from charcnn.config import SMALL

run = import_module(f"charcnn.levels.{sys.argv[1]}").build(params.init(SMALL, seed=0), SMALL, batch=32)
run(np.random.default_rng(0).integers(0, 71, (64, SMALL.length), np.uint8))
peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()  # ru_maxrss counts a parent's, too
assert peak[1] == "kB"
print(1024 * int(peak[0]))
"""


@pytest.mark.exhaustive
def test_levels_take_less_than_400_mb(tmp_path):
    # As on a machine with no GPU: the driver's libraries and their bindings alone take 40 MB.
    environment = {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    for level in ("l18", "l11"):  # what they share is compiled once
        for most in (480e6, 400e6):  # compiling, and with what was compiled read from disk
            assert int(python(MEMORY, level, **environment).stdout) < most


OTHER_PROCESSOR = """
from charcnn.model import network, params
from charcnn.config import TINY
import charcnn.levels
charcnn.levels.prepare()
from charcnn.levels import l11, l18
from charcnn.ops.common import cpu_gemm, cpu_tile
import numpy as np

assert cpu_tile.choose_tile() is cpu_tile.TILES["plain"]
weights = params.init(TINY, seed=0)
ids = np.random.default_rng(0).integers(0, 71, (2, TINY.length), np.uint8)
expected = network.forward(ids, weights, TINY)
for level in (l11, l18):
    assert np.linalg.norm(level.build(weights, TINY)(ids) - expected) <= 2e-6 * np.linalg.norm(expected)
"""


@pytest.mark.exhaustive
def test_a_processor_without_vectors():
    python(OTHER_PROCESSOR, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="", CHARCNN_CPU_TILE="")
