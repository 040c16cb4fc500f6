"""Options are generated from settings: every field has one or is internal on purpose, and sets what it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from pydantic import BaseModel, Field, field_validator
from typer.testing import CliRunner

from cloister.cli.options import settings_command
from cloister.cli.settings_option import options_of
from cloister.config import Settings, VaultHostSettings, only, option
from cloister.models.source import ModelFolder
from tests.cli.conftest import Run

INTERNAL = {
    "engine.max_waiting_per_tenant",
    "controller.max_waiting_for_vaults",
    "controller.vault_ready_s",
    "controller.vault_deadline_s",
    "controller.service_deadline_s",
    "gateway.max_body_bytes",
    "gateway.max_connections",
    "gateway.max_connections_of_one",
}
"""Limits of `cloister serve` that tests set and operators do not."""
_SERVICE = "kind tensor_parallel kv_cache_mib max_running max_waiting max_waiting_per_tenant"
_SERVICE_LINKS = "attention_processes link_deadline_ms private_layers speculate"
HOST_INTERNAL = {"vault_deadline_s", *(f"engine.{name}" for name in f"{_SERVICE} {_SERVICE_LINKS}".split())}
"""A vault host has no service: these are the service's, or need the gateway's beat."""

SERVE_OPTIONS = """
    engine tensor-parallel usage tokens-a-day requests-a-day tls-cert tls-key allow-origin log-format
    cloud node-name spent token-budget host port model served-model-name dtype weights keys threads kernels kv-cache-mib
    max-running chunk-tokens max-context max-waiting request-timeout drain beat verify max-vaults gpu-in-turns
    attention-processes private-layers watch-attention speculate tool-parser
    spare-vaults session-idle vault-kv-mib compact-prompts link-deadline-ms shared-policy share-epsilon share-threshold
    templates templates-key prefix-policy quantise-ttft detector detector-rules detector-key
    vault-host vault-host-key vault-host-policy profile attester gpu-evidence release
    sealed-weights provider-key mpc mpc-parties mpc-context mpc-drafts mpc-cache allow-degraded-sandbox
"""


def fields_of(model: type[BaseModel], before: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        inner: Any = field.annotation
        is_model = isinstance(inner, type) and issubclass(inner, BaseModel)
        found |= fields_of(inner, f"{name}.") if is_model else {before + name}
    return found


@pytest.mark.parametrize(("model", "internal"), [(Settings, INTERNAL), (VaultHostSettings, HOST_INTERNAL)])
def test_every_setting_has_an_option_or_is_internal_on_purpose(model: type[BaseModel], internal: set[str]) -> None:
    offered = {".".join(option.path) for option in options_of(model)}
    assert not offered & internal
    assert offered | internal == fields_of(model), "give it an `option`, or name it here"


def test_the_options_of_serve_keep_their_names() -> None:
    flags = [option.flags for option in options_of(Settings)]
    assert {one.split("/")[0].removeprefix("--") for one in flags} == set(SERVE_OPTIONS.split())
    assert "--detector/--no-detector" in flags


@pytest.mark.parametrize("model", [Settings, VaultHostSettings])
def test_every_option_says_what_it_is_for(model: type[BaseModel]) -> None:
    assert not [option.flags for option in options_of(model) if not option.field.description]


def test_serve_passes_every_option_on(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[Any] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cloister.process.entry.become", lambda _, settings, *rest: given.append(settings))
    monkeypatch.setattr("cloister.keys.load_keys", lambda gateway: None)
    monkeypatch.setattr("cloister.models.source.find_model", lambda name: ModelFolder("m", Path("/m"), {}))
    words = ("--port", "0", "--keys", "k.toml", "--session-idle", "5", "--no-detector", "--max-running", "3")
    assert run("serve", *words, "--mpc", "off").exit_code == 0
    [settings] = given
    assert (settings.engine.max_running, settings.gateway.port, settings.mpc.mode) == (3, 0, "off")
    assert (settings.controller.session_idle_s, settings.controller.detector) == (5, False)
    assert settings.gateway.keys_file == tmp_path / "k.toml", "other processes read it from another working folder"


class Inner(BaseModel):
    size: int = option(3, "A size.", ge=1, le=9, panel="Inside")
    kept: int = option(4, "Not offered by Outer.", name="kept-back")


class Outer(BaseModel):
    text: str = option(..., "What to say.", argument=True)
    mode: Literal["a", "b"] = option("a", "A choice.", command_default="b")
    files: list[Path] | None = option(None, "Files.", name="file", metavar="FILE")
    even: int = option(0, "An even number.", ge=0)
    on: bool = option(True, "On.")
    off: bool = option(False, "Off.")
    inner: Inner = Field(default=Inner(), json_schema_extra=only("size"))
    internal: int = 7

    @field_validator("even")
    @classmethod
    def _is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd numbers are not taken")
        return value


def outer(*words: str) -> tuple[int, str, list[Outer]]:
    app, seen = typer.Typer(), list[Outer]()

    @app.command()
    @settings_command(Outer)
    def command(settings: Outer) -> None:
        """Says what it does."""
        seen.append(settings)

    result = CliRunner().invoke(app, list(words), env={"TERMINAL_WIDTH": "120"})
    return result.exit_code, " ".join(result.output.replace("│", " ").split()), seen


def test_fields_become_options_and_arguments() -> None:
    code, _, [settings] = outer("hello", "--file", "x", "--file", "y", "--no-on", "--off", "--size", "5", "--even", "2")
    assert code == 0 and settings == Outer(
        text="hello", mode="b", files=[Path("x"), Path("y")], on=False, off=True, even=2, inner=Inner(size=5)
    )
    assert outer("hello")[2] == [Outer(text="hello", mode="b")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("x", "--size", "10"), "'--size': Input should be less than or equal to 9"),
        (("x", "--mode", "c"), "'--mode': Value error, 'c' is not one of 'a', 'b'"),
        (("x", "--even", "3"), "--even: odd numbers are not taken"),
        (("x", "--even", "two"), "'--even': Input should be a valid integer"),
        ((), "Missing argument"),
        (("x", "--kept-back", "1"), "No such option"),
        (("x", "--internal", "1"), "No such option"),
    ],
)
def test_a_wrong_value_is_a_usage_error_that_names_the_option(words: tuple[str, ...], said: str) -> None:
    code, output, seen = outer(*words)
    assert code == 2 and said in output and not seen and "Traceback" not in output


def test_help_shows_text_panels_bounds_and_defaults() -> None:
    _, output, _ = outer("--help")
    for part in ("Says what it does.", "Inside", "1<=x<=9", "[default: 3]", "--on --no-on", "A choice.", "FILE"):
        assert part in output, part
