"""Write rows for a task in many languages: in which language is a paragraph of a manual page?

Translated pages come from Debian's packages manpages-de, manpages-fr, manpages-ja and others. All paragraphs of a page,
in all languages, go to either training or test, by the page's name. So no tested page's translation was learned from.
Untranslated paragraphs are left out: those in several languages' pages, such as licences, and those with many English
words. Some names and options stay.

    apt-get install manpages-{cs,da,de,es,fi,fr,hu,it,ja,nl,pl,pt-br,ru,sv,tr,uk,zh}
    python bench/manual_pages.py --out pages            # writes pages/train.csv and pages/test.csv
    python bench/manual_pages.py --out mixed --mixed    # for a multi-label model
"""

from __future__ import annotations

import argparse
import csv
import gzip
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from charcnn.host.arguments import HelpFormatter

TESTED = 5
"""Of so many pages one is tested with."""

SHORTEST = 40
"""Characters of a paragraph at least; half as many where most are not Latin, which say more."""

ENGLISH, SHARE = re.compile(r"the|and|this|with|that|from|which|are|not|will|can|be"), 8
"""Words of which English text has more than one in so many, and no other language here."""

PIECE = 80
"""Bytes of a paragraph in a row of several languages."""

ESCAPES = (
    (re.compile(r'\\".*'), ""),  # a comment
    (re.compile(r"\\f(\(..|\[[^]]*\]|.)"), ""),  # a font
    (re.compile(r"\\s[-+]?\d"), ""),  # a size
    (re.compile(r"\\\((..)|\\\[[^]]*\]|\\\*(\(..|\[[^]]*\]|.)"), " "),  # a character or a string by its name
    (re.compile(r"\\e"), r"\\"),
    (re.compile(r"\\-"), "-"),
    (re.compile(r"\\ "), " "),
    (re.compile(r"\\[^\\]"), ""),  # all others: places to break, marks of no width
    (re.compile(r"\s+"), " "),
)
"""What troff makes of its escapes, as far as a paragraph's language needs it."""


def paragraphs(page: str) -> Iterator[str]:
    """Running text of a page: lines that follow one another and are no requests to troff, of some length."""
    lines: list[str] = []
    literal = False
    for line in [*page.split("\n"), "."]:
        if line[:3] in (".nf", ".EX"):
            literal = True  # examples: programs, no language
        elif line[:3] in (".fi", ".EE"):
            literal = False
        if line and line[0] not in ".'":
            if not literal:
                lines.append(line)
            continue
        text = " ".join(lines)
        lines = []
        for pattern, by in ESCAPES:
            text = pattern.sub(by, text)
        text = text.strip()
        foreign = sum(not character.isascii() for character in text)
        if len(text) >= (SHORTEST // 2 if 2 * foreign > len(text) else SHORTEST):
            yield text


def is_english(text: str) -> bool:
    """Whether a paragraph was not translated."""
    words = re.findall(r"\w+", text.lower())
    return SHARE * sum(ENGLISH.fullmatch(word) is not None for word in words) > len(words)


def pages(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Language, name and text of each translated page below a folder as /usr/share/man; each name once a language."""
    for path in sorted(folder.glob("*/man*/*.gz")):
        language = path.parts[-3]
        try:
            with gzip.open(path, "rb") as file:
                yield language, path.name.removesuffix(".gz"), file.read().decode()
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            print(f"{path}: left out: {error}", file=sys.stderr)


def is_tested(page: str) -> bool:
    """Whether a page is one to test with, by its name alone."""
    return zlib.crc32(page.encode()) % TESTED == 0


def rows(folder: Path, most: int, least: int) -> dict[bool, list[tuple[str, str]]]:
    """Language and text of paragraphs, to learn from and to test with.

    Args:
        folder: as /usr/share/man.
        most: rows of a language to learn from; of those to test with, a fifth of it.
        least: a language with fewer rows to learn from is left out.

    Returns:
        By whether they are to test with; in an order that follows from the texts alone.
    """
    found: dict[str, dict[str, bool]] = {}
    languages = Counter[str]()
    for language, name, text in pages(folder):
        own = found.setdefault(language, {})
        for paragraph in paragraphs(text):
            if is_english(paragraph):
                continue
            languages[paragraph] += paragraph not in own
            own[paragraph] = own.get(paragraph, False) or is_tested(name)  # of several pages: never learned from
    chosen: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
    for language, own in sorted(found.items()):
        for tested in (False, True):
            texts = [text for text, of in own.items() if of == tested and languages[text] == 1]
            texts.sort(key=lambda text: (zlib.crc32(text.encode()), text))
            if tested or len(texts) >= least:
                chosen[tested] += [(language, text) for text in texts[: most // TESTED if tested else most]]
    known = {language for language, _ in chosen[False]}
    chosen[True] = [row for row in chosen[True] if row[0] in known]
    for part in chosen.values():
        part.sort(key=lambda row: (zlib.crc32(row[1].encode()), row))
    return chosen


def mixed(chosen: list[tuple[str, str]], separator: str = "|") -> list[tuple[str, str]]:
    """So many rows, each of one to three paragraphs' beginnings, of PIECE bytes at most, and of their languages."""
    found = []
    for start, (_, first) in enumerate(chosen):
        number = zlib.crc32(first.encode())
        own = [chosen[(start + step * step * (1 + number % 97)) % len(chosen)] for step in range(1 + number % 3)]
        pieces = [text.encode()[:PIECE].decode(errors="ignore") for _, text in own]
        found.append((separator.join(sorted({language for language, _ in own})), " ".join(pieces)))
    return found


def main(words: list[str] | None = None) -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument(
        "--man", type=Path, default=Path("/usr/share/man"), metavar="DIR", help="default /usr/share/man"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for train.csv and test.csv")
    most, least = "most training rows per language (default 2000)", "leave out languages with fewer rows (default 500)"
    parser.add_argument("--most", type=int, default=2000, metavar="N", help=most)
    parser.add_argument("--least", type=int, default=500, metavar="N", help=least)
    parser.add_argument("--mixed", action="store_true", help="rows of one to three languages, labels separated by |")
    options = parser.parse_args(words)
    chosen = rows(options.man, options.most, options.least)
    if not chosen[False]:
        parser.error(f"--man {options.man}: holds no translated pages: install packages such as manpages-de")
    options.out.mkdir(parents=True, exist_ok=True)
    for tested, name in ((False, "train.csv"), (True, "test.csv")):
        with open(options.out / name, "w", newline="", encoding="utf-8") as file:
            own = mixed(chosen[tested]) if options.mixed else chosen[tested]
            csv.writer(file, lineterminator="\n").writerows([("label", "text"), *own])
        counts = Counter(language for languages, _ in own for language in languages.split("|"))
        listed = ", ".join(f"{language} {count:,}" for language, count in sorted(counts.items()))
        print(f"{options.out / name}: {len(chosen[tested]):,} rows: {listed}")


if __name__ == "__main__":
    main()
