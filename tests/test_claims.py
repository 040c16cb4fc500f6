"""What users read about the levels: refuted claims do not come back, and limits stand beside the promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cloister.levels import LEVELS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "src" / "cloister" / "gateway" / "page" / "provider-view.js"

REFUTED = (
    "nothing sensitive",
    "cannot tell which is yours",
    "without knowing which is",
    "never the prompt; not",
    "sealed process; never the prompt",
    "advantage_at_most",
    "24 times the GLOO",
    "see the bench |",
)
"""Each was said once, and a trial from outside showed that it does not hold."""


def _read_by_users() -> dict[str, str]:
    files = [ROOT / "README.md", PAGE, *(ROOT / "docs").glob("*.md"), *(ROOT / "src" / "cloister").rglob("*.py")]
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in files if file.name != "LOG.md"}
    return {name: re.sub(r'"\s*\+?\s*"|\s+', " ", text) for name, text in texts.items()}


@pytest.mark.parametrize("claim", REFUTED)
def test_a_refuted_claim_does_not_come_back(claim: str) -> None:
    assert not [name for name, text in _read_by_users().items() if claim in text]


LIMITS = {
    "shared": ("a dozen accounts", "guess", r"seven accounts that collude", r"1%"),
    "partitioned": ("compute", "sealed"),
    "obfuscated": ("careful reader", "larger model", "20 of 60", "10 of 56", "session", "sent again|come again"),
    "mpc": ("independent operators", "all three"),
}
"""What a user must read beside a level's promise, with the number where one was measured."""


@pytest.mark.parametrize("name", LIMITS)
def test_a_level_states_its_limit_in_the_api_the_readme_and_the_page(name: str) -> None:
    level = LEVELS[name]
    [view] = re.findall(rf"^function {name}\(.*?^}}", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    for limit in LIMITS[name]:
        assert re.search(limit, level.provider_sees), limit
        assert re.search(limit, level.service_sees + level.others_learn), limit  # the README's cells: test_levels.py
        assert re.search(limit, view), limit


def test_the_readme_says_what_attention_processes_on_a_gpu_hold() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    assert "eight attention processes hold the keys and values of several users' prompts" in text


def test_values_on_shares_are_opened_where_the_guide_to_mpc_says() -> None:
    room = ROOT / "src" / "cloister_mpc"
    files = {str(path.relative_to(room)): path.read_text() for path in room.rglob("*.py")}
    assert {name for name, text in files.items() if re.search(r"\breveal\(", text)} == {
        "functions/ring.py",
        "cache/ranking.py",
    }
    assert {name for name, text in files.items() if "spu.experimental" in text} == {"functions/ring.py"}
    assert len(re.findall(r"\breveal\(", files["cache/ranking.py"])) == 2  # "both uses"
