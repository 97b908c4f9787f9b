"""Forecast the rate of several GPUs and hosts, and what limits it. Nothing is run.

The forecast starts from one GPU's rate, as a level reports it, and from the links: the root of an MPI run sends all
inputs and receives all results. With --network it also covers tensor and pipeline parallelism, where each rank has a
part of the network. With --measured it is compared with measured runs.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from charcnn.aliases import Record
from charcnn.cli import DONE
from charcnn.host.arguments import count

if TYPE_CHECKING:
    from charcnn.networks.architecture import Architecture
    from charcnn.offload.cost_model import Machine, Work
    from charcnn.offload.parts_model import Parallel

UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
NUMBER = r"\d+(?:\.\d*)?(?:e\d+)?"

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

EPILOG = """examples:
  python -m charcnn.levels.l13 --gpus 1 --inputs 4000000 --json one.json
  charcnn plan --report one.json --gpus 4 --hosts 16 --link 100Gbit/s
  charcnn plan --rate 1100000 --chunk 4096 --gpus 8 --hosts 128 --latency 5us
  charcnn plan --report one.json --gpus 4 --measured two.json four.json
  mpiexec -n 4 charcnn plan --report one.json --measure
  charcnn plan --network alexnet --rate 40000 --memory 4.8TB/s --chunk 1

exit status: 0 done; 2 unusable options or files"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What one GPU does, the machines, and the work."""
    parser.epilog = EPILOG
    add = parser.add_argument
    one = parser.add_mutually_exclusive_group(required=True)
    one.add_argument("--rate", type=_positive, metavar="R", help="one GPU's rate, in inputs per second")
    one.add_argument("--report", metavar="FILE", help="a level's --json on one GPU, for its rate and its batch")
    add("--gpus", type=count, default=4, metavar="G", help="GPUs per host (default 4)")
    add("--hosts", type=count, default=1, metavar="H", help="largest number of hosts (default 1)")
    add("--link", type=_speed, default=1.25e9, metavar="SPEED", help="of the root's host, as 50GB/s (default 10Gbit/s)")
    add("--latency", type=_time, default=50e-6, metavar="TIME", help="per message between hosts (default 50us)")
    add("--local-link", type=_speed, metavar="SPEED", help="between ranks of a host (default 6.7GB/s, as measured)")
    add("--local-latency", type=_time, metavar="TIME", help="per message within a host (default 5us)")
    add("--root", type=_time, metavar="TIME", help="the root thread's time per chunk (default 100us)")
    add(
        "--path",
        metavar="FILE",
        help="what `bench/offload.py path --json` measured, for --local-link and --root",
    )
    measure = "under mpiexec: measure the links between its ranks, for --link, --latency and those within a host"
    add("--measure", action="store_true", help=measure)
    add(
        "--encode", type=_positive, metavar="R", help="texts per second that the root encodes (default: encoded before)"
    )
    add("--inputs", type=count, default=4_000_000, metavar="N", help="inputs in all (default 4,000,000)")
    add("--chunk", type=count, metavar="B", help="inputs per message (default: the report's batch, else 256)")
    add("--measured", nargs="+", metavar="FILE", help="a level's --json on several ranks, to compare with the forecast")
    add("--network", metavar="NAME", help="an image network: compare parts of it per rank with the whole on each")
    add("--variant", metavar="V", help="the network's variant (default: its first)")
    add("--memory", type=_speed, metavar="SPEED", help="of a GPU's memory, for --network (default: only FLOP count)")
    add("--json", action="store_true", help="print JSON")


def _positive(value: str) -> float:
    if not re.fullmatch(NUMBER, value) or not float(value) > 0:
        raise argparse.ArgumentTypeError(f"{value}: need a number above 0")
    return float(value)


def _speed(value: str) -> float:
    """Bytes a second: 10Gbit/s, 1.25GB/s."""
    found = re.fullmatch(rf"({NUMBER})\s*([kMGT]?)(bit|b|B)/?(p?s)?", value)
    if not found or not float(found[1]) > 0:
        raise argparse.ArgumentTypeError(f"{value}: need a speed, such as 10Gbit/s or 1.25GB/s")
    return float(found[1]) * UNITS[found[2]] / (1 if found[3] == "B" else 8)


def _time(value: str) -> float:
    """Seconds: 50us, 1.5ms."""
    found = re.fullmatch(rf"({NUMBER})\s*(s|ms|us|ns)", value)
    if not found:
        raise argparse.ArgumentTypeError(f"{value}: need a time, such as 50us or 1.5ms")
    return float(found[1]) * SECONDS[found[2]]


