"""Texts changed at random, and what fine-tuned encoders answer to each: rows and probabilities for `charcnn train`.

    python bench/teacher.py train.csv --encoder FOLDER --out teaching

An encoder of Hugging Face's files is fine-tuned (mean of the last layer's tokens, one linear layer) on a part of the
rows, and answers for the other part only: `--folds` parts, `--seeds` encoders each, whose mean is kept. So no answer
knows its row's label by heart. It needs PyTorch and transformers, and a GPU to be quick.

Written to `--out`: valid.csv (rows held out from all that follows), rows.csv.gz, probabilities.npz (a row a text, in
the order of the classes) and teacher.json: the share of rows that the encoders get right which they did not learn from.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from charcnn.training.data import split

BATCH, EPOCHS, RATE, LONGEST = 32, 3, 6e-5, 128


def read(path):
    """Labels and texts of a file whose first field is the class and whose others are joined with spaces."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        rows = [(row[0], " ".join(row[1:])) for row in csv.reader(file)]
    classes = sorted({label for label, _ in rows})
    return np.array([classes.index(label) for label, _ in rows]), [text for _, text in rows], classes


def near_words(folder, most=12):
    """For each word that the encoder knows, those whose embeddings are nearest: names for names, towns for towns.

    Args:
        folder: with the encoder's files.
        most: how many.
    """
    from safetensors.numpy import load_file

    tokens = json.loads(Path(folder, "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    words = sorted(word for word in tokens if len(word) > 2 and word.isalpha() and word.isascii())
    arrays = load_file(Path(folder, "model.safetensors"))
    table = next(value for name, value in arrays.items() if name.endswith("word_embeddings.weight"))
    table = table[[tokens[word] for word in words]].astype(np.float32)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    found = {}
    for begin in range(0, len(words), 2048):
        alike = table[begin : begin + 2048] @ table.T
        nearest = np.argpartition(-alike, most, axis=1)[:, : most + 1]
        found |= {word: [words[i] for i in row] for word, row in zip(words[begin:], nearest, strict=False)}
    return found


def changed(text, partner, near, rng):
    """The text as it is, less some of its words, a run of its words, or its beginning and the partner's end.

    Of that, some of the words, or in every other text none, become words that are near them.

    Returns:
        It, and whether more of it is the partner's.
    """
    words, kind, share = text.split(" "), rng.integers(4), 1.0
    if kind == 0:
        kept = rng.random(len(words)) >= rng.uniform(0.05, 0.5)
        words = [word for word, stays in zip(words, kept, strict=True) if stays]
    elif kind == 1:
        count = max(3, round(len(words) * rng.uniform(0.2, 0.9)))
        begin = rng.integers(max(len(words) - count, 0) + 1)
        words = words[begin : begin + count]
    elif kind == 2:
        others, share = partner.split(" "), rng.uniform(0.15, 0.85)
        words = words[: round(len(words) * share)] + others[round(len(others) * share) :]
    if kind == 3 or rng.random() < 0.5:
        other, pick = rng.random(len(words)) < rng.uniform(0.05, 0.5), rng.integers(1 << 30, size=len(words))
        for place in np.flatnonzero(other):
            instead = near.get(words[place].lower(), words[place : place + 1])
            words[place] = instead[pick[place] % len(instead)]
    return " ".join(words) or text, share < 0.5


def copies(labels, texts, near, count, seed):
    """Labels and texts of one fold: as they are, then `count` changed copies of all, whose partners are of the fold."""
    rng = np.random.default_rng(seed)
    made, named = list(texts), [labels]
    for _ in range(count):
        partner = rng.permutation(len(texts))
        new = [changed(text, texts[partner[number]], near, rng) for number, text in enumerate(texts)]
        made += [text for text, _ in new]
        named.append(np.where([others for _, others in new], labels[partner], labels))
    return np.concatenate(named), made


def fold_of(options, labels, texts, folds, near, fold):
    """Labels and texts of a fold, and of its changed copies."""
    own = np.flatnonzero(folds == fold)
    return copies(labels[own], [texts[i] for i in own], near, options.copies, [options.seed, fold])


def prepared(options):
    """Labels and texts to learn from, the fold of each, those held out, and the classes."""
    labels, texts, classes = read(options.data)
    part, valid = split(labels, options.valid_part, 0)
    folds = np.random.default_rng(options.seed).permutation(len(part)) % options.folds
    return labels[part], [texts[i] for i in part], folds, [(classes[labels[i]], texts[i]) for i in valid], classes


def fine_tuned(options, labels, texts, classes, seed):
    """An encoder with a linear layer, and a function that gives its probabilities of texts."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModel

    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = Tokenizer.from_file(f"{options.encoder}/tokenizer.json")
    tokenizer.enable_truncation(LONGEST)
    tokenizer.no_padding()
    encoder = AutoModel.from_pretrained(options.encoder, dtype=torch.float32).to(device)
    head = torch.nn.Linear(encoder.config.hidden_size, classes).to(device)
    torch.nn.init.zeros_(head.bias)

    def tokens(texts):
        return [np.array(one.ids, np.int32) for one in tokenizer.encode_batch_fast(texts)]

    def batch_of(ids):
        longest = -(-max(map(len, ids)) // 16) * 16
        padded, mask = np.zeros((len(ids), longest), np.int64), np.zeros((len(ids), longest), np.int64)
        for row, one in enumerate(ids):
            padded[row, : len(one)], mask[row, : len(one)] = one, 1
        return torch.from_numpy(padded).to(device), torch.from_numpy(mask).to(device)

    def logits(ids):
        padded, mask = batch_of(ids)
        with torch.autocast(device, torch.bfloat16):
            last = encoder(input_ids=padded, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).to(last.dtype)
            mean = (last * weights).sum(1) / weights.sum(1)
            return head(torch.nn.functional.dropout(mean, 0.1, head.training)).float()

    ids, steps = tokens(texts), -(-len(texts) // BATCH) * EPOCHS
    parameters = [*encoder.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(
        [{"params": encoder.parameters(), "lr": RATE}, {"params": head.parameters(), "lr": 1e-3}],
        weight_decay=0.01, fused=device == "cuda",
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / (0.1 * steps), (steps - step) / (0.9 * steps))
    )
    targets, rng = torch.from_numpy(labels).to(device), np.random.default_rng(seed)
    encoder.train(), head.train()
    for _ in range(EPOCHS):
        order = rng.permutation(len(ids))
        for begin in range(0, len(order), BATCH):
            rows = order[begin : begin + BATCH]
            answers = logits([ids[i] for i in rows])
            loss = torch.nn.functional.cross_entropy(answers, targets[torch.from_numpy(rows).to(device)])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            schedule.step()
    encoder.eval(), head.eval()

    @torch.inference_mode()
    def probabilities(texts):
        given = tokens(texts)
        order = np.argsort([len(one) for one in given], kind="stable")
        found = np.empty((len(texts), classes), np.float32)
        for begin in range(0, len(order), 1024):
            rows = order[begin : begin + 1024]
            found[rows] = logits([given[i] for i in rows]).softmax(1).cpu().numpy()
        return found

    return probabilities


def one(options):
    """What one encoder answers to its fold's texts."""
    labels, texts, folds, valid, classes = prepared(options)
    others = folds != options.fold
    told = time.perf_counter()
    learned = [text for text, other in zip(texts, others, strict=True) if other]
    probabilities = fine_tuned(options, labels[others], learned, len(classes), options.seed * 100 + options.one)
    tuned = time.perf_counter()
    _, made = fold_of(options, labels, texts, folds, near_words(options.encoder), options.fold)
    answers = probabilities(made)
    np.save(Path(options.out) / f"answers-{options.fold}-{options.one}.npy", answers)
    own = answers[: (~others).sum()].argmax(1) == labels[~others]
    held = probabilities([text for _, text in valid]).argmax(1) == [classes.index(label) for label, _ in valid]
    print(
        f"fold {options.fold}, seed {options.one}: right for {own.mean():.4f} of the fold, {held.mean():.4f} of the "
        f"rows held out; {tuned - told:.0f} s of fine-tuning, {time.perf_counter() - tuned:.0f} s for answers",
        flush=True,
    )


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="CSV without a header: class, text, further fields of the text")
    parser.add_argument("--encoder", required=True, help="folder with config.json, model.safetensors, tokenizer.json")
    parser.add_argument("--out", required=True, help="folder to write to")
    parser.add_argument("--copies", type=int, default=40, help="changed copies of each row (default: 40)")
    parser.add_argument("--folds", type=int, default=4, help="parts of the rows (default: 4)")
    parser.add_argument("--seeds", type=int, default=2, help="encoders for each part (default: 2)")
    parser.add_argument("--valid-part", type=float, default=0.05, help="share of each class held out (default: 0.05)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: 0)")
    parser.add_argument("--answers", action="store_true", help="only write the rows: their answers are there")
    parser.add_argument("--classes", metavar="NAMES", help="of the labels in their order, with commas between them")
    parser.add_argument("--fold", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    if options.fold is not None:
        return one(options)
    labels, texts, folds, valid, classes = prepared(options)
    running = [] if options.answers else [
        subprocess.Popen([sys.executable, *sys.argv, "--fold", str(fold), "--one", str(seed)])
        for fold in range(options.folds)
        for seed in range(options.seeds)
    ]  # fmt: skip
    near = near_words(options.encoder)
    parts = [fold_of(options, labels, texts, folds, near, fold) for fold in range(options.folds)]
    with open(out / "valid.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(valid)
    with gzip.open(out / "rows.csv.gz", "wt", 1, encoding="utf-8", newline="") as file:
        for named, made in parts:
            csv.writer(file).writerows(zip((classes[label] for label in named), made, strict=True))
    if options.answers:
        return 0
    if sum(process.wait() for process in running):
        return 1
    answers, right = [], 0
    for fold, (named, _) in enumerate(parts):
        paths = [out / f"answers-{fold}-{seed}.npy" for seed in range(options.seeds)]
        answers.append(np.mean([np.load(path) for path in paths], axis=0))
        own = int((folds == fold).sum())
        right += int((answers[-1][:own].argmax(1) == named[:own]).sum())
        for path in paths:
            path.unlink()
    names = options.classes.split(",") if options.classes else classes
    mean = np.concatenate(answers).astype(np.float16)
    np.savez_compressed(out / "probabilities.npz", probabilities=mean, classes=names)
    told = {"rows": len(labels), "right": right / len(labels), "copies": options.copies}
    (out / "teacher.json").write_text(json.dumps(told) + "\n")
    share = f"{100 * right / len(labels):.2f} %"
    print(f"{len(mean):,} texts; the encoders are right for {share} of the rows they did not learn from")
    return 0


if __name__ == "__main__":
    sys.exit(main())
