"""Options of `pytest bench/`, and the raw result that it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import energy
import pytest
import raw

from charcnn import catalog
from charcnn.config import SMALL, TINY, Config
from charcnn.gpu import device
from charcnn.host import machine
from charcnn.host.terminal import table

HERE = Path(__file__).resolve().parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that bench/README.md explains."""
    group = parser.getgroup("charcnn")
    group.addoption("--tiny", action="store_true", help="only show that it runs, with the smallest network")
    group.addoption("--levels", metavar="NAMES", help="time only these levels, and no operators, as l0,l2,l11")
    group.addoption("--share", metavar="I/N", help="only one of N parts of the rows, by their names")
    group.addoption("--gpus", type=int, default=1, metavar="G", help="time only levels, on so many GPUs (default 1)")
    energy.add_option(group.addoption)
    group.addoption("--results-dir", type=Path, metavar="DIR", help="for the raw result (default: bench/results)")


class Plan:
    """What this run measures, and where the result goes."""

    def __init__(self, config: pytest.Config) -> None:
        self.gpus: int = config.getoption("gpus")
        self.levels = _named(config.getoption("levels"))
        self.machine = machine.describe()
        self.tiny = bool(config.getoption("tiny")) or device.SIMULATED
        self.config: Config = TINY if self.tiny else SMALL
        self.no_gpu = _no_gpu(self.gpus)
        too_small = "too small for tensor cores" if self.tiny else None
        self.no_tensor_cores = {
            (hopper, turing): self.no_gpu or _no_tensor_cores(hopper, turing) or too_small
            for hopper in (False, True)
            for turing in (False, True)
        }
        self.partial = [Path(arg).resolve() for arg in config.args] != [HERE]
        self._folder: Path | None = config.getoption("results_dir")
        self.red: list[str] = []
        counts = not (self.tiny or config.getoption("benchmark_disable"))
        self.meters = {
            where: energy.meter(config.getoption("joules") if counts and one else 0.0, where)
            for where, one in (("cpu", True), ("cuda", not self.no_gpu))
        }

    @property
    def file(self) -> Path | None:
        """Where the raw result goes; None for a run that must not replace a whole one."""
        folder = self._folder or (None if self.tiny or self.partial else raw.RESULTS)
        return None if folder is None else folder / f"{machine.name(self.machine, self.gpus)}.json"


def _named(names: str | None) -> list[str] | None:
    """The levels that --levels names; None: not given."""
    if names is None:
        return None
    found, known = [name.strip() for name in names.split(",")], [level.name for level in catalog.LEVELS]
    unknown = [name for name in found if name not in known]
    if unknown:
        raise pytest.UsageError(f"--levels {names}: there is no level {unknown[0]!r}: need some of {','.join(known)}")
    return found


def _no_gpu(gpus: int) -> str | None:
    """Why CUDA rows cannot run here, or None."""
    try:
        device.choose(gpus)
    except device.DeviceError as error:
        if gpus > 1:
            raise pytest.UsageError(f"--gpus {gpus}: {error}") from error
        return str(error)
    except ValueError as error:
        raise pytest.UsageError(f"--{error}") from error
    return None


def _no_tensor_cores(hopper: bool, turing: bool) -> str | None:
    """Why rows that need tensor cores, or Hopper's, or for which Turing's will do, cannot run here, or None."""
    try:
        device.require_tensor_cores("a row", hopper=hopper, turing=turing, emulated=False)
    except device.DeviceError as error:
        return str(error)
    return None


def _not_multiplied(precision: str) -> str | None:
    """Why rows in this precision cannot run on this GPU's tensor cores, or None."""
    try:
        device.require_precision(precision, catalog.PRECISIONS[precision].capability)
    except ValueError as error:
        return str(error)
    return None


def pytest_configure(config: pytest.Config) -> None:
    """Decide once what this run is."""
    if config.getoption("dist", "no") != "no" and not config.getoption("benchmark_disable"):
        raise pytest.UsageError(
            "-n or --dist: several processes would be timed beside each other, so pytest-benchmark measures nothing; "
            "leave them out, or add --benchmark-disable to check without timing"
        )
    config.charcnn_plan = Plan(config)


