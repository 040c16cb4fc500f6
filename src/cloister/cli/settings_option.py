"""One option of a command, from a field of its settings."""

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import Parameter
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

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
        shown["show_envvar"] = "envvar" in shown
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


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
