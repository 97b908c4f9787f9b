"""Kernels compiled ahead: `charcnn compile`, the cache that processes share, and what a first start does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import by_turns, compiler_installed, quick

from charcnn import catalog
from charcnn.classify import cpu_functions, engine
from charcnn.compiling import workers
from charcnn.compiling.networks import BuiltLevel
from charcnn.compiling.stand_in import SIZES, Target
from charcnn.config import TINY
from charcnn.gpu import device

pytestmark = pytest.mark.skipif(
    not compiler_installed(), reason="the CUDA compiler is not installed: pip install -e '.[cuda]'"
)

HOPPER = Target.named("sm_90a")

FOUND = """
import json, sys
from dataclasses import replace
from charcnn.compiling.networks import BuiltLevel, record
from charcnn.compiling.stand_in import Target, compiling_for
from charcnn.config import TINY
target, found = Target.named("sm_90a"), {}
config = replace(TINY, channels=16, units=16)
record(BuiltLevel(sys.argv[1], sys.argv[2], config), target, lambda kernel, kinds: found.setdefault((kernel, kinds)))
with compiling_for(target):
    there = [kernel._cache.holds(kinds, kernel.targetctx) for kernel, kinds in found]
    keys = [kernel._cache.key(kinds, kernel.targetctx) for kernel, kinds in found]
    if all(there):
        for kernel, kinds in found:
            kernel.compile(kinds)
misses = sum(sum(kernel.stats.cache_misses.values()) for kernel, _ in found)
print(json.dumps({"there": there, "keys": keys, "misses": misses}))
"""
"""Which kernels of a level the cache has, and whether they load from it."""


LABELLED = """
import sys
from numba.core import event
from charcnn.classify import classifier, cpu_functions
from charcnn.__main__ import main
from charcnn.compiling.workers import FILES
from charcnn.runtime.monitor import Monitor
classifier.Engine = type("Level", (cpu_functions.NoLevel,), {"monitor": Monitor(), "waits": lambda *_: False})
with event.install_recorder("numba:compile") as recorder:
    for file in FILES:
        for encode_on in classifier.ENCODE_ON:
            words = "--format", file, "-o", "/dev/null", "--quiet", "--encode-on", encode_on
            assert main(["classify", f"{sys.argv[1]}/{file}", *words]) == 0
