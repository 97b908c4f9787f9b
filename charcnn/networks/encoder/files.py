"""An encoder's files, as Hugging Face has them: weights, config.json, tokenizer.json; and those of its results."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from charcnn.aliases import Json
from charcnn.files import placing, replacing
from charcnn.model import params
from charcnn.networks.encoder import EncoderNetwork
from charcnn.networks.encoder.sizes import SIZES, TOKENS, BertSizes, layers_of
from charcnn.text.columns import require_arrow

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"

LIMIT, MODULES, POOLING = "sentence_bert_config.json", "modules.json", "1_Pooling/config.json"
"""What models of sentence-transformers have besides: tokens of a text at most, and what follows the encoder."""

FOLLOWING = ("Transformer", "Pooling", "Normalize")
"""What a model may consist of, as MODULES says it: embeddings here are means, of length 1."""

NUMBERS = {
    "vocab_size": "vocabulary", "hidden_size": "width", "num_hidden_layers": "blocks", "num_attention_heads": "heads",
    "intermediate_size": "hidden", "max_position_embeddings": "positions", "type_vocab_size": "types",
}  # fmt: skip
"""What config.json calls sizes -> what `BertSizes` does."""

MOST_BLOCKS = 1000
"""Of a network: more would take minutes to list."""

RESULTS = (".npy", ".parquet")
"""What --out may end in."""


def weights_at(path: str | os.PathLike[str]) -> Path:
    """The file of weights that a path names: itself, or the one in a folder of Hugging Face's."""
    return Path(path) / WEIGHTS if os.path.isdir(path) else Path(path)


def beside(path: str | os.PathLike[str]) -> list[Path]:
    """The files that `load` reads where they are there, and the tokenizer's: of a folder, or beside a file."""
    weights = weights_at(path)
    return [weights, *(weights.parent / name for name in (CONFIG, TOKENIZER, LIMIT, MODULES, POOLING))]


def _said(path: Path, otherwise: str) -> Json:
    """What a file of JSON says, or where there is none, `otherwise`."""
    return json.loads(path.read_text(encoding="utf-8") if path.is_file() else otherwise)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What is wrong in a file names it."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}: {reason}") from error


def sizes_beside(weights: Path) -> BertSizes | None:
    """Those that config.json beside the weights says; None where there is none.

    Raises:
        ValueError: it is no BERT's, or one whose layers are others; names the file and what it says.
        OSError: it cannot be read.
    """
    path = weights.with_name(CONFIG)
    if not path.is_file():
        return None
    with _naming(path):
        said = {"type_vocab_size": 2, "layer_norm_eps": 1e-12} | _said(path, "")
        for name, need in (
            ("model_type", "bert"),
            ("hidden_act", "gelu"),
            ("position_embedding_type", "absolute"),
            ("is_decoder", False),
        ):
            if said.get(name, need) != need:
                raise ValueError(f"{name} is {said[name]!r}: need {need!r}")
        numbers = {ours: _whole(said, name) for name, ours in NUMBERS.items()}
        sizes = BertSizes(**numbers, eps=float(said["layer_norm_eps"]))
        if not (min(sizes[:-1]) >= 1 and 0 < sizes.eps < math.inf):
            raise ValueError(f"says {sizes}: need sizes of at least 1, and an eps above 0")
        if sizes.blocks > MOST_BLOCKS:
            raise ValueError(f"num_hidden_layers is {sizes.blocks}: need at most {MOST_BLOCKS}")
        return sizes


def tokens_beside(weights: Path) -> int:
    """Tokens of a text at most, as a model of sentence-transformers says beside its weights; else TOKENS.

    Raises:
        ValueError: its embeddings are no means of the encoder's features; names the file and what it says.
        OSError: a file cannot be read.
    """
    with _naming(path := weights.parent / MODULES):
        for module in _said(path, "[]"):
            if (kind := module["type"].rpartition(".")[2]) not in FOLLOWING:
                raise ValueError(f"has the module {kind}: need {', '.join(FOLLOWING)} alone")
    with _naming(path := weights.parent / POOLING):
        for name, value in _said(path, "{}").items():
            if name.startswith("pooling_mode_") and value != (name == "pooling_mode_mean_tokens"):
                raise ValueError(f"{name} is {value!r}: need pooling_mode_mean_tokens alone")
    with _naming(path := weights.parent / LIMIT):
        said = {"max_seq_length": None} | _said(path, "{}")
        return TOKENS if said["max_seq_length"] is None else _whole(said, "max_seq_length")


def _whole(said: Mapping[str, object], name: str) -> int:
    value = said[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} is {value}: need a whole number")
    return value


def load(
    path: str | os.PathLike[str], name: str, variant: str | None, tokens: int | None, called: str = "folder"
) -> params.Params:
    """Weights, of the network that config.json beside them says, or else of the variant.

    Args:
        path: .safetensors or .pt, or a folder with model.safetensors in it.
        name: of the network.
        variant: its sizes where there is no config.json, and else to be those; the first where None.
        tokens: S, of an input at most; as `tokens_beside` says where None, or as many as there are positions, where
            those are fewer.
        called: what errors call the path.

    Raises:
        ValueError: a file is missing, or does not fit; names it and what is needed.
        OSError: it cannot be read.
    """
    weights = weights_at(path)
    if not weights.is_file():
        what = f"no {WEIGHTS} in it" if os.path.isdir(path) else "no such file or folder"
        raise ValueError(f"{called} {path}: there is {what}: need a folder of Hugging Face's, or a file of weights")
    said = sizes_beside(weights)
    chosen = variant or next((key for key, known in SIZES.items() if known == said), None)
    if said is not None and chosen is not None and SIZES[chosen] != said:
        raise ValueError(f"--variant {chosen} has {SIZES[chosen]}: {weights.with_name(CONFIG)} says {said}")
    sizes = said or SIZES[chosen or next(iter(SIZES))]
    label = chosen or (next(iter(SIZES)) if said is None else "of its config.json")
    most = min(tokens_beside(weights), sizes.positions)
    network = EncoderNetwork(name, label, layers_of(sizes), tokens or most)
    try:
        return params.load(weights, network)
    except ValueError as error:
        raise ValueError(f"{called} {error}") from error


def write(path: str, embeddings: np.ndarray, *, force: bool) -> None:
    """Write embeddings (N, H) as .npy, or as .parquet with a column `embedding`; whole, or not at all.

    Raises:
        ValueError: the name ends otherwise, or pyarrow is missing.
        OSError: the file is there and `force` is not, or cannot be written.
    """
    if path.endswith(".npy"):
        with replacing(path, "wb", force=force) as file:
            np.lib.format.write_array(file, embeddings, allow_pickle=False)
        return
    pyarrow = require_arrow("--out: Parquet")
    from pyarrow import parquet

    flat = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(embeddings.reshape(-1)), embeddings.shape[1])
    with placing(path, force=force) as temporary:
        parquet.write_table(pyarrow.table({"embedding": flat}), temporary)
