"""What to type for an optional part of the package that is missing."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder that has the package: the checkout, where it is used from one."""


def module_environment() -> dict[str, str]:
    """The environment of a process that runs a module of this package, from wherever it is started."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}


def pip_install(extra: str) -> str:
    """The command that installs an extra of pyproject.toml here: `pip install -e '.[plot]'` in a checkout."""
    checkout = (ROOT / "pyproject.toml").is_file()
    what = "charcnn" if not checkout else "." if Path.cwd() == ROOT else str(ROOT)
    return f"{_pip()} install {'-e ' * checkout}{shlex.quote(f'{what}[{extra}]')}"


def _pip() -> str:
    """The pip of this Python: `pip` where that is the one that the shell finds."""
    scripts = os.path.join(sys.prefix, "bin")
    found = next((p for p in os.get_exec_path() if os.access(os.path.join(p, "pip"), os.X_OK)), None)
    if found == scripts:
        return "pip"
    python, here = sys.executable or "python", os.path.join(os.getcwd(), "")
    return f"{shlex.quote(python.removeprefix(here) if python.startswith(here) else python)} -m pip"