functions = {one.data["dispatcher"].py_func for _, one in recorder.buffer}
print(sorted(each.__name__ for each in functions if each.__module__.startswith("charcnn.")))
"""
"""`charcnn classify` without a level: what it compiles beside."""


def environment(cache, **more):
    return {
        **os.environ,
        "CHARCNN_JOBS": "16",
        "NUMBA_ENABLE_CUDASIM": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "NUMBA_CACHE_DIR": str(cache),
        **more,
    }


def python(*arguments, cache, status=0, **more):
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, check=False,
        env=environment(cache, **more),
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done


def found(level, precision, cache, **more):
    return json.loads(python("-c", FOUND, level, precision, cache=cache, **more).stdout)


@pytest.mark.exhaustive
def test_what_was_compiled_is_found_by_other_processes(tmp_path):
    words = "-m", "charcnn", "compile", "sm_90a", "--levels", "l6", "--config", '{"channels": 16, "units": 16}'
    lines = python(*words, "--jobs", "2", cache=tmp_path).stdout.splitlines()
    assert lines[0] == "sm_90a: 1 levels and precisions, 2 processes"
    names = [(line.split()[-2], line.split()[-1]) for line in lines[1:-1]]
    kernels = [name for kind, name in names if kind != workers.CPU]
    assert len(kernels) == 6
    assert {"conv1d.naive._conv1d_naive_kernel", "linear._linear_kernel"} & set(kernels)
    made = {name for kind, name in names if kind == workers.CPU}
    assert {f"text.readers.{name}" for name in ("scan.scan_lines", "scan.scan_csv", "json_scan.scan_objects")} < made
    assert lines[-1].startswith(f"6 kernels and {len(names) - 6} functions for this CPU compiled in ")
    seen = found("l6", "fp32", tmp_path)
    assert (seen["there"], seen["misses"]) == ([True] * 6, 0)
    assert python(*words, cache=tmp_path).stdout.splitlines()[-1].startswith("0 kernels and 0 functions")
    assert not all(found("l9", "fp32", tmp_path)["there"]), "another level's"
    for file, row in cpu_functions.ROWS.items():
        (tmp_path / file).write_bytes(row)
    assert python("-c", LABELLED, str(tmp_path), cache=tmp_path).stdout == "[]\n"


@pytest.mark.parametrize("level", ["l16 bf16", pytest.param("l17 fp8", marks=pytest.mark.exhaustive)])
def test_a_kernels_key_is_the_same_in_every_process(level, tmp_path):
    one, other = (found(*level.split(), tmp_path, PYTHONHASHSEED=seed)["keys"] for seed in "12")
    assert one == other
    assert len(set(one)) == len(one) > 15


def test_every_level_is_recorded():
    from charcnn.compiling.networks import runnable

    rows = [(row.name, precision) for row in catalog.LEVELS if row.device == "cuda" for precision in row.precisions]
    assert list(runnable(HOPPER)) == rows
    ampere = [pair for pair in rows if not catalog.level(pair[0]).hopper]
    assert list(runnable(Target.named("8.0"))) == [pair for pair in ampere if pair[1] != "fp8"]
    assert list(runnable(Target.named("8.9"))) == list(runnable(Target.named("sm_120"))) == ampere
    assert [pair for pair in runnable(Target.named("7.5")) if pair[1] != "fp32"] == [("l14", "fp16"), ("l21", "fp16")]


@pytest.mark.parametrize("text", ["sm_90a", "sm_90", "9.0", "9.0a"])
def test_a_capabilitys_names(text):
    target = Target.named(text)
    assert (target.capability, target.compiler, str(target)) == ((9, 0), (9, 0, "a"), "sm_90a")
    assert (target.multiprocessors, target.shared_limit) == (device.MULTIPROCESSORS, device.SHARED_LIMIT)


@pytest.mark.parametrize("text", ["", "sm_99", "90", "sm_80a", "sm_90f", "sm_90ab", "hopper", "7.0", "sm_70"])
def test_what_is_no_capability(text):
    with pytest.raises(ValueError, match=r"need one of sm_75, .*sm_90a"):
        Target.named(text)
    assert min(SIZES) == device.OLDEST


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sm_99"], "compute capability 'sm_99': need one of sm_75, sm_80, "),
        (["sm_80", "--levels", "l16"], "--levels l16: a GPU of sm_80 runs l3, l4, "),
        (["sm_90a", "--levels", "l11"], "--levels l11: a GPU of sm_90a runs l3, l4, "),
        (["sm_90a", "--levels", "l16", "--precision", "fp32"], "--precision fp32: none of these computes in it"),
        (["sm_90a", "--precision", "fp7"], "--precision fp7: need one of fp32, "),
        (["sm_90a", "--config", "{"], "--config {: need small, large, tiny, or sizes as JSON"),
        (["sm_90a", "--levels", "l16", "--config", '{"channels": 12}', "--jobs", "1"], "channels=12"),
    ],
)
def test_options_that_do_not_fit(words, message, capsys):
    from charcnn.__main__ import main

    assert main(["compile", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_process_that_fails_is_an_error(monkeypatch):
    monkeypatch.setattr(workers, "__name__", "charcnn.compiling.nothing")
    with pytest.raises(RuntimeError, match=r"^a process that compiles ended with status 1: .*No module named"):
        list(workers.compiled([BuiltLevel("l6", "fp32", TINY)], HOPPER, 1))


def test_a_first_start_goes_on_where_processes_fail(monkeypatch):
    monkeypatch.delenv("CHARCNN_JOBS", raising=False)

    def failing(*arguments):
        raise RuntimeError("a process that compiles ended with status 9")
        yield

    monkeypatch.setattr(workers, "compiled", failing)
    monkeypatch.setattr("charcnn.host.cores.usable", lambda: [0, 1])
    monkeypatch.setattr(Target, "current", lambda: HOPPER)
    (choice,) = engine.choices("cuda", "fp32", "l6")
    with pytest.warns(RuntimeWarning, match="kernels are compiled one by one, because .* status 9"):
        engine._compile_ahead(choice, TINY, 16)
    monkeypatch.setenv("CHARCNN_JOBS", "many")
    with pytest.warns(RuntimeWarning, match="kernels are compiled one by one, because .* 'many'"):
        engine._compile_ahead(choice, TINY, 16)


FIRST = """
from functools import partial
from charcnn.classify import engine
from charcnn.gpu.backend import kernel_cache
from charcnn.host import cores
cores.usable, Target.current = lambda: [0, 1], lambda: target
(choice,) = engine.choices("cuda", "fp32", "l6")
kernel_cache.on_miss(partial(engine._compile_ahead, choice, config, 16))
with compiling_for(target):
    for kernel, kinds in found:
        kernel.compile(kinds)
