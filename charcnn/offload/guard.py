"""Ends a process that has been stopped (SIGSTOP) for too long: `python guard.py PID RANK SECONDS`.

It is started by a rank (charcnn.offload.watch), and ends with it. A line on standard input sets other seconds.
While the rank's own parent is stopped, too, whoever stopped the job as a whole will let it go on. Debugged is not
stopped.
"""

import math
import os
import select
import signal
import sys

TICK = 0.25


def stat(pid: int) -> tuple[str, int]:
    """(state, parent) of a process."""
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return words[0], int(words[1])


def main(pid: int, rank: str, limit: float) -> None:
    """Until the process ends, one way or the other."""
    waited = 0.0
    while True:
        ready, _, _ = select.select([0], [], [], TICK)
        if ready:
            told = os.read(0, 4096).split()
            if not told:  # the rank has ended
                return
            limit = float(told[-1])
            continue
        state, parent = stat(pid)
        if os.getppid() != pid:
            return
        stopped = state == "T" and (parent < 2 or stat(parent)[0] != "T")
        waited = waited + TICK if stopped else 0.0  # looks, not a clock: this process may have been stopped as well
        if waited >= limit and math.isfinite(limit):
            line = f"charcnn: rank {rank}: stopped for {limit:g} s, and ended (CHARCNN_MPI_STOPPED sets the seconds)\n"
            os.write(2, line.encode())
            os.kill(pid, signal.SIGKILL)
            return


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
    except (OSError, ValueError):  # the rank has ended meanwhile
        sys.exit(0)
