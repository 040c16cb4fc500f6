"""`cloister obfuscate` shows what would be sent, from substitutes that are given; sampling has tests of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

LETTER = 'I am <redacted category="name">Ann</redacted>. Ann lives in <redacted>Ghent</redacted>.'


@pytest.fixture
def letter(tmp_path: Path) -> Path:
    (tmp_path / "letter.txt").write_text(LETTER)
    (tmp_path / "given.json").write_text('[["Bo", "Lund"], ["Cy", "Oslo"]]')
    return tmp_path


def test_it_shows_the_real_prompt_and_the_others(run: Run, letter: Path) -> None:
    result = run("obfuscate", str(letter / "letter.txt"), "--substitutes", str(letter / "given.json"))
    assert result.exit_code == 0, result.stderr
    assert "real     I am Ann. Ann lives in Ghent." in result.stdout
    assert "fake 2   I am Cy. Cy lives in Oslo." in result.stdout and "λ = 2" in result.stderr


def test_as_json(run: Run, letter: Path) -> None:
    given = ("--substitutes", str(letter / "given.json"), "--json")
    found = json.loads(run("obfuscate", str(letter / "letter.txt"), *given).stdout)
    assert found["prompts"][1] == "I am Bo. Bo lives in Lund." and found["authentic"] == 0
    assert found["lambda"] == 2 and found["kept"] == 0 and found["posterior_of_likeliest"] is None
    assert found["secrets"] == [
        {"category": "name", "mentions": 2, "method": "given"},
        {"category": "free", "mentions": 1, "method": "given"},
    ]


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("No secrets here.", (), "marks no secrets"),
        ("How do I sort a list?", ("--auto-redact",), "none are found"),
        ("I am <redacted>Ann", (), "without </redacted>"),
        (LETTER, ("--substitutes", "absent.json"), "cannot be read"),
        (LETTER, ("--epsilon", "2", "--distance", "absolute"), "at most 1"),
        (LETTER, ("--fakes", "3", "--at-least", "4"), "λ_min"),
    ],
)
def test_wrong_use_exits_with_2_and_says_why(
    run: Run, tmp_path: Path, text: str, more: tuple[str, ...], said: str
) -> None:
    (tmp_path / "text.txt").write_text(text)
    result = run("obfuscate", str(tmp_path / "text.txt"), *more)
    assert result.exit_code == 2 and said in result.stderr and "Traceback" not in result.output


def test_secrets_are_looked_for_beside_those_that_are_marked(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Dr. Sarah Connor lives in <redacted>the old mill</redacted>.")
    (tmp_path / "given.json").write_text('[["Dr. Maria Lopez", "a new barn"]]')
    asked = ("obfuscate", str(tmp_path / "text.txt"), "--substitutes", str(tmp_path / "given.json"), "--json")
    assert run(*asked).exit_code == 2, "unasked there is one secret, and two substitutes do not fit it"
    found = json.loads(run(*asked, "--auto-redact").stdout)
    assert found["prompts"][1] == "Dr. Maria Lopez lives in a new barn."
    assert [secret["category"] for secret in found["secrets"]] == ["name", "free"]


def test_substitutes_that_are_no_lists_are_refused(run: Run, letter: Path) -> None:
    (letter / "given.json").write_text('{"a": 1}')
    result = run("obfuscate", str(letter / "letter.txt"), "--substitutes", str(letter / "given.json"))
    assert result.exit_code == 2 and "list of lists" in result.stderr


def test_the_proxy_speaks_in_the_clear_only_when_it_obfuscates(run: Run) -> None:
    result = run("proxy", "http://127.0.0.1:9", "--auto-redact", "--allow-software-tee")
    assert result.exit_code == 2 and "--obfuscate" in result.stderr
    result = run("proxy", "http://127.0.0.1:9", "--insecure-plaintext")
    assert result.exit_code == 2 and "--obfuscate" in result.stderr
