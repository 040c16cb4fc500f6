"""The code that documents show: blocks between fences, and blocks that are indented by four spaces."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^\n)((?:^    .*\n|^\n)+)", re.MULTILINE)


def blocks_of(document: Path) -> list[str]:
    """The blocks as one would type them, fenced ones first."""
    text = document.read_text()
    fenced = [found[2] for found in _FENCED.finditer(text)]
    return fenced + [textwrap.dedent(found[1]) for found in _INDENTED.finditer(_FENCED.sub("", text))]


def commands_of(document: Path) -> list[str]:
    """Every line of a block that is a command of ours."""
    lines = [line for block in blocks_of(document) for line in block.splitlines()]
    return [line for line in lines if re.match(r"(cloister|make) [a-z]", line)]


def programs_of(document: Path) -> list[str]:
    """Every block that is Python."""
    return [block for block in blocks_of(document) if re.search(r"^(import|from) ", block, re.MULTILINE)]


def spoken_commands_of(document: Path) -> list[str]:
    """Commands of ours that a sentence names between backticks; some go on in the next line."""
    text = _INDENTED.sub("", _FENCED.sub("", document.read_text()))
    return [" ".join(found.split()) for found in re.findall(r"`(cloister\s[^`]+)`", text)]
