"""Blocks of docs/classify.md and of the model's card: from file to file, and what the models that ship reached."""

from __future__ import annotations

import os
import shlex
from functools import cache
from pathlib import Path

import numpy as np

from charcnn.model import params, shipped
from charcnn.training.measure import Measured
from report.markdown import UNMEASURED, number, table
from report.schema import RESULTS, WEIGHTS, ReportError, machine_called, read, results

FORMATS = {"csv": "CSV", "jsonl": "JSON Lines", "parquet": "Parquet"}


def classify(document: Path) -> str:
    """File to labelled file: what ran, how fast, what bounded it."""
    if not results().classified:
        return UNMEASURED + "\n"
    head = [
        "machine",
        "file",
        "level",
        "precision",
        "encoded by",
        "rows",
        "rows/s",
        "the level alone",
        "fullest stage",
        "memory",
        "first label",
    ]
    rows = []
    for file, raw in results().classified.items():
        said, level, first = raw["command"], raw["level_rows_per_second"], raw["first_label_seconds"]
        link = os.path.relpath(file, document.parent)
        where = machine_called(raw["machine"])
        alone = "–" if level is None else f"{number(level)} ({said['rows_per_second'] / level:.0%})"
        rows.append(
            [
                f"[{where}]({link})",
                FORMATS[raw.get("format", "csv")],
                "none: logits are zeros" if raw["files_alone"] else said["level"],
                "–" if raw["files_alone"] else said["precision"],
                {"cpu": "the CPU", "gpu": "the GPU"}[said["encode_on"]],
                f"{said['rows']:,}",
                number(said["rows_per_second"]),
                alone,
                f"{said['bound']}, {said['busy'][said['bound']]:.0%} of the time",
                f"{said['peak_resident_bytes'] / 1e6:,.0f} MB" if said["peak_resident_bytes"] else "–",
                f"{min(first['later']):.1f} s" if first and first["later"] else "–",
            ]
        )
    return table(head, rows, right=5)


ENGINES = {
    "classify": "`charcnn classify`",
    "mpiexec": "`mpiexec -n 2 charcnn classify`",
    "processes": "processes, by spawn",
    "dask": "Dask",
    "ray": "Ray Data",
    "spark": "Spark",
}


def engines(document: Path) -> str:
    """The programs of docs/engines.md beside one process, with a network of next to no work and with `accurate`."""
    file = RESULTS / "designs" / "cpu-2-cores-engines.json"
    runs = {(run["network"], run["engine"]): run for run in read(file)["runs"]}
    if wrong := [run["engine"] for run in runs.values() if run["labels_that_differ"]]:
        raise ReportError(f"{file.name}: labels differ: {', '.join(wrong)}")
    head, alone = ["rows/s, start to end"], {name: runs[name, "classify"] for name in ("TINY", "as shipped")}
    for name, said in (("TINY", "a tiny network"), ("as shipped", "`accurate`")):
        if len(counts := {run["rows"] for (network, _), run in runs.items() if network == name}) > 1:
            raise ReportError(f"{file.name}: {name} has runs of {sorted(counts)} rows: need one number")
        head.append(f"{said}, {alone[name]['rows']:,} rows")
    rows = []
    for engine, label in ENGINES.items():
        rates = [(runs[name, engine]["rows_per_second"], one["rows_per_second"]) for name, one in alone.items()]
        rows.append([label, *(f"{number(rate)} ({rate / one:.0%})" for rate, one in rates)])
    where, level = machine_called(alone["TINY"]["machine"]), alone["as shipped"]["level"]
    return table(head, rows, right=1) + f"\n{where}; {level}. [Raw result]({os.path.relpath(file, document.parent)}).\n"


def compared(document: Path) -> str:
    """charcnn's models beside other ways to label short texts, from bench/compare.py."""
    file = RESULTS / "designs" / "cpu-2-cores-compare.json"
    result = read(file)
    shares = [share for share in result["ways"][0]["accuracy"] if share != "0"]
    head = ["way", "right", *(f"{float(share):.0%} of characters changed" for share in shares)]
    rows = []
    for way in result["ways"]:
        seconds = way["training_s"]
        rows.append(
            [
                way["way"],
                *(f"{100 * way['accuracy'][share]:.2f} %" for share in ("0", *shares)),
                number(way["texts_per_second"]),
                f"{way['bytes'] / 1e6:,.1f} MB",
                "on a GPU" if seconds is None else f"{seconds:,.0f} s",
            ]
        )
    count = result["ways"][0]["rows"]
    where = os.path.relpath(file, document.parent)
    left = "".join(
        f" Left out: {way} ({why.split(': ')[-1].split(';')[0]})." for way, why in result["left_out"].items()
    )
    return (
        table([*head, "texts/s", "size", "training"], rows, right=1)
        + f"\n{count:,} texts; {machine_called(result['machine'])}. [Raw result]({where}).{left}\n"
    )


