"""Every level: its logits, its command, its errors."""

import ast
import inspect
import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import by_turns, multiplied_here, quick, runs_here
from numba import cuda
from test_mpi import mpiexec, needs_mpi

from charcnn import catalog
from charcnn.config import SMALL, TINY, Config
from charcnn.gpu import device
from charcnn.levels.runner import command as runner
from charcnn.model import network, params
from charcnn.model.validation import expected as expected_of
from charcnn.model.validation import in_sigmas
from charcnn.ops.token_conv1d.layers import ALONE
from charcnn.runtime.monitor import Monitor

ROOT = Path(__file__).parents[1]
LEVELS = {row.name: row for row in catalog.LEVELS if runs_here(row)}

FEW = Config(length=123, alphabet=9, channels=4, units=8)  # few characters: they are most of the simulator's work
MORE = pytest.mark.exhaustive
ODD = [("l14", "fp16"), ("l19", "fp8"), ("l22", "fp16")]  # batches, by default; level 19 has layers of levels 15 to 17
COMPILED = [*(name for name, row in LEVELS.items() if row.tensor_cores), "l10"]  # for many seconds, on a GPU
OTHER = Config(length=130, alphabet=7, channels=5, units=7, classes=3, layernorm=False)


def fitted(name, config):
    """The config as the level takes it: wide enough that rounding to 16 bits averages out in the logits."""
    return replace(config, length=123, channels=64, units=128) if LEVELS[name].tensor_cores else config


def random_ids(n, config, seed=0):
    return np.random.default_rng(seed).integers(0, config.alphabet + 1, (n, config.length), np.uint8)


def right(logits, ids, weights, config, name, precision=None):
    """Whether each input's error is rounding."""
    rounding = LEVELS[name].rounding(precision)
    return (in_sigmas(logits, *expected_of(ids, weights, config, rounding)) <= rounding.bound).all()


def command(name, *options, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", f"charcnn.levels.{name}", *map(str, options)],
        capture_output=True, text=True, cwd=ROOT, timeout=300, check=False, **kwargs,
    )  # fmt: skip


@pytest.fixture
def in_process(ended):
    """`command` in this process, which takes a second less."""
    return lambda name, *options: ended(runner.main, catalog.level(name).module.build, [*map(str, options)])


@quick(lambda name, config: config.layernorm or name not in COMPILED or name in ("l14", "l17"))
@quick(lambda name, config: config.alphabet < 255 or name not in ("l8", "l9", "l10", "l12", "l13"))
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("config", [FEW, OTHER, replace(FEW, alphabet=255)], ids=["with layernorm", "without", "bytes"])
def test_logits_are_those_of_the_reference_and_of_l0(name, config):
    if (name, config.alphabet) == ("l19", 255):
        pytest.skip("its table has no room for so many characters: test_plane_gather has what it says")
    config = fitted(name, config)
    weights = LEVELS[name].taken(params.init(config, seed=3))
    ids = random_ids(3, config)
    monitor = Monitor()
    logits = LEVELS[name].module.build(weights, config, batch=2, monitor=monitor)(ids)
    assert (logits.dtype, logits.shape) == (np.float32, (3, config.classes))
    assert right(logits, ids, weights, config, name)
    assert right(LEVELS["l0"].module.build(weights, config)(ids), ids, weights, config, "l0")
    assert min(monitor.seconds.values()) > 0


@pytest.mark.parametrize(
    ("name", "precision"),
    [(row.name, of) for row in LEVELS.values() if row.precisions[1:] for of in filter(multiplied_here, row.precisions)],
)
# Level 19 has layers of levels 15 to 17, in all but bf16; what level 14 multiplies with, test_mma_windows has.
@quick(lambda name, precision: name in ("l19", "l20", "l22") or (name, precision) in (("l14", "fp16"), ("l16", "bf16")))
@pytest.mark.parametrize("layernorm", [True, pytest.param(False, marks=MORE)])
def test_every_precision(name, precision, layernorm):
    config = replace(SMALL, layernorm=layernorm)
    weights, ids = LEVELS[name].taken(params.init(config, seed=4)), random_ids(65, config)
    run = LEVELS[name].module.build(weights, config, batch=65, precision=precision)
    assert right(run(ids)[:5], ids[:5], weights, config, name, precision)
    assert right(run(ids[:5]), ids[:5], weights, config, name, precision)


