"""`charcnn show`: kernels of the catalogue's layers, compiled for GPUs that are not there; and `charcnn profile`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import TURNS, by_turns, compiler_installed, part

from charcnn import catalog
from charcnn.__main__ import main
from charcnn.cli import DONE, UNUSABLE
from charcnn.compiling import cubin, layers
from charcnn.levels.runner import command

compiler = pytest.mark.skipif(
    not compiler_installed(), reason="the CUDA compiler is not installed: pip install -e '.[cuda]'"
)


def show(*words, folder=None):
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": ""}
    started = [sys.executable, "-m", "charcnn", "show", *words]
    return subprocess.run(
        started, capture_output=True, text=True, timeout=300, check=False, env=environment, cwd=folder
    )


def nvdisasm_installed():
    try:
        return cubin._tool("nvdisasm") is not None
    except ImportError:
        return False


def test_the_list_has_every_layer_of_a_gpu(capsys):
    assert main(["show"]) == DONE
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == [row.name for row in catalog.LAYERS if row.device == "cuda"]


@by_turns
@compiler
def test_a_layers_kernels():
    done = show("VectorizedPixels", "sm_80", "--precision", "fp16")
    assert (done.returncode, done.stderr) == (DONE, "")
    head, *rows, last = done.stdout.splitlines()
    assert head.split("  ")[-1].strip() == "lines of PTX"
    assert [row.split()[:2] for row in rows] == [["1", "pixels_nhwc._make_kernel"]]
    assert int(rows[0].split()[2]) > 8
    assert last.startswith("VectorizedPixels in fp16, as ")
    assert last.endswith(" launches it, for sm_80")


@compiler
@pytest.mark.exhaustive
def test_ptx_of_one_step_of_the_ladder():
    done = show("WgmmaStepConv1d", "sm_90a", "--kernel", "1", "--ptx")
    assert (done.returncode, done.stderr) == (DONE, "")
    assert done.stdout.startswith("// 1. conv1d.wgmma.steps.one_warpgroup.make_kernel(uint64, ")
    assert ".target sm_90a" in done.stdout
    assert "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16" in done.stdout
    assert done.stdout.count("\n.visible .entry") == 1


@compiler
@pytest.mark.skipif(not nvdisasm_installed(), reason="nvidia-cuda-nvdisasm is not installed")
@pytest.mark.exhaustive
def test_sass():
    done = show("VectorizedPixels", "sm_80", "--sass")
    assert (done.returncode, done.stderr) == (DONE, "")
    assert "EXIT" in done.stdout
    assert "STG.E" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["CpuConv"], "CpuConv: it runs on the CPU: need one of Launched, "),
        (["Conv"], "Conv: there is no such layer: need one of Launched, "),
        (["MmaConv", "sm_80", "--precision", "fp32"], "--precision fp32: MmaConv has fp16, bf16, tf32, fp16x3,"),
        (["MmaConv", "sm_80", "--batch", "0"], "--batch 0: need at least 1"),
    ],
)
def test_words_that_do_not_fit(words, message, capsys):
    assert main(["show", *words]) == UNUSABLE
    said = capsys.readouterr().err
    assert said.startswith(f"charcnn show: {message}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["MmaConv", "sm_80", "--precision", "fp8"], "MmaConv: no level or network launches it in fp8 on a GPU"),
        pytest.param(["MmaConv", "sm_11"], "compute capability 'sm_11': need one of sm_75, ", marks=compiler),
        pytest.param(
            ["WgmmaStepConv1d", "sm_90a", "--kernel", "10"],
            "--kernel 10: WgmmaStepConv1d has kernels 1 to 9 in the ladder's steps at conv2",
            marks=compiler,
        ),
        pytest.param(
            ["WgmmaStepConv1d", "sm_80"], "WgmmaStepConv1d: wgmma needs tensor cores, which sm_80 lacks",
            marks=compiler,
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_shown(words, message):
    done = show(*words)
    assert done.returncode == UNUSABLE
    assert done.stderr.startswith(f"charcnn show: {message}")
    assert done.stderr.count("\n") == 1


MINE = """from numba import cuda, float32, int32
import numpy as np

