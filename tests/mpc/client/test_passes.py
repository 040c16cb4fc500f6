"""Parties that a server's evidence did not name get no shares."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jax", reason="JAX is not installed: pip install '.[mpc]'")

from cloister.errors import SetupError
from cloister.mpc.client.passes import ModelAtParties
from cloister.mpc.config import read_config
from tests.controller.test_attested_settings import parties_file


async def test_parties_other_than_evidence_named_are_not_reached(tmp_path: Path) -> None:
    file = parties_file(tmp_path)
    named = read_config(file).identity()
    (tmp_path / "ca.crt").write_text("another authority")
    with pytest.raises(SetupError, match="changed since the server started"):
        await ModelAtParties.reach(file, 1.0, tmp_path / "ca.crt", named)
