"""Workloads are the same for the same seed, have in common what they should, and are replayed whole."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cloister.errors import SetupError
from cloister.prefix.public_pages import ALL, Template
from cloister_bench.sharing.results import FIGURES, Plan, Results, tables
from cloister_bench.sharing.workloads import VARIANTS, WORKLOADS, Prompt, Texts, read_texts, requests
from cloister_bench.sharing.workloads import replay as replay_offline
from cloister_bench.sharing.world import PAGE, Reader, Tokens
from cloister_bench.suite.documents import draw_figures


@pytest.fixture
def texts() -> Texts:
    return read_texts(None)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_decides_everything(name: str, texts: Texts) -> None:
    one, again, other = (requests(texts, name, random.Random(seed), 4, chats=8) for seed in (1, 1, 2))
    assert one == again != other and len(one) == 2 * (4 if name == "first-chats" else 8)
    assert {request.tenant for request in one} <= {f"tenant-{number}" for number in range(4)}
    assert [request.at for request in one] == sorted(request.at for request in one)


def test_a_tenant_has_one_system_prompt_and_its_second_question_follows_the_first(texts: Texts) -> None:
    chats: dict[str, list[list[dict[str, Any]]]] = {}
    for tenant, messages, _ in requests(texts, "first-chats", random.Random(1), 200):
        chats.setdefault(tenant, []).append(messages)
    popular = sorted(Counter(first[0]["content"] for first, _ in chats.values()).values())
    assert len(chats) == 200 and len(popular) == 10 and popular[-1] > 3 * popular[0]
    first, second = chats["tenant-0"]
    assert second[:2] == first and [one["role"] for one in second] == ["system", "user", "assistant", "user"]
    assert not any("public" in message for message in second)


def test_data_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="awesome"):
        read_texts(tmp_path)


class Passing(Reader):
    """Of every prompt these first tokens pass."""

    def __init__(self, first: int) -> None:
        self._first = first

    def passed(self, tokens: Tokens) -> int:
        return self._first


def test_each_policy_finds_what_it_should_and_no_more() -> None:
    """40 tenants send one beginning of four pages, and their own end. One votes twice, which must not count."""
    system = tuple(range(4 * PAGE))

    tenants = ["t-0", *(f"t-{number}" for number in range(40))]
    prompts = [
        Prompt(tenant, (*system, *range(1000 * number, 1000 * number + 20)), float(number))
        for number, tenant in enumerate(tenants)
    ]
    template = [Template("one", (ALL,), "0" * 64, system)]
    found = {
        name: [one // PAGE for one in replay_offline(prompts, Passing(4 * PAGE), template, variant, 400)]
        for name, variant in VARIANTS.items()
    }
    assert sum(found["none"]) == 0 and found["partition"] == [0, 4, *[0] * 39]
    assert found["global"] == found["registered"] == found["counted+registered"] == [0, *[4] * 40]
    assert found["counted"][2:7] == [0] * 5 and found["counted"][-10:] == [4] * 10
    assert found["counted, votes known"][2:] == [4] * 39
    vetoed = [one // PAGE for one in replay_offline(prompts, Passing(PAGE), template, VARIANTS["counted"], 400)]
    assert max(vetoed[2:]) == 1, "what looks private stays private however many sent it"
    assert len(replay_offline(prompts, Passing(PAGE), template, VARIANTS["global"], 40)) == 41, "a full pool makes room"


def test_gains_are_between_partition_and_global_and_what_was_not_measured_is_no_success(tmp_path: Path) -> None:
    plan = Plan((200,), 2, 1, "none", 8)
    results = Results(plan, "m")
    results.tokens["chat", 200] = 2000
    for policy, found in (("partition", 400), ("counted", 900), ("global", 1200)):
        results.found[("chat", 200), policy] = found
    document = results.document()
    assert document["offline"][1]["gain"] == 0.625
    verdicts = {row["name"]: row["met"] for row in document["targets"]}
    assert verdicts["gain of counted, 200 tenants, chat"]
    assert not verdicts["gain of counted+registered, 24 tenants, chat"]
    assert tables(document)[0].rows[1] == ["counted", "0.450 (0.62)"]
    assert [file.name for file in draw_figures(document, tmp_path, FIGURES)] == ["sharing-workloads.png"]