@cuda.jit
def scale(x, factor):
    shared = cuda.shared.array(64, float32)
    i = cuda.grid(1)
    shared[cuda.threadIdx.x] = x[i]
    cuda.syncthreads()
    x[i] = shared[63 - cuda.threadIdx.x] * factor

@cuda.jit(max_registers=24)
def crowded(x):
    held = cuda.local.array(8, float32)
    a, b, c, d = x[0], x[1], x[2], x[3]
    e, f, g, h = x[4], x[5], x[6], x[7]
    i, j, k, l = x[8], x[9], x[10], x[11]
    m, n, o, p = x[12], x[13], x[14], x[15]
    q, r, s, t = x[16], x[17], x[18], x[19]
    for step in range(8):
        held[step] = x[20 + step]
    cuda.syncthreads()
    x[0] = held[int32(t)]
    x[19], x[18], x[17], x[16] = a, b, c, d
    x[15], x[14], x[13], x[12] = e, f, g, h
    x[11], x[10], x[9], x[8] = i, j, k, l
    x[7], x[6], x[5], x[4] = m, n, o, p
    x[3], x[2], x[1], x[20] = q, r, s, t

@cuda.jit(device=True)
def twice(x):
    return 2 * x

if __name__ == "__main__":
    scale[1, 64](np.zeros(64, np.float32), 2)
"""


SIGNED = """from numba import cuda
import beside

@cuda.jit(["void(float32[::1], int32)", "void(float32[:], int32)"])
def clear(x, n):
    i = cuda.grid(1)
    if i < n:
        x[i] = beside.ZERO
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """A user's file with kernels, and others that cannot be used."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(MINE)
    (folder / "signed.py").write_text(SIGNED)
    (folder / "beside.py").write_text("ZERO = 0\n")
    (folder / "launches.py").write_text(MINE + "\nscale[1, 64](np.zeros(64, np.float32), 2)\n")
    (folder / "broken.py").write_text("x = 1\nx.y\n")
    (folder / "empty.py").write_text("")
    return folder


@compiler
def test_a_kernel_of_ones_own(mine):
    done = show("--file", mine / "mine.py", "scale", "sm_90a", "--types", "float32[::1], float32")
    assert (done.returncode, done.stderr) == (DONE, "")
    head, row, last = done.stdout.splitlines()
    assert head.split("  ")[-3:] == ["bytes spilled", "local", "shared"]
    assert row.startswith("1  scale(array(float32, 1d, C), float32) ")
    registers, *_, spilled, local, shared = row.split(")")[-1].split()
    assert int(registers) > 4
    assert (spilled, local, shared) == ("0", "0", "256")
    assert "for sm_90a; " in last


@compiler
@pytest.mark.exhaustive
def test_spills_and_local_memory(mine):
    done = show("--file", mine / "mine.py", "crowded", "sm_90a", "--types", "float32[::1]")
    *_, spilled, local, shared = done.stdout.splitlines()[1].split()
    assert (int(spilled) > 0, int(local) >= 32, shared) == (True, True, "0")


@by_turns
@compiler
def test_a_kernels_own_signatures(mine):
    done = show("--file", mine / "signed.py", "clear", "sm_80", "--kernel", "2", "--ptx")
    assert (done.returncode, done.stderr) == (DONE, "")
    assert done.stdout.startswith("// 2. clear(array(float32, 1d, A), int32), sm_80, ")
    assert ".target sm_80" in done.stdout


@by_turns
@compiler
def test_a_files_kernels(mine):
    done = show("--file", mine / "mine.py")
    assert (done.returncode, done.stderr, done.stdout.split()) == (DONE, "", ["scale", "crowded"])


UNFIT = [
    (["nothing.py", "scale", "sm_90a"], "nothing.py: No such file or directory"),
    (["broken.py", "scale", "sm_90a"], "broken.py: AttributeError: 'int' object has no attribute 'y' (line 2)"),
    (["launches.py", "scale", "sm_90a"], "launches.py: ValueError: launches scale while it is imported: put that"),
    (["mine.py", "shrink", "sm_90a"], "shrink: mine.py has no such kernel: need one of scale, crowded"),
    (["mine.py", "twice", "sm_90a"], "twice: mine.py has no such kernel: need one of scale, crowded"),
    (["empty.py", "scale", "sm_90a"], "scale: empty.py has no such kernel: it has none"),
    (["mine.py", "scale", "sm_11"], "compute capability 'sm_11': need one of sm_75, "),
    (["mine.py", "scale", "sm_90a"], "scale(x, factor) has no types: need --types, such as --types "),
    (["mine.py", "scale", "sm_90a", "--types", "float3"], "--types 'float3': NameError: name 'float3' is not"),
    (["mine.py", "scale", "sm_90a", "--types", "int32"], "--types 'int32': scale(x, factor) takes 2 arguments: got"),
    (
        ["mine.py", "scale", "sm_90a", "--types", "int32, int32"],
        "scale(int32, int32), sm_90a: TypingError: No implementation of function Function(<built-in function get",
    ),
    (["signed.py", "clear", "sm_90a", "--kernel", "3"], "--kernel 3: clear has kernels 1 to 2"),
    (["mine.py", "scale", "sm_90a", "--batch", "3"], "--batch 3: is of layers, not of --file"),
]  # fmt: skip
"""What is asked of a file, and the error."""

ASKED = """
import json, sys
from contextlib import redirect_stderr
from io import StringIO
from charcnn.__main__ import main
found = []
for words in json.loads(sys.argv[1]):
    with redirect_stderr(StringIO()) as said:
        found.append((main(["show", "--file", *words]), said.getvalue()))
