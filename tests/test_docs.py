"""What the documents name exists: files, links, and one request's walk in few steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "cloister"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_FILES_OF_A_WALK = 30


def named_files(text: str) -> set[str]:
    return set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|c|h))`", text))


def exists(name: str) -> bool:
    return any((place / name).exists() for place in (ROOT, SOURCE, ROOT / "tests")) or any(SOURCE.rglob(name))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_links_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    if document.name != "LOG.md":  # which tells of files as they were
        assert not [name for name in sorted(named_files(text)) if not exists(name)]
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    assert not [link for link in links if "://" not in link and not (document.parent / link).exists()]


def test_one_request_walks_through_few_files() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    walk = re.search(r"## The walk of one request\n(.*?)\n## ", text, re.DOTALL)
    assert walk is not None
    files = named_files(walk[1])
    assert 15 < len(files) <= MOST_FILES_OF_A_WALK
    assert all((SOURCE / name).is_file() for name in files)


def test_ten_questions_are_answered_by_one_place_each() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (.+\?) \| `([\w/.]+)`", text, re.MULTILINE)
    assert len(rows) == 10
    assert all((SOURCE / place).exists() for _, place in rows)
