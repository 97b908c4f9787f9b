"""The blocks of docs/where-others-are-better.md: each case of a raw result where another library is ahead of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from report import attention, bert, few_rows, gemm, images, networks, training
from report.limits import FINEST_FIRST, best_peer, called, peer_rows
from report.markdown import anchor, sources, table
from report.schema import RESULTS, ReportError, machine_called, read, results

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One comparison of a raw result: the best of ours, relative to the best of the others."""

    host: str
    what: str
    peer: str
    ours: float
    theirs: float
    file: Path

    @property
    def ratio(self) -> float:
        """Our rate relative to theirs, as it is printed."""
        return round(self.ours / self.theirs, 2)


def _best(rows: Iterable[Row], rate: Callable[[Row], float]) -> Row | None:
    return max(rows, key=rate, default=None)


def _cases(
    file: Path, raw: Row, rows: Iterable[Row], key: Callable[[Row], str], own: Callable[[Row], bool],
    peer: Callable[[Row], str], rate: Callable[[Row], float],
) -> Iterator[Case]:  # fmt: skip
    """Of the rows of each key the best of ours and the best other one; nothing where either is missing."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    for what, of in found.items():
        ours, theirs = (_best((row for row in of if own(row) is mine), rate) for mine in (True, False))
        if ours and theirs:
            yield Case(machine_called(raw["machine"]), what, peer(theirs), rate(ours), rate(theirs), file)


def _rate(row: Row) -> float:
    return 1 / float(row["microseconds"])


def _tflops(row: Row) -> float:
    return float(row["tflop_per_second"])


def _made(row: Row) -> str:
    return str(row["made"])


def _gemm() -> Iterator[Case]:
    for file, raw in results().gemm.items():
        rows = [row for row in raw["gemm"] if row["precision"] in ("fp16", "bf16")]
        yield from _cases(
            file, raw, rows, lambda row: f"{' × '.join(f'{n:,}' for n in row['shape'].values())}, {row['precision']}",
            lambda row: not row["made"].startswith(gemm.THEIRS), lambda row: gemm.THEIRS, _tflops,
        )  # fmt: skip


def _attention() -> Iterator[Case]:
    for file, raw in results().attention.items():
        yield from _cases(
            file, raw, raw["attention"],
            lambda row: "S = {positions:,}, N = {n}, {heads} × {depth}, ".format(**row["shape"]) + row["precision"],
            lambda row: row["made"] in attention.OWN, _made, _tflops,
        )  # fmt: skip


def _bert() -> Iterator[Case]:
    """In float32 on a CPU and in fp16 on a GPU; integers of ONNX Runtime are less accurate than either."""
    for file, raw in results().bert.items():
        rows = [row for row in raw["bert"] if row["precision"] in ("fp32", "fp16", "bf16")]
        yield from _cases(
            file, raw, rows,
            lambda row: "{variant}, N = {n}, {tokens} tokens".format(**row["case"])
            + (" at most" if row["case"]["least"] else "") + f", {row['precision']}",
            lambda row: row["made"] in bert.OWN, _made, _rate,
        )  # fmt: skip


def _layers() -> Iterator[Case]:
    """Relative to cuDNN; to cuBLAS where that has none."""
    for file, raw in results().layers.items():
        rows = [row for row in raw["layers"] if row["layer"] not in ("between", "peak", "conv1")]
        convolved = {(row["layer"], row["precision"]) for row in rows if row["made"] == "cuDNN"}
        rows = [row for row in rows if row["made"] != "cuBLAS" or (row["layer"], row["precision"]) not in convolved]
        yield from _cases(
            file, raw, rows, lambda row: f"{row['layer']}, {row['precision']}", lambda row: "level" in row, _made,
            _tflops,
        )  # fmt: skip


def _images() -> Iterator[Case]:
    for file, raw in results().convolutions["conv2d"].items():
        rows = [row for row in raw["convolutions"] if row["precision"] in images.PEERS and row["made"] != "cuBLAS"]
        yield from _cases(
            file, raw, rows, lambda row: f"{row['shape']}, N = {row['batch']}, {images.PEERS[row['precision']]}",
            lambda row: images.prepared(row["made"]), _made, _tflops,
        )  # fmt: skip
    for file, raw in results().convolutions["conv2d_cpu"].items():
        yield from _cases(
            file, raw, raw["convolutions"], lambda row: f"{row['shape']}, N = {row['batch']}",
            lambda row: not row["made"].startswith("PyTorch"), _made, _rate,
        )  # fmt: skip


def _levels() -> Iterator[Case]:
    """The network at each precision, held against arithmetic no coarser; of several runs the one of fewest batches."""
    found: dict[tuple[str, int, str], tuple[int, Case]] = {}
    for file, raw in results().peers.items():
        runs = (raw, *raw.get("earlier", []))
        batches = [batch for run in runs for batch in run["batches"]]
        for batch in batches:
            for at, precision in enumerate(FINEST_FIRST, 1):
                rows = [row for row in peer_rows(raw, batch) if row.get("level")]
                rows = [row for row in rows if called(row["precision"]) in FINEST_FIRST[:at]]
                ours, peer = _best(rows, _inputs), best_peer(file, precision, batch)
                if ours and peer and called(peer.precision) == precision:
                    host = machine_called(raw["machine"])
                    case = Case(
                        host, f"N = {batch:,}, {precision}", peer.title, _inputs(ours), peer.inputs_per_second, file
                    )
                    key = host, batch, precision
                    found[key] = min(found.get(key, (99, case)), (len(batches), case), key=lambda one: one[0])
    return (case for _, case in found.values())


def _inputs(row: Row) -> float:
    return float(row["inputs_per_second"])


def _networks() -> Iterator[Case]:
    for file, raw in results().networks.items():
        yield from _cases(
            file, raw, [row for row in raw["networks"] if row["within_tolerance"]],
            lambda row: f"{row['network']}, N = {row['batch']:,}", lambda row: row["level"],
            lambda row: next(name for name in networks.LIBRARIES if row["title"].startswith(name)), _inputs,
        )  # fmt: skip


CALLS = {
    "relu_naive": "torch.clamp(out=)",
    "softmax_naive": "torch softmax",
    "maxpool1d_naive": "torch max_pool1d",
    "linear_naive": "torch linear",
    "WgmmaConv fc2": "torch linear",
    "DoubleBufferedConv fc2": "torch linear",
    "conv1d_naive": "torch conv1d",
    "WgmmaConv conv3": "torch conv1d",
    "WinogradConv conv3": "torch conv1d",
    "conv1d_nlc_winograd": "torch conv1d",
}
"""Calls of ours, and PyTorch's that compute such a layer."""


