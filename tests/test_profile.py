"""`--profile`: kernels are timed one by one, and the table says what they take; the driver's part by stand-ins here."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import by_turns, quick
from test_mpi import mpiexec, needs_mpi

from charcnn.catalog import level, network_technique
from charcnn.catalog import network as catalog_row
from charcnn.config import TINY
from charcnn.gpu import device, launch, profile
from charcnn.levels.runner import options as runner_options
from charcnn.levels.runner import peaks
from charcnn.levels.runner import profile as runner
from charcnn.model import params
from charcnn.networks.runner import command, encoder
from charcnn.ops.common.precision import TENSOR_PRECISIONS
from charcnn.runtime.monitor import Monitor
from charcnn.runtime.stream import GraphWorker

simulated = pytest.mark.skipif(not device.SIMULATED, reason="there is a GPU, whose own clock the tests below read")
gpu = pytest.mark.skipif(device.SIMULATED, reason="needs a GPU")
hopper = pytest.mark.skipif(not device.has_tensor_cores(hopper=True), reason="needs a GPU of compute capability 9.0")


class Driver:
    """A clock that goes on by 1 ms at each event, by more where a kernel is said to take longer; kernels' numbers."""

    MAX_THREADS_PER_MULTIPROCESSOR = 2048

    def __init__(self):
        self.now, self.held, self.blocks, self.made = 0.0, [], 4, {}

    def event(self):
        def record(stream):
            self.now += 1
            made.at = self.now

        made = SimpleNamespace(record=record, synchronize=lambda: None)
        made.elapsed_time = lambda other: other.at - made.at
        return made

    def get_current_device(self):
        return self

    def hold(self, seconds, stream):
        self.held.append(seconds)
        self.now += 5  # which no row may count

    def compiled_for(self, kernel, args):
        occupancy = SimpleNamespace(max_active_blocks_per_multiprocessor=lambda threads, shared: self.blocks)
        attrs = SimpleNamespace(regs=40, shared=1024, local=16)
        function = SimpleNamespace(attrs=attrs, kernel=SimpleNamespace(occupancy=occupancy))
        library = SimpleNamespace(get_cufunc=lambda: function)
        return self.made.setdefault(id(kernel), SimpleNamespace(_codelibrary=library))


@pytest.fixture
def driver(monkeypatch):
    found = Driver()
    monkeypatch.setattr(profile, "cuda", found)
    monkeypatch.setattr(profile, "hold", found.hold)
    monkeypatch.setattr(launch, "compiled_for", found.compiled_for)
    return found


@dataclass(frozen=True)
class Tile:
    rows: int
    columns: int = 8


def make_kernel(size, tile=Tile(4), relu=True):
    @launch.jit()
    def kernel(x):
        x[0] = size if relu else tile

    return kernel


def test_names_tell_kernels_apart_by_what_differs():
    kernels = [make_kernel(3), make_kernel(5), make_kernel(3, Tile(8))]
    home = f"{__name__}.make_kernel"
    assert profile.titles([kernels[0]] * 2) == [home] * 2
    assert profile.titles(kernels[:2]) == [f"{home}(size=3)", f"{home}(size=5)"]
    assert profile.titles(kernels)[2] == f"{home}(size=3, tile.rows=8)"
    formats = [make_kernel(3, TENSOR_PRECISIONS[name]) for name in ("fp16", "bf16")]
    assert profile.titles(formats) == [f"{home}(tile=fp16)", f"{home}(tile=bf16)"]
    assert profile.titles([make_kernel(3), make_kernel(3)]) == [home] * 2


def launched(kernel, compiled, stage="fc", grid=(2,), block=(96,), shared=512):
    return profile.Launch(kernel, compiled, stage, grid, block, shared, None, None)


def test_a_row_for_what_is_alike_the_longest_first(driver):
    slow, fast = make_kernel(3), make_kernel(5)
    ones = [launched(kernel, driver.compiled_for(kernel, ())) for kernel in (fast, slow, fast, slow)]
    ones.append(launched(slow, driver.compiled_for(slow, ()), grid=(3,)))
    rows = profile.rows(ones, [1.0, 10.0, 2.0, 20.0, 7.0])
    assert [(row["calls"], row["microseconds"], row["mean_microseconds"]) for row in rows] == [
        (2, 30.0, 15.0), (1, 7.0, 7.0), (2, 3.0, 1.5)
    ]  # fmt: skip
    assert [row["grid"] for row in rows] == [(2,), (3,), (2,)]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert rows[2]["kernel"].endswith("(size=5)")


