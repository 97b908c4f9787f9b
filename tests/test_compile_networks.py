"""Kernels of networks of images compiled ahead: all are recorded at full size, compile for Hopper, and none spills."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import by_turns, compiler_installed, part
from test_compile import HOPPER, python
from test_offline import PARTS, faults

from charcnn import catalog
from charcnn.classify import engine
from charcnn.compiling import workers
from charcnn.compiling.networks import runnable_techniques
from charcnn.compiling.stand_in import Target
from charcnn.config import TINY
from charcnn.gpu import device
from charcnn.model import params

pytestmark = pytest.mark.skipif(
    not compiler_installed(), reason="the CUDA compiler is not installed: pip install -e '.[cuda]'"
)

NETWORKS = """
from charcnn.catalog import NETWORK_TECHNIQUES, NETWORKS
from charcnn.compiling.networks import ImageNetwork, record
from charcnn.compiling.stand_in import Target
from charcnn.gpu.launch import title
target = Target.named("sm_90a")
for row in NETWORKS:
    for way in NETWORK_TECHNIQUES:
        for precision in way.precisions if way.device == "cuda" and way.computes(row.name) else ():
            found = set()
            network = ImageNetwork(row.name, way.name, precision)
            record(network, target, lambda kernel, kinds: found.add(title(kernel)), [1, 65])
            one = "chain.kernel_mma.make_mma_kernel"
            whole, parts = f"conv1d.{way.name}.kernel.make_kernel", f"conv1d.{way.name}.split_k.make_split_k_kernel"
            homes = {one} if way.name == "strong_mma" else {whole, parts}
            assert not way.tensor_cores or homes & found, (str(network), found)
            known = any("mma.kernel" in kernel or kernel in (one, parts) for kernel in found)
            assert way.tensor_cores == known, (str(network), found)
print("all")
"""
"""Each at its full size, but for its batch."""

COSTS = """
import json, sys
from kernel_costs import all_compiled, title
from charcnn.catalog import NETWORK_TECHNIQUES
from charcnn.compiling.networks import ImageNetwork, record
from charcnn.compiling.stand_in import Target
part, parts = map(int, sys.argv[1:])
target, found = Target.named("sm_90a"), {}
for name in ("alexnet", "ffn"):
    for way in NETWORK_TECHNIQUES:
        others = way.device == "cpu" or way.name in ("naive", "weak", "strong") or not way.computes(name)
        for precision in () if others else way.precisions:
            network = ImageNetwork(name, way.name, precision)
            record(network, target, lambda *launch: found.setdefault(launch, str(network)), [1, 1024])
kernels = list(found)[part::parts]
made = all_compiled(kernels, target)
print(json.dumps([(found[one], title(one[0]), each.costs) for one, each in zip(kernels, made, strict=True)]))
"""


LAYERS = """
from charcnn.catalog import LAYERS, NETWORK_TECHNIQUES
from charcnn.compiling.networks import ImageNetwork, record
from charcnn.compiling.stand_in import Target
from charcnn.ops.common.layer import flat
from charcnn.runtime import sequence
used = {}
begin = sequence.LayerSequence.__init__
def noting(self, stages):
    begin(self, stages)
    for layer in (*flat(self.layers, 1), *flat(self.layers, 65)):
        if type(layer).__module__.startswith("charcnn.ops."):
            used.setdefault(type(layer).__name__, set()).add(network.precision)
sequence.LayerSequence.__init__ = noting
for way in NETWORK_TECHNIQUES:
    for precision in way.precisions if way.graphs else ():
        for name, variant in (("alexnet", "tiny"), ("ffn", None)) if not way.networks else ():
            network = ImageNetwork(name, way.name, precision, variant, 2)
            record(network, Target.named("sm_90a"), lambda *_: None, [1])
