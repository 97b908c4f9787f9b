"""A small BERT as Hugging Face keeps one, and what PyTorch makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from charcnn.layers import SelfAttention
from charcnn.model import params
from charcnn.networks import bert
from charcnn.networks.encoder import EncoderNetwork, files
from charcnn.networks.encoder.sizes import SIZES

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "ship", "sails", "home", "rain", "falls"]

TEXTS = ["a ship sails home", "rain falls", "a ship sails", "rain " * 40]


def written(folder: Path) -> Path:
    """The folder, with weights that have a head and numbers, config.json, tokenizer.json; and texts.txt."""
    tokenizers = pytest.importorskip("tokenizers")
    from safetensors.numpy import save_file

    held = dict(params.init(bert.network("tiny"), 3))
    stored = {f"bert.{name}": value for name, value in held.items()}
    stored |= {"bert.pooler.dense.weight": np.zeros((64, 64), np.float32), "cls.bias": np.zeros(3, np.float32)}
    save_file(stored, folder / files.WEIGHTS, {"format": "pt"})
    sizes = SIZES["tiny"]
    said = {
        "model_type": "bert", "vocab_size": sizes.vocabulary, "hidden_size": sizes.width,
        "num_hidden_layers": sizes.blocks, "num_attention_heads": sizes.heads, "intermediate_size": sizes.hidden,
        "max_position_embeddings": sizes.positions, "hidden_act": "gelu",
    }  # fmt: skip
    (folder / files.CONFIG).write_text(json.dumps(said))
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.save(str(folder / files.TOKENIZER))
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    return folder


def ids_of(texts: list[str], tokens: int) -> np.ndarray:
    """Token ids (N, S) of texts, as that tokenizer gives them."""
    ids = np.full((len(texts), tokens), -1, np.int32)
    for row, text in zip(ids, texts, strict=True):
        found = [2, *[WORDS.index(word) for word in text.split()][: tokens - 2], 3]
        row[: len(found)] = found
    return ids


def of_pytorch(of: EncoderNetwork, held: params.Params, ids: np.ndarray) -> np.ndarray:
    """Embeddings by PyTorch's own encoder layers in float64, padded, with a mask."""
    torch = pytest.importorskip("torch")
    sizes = SIZES[of.variant]
    tensors = {name: torch.from_numpy(value).double() for name, value in held.items()}
    tables = [tensors[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")]
    norm = [tensors[f"embeddings.LayerNorm.{part}"] for part in ("weight", "bias")]
    tokens, absent = torch.from_numpy(np.maximum(ids, 0)).long(), torch.from_numpy(ids < 0)
    x = tables[0][tokens] + tables[1][: ids.shape[1]] + tables[2][0]
    x = torch.nn.functional.layer_norm(x, x.shape[-1:], *norm, eps=sizes.eps)
    for number in range(sizes.blocks):
        at = f"encoder.layer.{number}"
        layer = torch.nn.TransformerEncoderLayer(
            sizes.width, sizes.heads, sizes.hidden, 0.0, "gelu", sizes.eps, batch_first=True, dtype=torch.float64
        ).eval()
        parts = [[tensors[f"{at}.attention.self.{name}.{part}"] for name in SelfAttention.PROJECTIONS] for part in
                 ("weight", "bias")]  # fmt: skip
        state = {f"self_attn.in_proj_{part}": torch.cat(of) for part, of in zip(("weight", "bias"), parts, strict=True)}
        for there, here in (
            ("self_attn.out_proj", "attention.output.dense"), ("linear1", "intermediate.dense"),
            ("linear2", "output.dense"), ("norm1", "attention.output.LayerNorm"), ("norm2", "output.LayerNorm"),
        ):  # fmt: skip
            state |= {f"{there}.{part}": tensors[f"{at}.{here}.{part}"] for part in ("weight", "bias")}
        layer.load_state_dict(state)
        with torch.no_grad():
            x = layer(x, src_key_padding_mask=absent)
    counts = (~absent).sum(1, keepdim=True)
    mean = torch.where(absent[..., None], torch.zeros(()), x).sum(1) / counts
    return np.asarray(torch.nn.functional.normalize(mean, dim=1))
