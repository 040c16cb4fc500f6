"""What all commands share: options from settings models, a node's policy, how verdicts and errors are shown."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import Parameter, Signature
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, get_args

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from typer.core import TyperGroup

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
_LIMITS = {"min": "ge", "max": "le"}


@dataclass(frozen=True, slots=True, eq=False)
class SettingsOption:
    """One option of a command: `path` says which field of which model it sets."""

    path: tuple[str, ...]
    field: FieldInfo

    @property
    def shown(self) -> dict[str, Any]:
        return dict(_extra(self.field)["option"])

    @property
    def flags(self) -> str:
        name = str(self.shown.get("name", self.path[-1])).replace("_", "-")
        if name.startswith("--"):
            return name
        return f"--{name}/--no-{name}" if self.default is True else f"--{name}"

    @property
    def key(self) -> str:
        name = self.flags.split("/")[0].removeprefix("--").replace("-", "_")
        return f"{name}_" if iskeyword(name) else name

    @property
    def default(self) -> Any:
        return self.shown.get("command_default", ... if self.field.is_required() else self.field.default)

    def parameter(self) -> Parameter:
        shown: dict[str, Any] = {"help": self.field.description, "rich_help_panel": self.shown.get("panel")}
        shown |= {key: self.shown[key] for key in ("metavar", "show_default", "envvar", "hidden") if key in self.shown}
        if Path in (self.field.annotation, *get_args(self.field.annotation)) and not self.shown.get("argument"):
            shown.setdefault("metavar", "FILE")
        for bound in self.field.metadata:  # pydantic's Ge and Le
            shown |= {name: getattr(bound, limit) for name, limit in _LIMITS.items() if hasattr(bound, limit)}
        how = typer.Argument(**shown) if self.shown.get("argument") else typer.Option(self.flags, **shown)
        default = Parameter.empty if self.default is ... else self.default
        kind: Any = self.field.annotation
        return Parameter(self.key, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, how])


def options_of(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[SettingsOption]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if "option" in _extra(field):
            yield SettingsOption((*path, name), field)
        elif isinstance(inner, type) and issubclass(inner, BaseModel):
            offered = _extra(field).get("only")
            yield from (one for one in options_of(inner, (*path, name)) if not offered or one.path[-1] in offered)


def settings_command(model: type[Model]) -> Callable[[Callable[[Model], None]], Callable[..., None]]:
    options = {one.key: one for one in options_of(model)}

    def decorate(run: Callable[[Model], None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            run(_settings(model, {options[key]: value for key, value in given.items()}))

        command.__name__, command.__doc__, command.__module__ = run.__name__, run.__doc__, run.__module__
        command.__annotations__ = {}
        command.__signature__ = Signature([one.parameter() for one in options.values()])  # type: ignore[attr-defined]
        return command

    return decorate


def _settings(model: type[Model], given: dict[SettingsOption, Any]) -> Model:
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


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


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
