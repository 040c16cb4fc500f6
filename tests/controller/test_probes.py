"""What the service says of probing reaches the operator in our own words, seldom, and makes the detector careful."""

from __future__ import annotations

import logging

import pytest

from cloister.controller.prompt_labels import HALF_LIFE_S, Probes
from cloister.messages.controller_frontend import Examine, KeyEntry, SubmitTokens
from cloister.messages.controller_service import Generate, Probed, PublicPrefix
from cloister.messages.types import SamplingParams
from tests.controller.fakes import Node


def test_the_operator_is_told_once_a_minute_and_of_tenants_alone(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    probes = Probes(clock=lambda: now[0])
    probes.keep_only(frozenset({"firm", "eve"}))
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            probes.handle(Probed("firm", "eve"))
            probes.handle(Probed("a secret that a service would like to say", "eve"))
        now[0] += 61
        probes.handle(Probed("firm", "eve"))
    assert len(caplog.messages) == 2 and all("'firm'" in line and "private again" in line for line in caplog.messages)


def test_suspicion_halves_and_ends_with_the_key() -> None:
    now = [0.0]
    probes = Probes(clock=lambda: now[0])
    probes.keep_only(frozenset({"firm", "eve", "bob"}))
    probes.handle(Probed("firm", "eve"))
    assert (probes.suspicion("eve"), probes.suspicion("firm"), probes.suspicion("bob")) == (1.0, 1.0, 0.0)
    now[0] += HALF_LIFE_S
    assert probes.suspicion("eve") == pytest.approx(0.5)
    probes.keep_only(frozenset({"firm"}))
    assert probes.suspicion("eve") == 0.0


async def test_who_was_probed_is_examined_with_suspicion(node: Node) -> None:
    asked: list[float] = []
    node.relay.labels.examine = lambda request_id, text, ends, *, suspicion: asked.append(suspicion)
    node.relay.admit(tuple(KeyEntry(bytes(32), tenant) for tenant in ("ann", "eve")))
    for number, said in ((5, None), (6, Probed("ann", "eve"))):
        if said is not None:
            node.relay.from_service(said)
        node.send(SubmitTokens(number, "ann", (1, 2), SamplingParams(max_tokens=1), level="shared"))
        node.send(Examine(number, "x", (1,)))
        await node.service.next(Generate, skip=(PublicPrefix,))
    assert asked[0] == 0.0 and asked[1] > 0.9