@cache
def odd_batch(sparse):
    """Parameters, as many token ids as no tile divides, half of them short texts, and level 13's logits of them."""
    weights, ids = LEVELS["l22" if sparse else "l13"].taken(params.init(SMALL, seed=5)), random_ids(4097, SMALL)
    ids[::2, 200:] = SMALL.alphabet
    expected = LEVELS["l13"].module.build(weights, SMALL, batch=4097, streams=1, gpus=[0])(ids)  # several share the GPU
    assert right(expected[-3:], ids[-3:], weights, SMALL, "l13")
    return weights, ids, expected


@quick(lambda name, precision: (name, precision) in ODD)
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        pytest.param(row.name, precision, marks=MORE if precision in ("bf16", "tf32") else ())
        for row in LEVELS.values() if row.tensor_cores for precision in filter(multiplied_here, row.precisions)
    ],
)  # fmt: skip
def test_odd_batches_on_tensor_cores(name, precision):
    weights, ids, expected = odd_batch((level := LEVELS[name]).sparse)
    run = level.module.build(weights, SMALL, batch=4097, streams=1, gpus=[0], **level.build_options(precision))
    rounding = level.rounding(precision)
    some = np.r_[:3, 4094:4097]  # sigmas differ little from input to input
    sigma = expected_of(ids[some], weights, SMALL, rounding)[1].mean(axis=0)
    for n in (1, 3, 12, 13, 65, 191, 1023, 4095, 4097):
        ids_gpu = device.to_device(ids[:n])
        logits = run.on_device(ids_gpu).copy_to_host()
        assert in_sigmas(logits, expected[:n], sigma).max() <= 2 * rounding.bound, "no row is left out"
        run.on_device(device.to_device(ids[::-1][:n].copy()))  # writes over what was there
        assert np.array_equal(run.on_device(ids_gpu).copy_to_host(), logits), "bit-equal from run to run"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[by_turns] * (name in ("l10", "l12"))) for name in LEVELS])
def test_logits_do_not_depend_on_the_batch(name):
    config, n = fitted(name, FEW), ALONE if LEVELS[name].small_batches else 3  # of more, these have other kernels
    weights, ids = LEVELS[name].taken(params.init(config, seed=1)), random_ids(n, config)
    batches = (1, 64) if device.SIMULATED else (1, 2, 64)
    first, *others = [LEVELS[name].module.build(weights, config, batch=batch)(ids) for batch in batches]
    assert all(np.array_equal(first, logits) for logits in others)


@pytest.mark.parametrize("name", LEVELS)
def test_no_input_is_no_logits(name):
    build = LEVELS[name].module.build
    config = fitted(name, FEW)
    weights = LEVELS[name].taken(params.init(config, seed=0))
    assert build(weights, config)(random_ids(0, config)).shape == (0, config.classes)


def test_a_level_is_a_photograph():
    for row in catalog.LEVELS:
        source = inspect.getsource(row.module)
        assert len(source.splitlines()) <= 125, f"{row.name} no longer reads on about a page"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in {f"charcnn.levels.{other}" for other in LEVELS}, f"{row.name} imports a level"
        assert (row.module.__doc__ or "").startswith(f"Level {row.name[1:]}:")


