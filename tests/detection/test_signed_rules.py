"""An operator's rules: only signed ones are taken, and a wrong file changes nothing but the message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloister.detection.rules import RuleBroken
from cloister.detection.signed_rules import SignedRules, read_signed, sign_rules
from cloister.errors import SetupError
from cloister.transparency.note import SigningKey

FIRST = 'version = 1\n[[rule]]\nid = "one"\ncategory = "blacklist"\nwords = ["heron"]\n'
SECOND = FIRST.replace("heron", "stork")
KEY, OTHER = SigningKey.generate("rules.example"), SigningKey.generate("rules.example")


def put(path: Path, text: str) -> None:
    """As an editor saves: another file in its place, so that a change is seen at any resolution of time."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)


def test_rules_change_with_their_file(tmp_path: Path) -> None:
    file = tmp_path / "rules"
    put(file, sign_rules(FIRST, KEY))
    rules = SignedRules(file, KEY.verifier)
    assert rules.text == FIRST and not rules.reload()
    put(file, sign_rules(SECOND, KEY))
    assert rules.reload() and rules.text == SECOND and rules.trouble is None


@pytest.mark.parametrize(
    "wrong",
    [
        SECOND,
        sign_rules(SECOND, OTHER),
        sign_rules(SECOND, KEY).replace("stork", "crane"),
        sign_rules(SECOND, KEY)[:-20],
        "",
        None,
    ],
    ids=["unsigned", "another's", "changed", "cut", "empty", "gone"],
)
def test_a_wrong_file_leaves_the_rules_before_and_says_so_once(
    tmp_path: Path, wrong: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "rules"
    put(file, sign_rules(FIRST, KEY))
    rules = SignedRules(file, KEY.verifier)
    if wrong is None:
        file.unlink()
    else:
        put(file, wrong)
    assert not rules.reload() and not rules.reload()
    assert rules.text == FIRST and rules.trouble is not None
    assert caplog.text.count("stays in force") == 1
    put(file, sign_rules(SECOND, KEY))
    assert rules.reload() and rules.text == SECOND and rules.trouble is None


def test_the_first_reading_must_be_right(tmp_path: Path) -> None:
    put(tmp_path / "rules", FIRST)
    with pytest.raises(SetupError, match="not signed") as refused:
        SignedRules(tmp_path / "rules", KEY.verifier)
    assert refused.value.hint


def test_signed_nonsense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuleBroken):
        sign_rules("version = 7", KEY)
    text = "version = 7\n"
    put(tmp_path / "rules", f"{text}\n{KEY.sign(text).line}")
    with pytest.raises(RuleBroken):
        read_signed(tmp_path / "rules", KEY.verifier)
