"""Two hosts on one machine: network namespaces with host names of their own, joined by a slow wire of real packets.

The wire is a process that carries each packet from one host's TUN device to the other's, after a latency and no faster
than a bandwidth allows. It needs what root may do on most systems, and nothing outside the namespaces changes.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

MTU = 9000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
ADDRESSES = ("10.213.77.1", "10.213.77.2")


def tun(name):
    """A TUN device in this network namespace: packets as a file."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return file


def carry(ends, latency, speed):
    """Packets from each end to the other, for ever: `latency` seconds later, at `speed` bytes a second."""
    under_way = [deque(), deque()]
    free = [0.0, 0.0]
    while True:
        now = time.perf_counter()
        due = [queue[0][0] for queue in under_way if queue]
        ready, _, _ = select.select(ends, [], [], max(0.0, min(due) - now) if due else None)
        now = time.perf_counter()
        for end in ready:
            way = ends.index(end)
            packet = os.read(end, 65536)
            free[way] = max(free[way], now) + len(packet) / speed
            under_way[way].append((free[way] + latency, packet))
        for way, queue in enumerate(under_way):
            while queue and queue[0][0] <= now:
                with suppress(OSError):  # the other end is down: as on a real wire, it is lost
                    os.write(ends[1 - way], queue.popleft()[1])


class Hosts:
    """The two hosts, while the `with` block runs; `mpiexec` starts ranks on both.

    Raises:
        OSError, subprocess.CalledProcessError: they cannot be had here.
    """

    def __init__(self, folder, *, latency, speed):
        self._folder, self._latency, self._speed = Path(folder), latency, speed
        self._processes = []

    def __enter__(self):
        try:
            self._holders = [self._hold(number) for number in range(2)]
            command = [sys.executable, __file__, str(self._latency), str(self._speed), *map(str, self._holders)]
            wire = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self._processes.append(wire)
            if wire.stdout.readline() != "up\n":
                raise OSError(wire.stderr.read())
        except BaseException:
            self.__exit__()
            raise
        agent = self._folder / "agent"
        agent.write_text(
            "#!/bin/sh\n"
            f'case "$1" in host0) pid={self._holders[0]};; *) pid={self._holders[1]};; esac\n'
            'shift\nexec nsenter -t $pid -n -u sh -c "$*"\n'
        )
        agent.chmod(0o755)
        return self

    def _hold(self, number):
        """A process in new namespaces, which live as long as it does."""
        script = f"hostname host{number} && ip link set lo up && echo up && exec sleep 1000000"
        holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "sh", "-c", script],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._processes.append(holder)
        if holder.stdout.readline() != "up\n":
            raise OSError(holder.stderr.read())
        return holder.pid

    def __exit__(self, *_):
        for process in self._processes:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()

    def run(self, number, command, **options):
        """Run a command on one of the hosts."""
        return subprocess.run(["nsenter", "-t", str(self._holders[number]), "-n", "-u", *command], **options)

    def mpiexec(self, launcher, each, command, *, options=(), env=None, timeout=300):
        """Run `each` ranks of a command on each host; mpiexec itself is on the first."""
        where = ["--host", f"host0:{each},host1:{each}", "--map-by", f"ppr:{each}:node", "-n", str(2 * each)]
        where += ["--prtemca", "plm_ssh_agent", str(self._folder / "agent")]
        started = [launcher, *where, *options, *map(str, command)]
        return self.run(0, started, capture_output=True, text=True, env=env, timeout=timeout, check=False)


def obstacle():
    """Why there can be no two hosts here; None where they can."""
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            return f"no {tool}"
    try:
        with tempfile.TemporaryDirectory() as folder, Hosts(folder, latency=0.0, speed=1e9):
            return None
    except (OSError, subprocess.SubprocessError) as error:
        return " ".join(str(error).split()) or "no new network namespaces"


if __name__ == "__main__":  # the wire
    ends = []
    for number, holder in enumerate(sys.argv[3:]):
        name = f"wire{number}"
        ends.append(tun(name))
        subprocess.run(["ip", "link", "set", name, "mtu", str(MTU), "netns", holder], check=True)
        here, there = ADDRESSES[number], ADDRESSES[1 - number]
        for words in (["addr", "add", here, "peer", there, "dev", name], ["link", "set", name, "up"]):
            subprocess.run(["nsenter", "-t", holder, "-n", "ip", *words], check=True)
    print("up", flush=True)
    carry(ends, float(sys.argv[1]), float(sys.argv[2]))
