"""Which engine trains: own kernels on a CPU and a Hopper GPU, PyTorch where it is asked for or they lack something.

On other GPUs PyTorch trains, too. Without it own kernels do, since compute capability 8.0.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from charcnn.config import Config
from charcnn.gpu import device as device_of
from charcnn.host.install import pip_install
from charcnn.ops.conv1d.products import WIDTH
from charcnn.runtime.sequence import multiples
from charcnn.training import with_torch
from charcnn.training.engine import TrainingEngine
from charcnn.training.own import PRECISIONS, OwnEngine, gpu

KNOWN = {
    "engine": ("auto", "own", "torch"),
    "device": ("auto", "cuda", "cpu"),
    "precision": ("auto", "bf16", "fp16", "float32"),
}
"""What may be asked for."""

OWN_ON = ((9, 0),)
"""Compute capabilities of GPUs on which "auto" takes own kernels though PyTorch is there: where they were faster."""

ON_GPUS = "such a GPU is there, and so is PyTorch; engine own trains on it without"
"""Why PyTorch trains on other GPUs."""


def choose(
    engine: str = "auto",
    device: str = "auto",
    precision: str = "auto",
    *,
    mixup: float = 0.0,
    sparse: str = "",
    compiled: bool = False,
    config: Config | None = None,
    say: Callable[[str], object],
    warn: Callable[[str], object],
) -> TrainingEngine:
    """The engine for a training.

    Args:
        engine: "own", "torch", or "auto" for own kernels, and PyTorch, where it is installed, on GPUs other than
            Hopper's and for what they lack.
        device: "cuda", "cpu", or "auto" for a GPU where there is one.
        precision: "bf16", "fp16", "float32", or "auto" for bf16 on a GPU and float32 on a CPU.
        mixup, sparse: the recipe's.
        compiled: whether torch.compile is asked for.
        config: the sizes; None for those of a preset.
        say: takes a line on why PyTorch trains though nobody named it.
        warn: takes a line on why a GPU is not used.

    Raises:
        ValueError: there is no such engine, device or precision; or a GPU or PyTorch is asked for, and missing. Or own
            kernels are asked for, or no others are there, and lack something. Names it.
    """
    for name, value in (("engine", engine), ("device", device), ("precision", precision)):
        if value not in KNOWN[name]:
            raise ValueError(f"{name}={value!r}: need one of {', '.join(KNOWN[name])}")
    if engine == "torch":
        return _torch(device, precision, compiled)
    unusable = None if device == "cpu" else gpu()
    if device == "cuda" and unusable is None:
        raise ValueError("device cuda: this machine shows no GPU")
    where = "cuda" if unusable == "" else "cpu"
    if precision == "fp16" and where == "cpu":
        raise ValueError(f"precision fp16: {unusable or 'on a CPU'}, and own kernels have it on a GPU since 8.0 alone")
    lacks = f"{unusable}, and own kernels train on a CPU or since 8.0" if unusable else ""
    lacks = lacks or _lacks(where, precision, mixup, sparse, compiled, config)
    other_gpu = where == "cuda" and precision != "fp16" and device_of.capability() not in OWN_ON
    if engine == "auto" and find_spec("torch") and (lacks or (other_gpu and _torch_sees_gpu())):
        say(f"engine torch trains: {lacks or ON_GPUS}")
        found = _torch(device, precision, compiled)
        if unusable is not None and found.device == "cpu":
            warn("the CPU trains: this PyTorch sees no GPU")
        return found
    missing = "" if find_spec("torch") else f" ({pip_install('torch')})"
    if unusable and device == "auto":
        warn(f"the CPU trains: {lacks}; engine torch{missing} may use this GPU")
        lacks = _lacks(where, precision, mixup, sparse, compiled, config)
    if lacks:
        helps = (unusable and device == "cuda") or (
            where == "cuda" and not _lacks("cpu", precision, mixup, sparse, compiled, config)
        )
        cpu = "device cpu, or " if helps else ""
        raise ValueError(f"{lacks}: need {cpu}engine torch{missing}")
    return OwnEngine(where, PRECISIONS[where][0] if precision == "auto" else precision)


def _lacks(where: str, precision: str, mixup: float, sparse: str, compiled: bool, config: Config | None) -> str:
    """What own kernels are asked for on this device, and do not have; "" for nothing."""
    if mixup:
        return f"mixup={mixup:g}, which own kernels lack"
    if sparse and where == "cuda":
        return f"sparse={sparse}, which own kernels lack on a GPU"
    if config is not None and where == "cuda" and not multiples(config, WIDTH):
        return f"channels and units that are not all multiples of {WIDTH}, which own kernels lack on a GPU"
    if compiled:
        return "compile: own kernels have no torch.compile"
    if precision not in ("auto", *PRECISIONS[where]):
        return f"precision {precision}, and own kernels have {' and '.join(PRECISIONS[where])} on {where}"
    return ""


def _torch_sees_gpu() -> bool:
    return bool(with_torch.module("pytorch", "engine torch").torch.cuda.is_available())


def _torch(device: str, precision: str, compiled: bool) -> TrainingEngine:
    if precision == "fp16":
        raise ValueError("precision fp16: engine torch has bf16 and float32; engine own has it on a GPU")
    found: TrainingEngine = with_torch.module("pytorch", "engine torch").TorchEngine(device, precision, compiled)
    return found
