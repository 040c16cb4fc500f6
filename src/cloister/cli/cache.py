"""`cloister cache`: what tenants would share of a text, and why; an operator's rules; texts registered for sharing."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from cloister.cli.options import AsJson, print_result
from cloister.errors import CloisterError, InvalidRequest, SetupError
from cloister.files import needed, read_bounded, read_text, write_whole
from cloister.messages.controller_detector import MAX_RULES_BYTES, Category, Label
from cloister.transparency.note import VerifierKey, read_key_file

if TYPE_CHECKING:
    from cloister.detection.pipeline import Examined, Pipeline
    from cloister.prefix.public_pages import Template
    from cloister.prompts.tokenizer import Tokenizer

cache = typer.Typer(no_args_is_help=True, help="The shared prefix cache: what is shared, and why the rest is not.")

MAX_FILE_BYTES = 4 << 20
MAX_TEXT_BYTES = 1 << 20
Into = Annotated[Path, typer.Option(metavar="TEMPLATES", help="The signed file; made if there is none.")]
Key = Annotated[Path, typer.Option(metavar="FILE", help="Your signing key; made if --name is given.")]
KeyName = Annotated[str, typer.Option(help="Make a key of this name, if there is none yet.", show_default="none")]
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
    key: Key,
    name: KeyName = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write; else FILE.signed.")] = None,
) -> None:
    """Sign your own rules, so that a server accepts them; prints the verifier key.

    Example:
      cloister cache sign rules.toml --key rules.key --name rules.example
    """
    from cloister.detection.signed_rules import sign_rules

    signing = read_key_file(key, new=name)
    signed = sign_rules(read_text(file, MAX_RULES_BYTES, hint="Rules are written in TOML."), signing)
    place = out if out is not None else file.with_name(file.name + ".signed")
    with needed(f"{place} cannot be written"):
        write_whole(place, signed.encode())
    typer.secho(f"Signed rules in {place}. The server needs this key:", dim=True, err=True)
    typer.echo(str(signing.verifier))


@cache.command("register")
def register(
    file: Annotated[Path, typer.Argument(help="A JSON list of messages, or a text: a system message.")],
    into: Into,
    key: Key,
    accounts: Annotated[
        list[str] | None, typer.Option("--for", metavar="ACCOUNT", help="A trust group or tenant; `all`: every one.")
    ] = None,
    name: KeyName = "",
    model: Annotated[str | None, typer.Option(help="The served model, as for `serve`.", show_default="default")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the template of this file back.")] = False,
    as_json: AsJson = False,
) -> None:
    """Register a template: the tenants named may find it computed, and see that they did. Prints the verifier key.

    A running server with --templates TEMPLATES takes it within seconds. Whole pages of 16 tokens are shared.

    Examples:
      cloister cache register system.txt --for all --into templates --key templates.key --name templates.example
      cloister cache register chat.json --for acme --for globex --into templates --key templates.key
      cloister serve --keys keys.toml --templates templates --templates-key "$(cat templates.vkey)"
    """
    from cloister.controller.template_file import read_signed, sign_templates
    from cloister.prefix.public_pages import Template, read_templates

    signing = read_key_file(key, new=name)
    kept = read_templates(read_signed(into, signing.verifier)) if into.exists() else ()
    others = [one for one in kept if one.name != file.name]
    if remove:
        if len(others) == len(kept):
            raise SetupError(f"{into} has no template {file.name}.", hint=f"It has: {_names(kept)}.")
    else:
        if not accounts:
            raise SetupError(
                "Name the accounts that may share it.", hint="`--for all`, or `--for ACCOUNT` once for each."
            )
        digest, tokens = _tokens(file, model)
        others.append(Template(file.name, tuple(accounts), digest, tokens))
    text = "".join(msgspec.json.encode(one).decode() + "\n" for one in others)
    with needed(f"{into} cannot be written"):
        write_whole(into, sign_templates(text, signing).encode())
    listed = [{"name": one.name, "for": list(one.accounts), "tokens": len(one.tokens)} for one in others]
    verifier, note = str(signing.verifier), f"{into} has now: {_names(others)}. The server needs this key:"
    print_result(as_json, {"templates": listed, "key": verifier}, verifier, note)


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


def _pipeline(rules: Path | None, rules_key: str) -> "Pipeline":
    from cloister.detection.pipeline import shipped_pipeline
    from cloister.detection.signed_rules import read_signed

    if rules is None:
        return shipped_pipeline()
    if not rules_key:
        raise SetupError("Your own rules need the key that signed them.", hint="Give --rules-key.")
    return shipped_pipeline(read_signed(rules, VerifierKey.parse(rules_key)))


def explained(text: str, ends: list[int], examined: "Examined") -> dict[str, Any]:
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


def _names(templates: "list[Template] | tuple[Template, ...]") -> str:
    return ", ".join(f"{one.name} ({len(one.tokens)} tokens)" for one in templates) or "nothing"


def _tokens(file: Path, model: str | None) -> tuple[str, tuple[int, ...]]:
    from cloister.controller.template_file import tokenizer_digest
    from cloister.models.source import find_model
    from cloister.prompts.tokenizer import Tokenizer

    folder = find_model(model)
    return tokenizer_digest(folder.path), beginning(Tokenizer(folder), _messages(file))


def beginning(tokenizer: "Tokenizer", messages: list[dict[str, Any]]) -> tuple[int, ...]:
    """The tokens with which every chat begins that has these messages first."""
    from jinja2 import TemplateError

    from cloister.prompts.chat_template import shared_length

    for role in ("user", "assistant"):
        try:
            one, other = (tokenizer.render_chat([*messages, {"role": role, "content": text}]) for text in ("1", "a"))
        except (TemplateError, CloisterError):
            continue
        return tuple(one[: shared_length(one, other)])
    raise SetupError("The model's chat template does not accept these messages.", hint="Begin with a system message.")


def _messages(file: Path) -> list[dict[str, Any]]:
    text = read_text(file, MAX_TEXT_BYTES, hint="Give a text or a JSON list of messages.")
    if file.suffix != ".json":
        return [{"role": "system", "content": text}]
    try:
        return msgspec.json.decode(text, type=list[dict[str, str]])
    except msgspec.DecodeError:
        hint = 'For example [{"role": "system", "content": "…"}].'
        raise SetupError(f"{file} is not a JSON list of messages.", hint=hint) from None
