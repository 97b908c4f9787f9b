"""Whether a level's logits are right, and the closing report."""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Sequence

import numpy as np

from charcnn.aliases import Record
from charcnn.host.terminal import printable
from charcnn.levels.runner.options import Job
from charcnn.model import validation
from charcnn.model.rounding import Rounding

CHECKED_INPUTS = 12
"""So many are held against the reference, which takes a second; whether logits are finite is asked of all."""

MANY = 20
"""Classes of which the report counts all; of more, so many of those that occur."""


def validate(
    job: Job, logits: np.ndarray, rounding: Rounding, borders: Sequence[range] = (), seed: int | None = None
) -> Record:
    """Hold a sample's logits against the float64 reference, and the labels against the original's answers, if given.

    Args:
        job: what was asked for.
        logits: of all inputs.
        rounding: of the level's precision; its bound decides.
        borders: where batches and chunks begin: some of them are looked at.
        seed: of the sample; drawn where None.
    """
    seed = secrets.randbits(32) if seed is None else seed
    sample = validation.drawn(len(job.rows), CHECKED_INPUTS, borders, seed)
    expected, sigma = job.expected(job.rows[sample], rounding)
    errors = validation.in_sigmas(logits[sample], expected, sigma)
    unusable = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    worst = int(np.argmax(errors))
    result: Record = {
        "against": "float64 reference",
        "inputs": len(logits),
        "checked": len(sample),
        "seed": seed,
        "sigmas": float(errors[worst]) if np.isfinite(errors[worst]) else None,  # JSON has no infinity
        "worst_input": int(sample[worst]),
        "bound": rounding.bound,
        "not_finite": len(unusable),
        "passed": bool(errors[worst] <= rounding.bound) and not len(unusable),
    }
    if len(unusable):
        result["first_not_finite"] = int(unusable[0])
    if job.answers is not None:
        answers = np.resize(job.answers, len(logits))  # repeats them, as the inputs repeat
        wrong = np.flatnonzero(logits.argmax(axis=1) != answers)
        result["answers_agree"] = len(logits) - len(wrong)
        if len(wrong):
            result["first_disagreement"] = int(wrong[0])
            result["passed"] = False
    return result


SAYS_NOTHING = "not said: a simulated GPU's rate says nothing of a GPU"


def show(name: str, report: Record, job: Job, logits: np.ndarray) -> None:
    """The closing report."""
    seconds, check = report["seconds"], report["validation"]
    where = f"{report['ranks']} rank{'s' * (report['ranks'] > 1)}"
    if report["gpus"]:
        where += f", {report['gpus']} GPU{'s' * (report['gpus'] > 1)}{' a rank' * (report['ranks'] > 1)}"
        where += ", emulated" if report["emulated"] else ", simulated" * report["simulated"]
    how = f"config {job.size}, batch {report['batch']}, {report['precision']}"
    how += f" held as {report['held_as']}" if report["held_as"] != report["precision"] else ""
    rows = [
        ("inputs", f"{report['inputs']} from {report['source']}, {how}, on {where}"),
        ("elapsed", f"{statistics.median(seconds):.3f} s" + f", median of {len(seconds)} runs" * (len(seconds) > 1)),
        ("inputs/s", SAYS_NOTHING if report["simulated"] else f"{report['inputs_per_second']:,.2f}"),
    ]
    spent = sum(report["stages"].values())
    stages = [f"{stage} {value:.3f} s ({value / spent:.0%})" for stage, value in report["stages"].items()]
    rows += [("stages" if i == 0 else "", line) for i, line in enumerate(stages)]
    if report["ranks"] > 1:
        rows.append(("", "(stages of rank 0)"))
    if "gpu_memory_bytes" in report:
        rows.append(("memory", f"{report['gpu_memory_bytes']:,} bytes a GPU, for parameters and features"))
    rows += [("copied", f"to the GPU {way}") for way in report.get("copied", [])]
    for where in dict.fromkeys(report.get("messages_land", {}).values()):
        rows.append(("messages", f"land in {where}"))
    settled = [f"rank {rank} uses {cores}" for rank, cores in report.get("cores", {}).items()]
    rows += [("cores" if i == 0 else "", line) for i, line in enumerate(settled)]
    rows += [("advice" if i == 0 else "", line) for i, line in enumerate(report.get("advice", []))]
    if "farm" in report:
        rows += _farm_rows(report["farm"])
    if "timeline" in report:
        found = report["timeline"]
        busy = ", ".join(f"{what} {at['share']:.0%} (rank {at['rank']})" for what, at in found["busy"].items())
        rows.append(("bound by", f"{found['bound']} ({found['resource']}); busy: {busy}"))
        rows.append(("", f"the timeline is in {found['file']}: open it in ui.perfetto.dev or chrome://tracing"))
    rows += [("validated" if i == 0 else "", line) for i, line in enumerate(_verdict(check))]
    if job.answers is not None:
        line = f"{check['answers_agree']} of {len(logits)} labels as in the answers"
        first = check.get("first_disagreement")
        rows.append(("", line if first is None else f"{line}; the first difference is at input {first}"))
    if not job.embeds:
        rows += _labelled(report, job, logits)
    print(f"{name}: {report['title']}")
    for key, value in rows:
        print(f"  {key:<10}{printable(value)}")


