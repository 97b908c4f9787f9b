"""The README as a package index shows it, where links to files lead nowhere; all else stands in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

PROJECT = Path("pyproject.toml").read_text(encoding="utf-8")
REPOSITORY = re.search(r'^Repository = "(.+?)/?"', PROJECT, re.MULTILINE)  # of [project.urls]
VERSION = re.search(r'^version = "(.+)"', PROJECT, re.MULTILINE)


def elsewhere(link: re.Match[str]) -> str:
    """A link to the file in the repository, of this version's tag; the words alone where no repository is named."""
    picture, words, target = link.groups()
    if re.match(r"https?://|#", target):
        return link[0]
    if REPOSITORY is None:
        return "" if picture else words
    return f"{picture}[{words}]({REPOSITORY[1]}/{'raw' if picture else 'blob'}/v{VERSION[1]}/{target})"


README = Path("README.md").read_text(encoding="utf-8")
README = re.sub(r"</?(?:picture|source)\b[^>]*>", "", README)  # of a picture the wide form alone

setup(
    long_description=re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", elsewhere, README),
    long_description_content_type="text/markdown",
)