@pytest.mark.parametrize("row", catalog.LEVELS, ids=lambda row: row.name)
def test_a_level_changes_little_of_the_one_that_it_builds_on(row):
    changed = [line for line in row.difference() if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert bool(changed) == (row.predecessor is not None)
    assert (len(changed) > catalog.DIFFERENCE) == (row.differs is not None), f"{row.name}: {len(changed)} lines"


def test_batches_cover_all_inputs_once():
    seen = []
    slices = list(Monitor(seen.append).batches(10, 4))
    assert [list(range(10))[part] for part in slices] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert seen == [4, 4, 2]


@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")  # as the level is imported, too
@quick(lambda name: name in ("l8", "l16") or (name not in COMPILED and list(LEVELS).index(name) % 3 == 0))
@pytest.mark.parametrize("name", LEVELS)
def test_command(name, tmp_path, as_module):
    report_file = tmp_path / "report.json"
    simulated = LEVELS[name].device == "cuda" and device.SIMULATED
    # A process of their own: where there is a GPU; one of each kind; and l8, in Numba's own simulator.
    alone = not device.SIMULATED or name in ("l0", "l1", "l8")
    run = command if alone else partial(as_module, "charcnn.levels")
    inputs, repeat = (1 if alone else 2, 1) if simulated else (3, 2)
    *_, precision = filter(multiplied_here, LEVELS[name].precisions)
    size = "small" if LEVELS[name].tensor_cores else "tiny"
    options = ["--precision", precision, "--config", size, "--inputs", inputs, "--batch", 2]
    options += ["--repeat", repeat, "--json", report_file]
    done = run(name, *options)
    assert done.returncode == 0, done.stderr
    assert ("simulator" in done.stdout.splitlines()[0]) == simulated
    assert "passed" in done.stdout
    report = json.loads(report_file.read_text())
    assert (report["level"], report["inputs"], report["precision"]) == (name, inputs, precision)
    assert (report["simulated"], len(report["seconds"])) == (simulated, repeat)
    assert report["validation"]["passed"]
    assert report["stages"]
    memory = [f"{size:,} bytes a GPU" for size in [report.get("gpu_memory_bytes")] if size]
    assert all(said in done.stdout for said in [*memory, *(f"to the GPU {way}" for way in report["copied"])])
    assert report["copied"] or name not in ("l8", "l12", "l16")


@quick(lambda name: name != "l12")
@pytest.mark.parametrize("name", [name for name in ("l12", "l13", "l14", "l15", "l16", "l17") if name in LEVELS])
def test_on_device(name):
    config = fitted(name, FEW)
    weights, ids, monitor = params.init(config, seed=2), random_ids(9, config), Monitor()
    run = LEVELS[name].module.build(weights, config, batch=3, gpus=[0], monitor=monitor)
    parts = [ids[:3], ids[3:6], ids[6:]]  # as it shares them out: of two at once block 1 rounds otherwise
    before = [run(part) for part in parts]
    spent, ids_gpu = dict(monitor.seconds), [device.to_device(part) for part in parts]
    for part, logits in zip(ids_gpu, before, strict=True):
        left = run.on_device(part)
        cuda.synchronize()
        assert device.on_device(left)
        assert left.dtype == np.float32
        assert np.array_equal(left.copy_to_host(), logits)
    assert monitor.seconds == spent, "what nobody waits for has no time yet"
    assert np.array_equal(run(ids), np.concatenate(before))
    assert all(seconds > spent[stage] for stage, seconds in monitor.seconds.items()), "and the host's runs are timed"
    assert run.on_device(device.to_device(ids[:0])).shape == (0, FEW.classes)


def test_on_device_refuses_what_does_not_fit(monkeypatch):
    run = LEVELS["l13"].module.build(params.init(FEW, seed=0), FEW, batch=2, gpus=[0])
    ids = random_ids(3, FEW)
    with pytest.raises(ValueError, match="ids is of ndarray: need an array on the GPU"):
        run.on_device(ids)
    for wrong in (ids, ids[0], ids[:2].astype(np.int32)):
        with pytest.raises(ValueError, match=r"need uint8 \(n, L\), n at most 2"):
            run.on_device(device.to_device(wrong))
    with pytest.raises(ValueError, match="positions"):
        run.on_device(device.to_device(ids[:2, :3].copy()))
    monkeypatch.setattr(device, "current", lambda: 1)
    with pytest.raises(ValueError, match=r"GPU 1 is current: this run is on \[0\]"):
        run.on_device(ids)


def test_memory_of_a_gpu():
    weights, monitor = params.init(FEW, seed=0), Monitor()
    LEVELS["l8"].module.build(weights, FEW, batch=5, streams=3, gpus=[0], monitor=monitor)
    features = 4 * 5 * FEW.alphabet * FEW.length  # the one-hot inputs are the largest of TINY's features
    assert monitor.memory == {0: sum(value.nbytes for value in weights.values()) + 3 * 2 * features}
    for name in ("l7", "l9", "l10"):
        monitor = Monitor()
        LEVELS[name].module.build(weights, FEW, batch=5, monitor=monitor)
        assert min(monitor.memory.values()) >= 2 * features


@pytest.mark.parametrize("name", ["l7", "l8", "l9", "l10", "l12", "l13"])
def test_a_batch_that_does_not_fit_the_gpu_names_the_bytes(name, monkeypatch):
    context = cuda.current_context()
    monkeypatch.setattr(type(context), "get_memory_info", lambda self: SimpleNamespace(free=100_000))
    with pytest.raises(device.DeviceError, match=r"take [\d,]+ bytes of GPU memory, 100,000 are free: lower --batch"):
        LEVELS[name].module.build(params.init(FEW, seed=0), FEW, batch=1000)


REFUSED = """
import sys
import charcnn.levels
charcnn.levels.prepare()
from charcnn.levels import {name}
from charcnn.levels.runner import command as runner
from charcnn.gpu import device
from charcnn import offload
comm = offload.world()
if comm is None or comm.rank == {rank}:
    device.shared_limit = lambda: 100
runner.main({name}.build, ["--config", "tiny", "--inputs", "2", "--batch", "2"])
"""


@pytest.mark.parametrize(
    ("name", "function", "other", "message"),
    [
        ("l10", "shared_limit", Mock(return_value=100), r"convolutions 1 to 4 need [\d,]+ bytes .* there are 100: try"),
        ("l8", "require_memory", Mock(side_effect=device.DeviceError("2 bytes, 1 is free")), "2 bytes, 1 is free$"),
    ],
)
def test_sizes_that_a_level_refuses_are_one_line_and_status_2(name, function, other, message, in_process, monkeypatch):
    monkeypatch.setattr(device, function, other)
    done = in_process(name, "--config", "tiny", "--inputs", 2, "--batch", 2)
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert re.search(f"^{name}: {message}", done.stderr.strip())


@needs_mpi
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.exhaustive), 1])
def test_sizes_that_one_rank_refuses_are_one_line_and_status_2(rank):
    done = mpiexec(2, "-c", REFUSED.format(name="l10", rank=rank))
    assert done.returncode == 2, done.stdout + done.stderr
    ours = [line for line in done.stderr.splitlines() if line.startswith("l10: ")]
    assert len(ours) == 1, done.stderr
    assert ours[0].startswith(f"l10: rank {rank}: convolutions 1 to 4 need ")
    assert "Traceback" not in done.stderr