rows = {row.name: {*row.precisions} - {"fp8"} for row in LAYERS if row.device == "cuda"}
images = {name for name in rows if "2d" in name or name.startswith(("Vectorized", "DoubleBufferedL", "SplitK"))}
print(sorted(images - {*used}), sorted({*used} - {*rows}), [name for name in images if used.get(name) != rows[name]])
"""


@by_turns
def test_layers_on_images_are_used_in_each_of_their_precisions(tmp_path):
    found = python("-c", LAYERS, cache=tmp_path).stdout
    assert found == "[] [] []\n", "rows that none uses, layers with no row, precisions that are not the row's"


@pytest.mark.exhaustive
def test_every_network_of_images_is_recorded(tmp_path):
    assert python("-c", NETWORKS, cache=tmp_path).stdout == "all\n"


@pytest.mark.exhaustive
@pytest.mark.skipif(not device.SIMULATED, reason="compiles for Hopper anew, minutes: a machine without a GPU does")
def test_no_kernel_of_a_network_spills_uses_local_memory_or_is_warned_of(tmp_path):
    path = ":".join([str(Path(__file__).parent), *sys.path])
    rows = json.loads(python("-c", COSTS, str(part(PARTS)), str(PARTS), cache=tmp_path, PYTHONPATH=path).stdout)
    assert len(rows) > 100 // PARTS
    assert not [(name, kernel, found) for name, kernel, cost in rows if (found := faults(cost))]


TYPED = """
from charcnn.gpu.launch import jit
exec("def hard_swish(y):\\n    return y * min(max(y + 3, 0), 6) / 6", names := {})
print(jit(device=True)(names["hard_swish"]).py_func(3.0))
"""


def test_an_epilogue_that_is_in_no_file(tmp_path):
    assert python("-c", TYPED, cache=tmp_path).stdout == "3.0\n"


def test_a_networks_kernels_are_compiled(tmp_path):
    words = "-m", "charcnn", "compile", "sm_90a", "--networks", "ffn:tiny", "--as", "weak", "--jobs", "1"
    lines = python(*words, cache=tmp_path).stdout.splitlines()
    assert lines[0] == "sm_90a: 1 networks and precisions, 1 processes"
    kernels = {line.split()[-1] for line in lines[1:-1]}
    assert kernels == {"pixels._pixels_naive_kernel", "linear.linear._linear_naive_kernel"}
    assert " and 0 functions for this CPU compiled in " in lines[-1]


@by_turns
def test_an_encoder_s_kernels_are_compiled(tmp_path):
    words = "-m", "charcnn", "compile", "sm_90a", "--networks", "bert:tiny", "--as", "naive", "--jobs", "1"
    lines = python(*words, cache=tmp_path).stdout.splitlines()
    assert lines[0] == "sm_90a: 1 networks and precisions, 1 processes"  # of 16 tokens, as many as it has positions
    kernels = {line.split()[-1].partition("(")[0].rpartition(".")[2] for line in lines[1:-1]}
    assert {"_linear_naive_kernel", "_add_rownorm_naive_kernel", "_embedding_naive_kernel"} <= kernels, kernels
    assert python(*words, cache=tmp_path).stdout.splitlines()[1].startswith("0 kernels and 0 functions")


BATCH = """
import numpy as np
from charcnn.catalog import encoder_technique
from charcnn.compiling.networks import TOKENS, BuiltEncoder, record
from charcnn.compiling.stand_in import Memory, Target, standing_in
from charcnn.model.params import Params
target, ahead, launched = Target.named("sm_90a"), set(), set()
for tokens in TOKENS:
    record(BuiltEncoder("bert", "wgmma", "fp16", "minilm", 256, tokens), target, lambda *one: ahead.add(one))
config = BuiltEncoder("bert", "wgmma", "fp16", "minilm", 256, 512).config
params = Params({name: np.zeros(shape, np.float32) for name, shape in config.parameter_shapes.items()}, config)
with standing_in(target, lambda *one: launched.add(one)):
    run = encoder_technique("wgmma").build("wgmma", params, config, batch=256, precision="fp16", streams=1, gpus=[0])
    for counts in ([1], [5, 60], [128], [3, 128] * 9, [70] * 64, [9] * 64, [20, 64] * 128, [400] * 256):
        ids = np.zeros((len(counts), 512), np.int32)
        ids[np.arange(512) >= np.array(counts)[:, None]] = -1
        run.submit(ids.view(np.uint8).view(Memory), np.zeros((len(counts), 384), np.float32).view(Memory)).result()
    run.close()