stats = [kernel.stats for kernel in {kernel for kernel, _ in found}]
print(sum(sum(one.cache_hits.values()) for one in stats), sum(sum(one.cache_misses.values()) for one in stats))
"""


@by_turns
def test_a_first_start_compiles_nothing_itself(tmp_path):
    script = FOUND.split("with compiling_for")[0] + FIRST
    assert python("-c", script, "l6", "fp32", cache=tmp_path).stdout == "6 0\n"


LAYERS = """
from dataclasses import replace
from charcnn.catalog import IMAGE_LAYERS, LAYERS, LEVELS
from charcnn.compiling import stand_in
from charcnn.compiling.networks import BuiltLevel, record
from charcnn.config import SMALL
from charcnn.runtime import sequence
used = {}
begin = sequence.LayerSequence.__init__
def noting(self, stages):
    begin(self, stages)
    for n in (1, 13, 65, 129):
        for layer in sequence.flat(self.layers, n):
            for one in (layer, getattr(layer, "_conv", layer), getattr(layer, "_layer", layer)):
                used.setdefault(type(one).__name__, set()).add(network.precision)
sequence.LayerSequence.__init__ = noting
target = stand_in.Target.named("sm_90a")
for level in (row for row in LEVELS if row.device == "cuda"):  # those that list no layers are recorded in vain
    for precision in level.precisions:
        for config in (SMALL, replace(SMALL, layernorm=False)):
            network = BuiltLevel(level.name, precision, config, 144, precision)  # as what it is called
            record(network, target, lambda *_: None, [1])
of_images = "StepConv1d", "2d", "SplitKLinear", *IMAGE_LAYERS
rows = {row.name: {*row.precisions} for row in LAYERS if row.device == "cuda" and not row.name.endswith(of_images)}
print(used == rows, sorted(set(used) ^ set(rows)), [name for name in used if used[name] != rows.get(name)])
assert all(row.made for row in LAYERS)
"""


@by_turns
def test_layers_of_levels_are_the_catalogues(tmp_path):
    assert python("-c", LAYERS, cache=tmp_path).stdout == "True [] []\n"


GRAPHS = """
from charcnn.gpu import graph
from charcnn.compiling import stand_in
from charcnn.compiling.networks import BuiltLevel, record
from charcnn.config import SMALL
recorded = []
class Graph(stand_in.StandInGraph):
    def __init__(self, start, stream):
        super().__init__(start, stream)
        recorded.append(len(self.result))
