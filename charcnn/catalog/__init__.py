"""The table of operators, their variants, layers and levels. Everything that lists them enumerates this one.

Rows stand in the order of the story. A new variant is a launch and a row of `charcnn/ops/table.py`; a
new level is a file under charcnn/levels and a row of LEVELS. A kernel loads when it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from importlib import import_module
from pathlib import Path
from types import ModuleType

from charcnn.catalog.encoders import ENCODER_TECHNIQUES as ENCODER_TECHNIQUES
from charcnn.catalog.encoders import ENCODERS as ENCODERS
from charcnn.catalog.encoders import EncoderTechnique as EncoderTechnique
from charcnn.catalog.encoders import encoder as encoder
from charcnn.catalog.encoders import encoder_technique as encoder_technique
from charcnn.catalog.networks import NETWORK_TECHNIQUES as NETWORK_TECHNIQUES
from charcnn.catalog.networks import NETWORKS as NETWORKS
from charcnn.catalog.networks import NetworkTechnique as NetworkTechnique
from charcnn.catalog.networks import fused_technique as fused_technique
from charcnn.catalog.networks import network as network
from charcnn.catalog.networks import network_technique as network_technique
from charcnn.catalog.programs import PRECISIONS as PRECISIONS
from charcnn.catalog.programs import Program as Program
from charcnn.host.terminal import runs
from charcnn.ops.layers import ALL, DOT, SPARSE, TOOM_COOK
from charcnn.ops.layers import IMAGE_LAYERS as IMAGE_LAYERS
from charcnn.ops.layers import LAYERS as LAYERS
from charcnn.ops.layers import LayerRow as LayerRow
from charcnn.ops.layers import layer_name as layer_name
from charcnn.ops.operator_row import EXACT as EXACT
from charcnn.ops.operator_row import FLOAT32 as FLOAT32
from charcnn.ops.operator_row import Operator as Operator
from charcnn.ops.operators import CHAIN as CHAIN
from charcnn.ops.operators import IMAGE_CHAIN as IMAGE_CHAIN
from charcnn.ops.operators import OPERATORS as OPERATORS
from charcnn.ops.table import UNSCALED as UNSCALED
from charcnn.ops.table import VARIANTS as VARIANTS
from charcnn.ops.table import Variant as Variant
from charcnn.ops.table import operator as operator
from charcnn.ops.table import tolerance as tolerance
from charcnn.ops.techniques import TECHNIQUES as TECHNIQUES

DIFFERENCE = 60
"""Lines that a step takes away or adds, at most, that a reader follows at a glance."""


@dataclass(frozen=True)
class Module(Program):
    """What has a file in `charcnn/levels`, which runs as `python -m charcnn.levels.NAME`."""

    @property
    def module(self) -> ModuleType:
        """The level's module, imported."""
        return import_module(f"charcnn.levels.{self.name}")

    @property
    def title(self) -> str:
        """What the step is."""
        return str(self.module.TITLE)


@dataclass(frozen=True)
class Level(Module):
    """One step of the history: `python -m charcnn.levels.NAME`."""

    original: float | None = None
    """Inputs/s of the original program at this step, as its document has them; None where it has none."""
    after: str | None = None
    """The level that it builds on; None: that of the row before."""
    gathered: bool = False
    """Whether its first convolution adds up rows of its weights, and multiplies nothing."""
    small_batches: bool = False
    """Whether a few inputs are computed by layers of their own, spread over the whole GPU."""
    differs: str | None = None
    """Why its file differs from that level's by more than DIFFERENCE lines."""
    tuned: tuple[str, str] | None = None
    """Techniques of its convolutions and of its linear layers, of those whose tiles can be chosen."""

    @property
    def family(self) -> Sequence[Level]:
        """All levels."""
        return LEVELS

    @staticmethod
    def names_of(rows: Sequence[Level]) -> str:
        """With ranges."""
        return level_ranges(rows)

    @property
    def predecessor(self) -> Level | None:
        """The level that it builds on; None of the first."""
        if self.after is not None:
            return level(self.after)
        place = LEVELS.index(self)
        return LEVELS[place - 1] if place else None

    def difference(self) -> list[str]:
        """Its file beside its predecessor's, as a unified diff, without line ends; nothing of the first."""
        if self.predecessor is None:
            return []
        files = [Path(__file__).parents[1] / "levels" / f"{name}.py" for name in (self.predecessor.name, self.name)]
        old, new = (file.read_text(encoding="utf-8").splitlines() for file in files)
        return list(unified_diff(old, new, files[0].name, files[1].name, lineterm=""))


