"""What this machine has decides what runs: kernels on a GPU, or in Numba's simulator where there is none."""

from __future__ import annotations

import gc
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import hypothesis
import pytest

import charcnn.levels

charcnn.levels.prepare()  # stands before the first import of numba.cuda

from commands import as_module, ended, interrupted  # noqa: E402, F401 - fixtures

from charcnn.catalog import LEVELS, VARIANTS, Level, Variant  # noqa: E402
from charcnn.compiling.workers import SELDOM  # noqa: E402
from charcnn.gpu import device  # noqa: E402
from charcnn.ops.common import cpu_dot  # noqa: E402
from charcnn.ops.common.precision import TENSOR_PRECISIONS  # noqa: E402

os.environ["CHARCNN_CACHE"] = str(Path(__file__).parent / "no cache")  # tests take no tiles that somebody tuned

# No deadline: the first call of a kind compiles, and the simulator is slow.
hypothesis.settings.register_profile("charcnn", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("charcnn")


LABELLING = (
    "test_classifier.py", "test_classify_files.py", "test_classify_outputs.py", "test_classify_ranks.py",
    "test_classify_resume.py", "test_commands.py", "test_compressed.py", "test_parquet.py", "test_parquet_columns.py",
    "test_several_files.py", "test_terminal.py", "test_unsure.py",
)  # fmt: skip
"""Files whose tests label texts on the CPU, most of them; they share models and classifiers."""

ON_CPU = (
    "test_attention.py", "test_conv2d_cpu.py", "test_cpu_direct.py", "test_cpu_dot.py", "test_cpu_gemm.py",
    "test_cpu_training.py", "test_house.py", "test_own_training.py", "test_winograd_rows.py",
)  # fmt: skip
"""Files whose tests share a few functions, or counts, which processes that begin together would each make."""

SPREAD = "test_catalog.py", "test_ops.py", "test_ops_arguments.py", "test_reference.py"
"""Of short tests, for several processes in the simulator, too, where other files stay whole: they compile at once."""

ROWS = frozenset(row.name for row in VARIANTS)


def row_scope(nodeid: str) -> str | None:
    """What shares a process with a test of a variant: on a GPU its other tests, at one size; and its other sizes.

    Kernels are compiled once for all processes, but each loads what it launches, or waits where another compiles it:
    on a GPU a level's tests share a process, too, and those of rows whose products are one kernel.
    """
    level = re.fullmatch(r".*/test_levels\.py::test_\w+\[.*?\b(l\d+)\b.*\]", nodeid)
    if level and not device.SIMULATED:
        return f"level {level[1]}"
    match = re.fullmatch(r".*/test_ops(?:_arguments)?\.py::(test_\w+)\[(.*)\]", nodeid)
    row = next((part for part in match[2].split("-") if part in ROWS), None) if match else None
    if match is None or row is None or match[1] == "test_drawn_sizes":
        return None
    if not device.SIMULATED and (family := re.fullmatch(r"(conv1d|conv2d|linear)_.*_(winograd|double_buffered)", row)):
        row = "_".join(family.groups()) if family[2] == "winograd" or family[1] == "linear" else row
    if not device.SIMULATED and (family := re.search("cpu_(gemm|direct)$", row)):
        return family[0]
    if match[1] in ("test_edges", "test_large"):
        return f"{row}, its sizes"
    return None if device.SIMULATED else row


def pytest_addoption(parser: pytest.Parser) -> None:
    """--all, and --turns."""
    parser.addoption("--all", action="store_true", help="also run the exhaustive tests")
    parser.addoption(
        "--turns", action="store_true", help=f"with -m exhaustive: run one in {TURNS}, chosen by the commit"
    )


def pytest_configure(config: pytest.Config) -> None:
    """What a test may be marked as; and how processes share the cores out, which they read when they start."""
    if config.getoption("--turns") and (config.getoption("--all") or config.getoption("-m") != "exhaustive"):
        raise pytest.UsageError("--turns: needs -m exhaustive, and not --all")
    if processes := getattr(config.option, "numprocesses", None):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin take the cores from other processes
        os.environ.setdefault("CHARCNN_JOBS", "1")  # else each first start on a GPU has as many compile as cores
    config.addinivalue_line(
        "markers", "exhaustive(turns): more cases of what others show; runs with --all, or where it is named"
    )
    config.addinivalue_line("markers", "sample: a few of what an exhaustive case of the same test has; not with --all")
    config.addinivalue_line("markers", "quick(case, everywhere): which cases are not exhaustive; see `quick`")


def quick(case: Callable[..., bool], everywhere: bool = True) -> pytest.MarkDecorator:
    """A mark: of a test's cases, those are exhaustive of which `case`, of parameters by their names, is false.

    A GPU compiles kernels for each of them, for seconds, and the simulator takes as long to run them. Not `everywhere`:
    on a GPU alone, where the simulator's are quick, or alone show something.
    """
    return pytest.mark.quick(case=case, everywhere=everywhere)


def sampled(few: int, more: int) -> list[Any]:
    """A parameter's values: few, or where exhaustive tests run more. A GPU compiles kernels for each draw."""
    return [pytest.param(few, marks=pytest.mark.sample), pytest.param(more, marks=pytest.mark.exhaustive)]


def repeats(item: pytest.Item) -> bool:
    """Whether a `quick` mark makes this case of a test an exhaustive one."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    return any(
        (mark.kwargs["everywhere"] or not device.SIMULATED)
        and not mark.kwargs["case"](**{name: given[name] for name in inspect.signature(mark.kwargs["case"]).parameters})
        for mark in item.iter_markers("quick")
    )


MARKS = re.compile(r"exhaustive|by_turns|quick\(|sampled\(|operator_rows|each_tile")  # of files with exhaustive tests


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With -m exhaustive, files that have none of these tests: each process would import them."""
    searched = config.getoption("-m") == "exhaustive" and collection_path.match("test_*.py")
    return True if searched and not MARKS.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Of processes that import all files at once each begins elsewhere: one writes what pytest makes of a file."""
    config, given = session.config, getattr(session.config, "workerinput", None)
    if given is None or config.args != config.getini("testpaths") or config.getoption("-m"):
        return
    files = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    begin = len(files) * int(given["workerid"].removeprefix("gw")) // given["workercount"]
    for name in files[begin:] + files[:begin]:
        with suppress(Exception, pytest.skip.Exception):  # the collection tells of it
            import_module(name)


@cache
def commit() -> int:
    """The checkout's; 0 outside a clone."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return int(done.stdout.strip() or "0", 16)


def part(parts: int) -> int:
    """Which of so many is this commit's, of tests that take turns."""
    return commit() % parts


def waits(item: pytest.Item) -> bool:
    """Whether this is an exhaustive test, or a case of one, that has its turn with another commit."""
    turns = max((mark.kwargs.get("turns", TURNS) for mark in item.iter_markers("exhaustive")), default=1)
    return item.path.name not in ALWAYS and crc32(item.nodeid.encode()) % turns != part(turns)


TURNS = 37
"""Of exhaustive tests and their cases, one in so many runs with --turns: those that a commit's hash chooses."""

by_turns = pytest.mark.exhaustive(turns=6)
"""Of a test that takes seconds, and that no other shows: with --turns it runs for one commit in six."""

ALWAYS = "test_emulator_levels.py", "test_offline.py"
"""Files whose tests take turns in their own way."""

LONGEST = (
    "test_chain.py", "test_direct.py", "test_compile_networks.py", "test_packaging.py", "test_peers.py",
    "test_levels.py", "test_networks.py", "test_mma_windows.py", "test_wgmma_windows.py", "test_teaching.py",
    "test_toom_cook.py", "test_training.py", "test_wgmma.py", "test_windows.py", "test_zero_copy.py",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before -m looks at marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is exhaustive, unless --all, -m or a test's own name asks for it; with --all, samples of that."""
    for item in items:
        if repeats(item):
            item.add_marker("exhaustive")
    if not device.SIMULATED:  # what takes long begins first, so that no process waits for it at the end
        items.sort(key=lambda item: item.path.name not in LONGEST)
    if config.getoption("--turns"):
        left_out = [item for item in items if waits(item)]
    elif config.getoption("-m") or any("::" in str(word) for word in config.invocation_params.args):
        return
    else:
        mark = "sample" if config.getoption("--all") else "exhaustive"
        left_out = [item for item in items if item.get_closest_marker(mark)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = {*left_out}
        items[:] = [item for item in items if item not in gone]


def pytest_collection_finish() -> None:
    """Tests stay to the end: to look for garbage among them again and again takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SELDOM)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Of -n auto: a quarter more than cores, as some wait: for a GPU, for a process, for a kernel of another."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + max(1, cores // 4)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With -n, each test goes to whichever process is free; those of a file that shares a fixture stay with one.

    In the simulator those of any file do, but for SPREAD. So do a variant's tests in test_ops (`row_scope`). Files that
    label texts on the CPU share a process, as each compiles half a minute; of more than four the longest is alone.

    Unless --dist says how to deal them out. Not an option in pyproject.toml: pytest-benchmark would take that for
    several processes, and measure nothing.
    """
    if any(str(word).startswith("--dist") for word in config.invocation_params.args):
        return None
    from xdist.scheduler import LoadFileScheduling

    few, whole = (config.getoption("numprocesses", None) or 0) <= 4, device.SIMULATED and not config.getoption("--all")

    @cache
    def shares(file: str) -> bool:
        name = file.rpartition("/")[2]
        compiles = name in (*LABELLING, *ON_CPU) or (whole and name not in SPREAD)
        return compiles or 'scope="module"' in (config.rootpath / file).read_text(encoding="utf-8")

    class EachScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            name = file.rpartition("/")[2]
            if name in LABELLING and (few or name != LABELLING[0]):
                return "labelling"
            return file if shares(file) else row_scope(nodeid) or nodeid

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            """And forget a scope that has ended: all that are kept are counted, again for each test."""
            super().mark_test_complete(node, item_index, duration)
            scope, kept = self._split_scope(self.registered_collections[node][item_index]), self.assigned_work[node]
            if all(kept[scope].values()):
                del kept[scope]

    return EachScheduling(config, log)


def pytest_report_header() -> list[str]:
    """Where kernels run, and what is left out."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    missing = {
        "what needs a GPU": device.SIMULATED,
        "comparisons with PyTorch (pip install -e '.[torch]')": not find_spec("torch"),
        "MPI (pip install -e '.[mpi]')": not (find_spec("mpi4py") and shutil.which("mpiexec", path=path)),
        "compiling for sm_90a (pip install -e '.[cuda]')": not compiler_installed(),
    }
    left_out = "; ".join(what for what, absent in missing.items() if absent)
    return [f"CUDA kernels run on: {gpus()}", f"left out: {left_out or 'nothing'}"]


def gpus() -> str:
    """The GPUs' names, or what stands in for them."""
    from numba import cuda

    try:
        device.gpu_count()
    except device.DeviceError as error:
        return f"nothing ({error})"
    if device.SIMULATED:
        return "Numba's simulator, at tiny sizes"
    names = [gpu.name for gpu in cuda.gpus]
    return ", ".join(name.decode() if isinstance(name, bytes) else name for name in names)


def runs_here(row: Variant | Level) -> bool:
    """Whether the GPU has the tensor cores, or the processor the instructions, that a row of the catalogue needs."""
    if not row.tensor_cores:
        names = row.precisions if isinstance(row, Level) and row.device == "cpu" else ()
        return not any(cpu_dot.missing(name) for name in names if name in cpu_dot.DOT_FORMATS)
    try:
        device.gpu_count()
    except device.DeviceError:
        return False
    names = [row.precision] if isinstance(row, Variant) else row.precisions
    cores = device.has_tensor_cores(hopper=row.hopper, turing=getattr(row, "turing", False))
    return cores and any(map(multiplied_here, names))


CPU_LEVELS = [row for row in LEVELS if row.device == "cpu" and "fp32" in row.precisions]
"""Of these the classifier takes the last one on a CPU."""


def lacking(level: Level) -> bool:
    """Whether the processor lacks instructions of what a level computes in where no precision is asked for."""
    precision = level.precisions[0]
    return precision in cpu_dot.DOT_FORMATS and bool(cpu_dot.missing(precision))


def multiplied_here(precision: str) -> bool:
    """Whether the GPU's tensor cores, where there are some, multiply it."""
    return precision not in TENSOR_PRECISIONS or device.has_capability(TENSOR_PRECISIONS[precision].capability)


def compiler_installed() -> bool:
    """Whether the libraries that compile and link a kernel are there: with them no GPU is needed."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return False
    try:
        for library in ("nvvm", "nvJitLink"):
            load_nvidia_dynamic_lib(library)
    except (DynamicLibNotFoundError, RuntimeError):
        return False
    return True


def wheels_installed() -> bool:
    """Whether the compiler is there, as wheels: `offline_build` knows it by their versions, and a toolkit has none."""
    try:
        for name in ("nvidia-nvvm", "nvidia-nvjitlink"):
            metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return compiler_installed()


@pytest.fixture
def stream():
    """A stream of its own, not the default one."""
    from numba import cuda

    return cuda.stream()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A model file of random weights, which commands label with."""
    from charcnn.config import TINY
    from charcnn.model import params
    from charcnn.text import encodings

    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    params.save(path, params.init(TINY, seed=3), TINY, encoding="crepe", classes=encodings.CLASSES)
    return str(path)


@pytest.fixture(scope="module")
def classifier(weights):
    """The model on the CPU."""
    from charcnn.classify.classifier import Classifier

    return Classifier.load(weights, device="cpu")


@pytest.fixture(name="charcnn")
def run_charcnn(weights, capsys):
    """Run a command here, with that model: status, standard output, standard error."""
    from charcnn.__main__ import main

    def run(*words, model=weights):
        words = [str(word) for word in words]
        status = main([*words, "--model", model, "--device", "cpu"] if model else words)
        done = capsys.readouterr()
        return status, done.out, done.err

    return run


@pytest.fixture
def tile_cache(tmp_path, monkeypatch):
    """An empty cache of tiles, and nothing remembered before or after."""
    from charcnn.ops.common import tile_choice

    monkeypatch.setenv("CHARCNN_CACHE", str(tmp_path / "cache"))
    tile_choice.forget()
    yield tmp_path / "cache"
    tile_choice.forget()
