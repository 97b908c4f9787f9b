"""Write a narrower model: channels and units that never fire on the given rows are removed.

On those rows the logits stay the same, up to the order of sums. On others they may change. So give representative
rows, such as the training rows, and check others with --test. The model is written only if every label stays the same.
Channels that a LayerNorm reads are kept, because all of them count in its mean and variance.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

import numpy as np

from charcnn.classify.reading import tell_said
from charcnn.cli import DONE, FAILED
from charcnn.cli.model import COLUMNS, add_column_arguments, layout_of
from charcnn.files import check_paths, placing, unchanged
from charcnn.host.arguments import positive, share
from charcnn.host.terminal import printable, table, tell

if TYPE_CHECKING:
    from charcnn.model.params import Params

EPILOG = """examples:
  charcnn compact model.safetensors --data train.csv --out narrow.safetensors
  charcnn compact model.safetensors --data train.csv --test test.csv \\
      --multiple 64 --out narrow.safetensors

exit status: 0 written; 1 labels changed, nothing written; 2 unusable options or files"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, --data, --test, --out and how."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("model", metavar="MODEL", help=".safetensors, or another file that `charcnn convert` reads")
    add("--data", required=True, metavar="FILE", help="representative rows of text; labels are not read")
    add("--test", metavar="FILE", help="other rows, whose labels must also stay the same")
    add("--out", required=True, metavar="FILE", help="the narrower model to write: .safetensors")
    add("--multiple", type=positive, default=32, metavar="N", help="round widths up to a multiple of N (default 32)")
    add(
        "--allow",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="share of a file's rows whose label may change, from 0 to 1 (default 0)",
    )
    add("--encoding", metavar="NAME", help="crepe or forward, if MODEL does not say")
    add("--force", action="store_true", help="replace an existing output")
    add_column_arguments(parser.add_argument_group("rows", COLUMNS))


def run(options: argparse.Namespace) -> int:
    """Compact; the exit status."""
    from charcnn.model import compact, params, shipped
    from charcnn.text.encodings import find_encoding

    if not options.out.endswith(".safetensors"):
        raise ValueError(f"--out {options.out}: need a name that ends in .safetensors")
    reads = {"MODEL": options.model, "--data": options.data, "--test": options.test}
    check_paths(reads, {"--out": options.out}, force=options.force)
    model = shipped.load(options.model)
    if options.encoding is not None:
        model.encoding = find_encoding(options.encoding)
    if model.encoding is None:
        raise ValueError(f"{options.model} does not say its encoding: need --encoding")
    files = [options.data, *([options.test] if options.test else [])]
    read = {name: _ids(name, options, model) for name in files}
    before = compact.Watched(model, model.config)
    logits = {options.data: before(read[options.data])}
    made = compact.compact(model, before.peaks, options.multiple)
    if options.test:
        logits[options.test] = before(read[options.test])
    config, narrow = model.config, made.params
    had, has = _widths(config), _widths(narrow.config)
    rows = [
        [name, *map(str, counts)] for name, *counts in zip(compact.HIDDEN, had, made.live.values(), has, strict=True)
    ]
    print("\n".join(table(["layer", "width", "fire", "kept"], rows)))
    print(f"\n{config.flops / 1e6:.1f} MFLOP an input, now {narrow.config.flops / 1e6:.1f}, including one-hot columns")
    after, tested, refused = compact.Watched(narrow, narrow.config), {}, False
    for name in files:
        changed, largest = compact.apart(logits[name], after(read[name]), multi_label=config.multi_label)
        count = len(read[name])
        print(f"{printable(name)}: {count:,} rows, {changed:,} labels change, probabilities by at most {largest:.1e}")
        tested["data" if name == options.data else "test"] = {
            "rows": count, "labels_changed": changed, "largest_change": largest
        }  # fmt: skip
        refused |= changed > options.allow * count
    if refused:
        tell("charcnn compact: labels change, so nothing is written; give --data more rows, or raise --allow")
        return FAILED
    narrow.metadata["compacted"] = {"from": params.digest(model), "multiple": options.multiple, **tested}
    narrow.metadata["live"] = {"rows": len(read[options.data]), **made.live}
    with placing(options.out, force=options.force) as path:
        params.save(path, narrow, narrow.config, dtype=_dtype(model))
    print(f"\nwrote {printable(options.out)}, {os.path.getsize(options.out) / 1e6:.1f} MB")
    return DONE


def _widths(config: object) -> tuple[int, ...]:
    return (*config.block_channels, *config.fc_units[:2])  # type: ignore[attr-defined]


def _dtype(model: Params) -> str:
    """What the weights fit in with no rounding."""
    with np.errstate(over="ignore"):
        halves = all(np.array_equal(value, value.astype(np.float16)) for value in model.values())
    return "float16" if halves else "float32"


def _ids(path: str, options: argparse.Namespace, model: Params) -> np.ndarray:
    """Token ids of a file's texts; unreadable rows are left out and reported."""
    from charcnn.text.encodings import encode
    from charcnn.text.readers.formats import format_by_name
    from charcnn.text.readers.open import open_reader
    from charcnn.text.readers.scan import READABLE

    assert model.encoding is not None
    texts: list[bytes] = []
    left_out = 0
    with open(path, "rb", buffering=0) as file, unchanged(file, path):
        reader = open_reader(format_by_name(path), path, file, layout_of(options), model.encoding, guessed=True)
        tell_said(reader, path)
        for block in reader.blocks():
            own = reader.texts(block).tolist()
            texts += [own[n] for n in np.flatnonzero(block.kinds == READABLE)]
            left_out += len(list(block.unreadable()))
    if left_out:
        tell(f"{path}: {left_out:,} rows cannot be read and are left out")
    if not texts:
        raise ValueError(f"{path} holds no texts")
    return np.asarray(encode(texts, model.encoding, model.config.length))
