"""Forecasts of tensor and pipeline parallelism: by hand, and as `charcnn plan --network` prints them."""

import json
from dataclasses import replace

import pytest
from test_mpi import mpiexec, needs_mpi
from test_networks import architecture
from test_plan import plan

from charcnn.gpu import device
from charcnn.offload import parts_model
from charcnn.offload.cost_model import Machine, Work


def test_forecasts_by_hand():
    """ffn of 16: two layers of 2,048 FLOP; 1,000 inputs/s are 0.5 ms a layer and input."""
    network = architecture("ffn")
    machine = Machine(1000.0, gpus=2, local_link=1e6, local_latency=1e-3)
    work = Work(8, length=16, classes=16, chunk=4)
    data, tensor, pipeline = parts_model.compare(network, None, machine, work)
    assert [row.way for row in (data, tensor, pipeline)] == ["data", "tensor", "pipeline"]
    assert data.seconds == pytest.approx(2e-3 + 2e-3 + 2 * (16 + 64) / 1e6)
    assert (data.sent, data.parameters) == (0, 4 * (64 * 17 + 16 * 65))
    batch = 2e-3 + 2e-3 + 4 * 64 / 1e6  # half of each layer, two latencies of the sum, what it sends
    assert tensor.inputs_per_second == pytest.approx(4 / batch)
    assert tensor.seconds == pytest.approx(batch + 1e-3 + 4 * 16 / 1e6)
    assert (tensor.sent, tensor.parameters) == (4 * 64, data.parameters / 2)
    alone = 2 * 2e-3 + (1e-3 + 4 * 256 / 1e6) + (1e-3 + 4 * 64 / 1e6)
    assert pipeline.seconds == pytest.approx(alone)
    assert pipeline.inputs_per_second == pytest.approx(8 / (alone + 2e-3))
    assert (pipeline.sent, pipeline.parameters) == (4 * 256, 4 * 64 * 17)
    rows = parts_model.compare(network, 1e6, machine, replace(work, chunk=1))  # 4 bytes of a weight in 4 us
    assert rows[2].seconds == pytest.approx((4 * 64 * 17 + 4 * 16 * 65 + 4 * (64 + 16)) / 1e6 + 2e-3)
    assert len(parts_model.compare(network, None, replace(machine, gpus=3), work)) == 2, "two stages at most"
    far = replace(machine, gpus=1, hosts=2, link=2e6, latency=5e-3)
    assert parts_model.compare(network, None, far, work)[1].seconds == pytest.approx(2e-3 + 3 * 5e-3 + 4 * 80 / 2e6)


def test_alexnet_is_sooner_by_tensor_parallelism_at_batch_1_alone():
    network = architecture("alexnet", "2012")
    machine = Machine(44_000.0, gpus=2, local_link=200e9, local_latency=2e-6)
    for chunk, sooner in ((1, ["tensor"]), (256, [])):
        work = Work(4_000_000, length=network.length, classes=1000, chunk=chunk)
        rows = parts_model.compare(network, 4.8e12, machine, work)
        found = parts_model.verdict(rows, lambda row: row.seconds)
        assert [way for way, better in found.items() if better] == sooner
        assert not any(parts_model.verdict(rows, lambda row: 1 / row.inputs_per_second).values())


def test_plan_of_a_network(capsys):
    options = ["--rate", 44000, "--gpus", 4, "--chunk", 1, "--network", "alexnet", "--local-link", "200GB/s"]
    status, out = plan(capsys, *options, "--memory", "4.8TB/s", "--local-latency", "2us")
    assert status == 0
    rows = [line.split()[:2] for line in out.splitlines()[2:11]]
    assert rows == [[str(gpus), way] for gpus in (1, 2, 4) for way in ("data", "tensor", "pipeline")]
    assert "tensor beats data parallel in inputs/s: nowhere" in out
    assert "tensor beats data parallel in time of one batch: on 2, 4 GPUs" in out
    assert "pipeline beats data parallel in time of one batch: nowhere" in out
    _, out = plan(capsys, *options, "--json")
    assert [row["way"] for row in json.loads(out)["plan"]][:3] == ["data", "tensor", "pipeline"]
    for words, message in (
        (["--network", "lenet"], "--network lenet: need one of mnist, "),
        (["--network", "mnist", "--variant", "x"], "--variant x: mnist has stride1, "),
        (["--memory", "1GB/s"], "--memory: needs --network"),
    ):
        with pytest.raises(ValueError, match=message):
            plan(capsys, "--rate", 1, *words)


ADVISED = """
import charcnn.networks
charcnn.networks.prepare()
import argparse, contextlib, io, json, shlex, sys
import numpy as np
from charcnn import offload
from charcnn.cli import plan
from charcnn.levels.runner import command as runner
from charcnn.networks.runner import command

comm, parser, said, kept = offload.world(), argparse.ArgumentParser(), io.StringIO(), []
plan.add_arguments(parser)
network, goal, *how = sys.argv[1:]
words = ["--network", network, "--rate", "1", "--gpus", str(comm.size), "--chunk", "1", "--measure", "--json"]
with contextlib.redirect_stdout(said):
    plan.run(parser.parse_args(words))
found = comm.bcast(json.loads(said.getvalue()) if comm.rank == 0 else None)
assert {*found["links"]} == {"local_link", "local_latency"}, "between ranks of one host"
assert found["machine"].items() >= found["links"].items()
runner.show = lambda name, report, job, results: kept.append(results)

def run(*words):
    try:
        command.main(network, [*words, "--variant", "tiny", "--inputs", "5", *how])
    except SystemExit as done:
        assert not done.code, words

for one in found["advice"]:
    if one["ranks"] == comm.size and goal in one["for"]:
        launcher, option, ranks, python, option, module, *rest = shlex.split(one["command"])
        assert [launcher, ranks, python, module] == ["mpiexec", str(comm.size), "python", f"charcnn.networks.{network}"]
        run(*rest)
        if comm.rank == 0:
            print("ran:", one["way"])
if comm.rank == 0:
    offload.world = lambda: None
    run()
    *parts, whole = kept
    for part in parts:
        np.testing.assert_allclose(part, whole, rtol=1e-3, atol=1e-5 * np.abs(whole).max())
comm.Barrier()
"""


@needs_mpi
@pytest.mark.parametrize(
    ("ranks", "goal"), [(2, "one batch"), *(pytest.param(ranks, "", marks=pytest.mark.exhaustive) for ranks in (3, 4))]
)
def test_what_a_plan_advises_gives_the_results_of_one_process(ranks, goal):
    """The links are measured first. Processors are so slow that no message matters: ranks share a single image."""
    done = mpiexec(ranks, "-c", ADVISED, "ece408", goal, "--as", "cpu_gemm")
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line for line in done.stdout.splitlines() if line.startswith("ran:")]
    assert ran == ["ran: data"] * (not goal) + ["ran: tensor"]


@needs_mpi
@pytest.mark.skipif(device.SIMULATED or device.gpu_count() < 2, reason="needs two GPUs")
def test_what_a_plan_advises_on_two_gpus():
    done = mpiexec(2, "-c", ADVISED, "alexnet", "", "--as", "winograd")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ran: tensor" in done.stdout
