"""Which files hold blocks, which function fills which block, and the command."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from charcnn.files import replacing
from charcnn.ops.functions import stub
from report.amx import amx
from report.attention import attention
from report.backends import backends, backends_beside
from report.behind import behind
from report.bert import bert
from report.calls import calls
from report.cards import cards, portable
from report.checks import agreement, dram, gpus, precisions, sanitizer, validation
from report.claims import layer_costs, op_times, op_times_here, training_memory
from report.classify import accuracy, classify, compared, engines, training
from report.code import change, code
from report.collectives import collectives
from report.energy import energy_bytes, energy_operations
from report.few_rows import few_rows
from report.fused import fused_alexnet
from report.gemm import gemm
from report.host_bytes import host_bytes
from report.ideas import ideas
from report.images import conv2d, conv2d_cpu
from report.ladder import READMES, mma_steps, wgmma_steps
from report.levels import cost, headline, history, levels, measured, step
from report.loss_curves import loss_curves
from report.matrix import matrix
from report.measured import SHIPPED
from report.networks import fused_layers, half_chain, network_techniques, networks, networks_beside
from report.offload import forecasts, mixed, overhead, path, ranks, scaling, strikes, whole
from report.operators import chain, image_chain, layers, operators, pyramid, steps, trade
from report.parallel import parallel, parted
from report.peers import beside, peers
from report.pictures import PICTURES
from report.plot import PLOT, TALL, drawn, drawn_tall
from report.schema import ROOT, WEIGHTS, ReportError
from report.sparse import sparse_conv3, sparse_level, sparse_products, sparse_weights, texts_a_joule
from report.training import training_ranks, training_steps
from report.tried import tried

BLOCK = re.compile(r"(<!-- (\w+):begin ?([^\n]*?) ?-->\n).*?(<!-- \2:end -->)", re.DOTALL)

_BLOCKS = (
    headline, levels, measured, history, step, cost, change, code, precisions, validation, operators, steps, chain,
    image_chain, pyramid, trade, dram, beside, peers, layers, conv2d, conv2d_cpu, mma_steps, wgmma_steps, sanitizer,
    scaling, ranks, mixed, path, strikes, overhead, forecasts, classify, agreement, accuracy, training, layer_costs,
    op_times, op_times_here, networks, network_techniques, networks_beside, fused_layers, half_chain, parted, bert,
    gemm, amx, attention, compared, parallel, fused_alexnet, ideas, calls, tried, gpus, engines, cards, portable,
    few_rows, collectives, whole, training_memory, training_steps, host_bytes, sparse_conv3, sparse_level,
    sparse_products, sparse_weights, training_ranks, energy_operations, energy_bytes, loss_curves,
    backends, backends_beside, texts_a_joule, behind, matrix,
)  # fmt: skip
KINDS = {kind.__name__: kind for kind in _BLOCKS}

STUB = ROOT / "charcnn" / "ops" / "__init__.pyi"
"""What editors show of the operators."""


def documents() -> list[Path]:
    """The files that may hold blocks."""
    pages = [page for folder in (".", "deploy", "levels") for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *pages,
        WEIGHTS / "README.md",
        WEIGHTS.parent / "README.md",
        *READMES,
    ]


def filled(document: Path) -> str:
    """The document's text with every block written anew.

    Raises:
        ReportError: a block's kind, arguments or end are wrong.
    """

    def fill(match: re.Match[str]) -> str:
        begin, kind, arguments, end = match.groups()
        if kind not in KINDS:
            raise ReportError(f"{document.name}: no block is called {kind}: need one of {', '.join(KINDS)}")
        return begin + KINDS[kind](document, *arguments.split()) + end

    text = document.read_text(encoding="utf-8")
    result = BLOCK.sub(fill, text)
    if (begun := text.count(":begin")) != (whole := len(BLOCK.findall(text))):
        raise ReportError(f"{document.name}: {begun} blocks begin, and {whole} of them end")
    return result


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description="Fill the generated blocks of README.md, docs and the model's card, draw the pictures, and write "
        "the operators' stub and the raw results that ship."
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit status 1 if something is out of date"
    )
    check = parser.parse_args().check
    try:
        made = {document: filled(document) for document in documents()} | {PLOT: drawn(), TALL: drawn_tall()}
        made |= {file: make() for file, make in {**PICTURES, **SHIPPED, STUB: stub}.items()}
    except ReportError as error:
        print(error, file=sys.stderr)
        return 1
    stale = [file for file, text in made.items() if not file.exists() or file.read_text(encoding="utf-8") != text]
    names = ", ".join(str(file.relative_to(ROOT)) for file in stale)
    if check and stale:
        print(f"out of date: {names}; run python bench/report.py", file=sys.stderr)
        return 1
    for file in stale:
        with replacing(file, "w") as out:
            out.write(made[file])
    print(f"written: {names}" if stale else "up to date")
    return 0
