"""What all commands share: options from settings models, a node's policy, how verdicts and errors are shown."""

import json
import os
from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from pydantic import BaseModel, ValidationError
from typer.core import TyperGroup

from cloister.cli.config_file import read_options
from cloister.cli.settings_option import SettingsOption, options_of
from cloister.config import DEVELOPMENT_KEY, option
from cloister.errors import CloisterError, EvidenceInvalid, InvalidRequest, SetupError
from cloister.files import read_bounded, read_private, read_text
from cloister.transparency.checkpoint import Checkpoint, ReleaseTrust, read_checkpoint

if TYPE_CHECKING:
    from rich.table import Table

    from cloister.attest.policy import Policy
    from cloister.checks import Verdict
    from cloister.client.verification import Verification, VerifiedNode

Model = TypeVar("Model", bound=BaseModel)
_FILE = typer.Option("--config", metavar="FILE", help="Options in TOML; see `cloister config`.", show_default=False)
_CONFIG = [
    Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, _FILE]),
    Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context),
]


def settings_command(
    model: type[Model], *, config_file: bool = False
) -> Callable[[Callable[[Model], None]], Callable[..., None]]:
    """`config_file`: the options may also come from a file."""
    options = {one.key: one for one in options_of(model)}

    def decorate(run: Callable[[Model], None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            file, context = given.pop("config", None), given.pop("context", None)
            chosen = {options[key]: value for key, value in given.items()}
            if file is not None:
                for one, value in read_options(file, options.values()).items():
                    if context.get_parameter_source(one.key).name == "DEFAULT":
                        chosen[one] = value
            run(settings_from(model, chosen))

        command.__name__, command.__doc__, command.__module__ = run.__name__, run.__doc__, run.__module__
        command.__annotations__ = {}
        parameters = [one.parameter() for one in options.values()] + (_CONFIG if config_file else [])
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def settings_from(model: type[Model], given: dict[SettingsOption, Any]) -> Model:
    tables: dict[str, Any] = {}
    for one, value in given.items():
        table = tables
        for name in one.path[:-1]:
            table = table.setdefault(name, {})
        table[one.path[-1]] = value
    try:
        return model.model_validate(tables)
    except ValidationError as wrong:
        first = wrong.errors(include_url=False)[0]
        flags = {one.path: one.flags for one in given}
        message = first["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(message, param_hint=flags.get(tuple(map(str, first["loc"])))) from None


FAILURE_EXIT, USAGE_EXIT, INCOMPLETE_EXIT, INTERRUPTED_EXIT = 1, 2, 3, 130


def print_error(error: CloisterError) -> None:
    typer.secho(f"Error: {error.message}", fg="red", err=True)
    if error.hint:
        typer.echo(error.hint, err=True)


class FriendlyGroup(TyperGroup):
    """Runs commands; turns every CloisterError into one or two lines and an exit code, and Ctrl-C into one word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CloisterError as error:
            print_error(error)
            raise typer.Exit(USAGE_EXIT if isinstance(error, SetupError | InvalidRequest) else FAILURE_EXIT) from None
        except KeyboardInterrupt:
            typer.echo("Stopped.", err=True)
            raise typer.Exit(INTERRUPTED_EXIT) from None


DEFAULT_URL = "http://127.0.0.1:8000"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
AsJsonTable = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
_COLOURS = {"PASS": "green", "FAIL": "red", "SKIP": "yellow"}


def checks_table(verdict: "Verdict") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("check", "outcome", "found"):
        table.add_column(title, overflow="fold")
    for check in verdict.checks:
        outcome = str(check.outcome)
        unasked = outcome == "SKIP" and not check.required
        found = f"{check.reason} (not asked for)" if unasked else check.reason
        style = "dim" if unasked else _COLOURS[outcome]
        if check.allowed_by:
            found, style = f"{check.reason} (allowed by the policy: {check.allowed_by})", _COLOURS["SKIP"]
        table.add_row(Text(plain(check.name)), Text(outcome, style=style), Text(plain(found)))
    return table


def show_verdict(verdict: "Verdict", passed: str, incomplete: str, failed: str) -> None:
    """A table of checks, then the sentence of the outcome in its colour."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    console.print(checks_table(verdict))
    console.print()
    short = (incomplete, "yellow") if verdict.incomplete else (failed, "red")
    said, colour = (passed, "green") if verdict.passed else short
    console.print(Text(said, style=colour), soft_wrap=True)


def exit_by(verdict: "Verdict") -> NoReturn:
    """0: it passed; 1: a check failed; 3: something could not be checked."""
    raise typer.Exit(0 if verdict.passed else INCOMPLETE_EXIT if verdict.incomplete else FAILURE_EXIT)


def plain(text: str) -> str:
    """Without escape sequences, which evidence may contain and a terminal would obey."""
    return "".join(each for each in " ".join(text.split()) if each.isprintable())


def without_control_characters(text: str) -> str:
    """A terminal obeys escape sequences, and a model may write any: keep line breaks and tabs only."""
    return "".join(each for each in text if each in "\n\t" or each.isprintable())


def report(verdict: "Verdict", *, as_json: bool) -> None:
    """Print a verdict line by line; exit with 1 unless it is a pass."""
    if as_json:
        typer.echo(json.dumps(verdict.as_json(), indent=2))
    else:
        width = max(len(check.name) for check in verdict.checks)
        for check in verdict.checks:
            outcome = typer.style(str(check.outcome), fg=_COLOURS[str(check.outcome)])
            typer.echo(f"{outcome}  {check.name:<{width}}  {plain(check.reason)}")
        for name, value in verdict.claims.items():
            typer.secho(f"{name}: {value}", dim=True, err=True)
    if not verdict.passed:
        raise typer.Exit(1)


def node_url() -> Any:
    return option(..., "The node's address; `/v1` may be left out.", argument=True, metavar="URL")


class KeyOptions(BaseModel):
    """No command takes a key as an argument: other users of the machine can see a process's arguments."""

    api_key_file: Path | None = option(
        None, "The API key, in a file of yours alone.", show_default="$CLOISTER_API_KEY, or the development key"
    )

    def api_key(self) -> str:
        if self.api_key_file is None:
            return os.environ.get("CLOISTER_API_KEY") or DEVELOPMENT_KEY
        return read_private(self.api_key_file, 4096, "API key").decode("ascii", "replace").strip()


class NodePolicy(BaseModel):
    policy: Path | None = option(None, "What the node must prove, in TOML.", show_default="real TEEs only")
    allow_software_tee: bool = option(False, "Accept a development node: its operator can read everything.")

    def load(self) -> "Policy":
        from cloister.attest.policy import load_policy

        return load_policy(self.policy, allow_software_tee=self.allow_software_tee)

    def verified(self, url: str, relay: str | None = None) -> "VerifiedNode":
        from cloister.client.oblivious import verified_node

        node = verified_node(url, self.load(), relay)
        if note := software_note(node.verification):
            typer.secho(note, fg="yellow", err=True)
        return node


def software_note(verification: "Verification") -> str:
    if verification.verdict.claims.get("tee") != "none":
        return ""
    return "Note: this node attests by its own word (software TEE): its operator can read everything."


class TrustedLog(BaseModel):
    log_key: list[str] | None = option(None, "A log to trust; may be repeated.", metavar="VKEY")
    witness: list[str] | None = option(None, "A witness to trust; may be repeated.", metavar="VKEY")
    quorum: int | None = option(None, "How many witnesses must have signed.", ge=0, show_default="all of them")
    seen: Path | None = option(None, "A checkpoint of the log seen earlier.")
    as_json: bool = option(False, "Print JSON instead of text.", name="json")

    def trust(self) -> ReleaseTrust:
        return ReleaseTrust(tuple(self.log_key or ()), tuple(self.witness or ()), self.quorum)

    def earlier(self) -> Checkpoint | None:
        return None if self.seen is None else read_checkpoint(text_of(self.seen)).checkpoint


def text_of(file: Path) -> str:
    return read_text(file, 1 << 20, wrong=EvidenceInvalid)


def read_file(file: Path, limit: int) -> bytes:
    return read_bounded(file, limit, too_large=EvidenceInvalid)


def print_result(as_json: bool, found: dict[str, Any], line: str, note: str = "") -> None:
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    if note:
        typer.secho(note, dim=True, err=True)
    typer.echo(line)
