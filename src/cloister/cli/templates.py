"""`cloister cache register`: texts that tenants may share, as a signed file of token ids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from cloister.cli.options import AsJson, print_result
from cloister.errors import CloisterError, SetupError
from cloister.files import needed, read_bounded, write_whole
from cloister.transparency.note import read_key_file

if TYPE_CHECKING:
    from cloister.prefix.public_pages import Template
    from cloister.prompts.tokenizer import Tokenizer

MAX_TEXT_BYTES = 1 << 20
_Into = Annotated[Path, typer.Option(metavar="TEMPLATES", help="The signed file; made if there is none.")]
_Key = Annotated[Path, typer.Option(metavar="FILE", help="Your signing key; made if --name is given.")]


def register(
    file: Annotated[Path, typer.Argument(help="A JSON list of messages, or a text: a system message.")],
    into: _Into,
    key: _Key,
    accounts: Annotated[
        list[str] | None, typer.Option("--for", metavar="ACCOUNT", help="A trust group or tenant; `all`: every one.")
    ] = None,
    name: Annotated[str, typer.Option(help="Make a key of this name, if there is none yet.", show_default="none")] = "",
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


def _names(templates: list[Template] | tuple[Template, ...]) -> str:
    return ", ".join(f"{one.name} ({len(one.tokens)} tokens)" for one in templates) or "nothing"


def _tokens(file: Path, model: str | None) -> tuple[str, tuple[int, ...]]:
    from cloister.controller.template_file import tokenizer_digest
    from cloister.models.source import find_model
    from cloister.prompts.tokenizer import Tokenizer

    folder = find_model(model)
    return tokenizer_digest(folder.path), beginning(Tokenizer(folder), _messages(file))


def beginning(tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> tuple[int, ...]:
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
    data = read_bounded(file, MAX_TEXT_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise SetupError(f"{file} is not text.", hint="Give a text or a JSON list of messages.") from None
    if file.suffix != ".json":
        return [{"role": "system", "content": text}]
    try:
        return msgspec.json.decode(text, type=list[dict[str, str]])
    except msgspec.DecodeError:
        hint = 'For example [{"role": "system", "content": "…"}].'
        raise SetupError(f"{file} is not a JSON list of messages.", hint=hint) from None