@dataclass(frozen=True)
class TrainingLevel(Module):
    """One step of the history of training, which builds on the one before."""

    ranks: bool = False
    """Whether several ranks train together, which mpiexec starts."""

    @property
    def family(self) -> Sequence[TrainingLevel]:
        """All levels that train."""
        return TRAINING_LEVELS


LEVELS = (
    Level("l0", "cpu", 2.12),
    Level("l1", "cpu", 8.33),
    Level("l2", "cpu", 7.86),
    Level("l3", "cuda", 12.76, gpus=1),
    Level("l4", "cuda", 165.00, gpus=1),
    Level("l5", "cuda", 555.00),
    Level("l6", "cuda", 727.20),
    Level("l7", "cuda", differs="streams, pinned buffers and threads come at once: each alone overlaps nothing"),
    Level("l8", "cuda", differs="all that ran on the CPU goes to the GPU, and with it the CPU's stages"),
    Level("l9", "cuda"),
    Level("l10", "cuda"),
    Level("l11", "cpu", gathered=True, after="l2", differs="every operator is another one"),
    Level("l12", "cuda", after="l10", copies=True, tuned=("double_buffered",) * 2,
          differs="from here on a level lists layers, and no longer spells each call"),
    Level("l13", "cuda", gathered=True, copies=True, filtered=True, tuned=("winograd", "double_buffered")),
    Level("l14", "cuda", gathered=True, precisions=ALL, ampere=True, turing=True, tuned=("mma", "mma")),
    Level("l15", "cuda", gathered=True, precisions=UNSCALED, hopper=True, tuned=("wgmma", "wgmma")),
    Level("l16", "cuda", gathered=True, precisions=UNSCALED, hopper=True, small_batches=True, tuned=("wgmma", "wgmma")),
    Level("l17", "cuda", gathered=True, precisions=("fp8",), hopper=True, small_batches=True, tuned=("wgmma", "wgmma")),
    Level("l18", "cpu", gathered=True, filtered=True, after="l11"),
    Level("l19", "cuda", gathered=True, after="l16", precisions=TOOM_COOK, hopper=True, toom_cook=True,
          small_batches=True, tuned=("wgmma", "wgmma")),
    Level("l20", "cpu", gathered=True, after="l11", precisions=DOT,
          differs="a layer has a precision, and says what it stores"),
    Level("l21", "cuda", gathered=True, after="l14", precisions=ALL, ampere=True, turing=True, small_batches=True,
          tuned=("mma", "mma")),
    Level("l22", "cuda", gathered=True, after="l19", precisions=SPARSE, hopper=True, sparse=True, small_batches=True),
)  # fmt: skip


TRAINING_LEVELS = (
    TrainingLevel("t0", "cpu"),
    TrainingLevel("t1", "cuda", gpus=1),
    TrainingLevel("t2", "cuda", gpus=1, precisions=("bf16",), ampere=True),
    TrainingLevel("t3", "cuda", gpus=1, precisions=("bf16",), hopper=True),
    TrainingLevel("t4", "cuda", gpus=1, precisions=("bf16",), hopper=True),
    TrainingLevel("t5", "cpu", ranks=True, mixed=True),
    TrainingLevel("t6", "cpu", ranks=True, mixed=True),
    TrainingLevel("t7", "cpu", ranks=True, mixed=True),
    TrainingLevel("t8", "cpu", ranks=True, mixed=True),
    TrainingLevel("t9", "cpu", ranks=True, mixed=True),
)


def training_level(name: str) -> TrainingLevel:
    """The row of a level that trains."""
    return next(row for row in TRAINING_LEVELS if row.name == name)


def level(name: str) -> Level:
    """The level's row."""
    return next(row for row in LEVELS if row.name == name)


def level_ranges(levels: Sequence[Level]) -> str:
    """Their names, three or more in a row as a range: "l0 to l13, l15 and l16"; "no level" of none."""
    found = runs(int(row.name[1:]) for row in levels)
    names = [
        name
        for first, last in found
        for name in ([f"l{first} to l{last}"] if last > first + 1 else [f"l{k}" for k in range(first, last + 1)])
    ]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else "no level"