@pytest.mark.parametrize(("threads", "blocks", "expected"), [(96, 4, 12 / 64), (97, 4, 16 / 64), (1024, 2, 1.0)])
def test_occupancy_is_of_whole_warps(driver, threads, blocks, expected):
    driver.blocks = blocks
    found = profile.resources(launched(None, driver.compiled_for("one", ()), block=(threads, 1)))
    assert found == {
        "registers": 40, "static_shared_bytes": 1024, "dynamic_shared_bytes": 512, "local_bytes": 16,
        "blocks_per_multiprocessor": blocks, "occupancy": expected,
    }  # fmt: skip


def test_medians_leave_out_holds_and_one_slow_run(driver, monkeypatch):
    slow, runs = make_kernel(1), []

    def work():
        runs.append(len(runs))
        for stage in ("a", "b"):
            monitor.current = stage
            call = SimpleNamespace(stream="stream", inputs=(np.zeros(3), np.zeros(5)), out=np.zeros(2))
            with launch.profiler(slow, (), (2, 3), 64, 0, 2, call):
                driver.now += 1000 if runs[-1] in (3, 6) else 2

    monitor = Monitor()
    found = profile.profiled(work, lambda: monitor.current, 3)
    assert launch.profiler is None
    assert len(runs) == 2 + 3 + 3
    assert len(driver.held) == 1 + 3 * 2
    assert all(0 < held <= 20e-3 for held in driver.held[1:])
    assert found["microseconds"] == 6000  # a kernel's 2 ms and an event's 1, twice
    assert found["elapsed_microseconds"] == 7000  # with the event between them
    assert found["layers"] == {"a": 3000, "b": 3000}
    assert [(row["grid"], row["block"]) for row in found["kernels"]] == [((4, 3), (64,))] * 2
    assert [(row["flop"], row["bytes"]) for row in found["kernels"]] == [(None, None)] * 2
    times = [(one["layer"], one["microseconds"], one["start"], one["stop"]) for one in found["launches"]]
    assert times == [("a", 3000, 0, 3000), ("b", 3000, 4000, 7000)]


def test_an_error_switches_it_off(driver):
    def work():
        raise RuntimeError("no kernel")

    with pytest.raises(RuntimeError, match="no kernel"):
        profile.profiled(work, str)
    assert launch.profiler is None


def test_a_graph_is_not_used_meanwhile(monkeypatch):
    worker = object.__new__(GraphWorker)
    worker.buffers, worker._recorded = None, lambda ids: f"{len(ids)} one by one"
    monkeypatch.setattr(launch, "profiler", lambda *launch: None)
    assert worker._replay([1, 2]) == "2 one by one"


def test_stages_within_stages():
    monitor = Monitor()
    with monitor.stage("block"):
        with monitor.named("conv"):
            assert monitor.current == "conv"
        assert monitor.current == "block"
    assert monitor.current == ""


def test_holding_takes_as_long_as_it_is_asked_to():
    from numba import cuda

    before, after, stream = cuda.event(), cuda.event(), cuda.stream()
    profile.hold(0, stream)
    before.record(stream)
    profile.hold(2e-3, stream)
    after.record(stream)
    stream.synchronize()
    if not device.SIMULATED:
        assert before.elapsed_time(after) > 1.9


def test_the_table():
    row = {
        "kernel": "conv2d.naive", "layer": "conv1", "calls": 2, "microseconds": 1234.56, "mean_microseconds": 617.28,
        "share": 0.75, "grid": (12, 3), "block": (16, 16), "registers": 40, "static_shared_bytes": 0,
        "dynamic_shared_bytes": 49152, "local_bytes": 8, "blocks_per_multiprocessor": 4, "occupancy": 0.5,
        "flop": 1234.56e6, "bytes": 2469.12e3, "of_peak": 0.123,
    }  # fmt: skip
    found = {"kernels": [row], "inputs": 1024, "runs": 5, "microseconds": 1234.56, "elapsed_microseconds": 2469.12}
    head, line, last = runner.lines(found)
    assert head.split("  ")[0] == "kernel"
    assert [cell.strip() for cell in line.split("  ") if cell] == [
        "conv2d.naive", "conv1", "75.0%", "1,234.6", "2", "617.3", "1,000", "2", "12%", "12x3", "16x16", "40",
        "0+49,152", "8", "4", "50%",
    ]  # fmt: skip
    unknown = {**row, "flop": None, "bytes": None, "of_peak": None}
    _, line, said, _ = runner.lines({**found, "kernels": [unknown], "peaks": "measured"})
    assert line.count(runner.UNKNOWN) == 3
    assert said == "peaks: measured"
    assert last == (
        "kernels take 1,234.6 us of 2,469.1 us from the first's start to the last's end (50%); one batch of "
        "1,024, medians of 5 runs, no CUDA graph"
    )


