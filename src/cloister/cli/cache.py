"""`cloister cache`: which parts of a text tenants would share, and why; an operator's own rules."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloister.cli.options import AsJson
from cloister.cli.templates import register
from cloister.errors import InvalidRequest, SetupError
from cloister.files import needed, read_bounded, write_whole
from cloister.messages.controller_detector import MAX_RULES_BYTES, Category, Label
from cloister.transparency.note import VerifierKey, read_key_file

if TYPE_CHECKING:
    from cloister.detection.pipeline import Examined, Pipeline

cache = typer.Typer(no_args_is_help=True, help="The shared prefix cache: what is shared, and why the rest is not.")

cache.command("register")(register)

MAX_FILE_BYTES = 4 << 20
_TEXT_HELP = 'The text; "-" reads standard input: other users of this machine can see a process\'s arguments.'


@cache.command("explain")
def explain(
    text: Annotated[str | None, typer.Argument(help=_TEXT_HELP, show_default=False)] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read the text from here.")] = None,
    block: Annotated[int, typer.Option(min=8, max=4096, help="Characters in a block; 16 tokens are about 64.")] = 64,
    rules: Annotated[Path | None, typer.Option(metavar="FILE", help="Your own rules beside those shipped.")] = None,
    rules_key: Annotated[str, typer.Option(metavar="VKEY", help="The key that signed them.", show_default=False)] = "",
    as_json: AsJson = False,
) -> None:
    """Show what each tier of detection finds in a text, and which of its blocks other tenants may share.

    Runs here, without a server; nothing is kept. What is uncertain is private.

    Examples:
      cloister cache explain "My name is Ada and I live in Linz."
      cloister cache explain --file prompt.txt --json
      cat prompt.txt | cloister cache explain -
    """
    from cloister.detection.pipeline import even_blocks

    given = _text(text, file)
    examined = _pipeline(rules, rules_key).examine(given, ends := even_blocks(given, block))
    found = explained(given, ends, examined)
    typer.echo(json.dumps(found, ensure_ascii=False)) if as_json else _show(given, found)


@cache.command("sign")
def sign(
    file: Annotated[Path, typer.Argument(help="Rules, as TOML.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="Your signing key; made if --name is given.")],
    name: Annotated[str, typer.Option(help="Make a key of this name, if there is none yet.", show_default="none")] = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write; else FILE.signed.")] = None,
) -> None:
    """Sign your own rules, so that a server accepts them; prints the verifier key.

    Example:
      cloister cache sign rules.toml --key rules.key --name rules.example
    """
    from cloister.detection.signed_rules import sign_rules

    signing = read_key_file(key, new=name)
    written = read_bounded(file, MAX_RULES_BYTES)
    try:
        signed = sign_rules(written.decode(), signing)
    except UnicodeDecodeError:
        raise SetupError(f"{file} is not text.", hint="Rules are written in TOML.") from None
    place = out if out is not None else file.with_name(file.name + ".signed")
    with needed(f"{place} cannot be written"):
        write_whole(place, signed.encode())
    typer.secho(f"Signed rules in {place}. The server needs this key:", dim=True, err=True)
    typer.echo(str(signing.verifier))


def _text(text: str | None, file: Path | None) -> str:
    if (text is None) == (file is None):
        raise InvalidRequest("Give a text or --file, one of the two.", hint='`cloister cache explain "text"`')
    if file is not None:
        data = read_bounded(file, MAX_FILE_BYTES)
    elif text == "-":
        data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)[:MAX_FILE_BYTES]
    else:
        return text or ""
    return data.decode("utf-8", "replace")


def _pipeline(rules: Path | None, rules_key: str) -> Pipeline:
    from cloister.detection.pipeline import shipped_pipeline
    from cloister.detection.signed_rules import read_signed

    if rules is None:
        return shipped_pipeline()
    if not rules_key:
        raise SetupError("Your own rules need the key that signed them.", hint="Give --rules-key.")
    return shipped_pipeline(read_signed(rules, VerifierKey.parse(rules_key)))


def explained(text: str, ends: list[int], examined: Examined) -> dict[str, Any]:
    from cloister.detection.pipeline import inherit

    verdicts = inherit(examined.verdicts)
    blocks = []
    for start, end, own, verdict in zip([0, *ends], ends, examined.verdicts, verdicts, strict=False):
        category = None if verdict.category is Category.NONE else verdict.category.name.lower()
        block = {"start": start, "end": end, "label": verdict.label.name.lower(), "tier": verdict.tier}
        blocks.append({**block, "category": category, "score": round(own.score, 4)})
    findings = []
    for each in examined.findings:
        why = {"rule": each.rule} if each.rule else {"score": round(each.score, 4)}
        finding = {"start": each.start, "end": each.end, "text": text[each.start : each.end], "tier": each.tier}
        findings.append({**finding, "category": each.category.name.lower(), **why})
    shared = next((start for start, v in zip([0, *ends], verdicts, strict=False) if v.label < Label.PUBLIC), len(text))
    worst = min((verdict.label for verdict in verdicts), default=Label.PUBLIC)
    return {"verdict": worst.name.lower(), "shared_characters": shared, "findings": findings, "blocks": blocks}


def _show(text: str, found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    shown = Text(text)
    shown.stylize("green", 0, found["shared_characters"])
    shown.stylize("dim", found["shared_characters"])
    for each in found["findings"]:
        shown.stylize("bold red" if each["tier"] == 1 else "bold yellow", each["start"], each["end"])
    console.print(shown)
    if found["findings"]:
        table = Table("tier", "what", "why", "text")
        for each in found["findings"]:
            why = each.get("rule") or f"score {each['score']:.2f}"
            table.add_row(str(each["tier"]), each["category"], why, Text(each["text"]))
        console.print(table)
    shared = f"Of {len(text)} characters the first {found['shared_characters']} may be shared."
    typer.echo(f"Verdict: {found['verdict']}. {shared}")
