"""Advice on where ranks run, for machines as they might be."""

import os

import pytest

from charcnn import offload
from charcnn.host import cores
from charcnn.offload import topology

TWO_NODES = (tuple(range(8)), tuple(range(8, 16)))


def rank(number, cores, *, gpus=(), threads=3, nodes=TWO_NODES, parallel=False, host="node1"):
    return offload.Place(number, host, tuple(cores), threads, parallel, tuple(gpus), nodes)


def test_this_process_is_somewhere():
    place = offload.place(2, 3, [(0, "0000:ff:1f.0")], parallel=True)
    assert place.rank == 2
    assert set(place.cores) == os.sched_getaffinity(0)
    assert place.near() <= set(range(len(place.nodes)))
    assert place.gpus == ((0, None),)
    assert offload.advice([]) == []


def test_lists_of_cores_are_read(tmp_path, monkeypatch):
    for node, text in ((0, "0-2,8\n"), (1, "3-4\n"), (10, "\n")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(text)
    monkeypatch.setattr(cores, "NODES", tmp_path)
    assert offload.place(0, 1, []).nodes == ((0, 1, 2, 8), (3, 4), ())
    pci = tmp_path / "0000:1b:00.0"
    pci.mkdir()
    (pci / "numa_node").write_text("1\n")
    monkeypatch.setattr(topology, "PCI", tmp_path)
    assert offload.place(0, 1, [(4, "0000:1B:00.0")]).gpus == ((4, 1),)
    (pci / "numa_node").write_text("-1\n")
    assert offload.place(0, 1, [(4, "0000:1b:00.0")]).gpus == ((4, None),)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([rank(0, range(8), gpus=[(0, 0)]), rank(1, range(8, 16), gpus=[(1, 1)])], []),
        ([rank(0, range(4), gpus=[(0, None)])], []),
        (
            [rank(0, [0], gpus=[(0, 0)]), rank(1, [1], gpus=[(1, 0)])],
            ["ranks 0, 1 on node1 may use 1 core for 3 threads: start with --bind-to numa, or none"],
        ),
        (
            [rank(0, range(8), gpus=[(0, 0)]), rank(1, range(8), gpus=[(1, 1)])],
            [
                "GPU 1 of rank 1 on node1 is at NUMA node 1, its cores at 0: "
                "start with --map-by ppr:1:numa --bind-to numa"
            ],
        ),
        (
            [rank(i, range(16), gpus=[(i, None)]) for i in range(4)],
            [
                "ranks 0, 1, 2, 3 on node1 may use cores of 2 NUMA nodes, and memory may be far from the GPU: "
                "start with --map-by ppr:2:numa --bind-to numa"
            ],
        ),
        ([rank(0, range(16), threads=16, parallel=True)], []),
        ([rank(0, [0], threads=1), rank(1, [1], threads=1)], []),
        (
            [rank(0, range(16), threads=16, parallel=True), rank(1, range(16), threads=16, parallel=True)],
            ["ranks 0, 1 on node1 run 32 threads on 16 cores: start with --map-by ppr:2:node:PE=8 --bind-to core"],
        ),
        (
            [rank(0, [0], threads=1, parallel=True), rank(1, [1], threads=1, parallel=True, host="node2")],
            [
                f"rank {i} on node{i + 1} may use 1 of its 16 cores: "
                "start with --map-by ppr:1:node:PE=16 --bind-to core"
                for i in range(2)
            ],
        ),
    ],
)
def test_advice_where_it_is_off(ranks, said):
    assert offload.advice(ranks) == said
