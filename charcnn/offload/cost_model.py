"""What R ranks give, and what bounds them: a cost model of the offload in chunks, from a few measured rates.

The root holds all inputs. It makes token ids (if they are not made before), hands each chunk to MPI, and every chunk
for another host goes out by the root's link, its logits back by the same. A worker has some chunks in flight, so that
the way to and fro is hidden where they are enough. The slowest of these is the rate; filling and draining are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LOGIT_BYTES = 4


@dataclass(frozen=True)
class Machine:
    """What is measured or known of the machines.

    Args:
        gpu_rate: inputs a second of one GPU alone, at this chunk.
        gpus: of each host; each has a rank of its own.
        hosts: how many; the root is on the first.
        link: bytes a second of the root's host to all others together, each way.
        latency: seconds of a message between hosts, one way.
        local_link: bytes a second between the ranks of a host, of the root's process.
        local_latency: seconds of a message within a host.
        root_message: seconds that the root's thread needs for a chunk: sending, receiving, storing.
        encode_rate: inputs a second that the root makes token ids of; None: they are there before.

    Raises:
        ValueError: a value is not above 0 (latencies, root_message: below 0).
    """

    gpu_rate: float
    gpus: int = 1
    hosts: int = 1
    link: float = 1.25e9
    latency: float = 50e-6
    local_link: float = 6.7e9
    local_latency: float = 5e-6
    root_message: float = 100e-6
    encode_rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("gpu_rate", "gpus", "hosts", "link", "local_link", "encode_rate"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value}: need a number above 0")
        for name in ("latency", "local_latency", "root_message"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: need 0 or more seconds")


@dataclass(frozen=True)
class Work:
    """What is to be done.

    Args:
        inputs: how many.
        length: bytes of an input: its token ids.
        classes: its logits.
        chunk: inputs of a message.
        slots: chunks that a rank computes at once, each then slots times as long.
        depth: chunks in flight for each of these.

    Raises:
        ValueError: a value is below 1.
    """

    inputs: int
    length: int = 1014
    classes: int = 4
    chunk: int = 256
    slots: int = 2
    depth: int = 2

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name}={value}: need at least 1")


@dataclass(frozen=True)
class Forecast:
    """What comes of it."""

    gpus: int
    seconds: float
    inputs_per_second: float
    efficiency: float
    """Of as many times one GPU."""
    bound: str
    """compute, encode, root (its thread), link, local link, latency, or filling (too few inputs for so many)."""
    limits: dict[str, float]
    """Inputs a second that each would allow, where it allows less than all GPUs could do, and of compute and root."""


def forecast(machine: Machine, work: Work) -> Forecast:
    """The time of the work on the machines."""
    ranks = machine.gpus * machine.hosts
    near, far = machine.gpus - 1, machine.gpus * (machine.hosts - 1)
    sent = max(work.length, LOGIT_BYTES * work.classes)  # both ways at once: the larger one counts
    computing = work.slots * work.chunk / machine.gpu_rate
    in_flight = work.slots * work.depth * work.chunk

    def round_trip(latency: float, link: float) -> float:
        return 2 * latency + work.chunk * (work.length + LOGIT_BYTES * work.classes) / link

    def hidden(latency: float, link: float) -> float:
        """Inputs a second of a rank whose chunks in flight are all on their way or computed."""
        return min(machine.gpu_rate, in_flight / (round_trip(latency, link) + computing))

    by_latency = machine.gpu_rate  # the root's own GPU waits for no message
    by_latency += near * hidden(machine.local_latency, machine.local_link)
    by_latency += far * hidden(machine.latency, machine.link)
    limits = {"compute": ranks * machine.gpu_rate}
    if by_latency < 0.999 * limits["compute"]:
        limits["latency"] = by_latency
    encoding = 1 / machine.encode_rate if machine.encode_rate is not None else 0.0
    messages = machine.root_message / work.chunk * (ranks - 1) / ranks
    if encoding or messages:  # one thread does both
        limits["encode" if encoding > messages else "root"] = 1 / (encoding + messages)
    # Who waits for a busy link leaves its chunks to the others, whom it does not hold up.
    for name, behind, link in (("local link", near, machine.local_link), ("link", far, machine.link)):
        if link / sent < behind * machine.gpu_rate:
            limits[name] = (ranks - behind) * machine.gpu_rate + link / sent
    bound = min(limits, key=lambda name: limits[name])
    rate = limits[bound]
    latency, link = (machine.latency, machine.link) if far else (machine.local_latency, machine.local_link)
    filling = computing + (round_trip(latency, link) if ranks > 1 else 0.0)
    # Of the first and the last chunk of a rank half is lost on average: ranks neither begin nor end together.
    seconds = max(work.inputs / rate + filling / 2, filling)
    if filling / 2 > work.inputs / rate:
        bound = "filling"
    done = work.inputs / seconds
    return Forecast(ranks, seconds, done, done / (ranks * machine.gpu_rate), bound, limits)


def table(machine: Machine, work: Work, gpus: Sequence[int]) -> list[Forecast]:
    """Forecasts for so many GPUs in all: first those of one host, as many as it has, then more hosts.

    Raises:
        ValueError: a number of GPUs that does not fill its hosts.
    """
    made = []
    for count in gpus:
        hosts = -(-count // machine.gpus)
        if count < 1 or (hosts > 1 and count % machine.gpus):
            raise ValueError(f"gpus={count}: need 1 to {machine.gpus}, or whole hosts of {machine.gpus}")
        of_host = min(count, machine.gpus)
        made.append(forecast(Machine(**{**vars(machine), "gpus": of_host, "hosts": hosts}), work))
    return made