stand_in.StandInGraph = Graph
target = stand_in.Target.named("sm_90a")
record(BuiltLevel("l16", "fp16", SMALL, 1000), target, lambda *_: None, range(1, 1001))
print(len(recorded), recorded == sorted({graph.size(n, 1000) for n in range(1, 1001)}))
print(all(n <= graph.size(n, 1000) <= (n if n <= 64 else 1.125 * n) for n in range(1, 1001)))
"""
"""Numbers of inputs as a pipe brings them, any up to the batch."""


def test_a_level_records_few_graphs_for_batches_of_many_sizes(tmp_path):
    assert python("-c", GRAPHS, cache=tmp_path).stdout == "96 True\nTrue\n"


@pytest.mark.parametrize(("cores", "said"), [(1, None), (2, None), (64, None), (64, "1"), (64, "4")])
def test_what_a_first_start_compiles(cores, said, monkeypatch):
    asked = []
    monkeypatch.delenv("CHARCNN_JOBS", raising=False)
    if said:
        monkeypatch.setenv("CHARCNN_JOBS", said)
    monkeypatch.setattr(workers, "compiled", lambda *arguments: iter(asked.append(arguments) or ()))
    monkeypatch.setattr("charcnn.host.cores.usable", lambda: [*range(cores)])
    monkeypatch.setattr(Target, "current", lambda: HOPPER)
    (choice,) = engine.choices("cuda", "fp32", "l6")
    engine._compile_ahead(choice, TINY, 16)
    expected = ([BuiltLevel("l6", "fp32", TINY, 16)], HOPPER, min(cores, int(said or engine.JOBS)), [1], [16])
    assert asked == ([expected] if cores > 1 and said != "1" else [])


def test_kernels_of_a_batch_follow_those_that_are_waited_for(monkeypatch):
    parts, ready = [], []
    monkeypatch.setattr(workers, "_compile", lambda network, target, sizes, shared: parts.append((sizes, list(ready))))
    monkeypatch.setattr(workers, "ready", lambda: ready.append(True))
    with tempfile.TemporaryFile() as shared:
        task = {"networks": [asdict(BuiltLevel("l6", "fp32", TINY))], "target": asdict(HOPPER), "parts": [[1], [16]]}
        os.pwrite(shared.fileno(), json.dumps(task).encode() + b"\n", 0)
        workers.main(shared.fileno(), 0)
        assert os.lseek(shared.fileno(), 0, os.SEEK_CUR) == 0, "it moved the place that all processes share"
        took = [workers._take(shared.fileno(), name) for name in ("one", "two", "one")]
    assert parts == [([1], []), ([16], [True])]
    assert took == [True, True, False]


WORKER = """
import os, sys
with open(os.environ["ENDED"], "w") as ended:
    print(flush=True)
    sys.stdin.read()
    ended.write("ended ")
"""
"""In place of a process that compiles: it has nothing to do, and ends with the one that started it."""

STARTING = """
import os, signal, sys
from charcnn.compiling import workers
from charcnn.compiling.stand_in import Target
workers.__name__ = workers.CPU_FUNCTIONS = "endless"
for _ in workers.compiled([], Target.named("sm_90a"), 2, [1], [16]):
    raise AssertionError
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[1]))
"""


@quick(lambda status: status)
@pytest.mark.parametrize(("end", "status"), [("0", 0), ("3", 3), ("killed", -9)])
def test_processes_that_go_on_end_with_the_one_that_started_them(end, status, tmp_path):
    (tmp_path / "endless.py").write_text(WORKER)
    os.mkfifo(tmp_path / "ended")
    (tmp_path / "tmp").mkdir()
    with open(os.open(tmp_path / "ended", os.O_RDONLY | os.O_NONBLOCK)) as ended:
        os.set_blocking(ended.fileno(), True)
        more = {"ENDED": str(tmp_path / "ended"), "TMPDIR": str(tmp_path / "tmp")}
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        done = python("-X", "dev", "-c", STARTING, end, cache=tmp_path, status=status, PYTHONPATH=path, **more)
        assert (done.stdout, done.stderr) == ("", "")
        assert ended.read() == 3 * "ended "
    assert not list((tmp_path / "tmp").iterdir())


def test_a_process_compiles_nothing_for_one_that_has_ended(tmp_path):
    task = {"networks": [asdict(BuiltLevel("l6", "fp32", TINY))], "target": asdict(HOPPER), "parts": [None]}
    with tempfile.TemporaryFile() as shared:
        shared.write(json.dumps(task).encode() + b"\n")
        shared.flush()
        done = subprocess.run(
            [sys.executable, "-m", "charcnn.compiling.workers", str(shared.fileno()), "0"], env=environment(tmp_path),
            pass_fds=[shared.fileno()], stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=True,
        )  # fmt: skip
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_process_that_ends_early_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "silent.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(workers, "__name__", "silent")
    with pytest.raises(RuntimeError, match=r"^a process that compiles ended with status 0: it said nothing"):
        list(workers.compiled([], HOPPER, 1))


SAVING = """
import sys, time
from types import SimpleNamespace
from numba.cuda import types
from charcnn.compiling.stand_in import Target, compiling_for
from charcnn.gpu.backend.kernel_cache import KernelCache, on_miss
from charcnn.text.encode_gpu import _encode_kernel as kernel