@simulated
def test_kernels_of_a_network_have_their_layers(driver):
    network, monitor = catalog_row("mnist").architecture("tiny"), Monitor()
    run = network_technique("weak").build("weak", params.init(network, 0), network, batch=2, monitor=monitor)
    rows, results = np.zeros((1, network.length), np.uint8), np.empty((1, network.classes), np.float32)
    found = profile.profiled(lambda: run.submit(rows, results).result(), lambda: monitor.current, 1)
    run.close()
    assert list(found["layers"]) == ["pixels1", "conv+relu1+maxpool2d1", "fc1+relu2", "fc2+softmax1"]
    assert "conv2d.naive._conv2d_pooled_naive_kernel" in {row["kernel"] for row in found["kernels"]}


@simulated
def test_kernels_of_a_level_have_their_blocks(driver):
    monitor, ids = Monitor(), np.zeros((1, TINY.length), np.uint8)
    run = level("l4").module.build(params.init(TINY, 0), TINY, batch=1, monitor=monitor)
    found = profile.profiled(lambda: run(ids), lambda: monitor.current, 1)
    assert list(found["layers"]) == [f"conv_block_{block}" for block in range(1, 7)]  # the rest is computed on the CPU


@simulated
@pytest.mark.parametrize("option", ["--profile", "--layers"])
def test_the_command(option, driver, monkeypatch, ended, tmp_path):
    there = SimpleNamespace(SIMULATED=False, choose=device.choose)
    monkeypatch.setattr(runner_options, "device", there)
    monkeypatch.setattr(runner, "device", SimpleNamespace(**vars(there), DeviceError=device.DeviceError))
    monkeypatch.setattr(
        peaks, "device", SimpleNamespace(gpu_name=lambda: "one", peaks=lambda: (1e12, 1e9), SIMULATED=False)
    )
    monkeypatch.setattr(peaks.measured, "peak", lambda gpu, precision: 5e11)
    words = ["--as", "weak", "--variant", "tiny", "--inputs", "2", "--batch", "2", "--gpus", "1", option]
    done = ended(command.main, "mnist", [*words, "--json", str(tmp_path / "r.json"),
                                         "--trace", str(tmp_path / "t.json")])  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "r.json").read_text())["profile"]
    assert (found["inputs"], found["runs"]) == (2, profile.RUNS)
    assert len(found["kernels"]) == 4
    assert "as cuBLAS multiplied large matrices on such a GPU" in found["peaks"]
    flop = {row["layer"]: row["flop"] for row in found["kernels"]}
    nodes = catalog_row("mnist").architecture("tiny").nodes
    assert [flop[stage] for stage in ("conv+relu1+maxpool2d1", "fc1+relu2", "fc2+softmax1")] == [
        2 * node.flops for node in nodes if node.flops
    ]
    assert flop["pixels1"] is None
    for row in found["kernels"]:
        assert row["of_peak"] == pytest.approx(max((row["flop"] or 0) / 5e11, row["bytes"] / 1e9) / 1e-3)
    events = json.loads((tmp_path / "t.json").read_text())
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert list(names.values()) == ["rank 0", "profile: kernels of one batch"]
    own = [event for event in events if names[event["pid"]] != "rank 0" and event["ph"] == "X"]
    assert len(own) == 2 * 4
    assert min(event["ts"] for event in own) == min(event["ts"] for event in events if event["ph"] == "X")
    assert found["microseconds"] == pytest.approx(sum(row["microseconds"] for row in found["kernels"]))
    last = done.stdout.splitlines()[-1]
    if option == "--profile":
        assert last.startswith("kernels take 4,000.0 us of 7,000.0 us"), last
        assert "pixels" in done.stdout
    else:
        assert last.startswith("timed by CUDA events around each kernel, medians of 5 runs of one batch")
        assert [line.split()[-4] for line in done.stdout.splitlines()[-6:-2]] == ["500.00"] * 4


@pytest.mark.parametrize(
    ("module", "words", "message"),
    [
        ("mnist", ["--as", "loops"], "--profile: technique loops runs on the CPU: --layers times it"),
        ("bert", ["--as", "loops"], "--profile: technique loops runs on the CPU: its report times the stages"),
        ("mnist", ["--compare"], "--profile: needs a run; leave out --compare, --plan and --train"),
        pytest.param(
            "mnist", ["--as", "naive"], "--profile: needs a GPU: the simulator has no clock", marks=simulated
        ),
        pytest.param(
            "ffn", ["--as", "wgmma"], "--profile: needs a GPU: the simulator has no clock", marks=simulated
        ),
    ],
)  # fmt: skip
def test_what_it_needs(module, words, message, ended):
    done = ended(encoder.main if module == "bert" else command.main, module, [*words, "--profile"])
    assert (done.returncode, done.stderr) == (2, f"{module}: {message}\n")