def _calls() -> Iterator[Case]:
    for file, raw in results().calls.items():
        spent = {(row["name"], row["arrays"]): row["microseconds"] for row in raw["calls"]}
        for own, theirs in CALLS.items():
            host, what = machine_called(raw["machine"]), f"`{own}`"
            yield Case(host, what, theirs, 1 / spent[own, "PyTorch"], 1 / spent[theirs, "PyTorch"], file)


def _exchanges() -> Iterator[Case]:
    for file, raw in results().collectives.items():
        yield from _cases(
            file, raw, raw["collectives"],
            lambda row: f"{row['made'].split()[0]} of {row['bytes']:,} bytes", lambda row: "NCCL" not in row["made"],
            lambda row: "NCCL", _rate,
        )  # fmt: skip


def _shared() -> Iterator[Case]:
    for schema in ("shared_layers", "shared_networks"):
        for file, raw in getattr(results(), schema).items():
            rows = [row for row in raw[schema] if not row["made"].startswith("stages")]
            for case in _cases(file, raw, rows, _shared_case, lambda row: row["made"] != "one GPU", _made, _rate):
                yield replace(case, host=f"{raw['ranks']} × {case.host}")


def _shared_case(row: Row) -> str:
    if "tokens" in row:
        return f"BERT {row['variant']}, {row['n']} × {row['tokens']} tokens"
    return f"{row['network']} as {row['technique']} in {row['precision']}, N = {row['batch']:,}"