@pytest.fixture(scope="session")
def plan(request: pytest.FixtureRequest) -> Plan:
    """What this run measures."""
    return request.config.charcnn_plan


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is measured on what."""
    plan = config.charcnn_plan
    size = "TINY" if plan.tiny else "SMALL"
    where = "Numba's simulator" if device.SIMULATED else machine.name(plan.machine, plan.gpus)
    return [f"charcnn: {len(catalog.VARIANTS)} variants, {len(catalog.LEVELS)} levels, {size}, on {where}"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what --levels and --share name, and leave out, with the reason, what this machine cannot run."""
    plan = config.charcnn_plan
    share, _, shares = (config.getoption("share") or "0/1").partition("/")
    others = [item for item in items if crc32(item.nodeid.encode()) % int(shares) != int(share)]
    if plan.levels is not None:
        others += [
            item for item in items if getattr(item.callspec.params.get("level"), "name", None) not in plan.levels
        ]
    if others:
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)
    for item in items:
        variant = item.callspec.params.get("variant")
        row = variant or item.callspec.params.get("level")
        if row.device == "cuda" and plan.no_gpu:
            item.add_marker(pytest.mark.skip(reason=plan.no_gpu))
        elif row.tensor_cores and plan.no_tensor_cores[row.hopper, row.turing]:
            item.add_marker(pytest.mark.skip(reason=plan.no_tensor_cores[row.hopper, row.turing]))
        elif row.tensor_cores and (reason := _not_multiplied(row.precision if variant else row.precision())):
            item.add_marker(pytest.mark.skip(reason=reason))
        elif plan.gpus > 1 and (row.device == "cpu" or isinstance(row, catalog.Variant) or row.gpus == 1):
            item.add_marker(pytest.mark.skip(reason=f"--gpus {plan.gpus}: runs on fewer, so it is measured without"))


def pytest_deselected(items: list[pytest.Item]) -> None:
    """A run with -k, -m or the like is not a whole one."""
    if items:
        items[0].config.charcnn_plan.partial = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    """Note what is red."""
    report = yield
    if report.failed:
        item.config.charcnn_plan.red.append(item.nodeid)
    return report


def pytest_benchmark_generate_machine_info(config: pytest.Config) -> dict[str, Any]:
    """charcnn's own description, in place of one that names the host."""
    return config.charcnn_plan.machine


def pytest_benchmark_generate_commit_info(config: pytest.Config) -> dict[str, Any]:
    """The commit, and nothing of the checkout's path or branch."""
    return {"id": machine.commit()}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the raw result: every row whose check passed."""
    config = session.config
    plan = config.charcnn_plan
    if session.shouldstop or session.shouldfail:  # -x, Ctrl-C
        plan.partial = True
    measured = [row for row in config._benchmarksession.benchmarks if row and row.fixture.name not in plan.red]
    if plan.file is None or not measured:
        return
    result = config.hook.pytest_benchmark_generate_json(
        config=config,
        benchmarks=measured,
        include_data=True,
        machine_info=config.hook.pytest_benchmark_generate_machine_info(config=config),
        commit_info=config.hook.pytest_benchmark_generate_commit_info(config=config),
    )
    for row in result["benchmarks"]:  # its rows are objects of the catalogue, which extra_info names
        row["params"] = None
    result["red"] = plan.red
    raw.write(plan.file, "benchmarks", result)


@pytest.hookimpl(trylast=True)  # behind the tables
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what the tables' units are, how fast levels are, and where the result is, or why there is none."""
    plan = config.charcnn_plan
    terminalreporter.write_line("  Times are of one input, and OPS are inputs/s, whatever a row computes at once.")
    for line in _rates(config, plan):
        terminalreporter.write_line(line)
    if plan.file is None:
        line = "not kept: a run of some rows or of tiny ones (--results-dir DIR keeps it)"
    elif plan.file.exists():
        line = str(plan.file)
    else:
        line = "nothing was measured"
    terminalreporter.write_line(f"raw result: {line}")


def _rates(config: pytest.Config, plan: Plan) -> list[str]:
    """Inputs/s of each level that was timed, and how many times those of the last one before that was."""
    timed = [row for row in config._benchmarksession.benchmarks if row and row.fixture.name not in plan.red]
    rates = {row.extra_info["level"]: row.extra_info["inputs_per_second"] for row in timed if "level" in row.extra_info}
    rows = []
    for level in catalog.LEVELS:
        if level.name in rates:
            before = level.predecessor
            while before is not None and before.name not in rates:
                before = before.predecessor
            times = f"{rates[level.name] / rates[before.name]:,.2f} x {before.name}" if before else ""
            rows.append([level.name, level.title, f"{rates[level.name]:,.2f}", times])
    if not rows:
        return []
    return ["", *table(["level", "step", "inputs/s", "x the level before"], rows, 2), ""]
