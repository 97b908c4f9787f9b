"""The cost model against a simulation, event by event, of ranks behind throttled links; and its command."""

import argparse
import heapq
import json

import pytest
from test_mpi import mpiexec, needs_mpi

from charcnn.cli import plan as command
from charcnn.offload.cost_model import LOGIT_BYTES, Machine, Work, forecast, table


def simulated(machine, work):
    """Seconds; every message waits for its link and for the root's thread, every chunk for its rank."""
    ranks = machine.gpus * machine.hosts
    out = {"near": 0.0, "far": 0.0}  # when each link is free again
    root_free = 0.0
    free = [[0.0] * work.slots for _ in range(ranks)]
    left, now, last = work.inputs, 0.0, 0.0
    # Every slot in flight asks for a chunk at time 0, and again when its logits are back.
    asking = [(0.0, slot, rank) for rank in range(ranks) for slot in range(work.slots * work.depth)]
    heapq.heapify(asking)
    while asking and left:
        now, slot, rank = heapq.heappop(asking)
        count = min(work.chunk, left)
        left -= count
        made = now
        if machine.encode_rate is not None or rank:
            root_free = max(root_free, now)
            root_free += 0.0 if machine.encode_rate is None else count / machine.encode_rate
            root_free += machine.root_message if rank else 0.0
            made = root_free
        there, way = made, None
        if rank:
            way = "near" if rank < machine.gpus else "far"
            speed = machine.local_link if way == "near" else machine.link
            latency = machine.local_latency if way == "near" else machine.latency
            out[way] = max(out[way], made) + count * work.length / speed
            there = out[way] + latency
        first = min(range(work.slots), key=free[rank].__getitem__)
        free[rank][first] = max(free[rank][first], there) + work.slots * count / machine.gpu_rate
        done = free[rank][first]
        if way:
            # Results are small beside ids, and leave in the order in which they are made, or nearly so.
            done += count * LOGIT_BYTES * work.classes / speed + latency
        last = max(last, done)
        heapq.heappush(asking, (done, slot, rank))
    return last


MACHINES = {
    "one GPU": Machine(7000.0),
    "one host": Machine(7000.0, gpus=4),
    "ten gigabit": Machine(7000.0, gpus=4, hosts=4, link=1.25e9),
    "one gigabit": Machine(7000.0, gpus=4, hosts=8, link=0.125e9),
    "a slow link": Machine(20000.0, gpus=8, hosts=4, link=0.05e9),
    "latency": Machine(200_000.0, gpus=1, hosts=8, latency=20e-3, link=12.5e9),
    "encoding": Machine(100_000.0, gpus=8, encode_rate=300_000.0),
    "the root's thread": Machine(100_000.0, gpus=8, hosts=16, root_message=60e-6, link=50e9),
    "a thousand": Machine(7000.0, gpus=8, hosts=128, link=12.5e9),
}
BOUNDS = {
    "one GPU": "compute",
    "one host": "compute",
    "ten gigabit": "compute",
    "one gigabit": "link",
    "a slow link": "link",
    "latency": "latency",
    "encoding": "encode",
    "the root's thread": "root",
    "a thousand": "root",
}


@pytest.mark.parametrize("name", MACHINES)
def test_forecast_is_what_the_simulation_gives(name):
    machine = MACHINES[name]
    work = Work(inputs=300 * 256 * machine.gpus * machine.hosts)
    expected = simulated(machine, work)
    found = forecast(machine, work)
    assert found.seconds == pytest.approx(expected, rel=0.05), (found, expected)
    assert found.bound == BOUNDS[name], found


def test_few_inputs_do_not_fill_many_gpus():
    found = forecast(Machine(7000.0, gpus=8, hosts=4), Work(inputs=1000))
    assert found.bound == "filling"
    assert found.efficiency < 0.1


def test_table_grows_from_one_gpu_to_many_hosts():
    machine = Machine(7000.0, gpus=4, link=0.125e9)
    made = table(machine, Work(inputs=4_000_000), (1, 2, 4, 8, 16, 64, 1024))
    assert [row.gpus for row in made] == [1, 2, 4, 8, 16, 64, 1024]
    rates = [row.inputs_per_second for row in made]
    assert rates == sorted(rates)
    assert made[2].efficiency > 0.99
    assert made[-1].bound == "link"
    assert made[-1].inputs_per_second == pytest.approx(4 * 7000 + 0.125e9 / 1014, rel=0.01)
    with pytest.raises(ValueError, match="gpus=6: need 1 to 4, or whole hosts of 4"):
        table(machine, Work(inputs=10), (6,))


@pytest.mark.parametrize(
    "wrong", [{"gpu_rate": 0.0}, {"gpu_rate": 1.0, "link": -1.0}, {"gpu_rate": 1.0, "latency": -1}]
)
def test_wrong_machines_are_named(wrong):
    name = list(wrong)[-1]
    with pytest.raises(ValueError, match=f"{name}="):
        Machine(**wrong)
    with pytest.raises(ValueError, match="chunk=0"):
        Work(inputs=1, chunk=0)


def plan(capsys, *options):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    status = command.run(parser.parse_args(list(map(str, options))))
    return status, capsys.readouterr().out