@pytest.mark.parametrize(
    ("gpus", "words", "message"),
    [
        (2, [], "--profile: needs one GPU, but 2 would be used: add --gpus 1"),
        (1, ["--offload", "tensor"], "--profile: with --offload tensor no rank has all kernels; leave one out"),
    ],
)
def test_it_needs_one_gpu_and_all_layers(gpus, words, message, monkeypatch):
    monkeypatch.setattr(runner_options, "device", SimpleNamespace(SIMULATED=False, choose=lambda of: list(range(gpus))))
    subject = command.NetworkCommand("mnist")
    chosen = subject.parser(quiet=True).parse_args(["--as", "naive", "--profile", *words])
    with pytest.raises(ValueError, match=f"^{message}$"):
        runner_options.check(network_technique("naive"), chosen)


def test_a_level_of_the_cpu():
    command = [sys.executable, "-m", "charcnn.levels.l11", "--profile"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    said = "l11: --profile: level l11 runs on the CPU: its report times the stages\n"
    assert (done.returncode, done.stderr) == (2, said)


@by_turns
@needs_mpi
@pytest.mark.parametrize("mode", ["async", "farm"])
@quick(lambda mode: mode == "farm")
def test_several_ranks(mode):
    done = mpiexec(2, "-m", "charcnn.networks.mnist", "--as", "naive", "--offload", mode, "--profile")
    assert done.returncode == 2
    said = "mnist: --profile: needs one process, but there are 2 ranks: leave out mpiexec"
    assert [line for line in done.stderr.splitlines() if line.startswith("mnist")] == [said]


def test_nothing_is_measured_where_nobody_asks():
    asked = SimpleNamespace(profile=False)
    assert runner.measured(None, asked, None, [0], None, None, 1, Monitor()) is None


PROFILED = [
    ("networks.mnist", "--as", "naive"),
    ("levels.l12",),
    ("levels.l6", "--inputs", "32"),
    pytest.param(("networks.ffn", "--as", "wgmma", "--precision", "fp16"), marks=hopper),
    pytest.param(("levels.l16", "--inputs", "4096"), marks=hopper),
]


@gpu
@quick(lambda words: words[0] == "networks.ffn")
@pytest.mark.parametrize("words", PROFILED)
def test_times_of_a_gpu(words, tmp_path):
    file = tmp_path / "r.json"
    started = [sys.executable, "-m", f"charcnn.{words[0]}", *words[1:], "--gpus", "1", "--profile", "--json", str(file)]
    done = subprocess.run(started, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["profile"]
    assert found["kernels"]
    assert found["microseconds"] > 0
    assert found["elapsed_microseconds"] > 0
    for row in found["kernels"]:
        assert row["microseconds"] > 0
        assert row["layer"]
        assert row["blocks_per_multiprocessor"] >= 1
        assert 0 < row["occupancy"] <= 1
    known = [row for row in found["kernels"] if row["flop"]]
    assert known, "what multiplies"
    assert all(row["bytes"] > 0 and row["of_peak"] > 0 for row in known)
    assert "kernels take" in done.stdout.splitlines()[-1]


@gpu
def test_the_command_charcnn_profile(tmp_path):
    """A whole batch, and a timeline that has its kernels twice."""
    file, trace = tmp_path / "r.json", tmp_path / "t.json"
    started = [sys.executable, "-m", "charcnn", "profile", "l12", "--json", str(file), "--trace", str(trace)]
    done = subprocess.run(started, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["profile"]
    assert found["inputs"] == 256
    events = json.loads(trace.read_text())
    (pid,) = [event["pid"] for event in events if event.get("args", {}).get("name", "").startswith("profile")]
    assert sum(event["pid"] == pid and event["ph"] == "X" for event in events) == 2 * len(found["launches"])


@gpu
@pytest.mark.parametrize("technique", ["naive", pytest.param("wgmma", marks=hopper)])
def test_registers_are_the_compiled_kernels(technique):
    network, monitor = catalog_row("ffn").architecture("768"), Monitor()
    run = network_technique(technique).build(technique, params.init(network, 0), network, batch=64, monitor=monitor)
    rows, results = np.zeros((64, network.length), np.uint8), np.empty((64, network.classes), np.float32)
    found = profile.Recorder(lambda: monitor.current).run(lambda: run.submit(rows, results).result())
    run.close()
    assert {one.stage for one in found} == set(monitor.seconds)
    for one in found:
        takes = profile.resources(one)
        assert takes["registers"] in one.kernel.get_regs_per_thread().values()
        assert takes["local_bytes"] in one.kernel.get_local_mem_per_thread().values()
        assert takes["registers"] * np.prod(one.block) * takes["blocks_per_multiprocessor"] <= 65536