def run(options: argparse.Namespace) -> int:
    """Forecast; the exit status."""
    from charcnn.files import as_json
    from charcnn.offload.cost_model import table

    machine, work = _described(options)
    links_found: Record = {}
    if options.measure:
        from charcnn import offload
        from charcnn.offload import links
        from charcnn.offload.cost_model import Machine

        comm = offload.world()
        if comm is None:
            raise ValueError("--measure: start it by mpiexec, with a rank on each host, or several on one")
        links_found = links.measured(comm)
        machine = Machine(**{**vars(machine), **links_found})
        if comm.rank:
            return DONE
    if options.network is not None:
        return _parts(options, machine, work, links_found)
    for name in ("variant", "memory"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name}: needs --network")
    counts = _counts(machine.gpus, options.hosts)
    rows = [asdict(row) for row in table(machine, work, counts)]
    compared = [_compared(file, machine, work) for file in options.measured or []]
    if options.json:
        found = {**_head(machine, work, links_found), "plan": rows, "measured": compared}
        print(as_json(found, indent=1))
        return DONE
    print(
        f"{work.inputs:,} inputs in chunks of {work.chunk}; one GPU {machine.gpu_rate:,.0f} inputs/s; "
        f"{machine.link / 1e9:g} GB/s and {machine.latency * 1e6:g} us between hosts, "
        f"{machine.local_link / 1e9:g} GB/s within one; {machine.root_message * 1e6:g} us a chunk for the root"
    )
    _say(links_found)
    print("  GPUs  hosts        inputs/s   efficiency     seconds  bound by")
    for row in rows:
        hosts = -(-row["gpus"] // machine.gpus)
        print(
            f"{row['gpus']:>6}{hosts:>7}{row['inputs_per_second']:>16,.0f}{row['efficiency']:>13.1%}"
            f"{row['seconds']:>12.2f}  {row['bound']}"
        )
    for row in compared:
        print(
            f"measured on {row['gpus']} GPUs by {row['offload']}: {row['measured']:,.0f} inputs/s; the forecast is "
            f"{row['forecast']:,.0f}, off by {row['off']:+.1%}"
        )
    return DONE


def _head(machine: Machine, work: Work, links_found: Record) -> Record:
    """What JSON of each kind begins with; `links`: what --measure found, by its names in `machine`."""
    return {"machine": asdict(machine), "work": asdict(work), "links": links_found}


def _say(links_found: Record) -> None:
    """Print what --measure found."""
    for kind, where in (("local_", "within a host"), ("", "between hosts")):
        if f"{kind}link" in links_found:
            link, latency = (links_found[f"{kind}{name}"] for name in ("link", "latency"))
            print(f"measured {where}, messages of MPI: {link / 1e9:.3g} GB/s, {latency * 1e6:.3g} us")


def _parts(options: argparse.Namespace, machine: Machine, work: Work, links_found: Record) -> int:
    """Whole networks on each rank beside parts of one; the exit status."""
    from dataclasses import replace

    from charcnn import catalog
    from charcnn.files import as_json
    from charcnn.networks.architecture import Architecture
    from charcnn.offload.parts_model import best, compare, verdict

    named = {row.name: row for row in catalog.NETWORKS}
    if options.network not in named:
        raise ValueError(f"--network {options.network}: need one of {', '.join(named)}")
    page = named[options.network].module
    variant = options.variant or page.VARIANTS[0]
    if variant not in page.VARIANTS:
        raise ValueError(f"--variant {variant}: {options.network} has {', '.join(page.VARIANTS)}")
    network = Architecture(options.network, variant, page.layers(variant))
    work = replace(work, length=network.length, classes=network.classes)
    rows = [
        row
        for count in _counts(machine.gpus, options.hosts)
        for row in compare(network, options.memory, _machines(machine, count), work)
    ]
    measures: Record = {
        "inputs/s": lambda row: 1 / row.inputs_per_second, "time of one batch": lambda row: row.seconds
    }  # fmt: skip
    advice = [
        {"for": name, "ranks": row.ranks, "way": row.way, "command": _command(network, row, work.chunk, name)}
        for name, measure in measures.items()
        for row in best(rows, measure)
    ]
    if options.json:
        found = {**_head(machine, work, links_found), "plan": [asdict(row) for row in rows], "advice": advice}
        print(as_json(found, indent=1))
        return DONE
    print(
        f"{network.name} {variant}: {network.flops:,} FLOP an input, {network.parameters:,} parameters; batches of "
        f"{work.chunk}; one GPU {machine.gpu_rate:,.0f} inputs/s of large ones, "
        f"{machine.gpu_rate * network.flops / 1e12:,.1f} TFLOP/s"
    )
    _say(links_found)
    print("  GPUs  parallel        inputs/s   us a batch     bytes sent   parameter bytes a GPU  link")
    for row in rows:
        print(
            f"{row.ranks:>6}  {row.way:<9}{row.inputs_per_second:>15,.0f}{1e6 * row.seconds:>13,.1f}{row.sent:>15,.0f}"
            f"{row.parameters:>24,.0f}  {row.link}".rstrip()
        )
    for name, measure in measures.items():
        for way, better in verdict(rows, measure).items():
            where: list[Parallel] = better
            at = f"on {', '.join(str(row.ranks) for row in where)} GPUs" if where else "nowhere"
            print(f"{way} beats data parallel in {name}: {at}")
    for one in advice:
        print(f"for {one['for']} on {one['ranks']} GPUs: {one['command']}")
    return DONE


def _command(network: Architecture, row: Parallel, chunk: int, measure: str) -> str:
    """The command that runs a network as this row of the forecast does."""
    if row.way == "data" and measure != "inputs/s":
        chunk = -(-chunk // row.ranks)  # a batch is shared out
    mode = "async" if row.way == "data" else row.way
    page = f"charcnn.networks.{network.name} --variant {network.variant}"
    return f"mpiexec -n {row.ranks} python -m {page} --offload {mode} --batch {chunk}"


def _machines(machine: Machine, count: int) -> Machine:
    """So many GPUs of them."""
    from dataclasses import replace

    return replace(machine, gpus=min(count, machine.gpus), hosts=-(-count // machine.gpus))


def _described(options: argparse.Namespace) -> tuple[Machine, Work]:
    """The machines and the work that the options and the files they name describe."""
    from charcnn.offload.cost_model import Machine, Work

    rate, batch = options.rate, None
    if options.report is not None:
        report = _read(options.report, "inputs_per_second", "gpus", "ranks", "batch")
        if (report["ranks"], report["gpus"]) != (1, 1):
            raise ValueError(
                f"--report {options.report}: is from {report['ranks']} ranks with {report['gpus']} GPUs each: "
                "need one from one GPU (--gpus 1)"
            )
        rate, batch = report["inputs_per_second"], report["batch"]
    local = {
        "local_link": options.local_link, "local_latency": options.local_latency, "root_message": options.root
    }  # fmt: skip
    if options.path is not None:
        found = _read(options.path, "path")["path"].values()
        local["local_link"] = local["local_link"] or min(way["bytes_per_second"] for way in found)
        local["root_message"] = local["root_message"] or max(way["root_seconds_a_chunk"] for way in found)
    given = {name: value for name, value in local.items() if value is not None}
    machine = Machine(
        rate, options.gpus, link=options.link, latency=options.latency, encode_rate=options.encode, **given
    )
    return machine, Work(options.inputs, chunk=options.chunk or batch or 256)


def _read(file: str, *names: str) -> Record:
    """A JSON file that holds these names."""
    try:
        with open(file, encoding="utf-8") as opened:
            found: Any = json.load(opened)
    except ValueError as error:
        raise ValueError(f"{file}: is not JSON ({error})") from error
    missing = [name for name in names if not isinstance(found, dict) or name not in found]
    if missing:
        raise ValueError(f"{file}: has no {missing[0]!r}: need a report, as a level's --json writes it")
    return dict(found)


def _counts(gpus: int, hosts: int) -> list[int]:
    """Numbers of GPUs to show: by doubling, first those of a host, then whole hosts."""
    counts, most = [1], gpus * hosts
    while counts[-1] < most:
        twice = 2 * counts[-1]
        counts.append(min(twice, gpus) if counts[-1] < gpus else min(twice, most))
    return counts


def _compared(file: str, machine: Machine, work: Work) -> Record:
    """A measured run, and what the model says of it: its own number of inputs, chunk and ranks, on one host."""
    from dataclasses import replace

    from charcnn.offload.cost_model import forecast

    report = _read(file, "inputs_per_second", "gpus", "ranks", "batch", "inputs", "offload")
    gpus = report["ranks"] * max(1, report["gpus"])
    made = forecast(replace(machine, gpus=gpus, hosts=1), replace(work, inputs=report["inputs"], chunk=report["batch"]))
    measured = report["inputs_per_second"]
    return {
        "gpus": gpus,
        "offload": report["offload"],
        "measured": measured,
        "forecast": made.inputs_per_second,
        "off": made.inputs_per_second / measured - 1,
    }
