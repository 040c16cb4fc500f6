"""Commands whose options are the fields of a settings model, so that each option is written once.

    class Load(BaseModel):
        text: str = option(..., "What to ask.", argument=True)                   # measure TEXT
        users: int = option(8, "Users at once.", bounds=between(1, 64))          # --users 8
        verbose: bool = option(False, "Print every request.", panel="Output")    # --verbose
        server: Server = Server()                                                # all options of that model, too

    @app.command()
    @settings_command(Load)
    def measure(load: Load) -> None:
        '''Measure a server. This text is what --help prints.'''

`cloister.config.option` has all that an option can say. A field made by plain `Field` has no option. A boolean that is
off becomes a flag `--x`, one that is on `--x/--no-x`. What the model's own validators refuse is a usage error, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeVar

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True, eq=False)
class SettingsOption:
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
        return self.flags.split("/")[0].removeprefix("--").replace("-", "_")

    @property
    def default(self) -> Any:
        return self.shown.get("command_default", ... if self.field.is_required() else self.field.default)

    def parameter(self) -> Parameter:
        shown: dict[str, Any] = {"help": self.field.description, "rich_help_panel": self.shown.get("panel")}
        shown |= {key: self.shown[key] for key in ("metavar", "show_default", "envvar", "hidden") if key in self.shown}
        for bound in self.field.metadata:
            if isinstance(bound, Ge):
                shown["min"] = bound.ge
            elif isinstance(bound, Le):
                shown["max"] = bound.le
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
    options = {option.key: option for option in options_of(model)}

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
    for option, value in given.items():
        table = tables
        for name in option.path[:-1]:
            table = table.setdefault(name, {})
        table[option.path[-1]] = value
    try:
        return model.model_validate(tables)
    except ValidationError as wrong:
        first = wrong.errors(include_url=False)[0]
        flags = {option.path: option.flags for option in given}
        message = first["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(message, param_hint=flags.get(tuple(map(str, first["loc"])))) from None


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
