"""An extension of Markdown for the site: options stay on one line, and Python's own types lead nowhere."""

from __future__ import annotations

import re

from markdown import Markdown
from markdown.extensions import Extension
from markdown.postprocessors import Postprocessor

OPTION = re.compile(r"(?<![^\s(\[>])-{1,2}[A-Za-z][\w-]{0,30}")
WRAPPED = re.compile(r'(?<!</span>)<code>[^<]*</code>|<div class="language-sh highlight">.*?</div>', re.DOTALL)
"""Inline code, as a block has an empty span before it; and blocks that site.css wraps."""
TYPE = re.compile(r'<autoref (?=[^>]*\boptional\b)[^>]*\bidentifier="\w+"[^>]*>(.*?)</autoref>', re.DOTALL)
"""A type without a module: `bytes` would become a link to the first heading "Bytes" of any page."""


class _Site(Postprocessor):
    def run(self, text: str) -> str:
        text = TYPE.sub(r"\1", text)
        return WRAPPED.sub(lambda match: OPTION.sub(r'<span class="option">\g<0></span>', match[0]), text)


class SiteExtension(Extension):
    """Changes a page last, when it is HTML. Browsers end lines behind hyphens; site.css forbids it within options."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Add the change to a reader of Markdown."""
        md.postprocessors.register(_Site(md), "site_markdown", -100)


def makeExtension(**settings: object) -> SiteExtension:
    """Give the extension, under the name by which Markdown asks for it."""
    return SiteExtension(**settings)