def accuracy(document: Path, name: str, part: str) -> str:
    """What a model that ships, "fast" or "accurate", reached on a part of the rows, "validation" or "test"."""
    model = _shipped(name)
    if part not in model.metadata:
        raise ReportError(f"{document.name}: the model says nothing of its {part} rows")
    assert model.classes is not None
    measured = Measured(np.array(model.metadata[part]["confusion"]), 0.0)
    low, high = measured.interval
    rows = []
    for index, (name, counts) in enumerate(zip(model.classes, measured.confusion, strict=True)):
        wrong = counts.copy()
        wrong[index] = 0
        recall, precision = measured.recalls[index], measured.precisions[index]
        mistaken = f"{model.classes[int(wrong.argmax())]} ({wrong.max()})"
        rows.append([name, f"{counts.sum():,}", f"{recall:.1%}", f"{precision:.1%}", mistaken])
    error = model.metadata[part].get("calibration_error")
    calibrated = "" if error is None else f" Expected calibration error {error:.4f} (15 bins)."
    return (
        f"Right for {np.trace(measured.confusion):,} of {measured.confusion.sum():,} {part} rows, "
        f"**{measured.accuracy:.2%}**, 95 % interval {low:.2%} to {high:.2%} (Wilson).{calibrated}\n\n"
        + table(["class", "rows", "recall", "precision", "most often taken for"], rows, right=1)
    )


def training(document: Path, name: str) -> str:
    """How a model that ships was trained."""
    model = _shipped(name)
    said = model.metadata["training"]
    words = [*shlex.split(said["command"]), "--out", shipped.FILES[name]]
    lines = [""]
    for word in words:  # an option and its value share a line
        if len(lines[-1]) + len(word) > 90 and word.startswith("--"):
            lines.append(" ")
        lines[-1] += f" {shlex.quote(word)}" if lines[-1] else word
    spelled = " \\\n".join(lines)
    more = ""
    if said.get("teachers"):
        taught = said["teachers"]
        if "count" in taught:
            who = f"{taught['count']} teachers of {taught['epochs']} epochs each"
        elif "files" in taught:
            who = f"the answers of {', '.join(taught['files'])}"
        else:
            who = f"the probabilities of {taught['name']} ({taught['license']})"
        more += f"It learned from {who}.\n"
    if "calibration" in model.metadata:
        calibration = model.metadata["calibration"]
        more += (
            f"Its logits were divided by {calibration['temperature']:.3f}, the temperature at which the validation "
            f"rows' labels are likeliest; before, the calibration error there was {calibration['error_before']:.4f}.\n"
        )
    if "live" in model.metadata:
        live, shapes = model.metadata["live"], model.config.parameter_shapes
        layers = [name for name in live if name != "rows"]
        rows = [[live[name] for name in layers], [shapes[f"{name}.weight"][0] for name in layers]]
        more += f"\nChannels and units that are more than 0 anywhere in any of {live['rows']:,} rows:\n\n" + table(
            ["", *layers],
            [[what, *map(str, counts)] for what, counts in zip(("live", "all"), rows, strict=True)],
            right=1,
        )
    left_out = {"epochs", "seed"} | {name for name, value in said["recipe"].items() if value in (0, False)}
    recipe = ", ".join(f"{name} {value}" for name, value in said["recipe"].items() if name not in left_out)
    recipe = recipe.replace(" True", "").replace("_", " ")
    return (
        f"```sh\n{spelled}\n```\n\n"
        f"Seed {said['recipe']['seed']}; {said['rows']:,} rows to learn from; {said['precision']} on one "
        f"{said['device']} with PyTorch {said['torch']}.\n"
        f"The weights are those of epoch {said['epoch']} of {said['recipe']['epochs']}, a moving average. AdamW; the "
        f"[recipe](../../training/recipe.py): {recipe}.\n" + more
    )


@cache
def _shipped(name: str) -> params.Params:
    return params.load(WEIGHTS / shipped.FILES[name])
