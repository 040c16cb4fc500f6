"""What documents show: blocks of code, fenced or indented by four spaces, commands, and the walk of one request."""

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


def walk_of(document: Path, level: str) -> set[str]:
    """Files that the architecture page names for a request at this level: the numbered steps are those of partitioned,
    and a paragraph that begins with "* At `LEVEL`" says which steps fall away ("steps 3 to 5 are") and what comes."""
    found = re.search(r"^## The walk of one request\n(.*?)\n## ", document.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    steps = {int(number): text for number, text in re.findall(r"^(\d+)\. (.*)$", found[1], re.MULTILINE)}
    added = ""
    if level != "partitioned":
        [added] = re.findall(rf"^\* At `{level}` (.*)$", found[1], re.MULTILINE)
        if replaced := re.match(r"steps (\d) to (\d) are ", added):
            steps = {number: text for number, text in steps.items() if not replaced[1] <= str(number) <= replaced[2]}
    return set(re.findall(r"`((?:\w+/)*\w+\.py)`", " ".join([*steps.values(), added])))


def helpers_of(document: Path) -> set[str]:
    """Files that the architecture page names below the walk: they run at a level or at all of them, too."""
    [found] = re.findall(r"^Also run: (.*)$", document.read_text(), re.MULTILINE)
    return set(re.findall(r"`((?:\w+/)*\w+\.py)`", found))
