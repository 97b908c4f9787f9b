"""The cores that ranks take, for hosts as they might be, and on this one."""

import json
import os

import pytest
from test_farm import needs_ulfm
from test_mpi import mpiexec, needs_mpi

from charcnn.host import cores


def host(cores_a_node, *, nodes=2, threads=1):
    """Of so many cores a node, of which each has so many hardware threads, numbered as Linux does."""
    count = cores_a_node * nodes
    each = tuple(tuple(core + count * thread for thread in range(threads)) for core in range(count))
    return cores.Host(each, {cpu: core[0] // cores_a_node for core in each for cpu in core})


WIDE, NARROW, SMT = host(16), host(2), host(4, threads=2)


@pytest.mark.parametrize(
    ("where", "ranks", "near", "expected"),
    [
        (WIDE, 1, None, [range(32)]),
        (WIDE, 2, None, [range(16), range(16, 32)]),
        (WIDE, 3, None, [range(11), range(11, 22), range(22, 32)]),
        (WIDE, 2, [0, 0], [range(8), range(8, 16)]),
        (WIDE, 2, [1, 0], [range(16, 32), range(16)]),
        (WIDE, 4, [0, 0, 1, 1], [range(8), range(8, 16), range(16, 24), range(24, 32)]),
        (WIDE, 2, [0, None], [range(16), range(16, 32)]),
        (WIDE, 2, [0, 7], [range(16), range(16, 32)]),  # none of the cores of node 7 is allowed
        (NARROW, 1, [1], [range(4)]),  # two cores are few: the other node's, too
        (NARROW, 2, [0, 0], [[0, 2], [1, 3]]),
        (NARROW, 3, [0, 0, 0], [[0, 2], [1, 3], [0, 2]]),  # more ranks than cores at the node
        (SMT, 2, None, [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]),
        (SMT, 4, [1, 1, 1, 1], [[4, 12, 0, 8], [5, 13, 1, 9], [6, 14, 2, 10], [7, 15, 3, 11]]),
    ],
)
def test_shares_are_disjoint_and_near(where, ranks, near, expected):
    assert cores.shares(where, ranks, near) == [set(each) for each in expected]


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("prterun -n 2 python -m charcnn.levels.l16", False),
        ("/usr/bin/mpirun.openmpi --with-ft ulfm --hostfile hosts -n 2 python x.py --precision fp16", False),
        ("mpiexec --bind-to none -n 2 python x.py", True),
        ("mpirun -bind-to core -n 2 python x.py", True),
        ("mpiexec --map-by ppr:2:node -n 2 python x.py", True),
        ("mpirun --mca hwloc_base_binding_policy core -n 2 python x.py", True),
        ("mpiexec -n 2 numactl -N 1 python x.py", True),
        ("prted --prtemca ess env", True),
        ("slurmstepd: [12.0]", True),
        ("bash run.sh", True),
    ],
)
def test_who_says_where_ranks_run_is_left_alone(command, asked):
    assert cores.by_request(command.split(" "), {}) == asked


@pytest.mark.parametrize(
    ("name", "value", "asked"),
    [
        ("OMPI_MCA_hwloc_base_binding_policy", "core", True),
        ("PRTE_MCA_hwloc_default_binding_policy", "none", True),
        ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", False),
        ("PRTE_MCA_rmaps_default_mapping_policy", "ppr:2:node:PE=4", True),
        ("PRTE_MCA_rmaps_default_mapping_policy", ":PE=4", True),
    ],
)
def test_settings_say_so_as_well(name, value, asked):
    assert cores.by_request(["mpiexec", "-n", "2", "python"], {name: value}) == asked


@pytest.mark.parametrize(
    ("mask", "default"),
    [({3, 11}, True), ({3}, False), ({0, 1, 2, 3, 8, 9, 10, 11}, True), (set(range(16)), True), ({0, 1, 8, 9}, False)],
)
def test_masks_that_mpiexec_gives_unasked_are_told_from_others(mask, default):
    assert cores.by_default(mask, SMT) == default


def test_a_host_is_read_as_linux_tells(tmp_path, monkeypatch):
    (tmp_path / "node0").mkdir()
    (tmp_path / "node0" / "cpulist").write_text("0-1,4-5\n")
    (tmp_path / "node1").mkdir()
    (tmp_path / "node1" / "cpulist").write_text("2-3,6-7\n")
    for cpu in range(8):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(cores, "NODES", tmp_path)
    monkeypatch.setattr(cores, "CPUS", tmp_path)
    found = cores.of_host({0, 2, 3, 4, 6, 7})
    assert found == cores.Host(((0, 4), (2, 6), (3, 7)), {0: 0, 4: 0, 2: 1, 3: 1, 6: 1, 7: 1})


@pytest.mark.parametrize(
    ("given", "text"), [([0], "core 0"), ([0, 1], "cores 0-1"), ([5, 3, 8, 4], "cores 3-5,8"), ([1, 3], "cores 1,3")]
)
def test_cores_are_written_in_short(given, text):
    assert cores.written(given) == text


MASKS = """
import json, os
import charcnn.levels
charcnn.levels.prepare()
import numba
from charcnn.host import cores
from charcnn import offload
comm = offload.world()
told = comm.gather([sorted(os.sched_getaffinity(0)), numba.config.NUMBA_NUM_THREADS, cores.said()])
if comm.rank == 0:
    print(json.dumps(told))
"""
HERE = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def masks(ranks, *options):
    free = {"PRTE_MCA_rmaps_default_mapping_policy": "", "OMPI_MCA_rmaps_base_oversubscribe": ""}
    done = mpiexec(ranks, "-c", MASKS, options=options, timeout=300, **(free if ranks <= len(HERE) else {}))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_mpi
@needs_ulfm
@pytest.mark.skipif(len(HERE) < 2, reason="one core")
@pytest.mark.exhaustive
def test_ranks_take_the_cores_that_mpiexec_may_use_unless_it_is_told_where():
    given = masks(2)
    assert sorted(cpu for mask, _, _ in given for cpu in mask) == HERE, "disjoint, and all of them"
    assert all(threads == len(mask) for mask, threads, _ in given)
    [[mask, threads, said]] = masks(1)
    assert (mask, threads) == (HERE, len(HERE))
    assert said == f"{cores.written(mask)}, its share of the host; mpiexec had bound it to core {HERE[0]}"
    [[mask, threads, said]] = masks(1, "--bind-to", "core")
    assert (len(mask), threads, said) == (1, 1, None)