who, target = int(sys.argv[1]), Target.named("sm_90a")
cache, context = KernelCache(kernel.py_func, lambda: None), kernel.targetctx
cache._impl.rebuild = lambda context, data: data["name"]
with compiling_for(target):
    made = lambda name: SimpleNamespace(codegen=context.codegen(), _reduce_states=lambda: {"name": name})
    def kinds(i):
        return (types.UniTuple(types.int32, i + 1),)
"""


def together(script, tmp_path, processes=2, before=SAVING):
    """The processes' standard outputs; they begin at once."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", before + script, str(number)], env=environment(tmp_path), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for number in range(processes)
    ]  # fmt: skip
    for process in running:
        assert process.stdout.readline() == "ready\n"
    for process in running:
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=300)[0] for process in running]
    assert not any(process.returncode for process in running)
    return outputs


def test_a_full_disk_keeps_no_kernel_and_ends_nothing(tmp_path):
    script = """
    import builtins, warnings
    def full(path, mode="r", *rest, **options):
        if mode[0] in "wax":
            raise OSError(28, "No space left on device", path)
        return opened(path, mode, *rest, **options)
    opened, builtins.open = builtins.open, full
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        cache.save_overload(kinds(0), made(0))
    print(cache.load_overload(kinds(0), context), told[0].message)
"""
    told = python("-c", SAVING + script, "0", cache=tmp_path)
    assert "None compiled code cannot be kept, so the next start compiles again" in str(told)
    assert "No space left on device" in str(told)


def test_processes_that_save_at_once_lose_nothing(tmp_path):
    script = """
    print("ready", flush=True)
    input()
    for i in range(20):
        cache.save_overload(kinds(2 * i + who), made(2 * i + who))
"""
    together(script, tmp_path)
    look = "    print([cache.load_overload(kinds(i), context) for i in range(40)])"
    assert json.loads(python("-c", SAVING + look, "0", cache=tmp_path).stdout) == list(range(40))


@by_turns
def test_processes_that_save_functions_for_the_cpu_at_once_lose_nothing(tmp_path):
    before = """
import sys
from types import SimpleNamespace
from numba import types
from numba.core.caching import FunctionCache
from charcnn.ops.argmax import _argmax_loops_kernel as function
who, context = int(sys.argv[1]), function.targetctx
cache = FunctionCache(function.py_func)
cache._impl.check_cachable = lambda data: True
cache._impl.reduce, cache._impl.rebuild = lambda data: data.number, lambda context, number: number
def made(number):
    return SimpleNamespace(codegen=context.codegen(), number=number)
def kinds(i):
    return (types.UniTuple(types.int32, i + 1),)
"""
    script = """
print("ready", flush=True)
input()
for i in range(20):
    cache.save_overload(kinds(2 * i + who), made(2 * i + who))
"""
    together(script, tmp_path, before=before)
    look = "print([cache.load_overload(kinds(i), context) for i in range(40)])"
    assert json.loads(python("-c", before + look, "0", cache=tmp_path).stdout) == list(range(40))


def test_what_one_process_compiles_the_other_waits_for(tmp_path):
    script = """
    print("ready", flush=True)
    input()
    if (name := cache.load_overload(kinds(0), context)) is None:
        time.sleep(0.5)  # the compiler at work
        cache.save_overload(kinds(0), made("compiled"))
        name = "saved"
    print(name)
"""
    assert sorted(together(script, tmp_path)) == ["compiled\n", "saved\n"]


def test_a_miss_is_told_once(tmp_path):
    script = """
    told = []
    on_miss(lambda: told.append(cache.save_overload(kinds(0), made("ahead"))))
    assert cache.load_overload(kinds(0), context) == "ahead"
    assert cache.load_overload(kinds(1), context) is None
    assert cache.load_overload(kinds(0), context) == "ahead"
    assert len(told) == 1
    on_miss(lambda: told.append(None))
    on_miss(None)
    assert cache.load_overload(kinds(2), context) is None
    assert len(told) == 1
"""
    python("-c", SAVING + script, "0", cache=tmp_path)


def test_a_machine_with_no_gpu_is_told_to_name_one(tmp_path):
    done = python("-m", "charcnn", "compile", cache=tmp_path, status=2)
    assert "name a compute capability, such as sm_90a" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout
    assert Path(tmp_path).is_dir()