def test_the_command_shows_hosts_and_bounds(capsys):
    options = [
        "--rate",
        1_100_000,
        "--chunk",
        4096,
        "--gpus",
        8,
        "--hosts",
        128,
        "--link",
        "50GB/s",
        "--latency",
        "5us",
    ]
    status, out = plan(capsys, *options)
    assert status == 0
    rows = [line.split() for line in out.splitlines()[2:]]
    assert [int(row[0]) for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert [int(row[1]) for row in rows[3:]] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert rows[0][-1] == "compute"
    assert rows[-1][-1] == "root"
    status, out = plan(capsys, *options, "--json")
    found = json.loads(out)
    assert [row["gpus"] for row in found["plan"]] == [int(row[0]) for row in rows]
    assert found["machine"]["link"] == 50e9
    assert found["machine"]["latency"] == pytest.approx(5e-6)


def test_a_host_may_have_any_number_of_gpus(capsys):
    _, out = plan(capsys, "--rate", 1000, "--gpus", 6, "--hosts", 3, "--json")
    assert [row["gpus"] for row in json.loads(out)["plan"]] == [1, 2, 4, 6, 12, 18]


def test_a_network_s_rows_name_their_links(capsys):
    words = "--network", "alexnet", "--rate", 44_000, "--gpus", 2, "--hosts", 2
    _, out = plan(capsys, *words, "--json")
    found = {(row["ranks"], row["way"]): row["link"] for row in json.loads(out)["plan"]}
    assert [found[ranks, "tensor"] for ranks in (1, 2, 4)] == ["", "GPU memory", "MPI from pinned pages"]
    assert {found[ranks, "data"] for ranks in (1, 2, 4)} == {""}
    _, out = plan(capsys, *words)
    assert next(line for line in out.splitlines() if line.split()[:2] == ["4", "tensor"]).endswith("pinned pages")


def report_of(file, rate, *, ranks=1, gpus=1):
    report = {"inputs_per_second": rate, "ranks": ranks, "gpus": gpus, "batch": 512, "inputs": 10**7, "offload": "farm"}
    file.write_text(json.dumps(report))
    return file


def test_reports_are_read_and_compared(capsys, tmp_path):
    one, four = report_of(tmp_path / "1.json", 5000.0), report_of(tmp_path / "4.json", 19500.0, ranks=4)
    path = tmp_path / "path.json"
    ways = {
        "async": {"bytes_per_second": 9e9, "root_seconds_a_chunk": 80e-6},
        "farm": {"bytes_per_second": 8e9, "root_seconds_a_chunk": 90e-6},
    }
    path.write_text(json.dumps({"path": ways}))
    _, out = plan(capsys, "--report", one, "--path", path, "--measured", four, "--json")
    found = json.loads(out)
    assert (found["machine"]["gpu_rate"], found["work"]["chunk"]) == (5000.0, 512)
    assert (found["machine"]["local_link"], found["machine"]["root_message"]) == (8e9, 90e-6)
    assert found["measured"][0]["off"] == pytest.approx(20000 / 19500 - 1, abs=1e-3)
    _, out = plan(capsys, "--report", one, "--measured", four)
    assert "measured on 4 GPUs by farm: 19,500 inputs/s; the forecast is 19,99" in out
    with pytest.raises(ValueError, match="is from 4 ranks with 1 GPUs each: need one from one GPU"):
        plan(capsys, "--report", four)
    with pytest.raises(ValueError, match="has no 'inputs_per_second'"):
        plan(capsys, "--report", path)
    path.write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        plan(capsys, "--report", path)


@pytest.mark.parametrize(
    "wrong", [["--link", "3"], ["--link", "0GB/s"], ["--latency", "5"], ["--gpus", "0"], ["--rate", "-1"], []]
)
def test_wrong_options_are_refused(wrong, capsys):
    with pytest.raises(SystemExit):
        plan(capsys, *(["--rate", "1", *wrong] if wrong and wrong[0] != "--rate" else wrong))
    assert (wrong or ["--rate"])[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [("10Gbit/s", 1.25e9), ("10Gb/s", 1.25e9), ("10Gbps", 1.25e9), ("1.25GB/s", 1.25e9), ("800kB/s", 8e5), ("7B/s", 7)],
)
def test_speeds_in_bits_and_bytes(text, bytes_per_second):
    assert command._speed(text) == pytest.approx(bytes_per_second)


@pytest.mark.parametrize(("option", "value", "need"), [
    ("--rate", "x", "need a number above 0"),
    ("--rate", "inf", "need a number above 0"),
    ("--hosts", "1.5", "need a whole number from 1"),
    ("--latency", "1.2.3ms", "need a time"),
    ("--link", "fast", "need a speed"),
])  # fmt: skip
def test_an_option_that_is_no_number_is_named(option, value, need, capsys):
    with pytest.raises(SystemExit) as stopped:
        plan(capsys, "--rate", "1000", option, value)
    assert stopped.value.code == 2
    assert f"argument {option}: {value}: {need}" in capsys.readouterr().err


@needs_mpi
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_links_are_measured(ranks):
    """The forecast has the links that ranks of this host found, and one rank prints it."""
    done = mpiexec(ranks, "-m", "charcnn", "plan", "--rate", 1000, "--gpus", 2, "--measure", "--json")
    machine = json.loads(done.stdout)["machine"]
    assert 0 < machine["local_latency"] < 1, machine
    assert 1e6 < machine["local_link"] < 1e13, machine
    assert machine["link"] == 1.25e9  # of other hosts there is no rank


@needs_mpi
def test_one_rank_has_no_links():
    done = mpiexec(1, "-m", "charcnn", "plan", "--rate", 1000, "--measure")
    assert (done.returncode, "1 rank has no links: need 2 or more" in done.stderr) == (2, True), done.stderr


def test_links_need_ranks(capsys):
    with pytest.raises(ValueError, match="--measure: start it by mpiexec"):
        plan(capsys, "--rate", 1000, "--measure")