def _labelled(report: Record, job: Job, logits: np.ndarray) -> list[tuple[str, str]]:
    rows, labels = list[tuple[str, str]](), logits.argmax(axis=1)
    counts = np.bincount(labels, minlength=job.params.config.classes)
    named = [f"{job.class_name(i)} {n}" for i, n in enumerate(counts) if n or len(counts) <= MANY]
    rows.append(("result", ", ".join(named[:MANY]) + f", and {len(named) - MANY} more" * (len(named) > MANY)))
    if "accuracy" in report:
        rows.append(("", f"accuracy {report['accuracy']:.2%} against the file's own labels"))
    if job.random:
        drawn = f"random, seed {report['seed']}{', pruned 2:4' * job.pruned}"
        rows.append(("", f"(weights are {drawn}, so labels mean nothing: --params FILE)"))
    first = logits[: len(job.shown)]
    sure = [""] * len(first) if job.shares is None else [f" {share:.4f}" for share in job.shares(first).max(axis=1)]
    for words, found, share in zip(job.shown, labels, sure, strict=False):
        rows.append(("", f"{job.class_name(found)}{share}: {words[:80]}"))
    return rows


def _verdict(check: Record) -> list[str]:
    found = "not finite" if check["sigmas"] is None else f"{check['sigmas']:.2g} sigma"
    lines = [
        f"{'passed' if check['passed'] else 'FAILED'}: {check['checked']:,} of {check['inputs']:,} inputs checked "
        f"against the {check['against']}, drawn with seed {check['seed']}",
        f"largest error {found} of rounding, at input {check['worst_input']}; {check['bound']:g} allowed",
    ]
    if check["not_finite"]:
        count, at = check["not_finite"], check["first_not_finite"]
        lines.append(f"logits of {count:,} inputs are not finite, the first at input {at}")
    return lines


def _farm_rows(farm: Record) -> list[tuple[str, str]]:
    each = [
        f"rank {rank['rank']} on {rank['host']}: {rank['inputs']} inputs, {rank['inputs_per_second']:,.2f}/s"
        for rank in farm["ranks"]
    ]
    rows = [("farm" if i == 0 else "", line) for i, line in enumerate(each)]
    rows += [("", f"lost rank {lost['rank']}, {lost['how']}: {lost['why']}") for lost in farm["lost"]]
    rows.append(("", f"{len(farm['lost'])} ranks lost, {farm['retries']} chunks computed again, no input lost"))
    if farm["from_checkpoint"]:
        rows.append(("", f"{farm['from_checkpoint']} inputs' results were in the checkpoint"))
    return rows