def test_a_network_whose_chain_cannot_fit_names_the_bytes(monkeypatch):
    monkeypatch.setattr(device, "shared_limit", lambda: device.SHARED_LIMIT)
    wide = Config(channels=1024)
    with pytest.raises(ValueError, match=r"^convolutions 1 to 4 need 917,608 bytes .* there are 232,448"):
        LEVELS["l10"].module.build({}, wide)


def test_text_file(tmp_path, in_process):
    lines = tmp_path / "news.txt"
    lines.write_text("Shares rose.\nThe match was drawn.\n")
    done = in_process("l2", "--config", "tiny", "--text", lines)
    assert done.returncode == 0, done.stderr
    assert "2 from news.txt" in done.stdout
    table = tmp_path / "news.csv"
    table.write_text('"3","Shares rose","The index, it said, is up."\n"2","Drawn","The match was drawn."\n')
    done = in_process("l2", "--config", "tiny", "--text", table)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def test_the_original_programs_files(tmp_path, in_process):
    weights, ids = params.init(TINY, seed=0), random_ids(4, TINY)
    params.save(tmp_path / "model.safetensors", weights, TINY)
    dense = (ids[:, None, :] == np.arange(TINY.alphabet)[:, None]).astype("<f4")
    dense.tofile(tmp_path / "input.bin")
    answers = network.forward(ids, weights, TINY).argmax(axis=1)
    answers.astype("<f4").tofile(tmp_path / "answer.bin")
    options = ["--params", tmp_path / "model.safetensors", "--input", tmp_path / "input.bin"]
    options += ["--answer", tmp_path / "answer.bin"]
    done = in_process("l2", *options)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 labels as in the answers" in done.stdout
    answers[2] = (answers[2] + 1) % TINY.classes
    answers.astype("<f4").tofile(tmp_path / "answer.bin")
    done = in_process("l2", *options)
    assert done.returncode == 1
    assert "first difference is at input 2" in done.stdout


