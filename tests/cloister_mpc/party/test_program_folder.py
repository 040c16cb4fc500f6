"""Where a party has its engine keep compiled programs, and where it has it keep none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from cloister_mpc.local_parties import local_programs, make_local
from cloister_mpc.messages import Complete, Load
from cloister_mpc.party import party as party_module
from cloister_mpc.party.party import Party
from cloister_mpc.party.weight_store import program_folder


class FakeWorkers:
    loads: ClassVar[list[Load]] = []

    def __init__(self, *_: object) -> None: ...

    async def start(self, key: bytes, load: Load) -> None:
        self.loads.append(load)


@pytest.fixture(autouse=True)
def fake_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party_module, "Workers", FakeWorkers)


async def told(folder: Path, **place: Any) -> str:
    """The folder that an engine is told of, where the party's settings are these."""
    config = make_local(folder)
    config = replace(config, party=tuple(replace(each, **place) for each in config.party))
    party = Party(config, 0)
    party.weights.complete = Complete("tiny", b"{}", ())
    await party.join(b"k" * 16)
    party.weights.close()
    return FakeWorkers.loads[-1].programs


async def test_programs_lie_on_the_shelf_or_where_the_settings_say(tmp_path: Path) -> None:
    assert await told(tmp_path, programs="") == str(tmp_path / "shelf-0" / "programs")
    assert await told(tmp_path, programs="own") == str(tmp_path / "own")
    assert all((tmp_path / each).stat().st_mode & 0o777 == 0o700 for each in ("shelf-0/programs", "own"))


async def test_without_a_shelf_they_end_with_the_party(tmp_path: Path) -> None:
    assert not Path(await told(tmp_path, programs="", shelf="")).exists()


def test_local_parties_share_a_folder_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_CACHE", str(tmp_path / "cache"))
    assert local_programs() == tmp_path / "cache" / "mpc" / "programs"
    assert {place.programs for place in make_local(tmp_path).party} == {str(local_programs())}


async def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)
    assert await told(tmp_path, programs="open") == ""
    program_folder(tmp_path / "own")
    (tmp_path / "link").symlink_to(tmp_path / "own")
    assert program_folder(tmp_path / "link") is None


async def test_nor_one_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert await told(tmp_path, programs="file") == await told(tmp_path, programs="file/programs") == ""


async def test_a_process_of_a_release_keeps_and_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs the release's code alone."""
    monkeypatch.setattr("cloister.process.release_code.running", object())
    assert await told(tmp_path, programs="own") == "" and not (tmp_path / "own").exists()
