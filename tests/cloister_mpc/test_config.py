from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cloister.errors import SetupError
from cloister_mpc.config import Limits, config_text, read_config
from cloister_mpc.local_parties import make_local


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    limits = Limits(sessions=2, silence_s=3.5)
    made = make_local(tmp_path, limits=limits)
    again = read_config(tmp_path / "parties.toml")
    assert again == made and again.limits == limits
    assert len(made.party) == 3
    assert all(made.path(place.certificate).is_file() and len(place.fingerprint) == 64 for place in made.party)


def test_settings_that_are_there_are_taken_as_they_are(tmp_path: Path) -> None:
    assert make_local(tmp_path) == make_local(tmp_path)


def test_private_keys_are_their_owners_alone(tmp_path: Path) -> None:
    make_local(tmp_path)
    keys = list((tmp_path / "keys").glob("*.key"))
    assert len(keys) == 6
    assert all(key.stat().st_mode & 0o077 == 0 for key in keys)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('protocol = "aby3"', 'protocol = "cheetah"', "protocol"),
        ('protocol = "aby3"', 'protocol = "ref2k"', "protocol"),
        ('protocol = "aby3"', 'protocol = "semi2k"', "protocol"),
        # SPU's own default for semi2k: rank 0 makes all correlated randomness, and so can compute every secret.
        ('beaver = "multi_party"', 'beaver = "trusted_first_party"', "beaver"),
        ('protocol = "aby3"', 'protokoll = "aby3"', "protokoll"),
        ("[[party]]", "[[party]", "not TOML"),
        ("[limits]", "[limits]\nidle_s = -1.0", "idle_s"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, before: str, after: str, says: str) -> None:
    made = make_local(tmp_path, limits=Limits(sessions=2))
    (tmp_path / "wrong.toml").write_text(config_text(made).replace(before, after, 1))
    with pytest.raises(SetupError, match=says):
        read_config(tmp_path / "wrong.toml")


def test_two_parties_are_too_few(tmp_path: Path) -> None:
    made = make_local(tmp_path)
    (tmp_path / "wrong.toml").write_text(config_text(msgspec.structs.replace(made, party=made.party[:2])))
    with pytest.raises(SetupError, match="3 parties, not 2"):
        read_config(tmp_path / "wrong.toml")


def test_two_parties_cannot_be_at_one_address(tmp_path: Path) -> None:
    made = make_local(tmp_path)
    twice = msgspec.structs.replace(made.party[1], link=made.party[0].link)
    (tmp_path / "wrong.toml").write_text(
        config_text(msgspec.structs.replace(made, party=(made.party[0], twice, made.party[2])))
    )
    with pytest.raises(SetupError, match="the same"):
        read_config(tmp_path / "wrong.toml")


def test_agreement_is_of_what_parties_must_have_in_common(tmp_path: Path) -> None:
    made = make_local(tmp_path)
    assert msgspec.structs.replace(made, limits=Limits(sessions=1)).agreement == made.agreement
    moved = msgspec.structs.replace(made.party[2], fingerprint="00" * 32)
    assert msgspec.structs.replace(made, party=(*made.party[:2], moved)).agreement != made.agreement


def test_the_engine_never_traces() -> None:
    pytest.importorskip("spu", reason="SPU is not installed: make mpc")
    from cloister_mpc.shares import runtime_config

    made = runtime_config()
    assert not (made.enable_pphlo_trace or made.enable_action_trace or made.enable_runtime_snapshot)