@pytest.mark.parametrize("fault", [1e-3, np.nan])
def test_wrong_logits_fail_and_name_the_worst_input(fault, ended):
    def build(params, config, *, batch=4, gpus=None, monitor=None):
        run = LEVELS["l2"].module.build(params, config, batch=batch, monitor=monitor)

        def wrong(ids):
            logits = run(ids)
            logits[2:3] += np.float32(fault)
            return logits

        return wrong

    build.__module__ = LEVELS["l2"].module.__name__  # which imports it
    done = ended(runner.main, build, ["--config", "tiny", "--inputs", "5"])
    assert done.returncode == 1, done.stderr
    assert "FAILED" in done.stdout
    assert "at input 2" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--inputs", "0"], "--inputs"),
        (["--batch", "many"], "--batch"),
        (["--config", "huge"], "--config"),
        (["--text", "nowhere.txt"], "nowhere.txt"),
        (["--params", "nowhere.safetensors"], "nowhere.safetensors"),
        (["--answer", "answer.bin"], "--input"),
        (["--gpus", "1"], "runs on the CPU"),
        (["--text", "a", "--input", "b"], "not allowed"),
        (["--json", "nowhere/report.json", "--config", "tiny"], "nowhere"),
        (["--trace", "nowhere/trace.json", "--config", "tiny"], "nowhere"),
    ],
)
def test_bad_options_are_one_line_and_status_2(options, message, in_process):
    done = in_process("l2", *options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_help_shows_what_the_level_is(in_process):
    done = in_process("l1", "--help")
    assert done.returncode == 0
    assert "synchronous offload" in done.stdout
    assert "mpiexec -n 4" in done.stdout


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU: nothing to simulate")
@pytest.mark.parametrize("name", [name for name, row in LEVELS.items() if row.device == "cuda"])
def test_small_in_the_simulator_is_an_error(name, in_process):
    done = in_process(name, "--config", "small")
    assert done.returncode == 2
    assert "--config tiny" in done.stderr


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU")
@pytest.mark.parametrize("name", ["l15", pytest.param("l19", marks=pytest.mark.exhaustive)])
def test_tensor_cores_are_emulated(name, in_process):
    done = in_process(name, "--inputs", 1, "--batch", 1)
    assert "simulator, tensor cores emulated" in done.stdout.splitlines()[0], done.stderr
    for said in ("1 GPU, emulated", "a simulated GPU's rate says nothing of a GPU", "passed: 1 of 1"):
        assert said in done.stdout


def test_a_precision_that_a_level_has_not_is_an_error(in_process):
    done = in_process("l0", "--precision", "bf16")
    assert done.returncode == 2
    others = catalog.level_ranges([row for row in catalog.LEVELS if "bf16" in row.precisions])
    assert done.stderr == f"l0: precision='bf16': l0 has fp32; bf16 is in {others}\n"


@pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU")
def test_simulator_off_and_no_gpu_is_one_line():
    import os

    done = command("l4", env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0"})
    assert done.returncode == 2
    assert "no usable NVIDIA driver" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_gpu_count_is_checked(in_process):
    count = device.gpu_count()
    done = in_process("l5", "--gpus", count + 1, "--config", "tiny")
    assert done.returncode == 2
    assert f"need 1 to {count}" in done.stderr
    assert device.choose(None) == list(range(count))
    with pytest.raises(ValueError, match="gpus="):
        device.choose([count])
