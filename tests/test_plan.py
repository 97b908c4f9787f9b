"""The cost model against a simulation, event by event, of ranks behind throttled links."""

import heapq

import pytest

from charcnn.offload.plan import LOGIT_BYTES, Machine, Work, forecast, table


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
