"""Options of a command in a TOML file, by their names on the command line; what is given there goes before."""

import tomllib
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from cloister.cli.settings_option import SettingsOption
from cloister.errors import SetupError
from cloister.files import read_text

MAX_BYTES = 1 << 20


def name_of(option: SettingsOption) -> str:
    return option.flags.split("/")[0].removeprefix("--")


def read_options(path: Path, options: Collection[SettingsOption]) -> dict[SettingsOption, Any]:
    """Files that it names are looked for beside it. An unknown name is an error: a setting would be missing."""
    try:
        table = tomllib.loads(read_text(path, MAX_BYTES, wrong=SetupError))
    except (ValueError, RecursionError):
        raise SetupError(f"{path} is not valid TOML.", hint="`cloister config` prints one with every option.") from None
    known = {name_of(option): option for option in options}
    for name in table:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"Is it {close[0]!r}?" if close else "`cloister config` prints every option."
            raise SetupError(f"{path}: there is no option {name[:64]!r}.", hint=hint)
    return {known[name]: _value(known[name], value, path) for name, value in table.items()}


def _value(option: SettingsOption, value: Any, path: Path) -> Any:
    return path.parent / value if _is_path(option) and isinstance(value, str) else value


def _is_path(option: SettingsOption) -> bool:
    return Path in (option.field.annotation, *get_args(option.field.annotation))


def written_out(options: Collection[SettingsOption]) -> Iterator[str]:
    """Lines of a file with every option, each at its default and therefore behind a `#`."""
    panel = ""
    for option in options:
        if option.shown.get("panel", "") != panel:
            panel = option.shown.get("panel", "")
            yield f"\n# ---- {panel}"
        yield f"\n# {option.field.description}"
        yield f"# {name_of(option)} = {_as_toml(option.default)}"


def _as_toml(value: Any) -> str:
    if value is None or value is ...:
        return '""  # not set'
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else f'"{value}"'
