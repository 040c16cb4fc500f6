"""Parties that a server's evidence did not name get no shares."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jax", reason="JAX is not installed: make mpc")

from cloister.errors import SetupError
from cloister_mpc.cache.plan import PLANS, CachePlan
from cloister_mpc.client import passes
from cloister_mpc.client.passes import ModelAtParties
from cloister_mpc.config import read_config
from cloister_mpc.messages import GenerationSpec
from tests.controller.test_attested_settings import parties_file


async def test_parties_other_than_evidence_named_are_not_reached(tmp_path: Path) -> None:
    file = parties_file(tmp_path)
    named = read_config(file).identity()
    (tmp_path / "ca.crt").write_text("another authority")
    with pytest.raises(SetupError, match="changed since the server started"):
        await ModelAtParties.reach(file, 1.0, tmp_path / "ca.crt", named)


@pytest.mark.parametrize(("asked", "method"), [({}, "full"), ({"cache": PLANS["mpcache"]}, "mpcache")])
async def test_the_parties_are_asked_for_the_full_cache_unless_another_plan_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, CachePlan], method: str
) -> None:
    specs: list[GenerationSpec] = []

    class Stub:
        closed = False

        async def open(self, spec: GenerationSpec) -> object:
            specs.append(spec)
            return object()

    async def connect(self: ModelAtParties, patience_s: float) -> Stub:
        self.shape = None  # type: ignore[assignment]
        return Stub()

    async def connected(*_: object) -> Stub:
        return Stub()

    monkeypatch.setattr(ModelAtParties, "connect", connect)
    monkeypatch.setattr(passes.Parties, "connect", connected)
    monkeypatch.setattr(passes, "programs_for", lambda *_: None)
    parties = await ModelAtParties.reach(parties_file(tmp_path), 1.0, tmp_path / "ca.crt", **asked)  # type: ignore[arg-type]
    await parties.open(300, 16, "token", lambda done: None)
    assert specs[0].cache.method == method