print(len(launched), [kernel for kernel, _ in launched - ahead])
"""


@by_turns
def test_what_texts_of_any_length_launch_is_compiled_ahead(tmp_path):
    count, _, missing = python("-c", BATCH, cache=tmp_path).stdout.partition(" ")
    assert (int(count) > 5, missing) == (True, "[]\n")


def test_what_an_older_gpu_has_not_is_left_out(tmp_path):
    words = "-m", "charcnn", "compile", "sm_75", "--networks", "ffn:tiny", "--as", "winograd", "--jobs", "1"
    assert "--as winograd: a GPU of sm_75 runs naive, weak, " in python(*words, cache=tmp_path, status=2).stderr


def test_techniques_are_those_that_a_gpu_runs():
    ways = [(row.name, of) for row in catalog.NETWORK_TECHNIQUES if row.device == "cuda" for of in row.precisions]
    assert list(runnable_techniques(HOPPER)) == ways
    assert list(runnable_techniques(Target.named("8.0"))) == [way for way in ways if way[0] != "wgmma"]
    rows = [row for row in catalog.NETWORK_TECHNIQUES if row.device == "cuda"]
    without = [row.name for row in rows if not row.tensor_cores and not row.copies]
    assert [name for name, _ in runnable_techniques(Target.named("7.5"))] == without


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sm_80", "--networks", "ffn", "--as", "wgmma"], "--as wgmma: a GPU of sm_80 runs naive, weak, "),
        (["sm_90a", "--networks", "ffn", "--as", "mma", "--precision", "fp32"], "none of these computes in it"),
        (
            ["sm_90a", "--networks", "fused4", "ffn", "--as", "strong_mma"],
            "--networks ffn: strong_mma cannot ",
        ),
        (
            ["sm_89", "--networks", "ece408", "--as", "strong_mma"],
            "--networks ece408: strong_mma cannot ",
        ),
        (["sm_90a", "--networks", "resnet"], "--networks resnet: need mnist, "),
        (["sm_90a", "--networks", "bert:large"], "--networks bert:large: bert has the variants minilm, base, tiny"),
        (["sm_90a", "--networks", "bert", "--as", "winograd"], "--as winograd: a GPU of sm_90a runs naive, weak, "),
        (["sm_90a", "--networks", "ffn:512"], "--networks ffn:512: ffn has the variants 768, "),
        (["sm_90a", "--as", "mma"], "--as mma: needs --networks"),
        (["sm_90a", "--networks", "ffn", "--levels", "l16"], "--networks: leave out either --networks or --levels"),
    ],
)
def test_options_that_do_not_fit(words, message, capsys):
    from charcnn.__main__ import main

    assert main(["compile", *words]) == 2
    assert message in capsys.readouterr().err


FEW = """
import numpy as np
from charcnn.compiling.networks import BuiltLevel, record, runnable
from charcnn.compiling.stand_in import Target, standing_in
from charcnn.config import SMALL
from charcnn.gpu.device import DeviceError
from charcnn.gpu.launch import Call
from charcnn.gpu.launch import title
from charcnn.layers import Conv2d
from charcnn.ops.conv1d.small_batch import SmallBatchConv
def handed(target, found):
    def launched(kernel, kinds):
        found.add(title(kernel).rpartition(".")[0])
    for level, precision in runnable(target):
        if level == "l21" and precision != "fp16x3":
            record(BuiltLevel(level, precision, SMALL), target, launched, [1, 64])
for capability in ("8.0", "8.9", "12.0"):
    handed(target := Target.named(capability), found := set())
    assert {"conv1d.small_batch", "linear.small_batch", "layernorm.small_batch"} <= found, found
    assert not found & {"conv1d.wgmma.kernel", "token_conv1d.cluster_moments", "token_conv1d.small_batch"}
weights = {"weight": np.zeros((3, 3, 8, 16), np.float32), "bias": np.zeros(16, np.float32)}
with standing_in(target, print):
    try:
        SmallBatchConv([Conv2d(16, 3)], weights)
    except DeviceError as error:
        print(error)
"""


@by_turns
def test_few_inputs_of_level_21_launch_nothing_of_hopper_s(tmp_path):
    assert python("-c", FEW, cache=tmp_path).stdout == "small_batch needs tensor cores, which sm_120a lacks\n"


HELD = """
from charcnn.compiling.networks import BuiltLevel, record
from charcnn.compiling.stand_in import Target
from charcnn.config import SMALL
from charcnn.gpu.launch import title
launched = {"fp16": set(), "tf32": set()}
for precision, found in launched.items():
    record(BuiltLevel("l19", precision, SMALL), Target.named("sm_90a"), lambda kernel, _: found.add(kernel), [1, 4096])
homes = lambda kernels: {title(kernel).partition("(")[0].rpartition(".")[0] for kernel in kernels}
print(sorted(homes(launched["tf32"] - launched["fp16"])))
"""


def test_tf32_is_compiled_as_it_is_held(tmp_path):
    """Other kernels than fp16's have block 1 and LayerNorm 6, and the convolution before it: they are wide."""
    found = python("-c", HELD, cache=tmp_path).stdout
    assert json.loads(found.replace("'", '"')) == [
        "conv1d.small_batch", "conv1d.wgmma.kernel", "layernorm.relu_maxpool1d_nlc_precisions", "layernorm.small_batch",
        "token_conv1d.plane_gather.kernel", "token_conv1d.small_batch",
    ]  # fmt: skip


def test_a_first_start_compiles_for_what_the_weights_are_held_as(monkeypatch):
    given = []
    monkeypatch.delenv("CHARCNN_JOBS", raising=False)
    monkeypatch.setattr(workers, "compiled", lambda networks, *_: given.extend(networks) or ())
    monkeypatch.setattr("charcnn.host.cores.usable", lambda: [*range(2)])
    monkeypatch.setattr(Target, "current", lambda: Target.named("sm_90a"))
    (choice,) = engine.choices("cuda", "tf32", "l19")
    weights = params.init(TINY)
    engine._compile_ahead(choice, TINY, 16, weights)
    weights["fc2.weight"] *= np.float32(2.0**-18)
    weights["fc2.bias"] *= np.float32(2.0**-18)
    weights["fc3.weight"] *= np.float32(2.0**18)
    engine._compile_ahead(choice, TINY, 16, weights)
    assert [network.held_as for network in given] == ["fp16", "tf32"]