print(json.dumps(found))
"""
"""All of them in one process."""


@by_turns
@compiler
def test_what_is_no_kernel_of_ones_own(mine):
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": ""}
    started = [sys.executable, "-c", ASKED, json.dumps([words for words, _ in UNFIT])]
    done = subprocess.run(started, capture_output=True, text=True, timeout=300, cwd=mine, env=environment, check=True)
    for (status, said), (words, message) in zip(json.loads(done.stdout), UNFIT, strict=True):
        assert (words, status) == (words, UNUSABLE)
        assert said.startswith(f"charcnn show: {message}")
        assert said.count("\n") == 1


@compiler
@pytest.mark.exhaustive
def test_an_instruction_that_a_gpu_lacks(tmp_path):
    (tmp_path / "it.py").write_text(
        "from numba import cuda\nfrom charcnn.gpu import ptx\n\n@cuda.jit\ndef it():\n    ptx.wgmma_fence()\n"
    )
    done = show("--file", "it.py", "it", "sm_80", "--types", "", folder=tmp_path)
    assert done.returncode == UNUSABLE
    assert "Instruction 'wgmma.fence' not supported on .target 'sm_80'" in done.stderr


def test_the_simulator_compiles_nothing(capsys, monkeypatch):
    from charcnn.gpu import device

    monkeypatch.setattr(device, "SIMULATED", True)
    assert main(["show", "MmaConv", "sm_80"]) == UNUSABLE
    assert capsys.readouterr().err == "charcnn show: the simulator compiles nothing: unset NUMBA_ENABLE_CUDASIM\n"


def test_without_a_disassembler(monkeypatch):
    monkeypatch.setattr(cubin, "_tool", lambda name: None)
    with pytest.raises(ValueError, match=r"^--sass: needs nvdisasm: pip install nvidia-cuda-nvdisasm"):
        cubin.sass(b"")


def test_a_disassembler_that_fails(monkeypatch, tmp_path):
    tool = tmp_path / "cuobjdump"
    tool.write_text("#!/bin/sh\necho no ELF >&2\nexit 3\n")
    tool.chmod(0o755)
    monkeypatch.setattr(cubin, "_tool", lambda name: str(tool) if name == "cuobjdump" else None)
    with pytest.raises(ValueError, match="cuobjdump ended with status 3: no ELF"):
        cubin.sass(b"")


@pytest.mark.exhaustive
@compiler
def test_every_layer_is_launched_somewhere(request):
    """Found and not compiled, in a process of its own, which has no simulator."""
    turn, turns = (part(TURNS), TURNS) if request.config.getoption("--turns") else (0, 1)
    names = [row.name for row in catalog.LAYERS if row.device == "cuda"][turn::turns]
    code = (
        "from charcnn import catalog\nfrom charcnn.compiling import layers\n"
        "from charcnn.compiling.stand_in import Target\n"
        f"for row in (row for row in catalog.LAYERS if row.name in {names}):\n"
        "    where, found = layers.launched(row, row.precisions[0], Target.named('sm_90a'))\n"
        "    print(row.name, len(found), where)\n"
    )
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == names
    assert all(int(row[1]) > 0 for row in rows)
    where = {row[0]: row[2] for row in rows}
    assert where.get("WgmmaConv", "l15 fp16") == "l15 fp16"


def test_watching_leaves_a_class_as_it_was():
    class Base:
        def __call__(self):
            return seen()

    class Layer(Base):
        def stat(self):
            return seen()

    class Other(Layer):
        pass

    before = dict(vars(Layer))
    with layers._watched(Layer) as seen:
        assert not seen()
        assert Layer()()
        assert Layer().stat()
        assert not Base()()
        assert not Other()()
    assert dict(vars(Layer)) == before


def asked(monkeypatch, *words):
    """What `charcnn profile` asks the level's or network's own command for."""
    found = []
    monkeypatch.setattr(command, "run", lambda subject, argv: found.append((subject.name, argv)) or sys.exit(0))
    with pytest.raises(SystemExit) as ended:
        main(["profile", *words])
    assert ended.value.code == 0
    return found[0]


def test_a_profile_is_of_one_whole_batch(monkeypatch):
    gpu = ["--gpus", "1"]
    assert asked(monkeypatch, "l12") == ("l12", ["--profile", *gpu, "--inputs", "256"])
    words = ["--precision", "bf16", "--batch", "1", "--trace", "t.json"]
    assert asked(monkeypatch, "l16", *words) == ("l16", ["--profile", *words, *gpu, "--inputs", "1"])
    name, found = asked(monkeypatch, "mnist", "--as", "naive", "--variant", "tiny")
    assert name == "mnist"
    assert found[:-1] == ["--profile", "--as", "naive", "--variant", "tiny", *gpu, "--inputs"]
    assert asked(monkeypatch, "l11")[1][-2] == "--inputs"
    assert "--gpus" not in asked(monkeypatch, "l11")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["l99"], "l99: need one of l0, l1, "),
        (["l12", "--as", "naive"], "--as naive: l12 is a level and takes no --as"),
        (["l12", "--variant", "tiny"], "--variant tiny: l12 is a level and takes no --variant"),
    ],
)
def test_what_cannot_be_profiled(words, message, capsys):
    assert main(["profile", *words]) == UNUSABLE
    assert capsys.readouterr().err.startswith(f"charcnn profile: {message}")


def test_a_level_of_the_cpu_is_not_profiled(capsys, monkeypatch):
    with pytest.raises(SystemExit) as ended:
        main(["profile", "l2"])
    assert ended.value.code == UNUSABLE
    assert capsys.readouterr().err == "l2: --profile: level l2 runs on the CPU: its report times the stages\n"