def _training() -> Iterator[Case]:
    file = RESULTS / "training" / "nvidia-h200.json"
    for run in read(file)["runs"]:
        yield from _cases(
            file, run, run["rows"], lambda row: f"{row['batch']:,} rows a step", lambda row: row["level"],
            lambda row: row["title"], training.rate,
        )  # fmt: skip


def _texts() -> Iterator[Case]:
    """Ways to label short texts: the best of each figure, from bench/compare.py."""
    file = RESULTS / "designs" / "cpu-2-cores-compare.json"
    raw = read(file)
    rates: dict[str, Callable[[Row], float]] = {
        "texts a second": lambda way: float(way["texts_per_second"]),
        "bytes of a model": lambda way: 1 / float(way["bytes"]),
        **{f"right, {float(share):.0%} changed": lambda way, share=share: float(way["accuracy"][share])
           for share in raw["ways"][0]["accuracy"]},
    }  # fmt: skip
    for what, rate in rates.items():
        yield from _cases(
            file, raw, raw["ways"], lambda way, what=what: what, lambda way: way["way"].startswith("charcnn"),
            lambda way: way["way"], rate,
        )  # fmt: skip


def _few() -> Iterator[Case]:
    for host, what, ours, theirs in few_rows.cases():
        yield Case(host, what, "linear model on characters", ours, theirs, few_rows.FILE)


FAMILIES: dict[str, tuple[str, Callable[[], Iterator[Case]]]] = {
    "levels": ("The text network", _levels),
    "layers": ("Its layers alone", _layers),
    "images": ("Convolutions", _images),
    "gemm": ("Matrix products", _gemm),
    "attention": ("Attention", _attention),
    "bert": ("BERT", _bert),
    "networks": ("Networks of images", _networks),
    "calls": ("One call from Python", _calls),
    "exchanges": ("Collectives of two GPUs", _exchanges),
    "shared": ("One input on several GPUs", _shared),
    "training": ("Training steps", _training),
    "texts": ("Labels for short texts", _texts),
    "few": ("Few rows to learn from", _few),
}
"""Kinds of comparisons: the page's heading, and what finds the cases."""


def behind(document: Path, name: str) -> str:
    """The cases of a kind where another library is ahead, the worst first; `all`: a row for each kind.

    Raises:
        ReportError: no kind is called so.
    """
    if name == "all":
        return _overview()
    if name not in FAMILIES:
        raise ReportError(f"{document.name}: nothing is compared as {name}: need all or one of {', '.join(FAMILIES)}")
    every = list(FAMILIES[name][1]())
    lost = sorted((case for case in every if case.ratio < 1), key=lambda case: case.ratio)
    cells = [[case.host, case.what, case.peer, f"{case.ratio:.2f}"] for case in lost]
    shown = table(["on", "case", "best other", "ours, × its"], cells, right=3) if cells else ""
    files = dict.fromkeys(case.file for case in (lost or every))
    told = f"Behind in {len(lost)} of {len(every)} cases.\n"
    return "\n".join(filter(None, (told, shown))) + sources(document, files)


def _overview() -> str:
    cells = []
    for title, cases in FAMILIES.values():
        every = list(cases())
        worst = min(every, key=lambda case: case.ratio)
        lost = sum(case.ratio < 1 for case in every)
        least = [f"{worst.ratio:.2f}", worst.peer] if lost else ["–", "–"]
        cells.append([f"[{title}](#{anchor(title)})", str(len(every)), str(lost), *least])
    return table(["what", "cases", "behind", "least, ours × theirs", "by"], cells, right=1)
