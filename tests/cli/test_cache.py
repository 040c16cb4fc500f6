"""`cloister cache`, as a shell sees it."""

from __future__ import annotations

import json
from pathlib import Path

from cloister.controller.template_file import read_signed
from cloister.models.source import ModelFolder
from cloister.prefix.public_pages import read_templates
from cloister.prompts.tokenizer import Tokenizer
from cloister.transparency.note import VerifierKey
from tests.cli.conftest import Run

PRIVATE = "Write a function that sorts a list of numbers, and explain it. My mail is sunny@example.org."
OWN = 'version = 1\n[[rule]]\nid = "own"\ncategory = "blacklist"\nwords = ["heron"]\n'


def test_explain_shows_tiers_spans_and_verdict(run: Run) -> None:
    shown = run("cache", "explain", PRIVATE)
    assert shown.exit_code == 0, shown.output
    assert "Verdict: private" in shown.output and "email" in shown.output and "sunny@example.org" in shown.output


def test_explain_as_json_from_a_file_and_from_standard_input(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(PRIVATE)
    from_file = run("cache", "explain", "--file", str(tmp_path / "text"), "--json", "--block", "16")
    piped = run("cache", "explain", "-", "--json", "--block", "16", stdin=PRIVATE)
    assert from_file.stdout == piped.stdout
    told = json.loads(piped.stdout)
    assert told["verdict"] == "private" and 16 <= told["shared_characters"] <= PRIVATE.index("sunny")
    mail = next(each for each in told["findings"] if each.get("rule") == "email")
    assert PRIVATE[mail["start"] : mail["end"]] == mail["text"] == "sunny@example.org"
    assert [block["label"] for block in told["blocks"]][-1] == "private"
    assert told["blocks"][0]["label"] == "public" and told["blocks"][-1]["end"] == len(PRIVATE)


def test_a_clean_text_is_public(run: Run) -> None:
    told = json.loads(run("cache", "explain", "Write a function that sorts a list.", "--json").stdout)
    assert told["verdict"] == "public" and told["findings"] == []


def test_no_text_and_two_texts_are_refused(run: Run, tmp_path: Path) -> None:
    assert run("cache", "explain").exit_code != 0
    assert run("cache", "explain", "a", "--file", str(tmp_path)).exit_code != 0


def test_rules_of_ones_own_are_signed_and_used(run: Run, tmp_path: Path) -> None:
    rules, key = tmp_path / "rules.toml", tmp_path / "rules.key"
    rules.write_text(OWN)
    signed = run("cache", "sign", str(rules), "--key", str(key), "--name", "rules.example")
    assert signed.exit_code == 0, signed.output
    verifier = signed.stdout.strip().splitlines()[-1]
    arguments = ("cache", "explain", "a grey heron", "--json", "--rules", f"{rules}.signed", "--rules-key")
    told = json.loads(run(*arguments, verifier).stdout)
    assert "own" in {each.get("rule") for each in told["findings"]}
    assert run(*arguments[:-1]).exit_code != 0, "a key is needed"
    Path(f"{rules}.signed").write_text(OWN)
    refused = run(*arguments, verifier)
    assert refused.exit_code != 0 and "not signed" in refused.output


def test_a_template_is_registered_listed_and_taken_back(run: Run, tmp_path: Path, short_folder: ModelFolder) -> None:
    system, chat, into, key = (tmp_path / name for name in ("system.txt", "chat.json", "templates", "key"))
    system.write_text("You are the library's assistant. Name the shelf, then the row. " * 2)
    chat.write_text(json.dumps([{"role": "system", "content": "Short."}, {"role": "user", "content": "Hello."}]))
    common = ("--into", str(into), "--key", str(key), "--model", str(short_folder.path), "--json")
    first = run("cache", "register", str(system), "--for", "all", "--name", "templates.example", *common)
    assert first.exit_code == 0, first.output
    made = json.loads(run("cache", "register", str(chat), "--for", "a", "--for", "b", *common).stdout)
    assert {one["name"]: one["for"] for one in made["templates"]} == {"system.txt": ["all"], "chat.json": ["a", "b"]}
    read = read_templates(read_signed(into, VerifierKey.parse(made["key"])))
    text = Tokenizer(short_folder).decode(read[0].tokens)
    assert "Name the shelf" in text and text.rstrip().endswith("user"), "up to where the next message begins"
    left = json.loads(run("cache", "register", str(system), "--remove", *common).stdout)
    assert [one["name"] for one in left["templates"]] == ["chat.json"]
    assert run("cache", "register", str(system), "--remove", *common).exit_code != 0
    assert run("cache", "register", str(system), *common).exit_code != 0, "for which accounts?"
    into.write_text(into.read_text().replace("chat", "chit"))
    assert "not signed" in run("cache", "register", str(system), "--for", "all", *common).output
