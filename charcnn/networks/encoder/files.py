"""An encoder's files, as Hugging Face has them: weights, config.json, tokenizer.json; and those of its results."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from charcnn.files import placing, replacing
from charcnn.host.install import pip_install
from charcnn.model import params
from charcnn.networks.encoder import EncoderNetwork
from charcnn.networks.encoder.sizes import SIZES, TOKENS, BertSizes, layers_of
from charcnn.text.columns import require_arrow

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"

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


def sizes_beside(weights: Path) -> BertSizes | None:
    """Those that config.json beside the weights says; None where there is none.

    Raises:
        ValueError: it is no BERT's, or one whose layers are others; names the file and what it says.
        OSError: it cannot be read.
    """
    path = weights.with_name(CONFIG)
    if not path.is_file():
        return None
    try:
        said = {"type_vocab_size": 2, "layer_norm_eps": 1e-12} | json.loads(path.read_text(encoding="utf-8"))
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
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}: {reason}") from error


def _whole(said: Mapping[str, object], name: str) -> int:
    value = said[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} is {value}: need a whole number")
    return value


def load(path: str | os.PathLike[str], name: str, variant: str | None, tokens: int | None) -> params.Params:
    """Weights, of the network that config.json beside them says, or else of the variant.

    Args:
        path: .safetensors or .pt, or a folder with model.safetensors in it.
        name: of the network.
        variant: its sizes where there is no config.json, and else to be those; the first where None.
        tokens: S, of an input at most; TOKENS where None, or as many as there are positions, where those are fewer.

    Raises:
        ValueError: a file does not fit; names it and what is needed.
        OSError: it cannot be read.
    """
    weights = weights_at(path)
    said = sizes_beside(weights)
    chosen = variant or next((key for key, known in SIZES.items() if known == said), None)
    if said is not None and chosen is not None and SIZES[chosen] != said:
        raise ValueError(f"--variant {chosen} has {SIZES[chosen]}: {weights.with_name(CONFIG)} says {said}")
    sizes = said or SIZES[chosen or next(iter(SIZES))]
    label = chosen or (next(iter(SIZES)) if said is None else "of its config.json")
    return params.load(weights, EncoderNetwork(name, label, layers_of(sizes), tokens or min(TOKENS, sizes.positions)))


def tokenized(texts: Sequence[str], tokenizer: Path, network: EncoderNetwork) -> tuple[np.ndarray, int]:
    """Texts as rows of token ids (N, S) int32, -1 behind the last one; and how many texts are cut to S tokens.

    Args:
        texts: at least one.
        tokenizer: a tokenizer.json, read by the package tokenizers.
        network: its S and its vocabulary.

    Raises:
        ValueError: the package is missing, the file is no tokenizer, or it gives an id that the network does not have.
        OSError: the file cannot be read.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError(f"--text: needs the package tokenizers: {pip_install('encoder')}") from error
    said = tokenizer.read_bytes()
    try:
        made = Tokenizer.from_str(said.decode())
    except Exception as error:  # of no class of its own
        raise ValueError(f"{tokenizer}: is no tokenizer.json: {' '.join(str(error).split())}") from error
    if network.tokens <= (around := made.num_special_tokens_to_add(False)):
        raise ValueError(f"--tokens {network.tokens}: need at least {around + 1}, as {around} stand around each text")
    made.no_padding()
    made.enable_truncation(network.tokens)
    rows, cut = np.full((len(texts), network.tokens), -1, np.int32), 0
    for n, found in enumerate(made.encode_batch(list(texts))):
        rows[n, : len(found.ids)] = found.ids
        cut += bool(found.overflowing)
    if rows.max() >= network.vocabulary:
        need = f"need ids below {network.vocabulary}, the network's vocabulary"
        raise ValueError(f"{tokenizer}: gives id {rows.max()}: {need}")
    return rows, cut


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
