"""The block of a transformer's operators by how they are computed: cells say what fills them, or why nothing does."""

from __future__ import annotations

from pathlib import Path

from charcnn.catalog import CHAIN, IMAGE_CHAIN, VARIANTS
from charcnn.ops.techniques import CPU
from report.markdown import table
from report.schema import ReportError

STRONG = {
    "one_hot_conv1d": {"cpu_gather"},
    CHAIN: {"whole", "pairs"},
    IMAGE_CHAIN: {"whole", "tiles", "rolling"},
    "layernorm_relu_maxpool1d": {"naive"},
    "linear_relu_linear": {"naive"},
    "linear_gelu_linear": {"naive"},
    "embedding_rownorm": {"naive", "vectorized"},
    "linear_softmax": {"naive"},
    "linear_argmax": {"naive"},
}
MATRIX: dict[str, tuple[list[str], list[str]]] = {
    "conv1d": (["conv1d_relu", "conv1d_stat", "conv1d_relu_maxpool1d"], [CHAIN, "one_hot_conv1d"]),
    "layernorm": (["layernorm_relu"], ["layernorm_relu_maxpool1d"]),
    "relu": (
        ["conv1d_relu", "linear_relu", "layernorm_relu", "relu_maxpool1d", "conv2d_relu", "batchnorm2d_relu"],
        [name for name in STRONG if "relu" in name],
    ),
    "maxpool1d": (["relu_maxpool1d", "conv1d_relu_maxpool1d"], ["layernorm_relu_maxpool1d"]),
    "linear": (
        ["collapse_linear", *(f"linear_{of}" for of in ("relu", "tanh", "gelu", "sigmoid", "leaky_relu", "maxout"))],
        ["linear_relu_linear", "linear_gelu_linear"],
    ),
    "one_hot": ([], ["one_hot_conv1d"]),
    "collapse": (["collapse_linear"], []),
    "softmax": ([], ["linear_softmax"]),
    "embedding": ([], ["embedding_rownorm"]),
    "rownorm": (["add_rownorm"], ["embedding_rownorm"]),
    **{f"{name}_backward": ([f"relu_{name}_backward"], []) for name in ("conv1d", "linear", "maxpool1d")},
    "argmax": ([], ["linear_argmax"]),
    "conv2d": (
        [f"conv2d_{of}" for of in ("relu", "tanh", "sigmoid", "leaky_relu", "relu_maxpool2d", "relu_global_avgpool2d")],
        [IMAGE_CHAIN],
    ),
    "tanh": (["conv2d_tanh", "linear_tanh", "conv2d_tanh_maxpool2d"], []),
    "gelu": (["linear_gelu"], ["linear_gelu_linear"]),
    "sigmoid": (["conv2d_sigmoid", "linear_sigmoid"], []),
    "leaky_relu": (["conv2d_leaky_relu", "linear_leaky_relu"], []),
    "maxout": (["linear_maxout"], []),
    "batchnorm2d": (["batchnorm2d_relu"], []),
    "maxpool2d": (["conv2d_relu_maxpool2d", "conv2d_tanh_maxpool2d"], [IMAGE_CHAIN]),
    "global_avgpool2d": (["conv2d_relu_global_avgpool2d"], []),
}
"""By operator that others are fused of: its weak fusions, its strong ones."""

COLUMNS = ("loops", "CPU cores", "naive", "wide loads", "weak", "strong", "mma", "wgmma")
"""How an operator is computed, beside its reference."""

TRANSFORMER = (
    "embedding", "rownorm", "softmax", "argmax", "linear", "linear_gelu_linear", "attention", "packed_attention",
)  # fmt: skip
"""Its operators, each with the one on packed weights."""

HOLDS = {"row_blocks": "weak", "flash": "strong", "double_buffered": "wide loads", "wgmma_sparse": "wgmma"}
"""Where techniques stand that are no column, nor a CPU's."""

NOTHING = "nothing is multiplied"
ROWS = f"{NOTHING}; between products of 16 and 8 bits: `ops.encoder.rows`"
APART = "as `attention`, of heads that `ops.encoder.packing` turns apart"
NOTES = {
    ("embedding", "weak"): "three rows are summed in it already",
    **{(name, column): ROWS for name in ("embedding", "rownorm") for column in ("mma", "wgmma")},
    ("softmax", "weak"): "`attention_row_blocks`, behind the scores",
    **{("softmax", column): f"{NOTHING}; between two products: `attention_{column}`" for column in ("mma", "wgmma")},
    ("argmax", "weak"): "a label needs the whole row",
    **{("argmax", column): NOTHING for column in ("mma", "wgmma")},
    ("linear_gelu_linear", "loops"): "`linear_loops`, `gelu_loops`, `linear_loops`",
    ("linear_gelu_linear", "weak"): "`linear_gelu`, then `linear`",
    ("linear_gelu_linear", "strong"): "`linear_gelu_linear_naive`: what is between stays in shared memory",
    ("attention", "wide loads"): "its scores are products: `flash`",
    ("packed_attention", "wide loads"): "its scores are products",
    **{("packed_attention", column): APART for column in ("weak", "strong", "mma")},
}
"""What stands in cells that no row of the table fills."""


def matrix(document: Path) -> str:
    """A transformer's operators by how they are computed.

    Raises:
        ReportError: a cell has nothing in it and no note, or a note and something.
    """
    rows = [[f"`{name}`", *(_cell(name, column) for column in COLUMNS)] for name in TRANSFORMER]
    return table(["operator", *COLUMNS], rows, 99)


def _cell(name: str, column: str) -> str:
    said: dict[str, list[str]] = {}
    for row in VARIANTS:
        if row.operator in (name, f"{name}_nlc") and _column(row.technique) == column:
            said.setdefault(row.function, []).extend([row.precision] if row.precision else [])
    filled = [f"`{function}`" + f" ({', '.join(of)})" * bool(of) for function, of in said.items()]
    if column in ("weak", "strong"):
        fused = MATRIX.get(name, ([], []))[column == "strong"]
        filled += [f"`{of}`" for of in fused]
    note = NOTES.get((name, column))
    if bool(filled) == bool(note):
        raise ReportError(f"{name}, {column}: {'a note beside ' + filled[0] if filled else 'nothing, and no note'}")
    return note or ", ".join(filled)


def _column(technique: str) -> str:
    if technique in CPU and technique != "loops":
        return "CPU cores"
    return HOLDS.get(technique, "wide loads" if technique == "vectorized" else technique)
