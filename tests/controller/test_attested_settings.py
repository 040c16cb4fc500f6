"""No setting can be forgotten: each is attested, or a table says why not. Each that is attested changes the hash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel

from cloister.access.cloud import Cloud, CloudNode
from cloister.access.token_keys import TokenKey, TokenKeys
from cloister.config import GatewaySettings, Settings, VaultHostSettings
from cloister.controller.attested_settings import attested_host_settings, attested_settings
from cloister.errors import SetupError
from cloister_mpc.config import PartiesConfig, PartyPlace, config_text
from tests.access.vectors import SIGNER
from tests.controller.settings_tables import HOST_IRRELEVANT, HOST_MATTERS, IRRELEVANT, MATTERS

OUTPOST = VaultHostSettings(listen="127.0.0.1:0", key_file=Path("key"))


def names(model: type[BaseModel], before: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        inner = field.annotation
        is_table = isinstance(inner, type) and issubclass(inner, BaseModel)
        found |= names(inner, f"{name}.") if is_table else {before + name}
    return found


@pytest.mark.parametrize(
    ("model", "matters", "irrelevant"),
    [(Settings, MATTERS, IRRELEVANT), (VaultHostSettings, HOST_MATTERS, HOST_IRRELEVANT)],
)
def test_every_setting_is_in_one_table(
    model: type[BaseModel], matters: dict[str, str], irrelevant: dict[str, str]
) -> None:
    assert not matters.keys() & irrelevant.keys()
    assert names(model) == matters.keys() | irrelevant.keys(), "say in settings_tables.py whether it matters, and why"
    assert all({**matters, **irrelevant}.values())


def changed(settings: Any, path: str, value: Any) -> Any:
    name, _, rest = path.partition(".")
    return settings.model_copy(update={name: changed(getattr(settings, name), rest, value) if rest else value})


def parties_file(folder: Path, control: str = "127.0.0.1:1") -> Path:
    (folder / "ca.crt").write_text("an authority")
    others = [PartyPlace(f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}", "c", "k") for port in (3, 5)]
    config = PartiesConfig("ca.crt", (PartyPlace(control, "127.0.0.1:2", "c", "k"), *others))
    (folder / "parties.toml").write_text(config_text(config))
    return folder / "parties.toml"


def cloud_file(folder: Path) -> Path:
    keys = TokenKeys("issuer", "/token-request", [TokenKey(SIGNER.public, 0, 1)])
    (folder / "cloud.json").write_bytes(Cloud((CloudNode("one", "https://one.example"),), keys).encode())
    return folder / "cloud.json"


def examples(tmp_path: Path) -> dict[str, Any]:
    return {
        "controller.allow_degraded_sandbox": True,
        "controller.vault_host": "10.0.0.2:7000",
        "controller.session_idle_s": 600.001,
        "controller.prefix_policy": "global",
        "controller.quantise_ttft_ms": 250,
        "controller.shared_policy": "global",
        "controller.share_epsilon": 0.5,
        "controller.share_threshold": 20,
        "controller.detector": True,
        "controller.templates_key": "templates.example+00000000+AA",
        "controller.verify": "all",
        "engine.dtype": "fp32",
        "engine.weights": "int8",
        "engine.kind": "vllm",
        "engine.private_layers": 2,
        "controller.profile": "tenants",
        "gateway.beat_ms": 150,
        "gateway.cloud": cloud_file(tmp_path),
        "gateway.keys_file": Path("keys.toml"),
        "mpc.mode": "auto",
        "mpc.parties": parties_file(tmp_path),
    }


@pytest.mark.parametrize("path", MATTERS)
def test_a_setting_that_matters_changes_the_hash(path: str, tmp_path: Path) -> None:
    before = attested_settings(Settings(gateway=GatewaySettings(node_name="one")))
    after = attested_settings(
        changed(Settings(gateway=GatewaySettings(node_name="one")), path, examples(tmp_path)[path])
    )
    assert before.hash != after.hash and before.in_words() != after.in_words()


def test_no_other_setting_does() -> None:
    others = Settings()
    for path in IRRELEVANT:
        others = changed(others, path, object())
    assert attested_settings(others) == attested_settings(Settings())


def test_what_the_parties_file_says_counts_and_not_where_it_lies(tmp_path: Path) -> None:
    def attested(file: Path) -> bytes:
        return attested_settings(changed(Settings(), "mpc.parties", file)).hash

    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir(), other.mkdir()
    assert attested(parties_file(one)) == attested(parties_file(other))
    assert attested(parties_file(one)) != attested(parties_file(other, control="10.9.9.9:1"))
    parties_file(other)
    (other / "ca.crt").write_text("another authority")
    assert attested(one / "parties.toml") != attested(other / "parties.toml")
    (other / "ca.crt").unlink()
    with pytest.raises(SetupError):
        attested(other / "parties.toml")


def test_a_vault_host_says_whether_its_sandbox_may_be_degraded() -> None:
    whole = attested_host_settings(OUTPOST)
    degraded = attested_host_settings(OUTPOST.model_copy(update={"allow_degraded_sandbox": True}))
    assert whole.vaults == "here" and replace(whole, sandbox="degraded") == degraded and whole.hash != degraded.hash


def test_a_vault_host_says_what_form_its_weights_have() -> None:
    engine = OUTPOST.engine.model_copy(update={"weights": "int8"})
    assert attested_host_settings(OUTPOST.model_copy(update={"engine": engine})).weights == "int8"
    assert attested_host_settings(OUTPOST).weights == "bf16"
