"""Workloads are the same for the same seed, have in common what they should, and are replayed whole, with and without
a server."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from cloister.addresses import HttpAddress
from cloister.errors import SetupError
from cloister.prefix.templates import ALL, Template
from cloister_bench.messages import Answer
from cloister_bench.sharing.offline import EXPLAINED, VARIANTS, Prompt
from cloister_bench.sharing.offline import replay as replay_offline
from cloister_bench.sharing.replay import compared, replay
from cloister_bench.sharing.results import FIGURES, Plan, Results, tables
from cloister_bench.sharing.workloads import WORKLOADS, Scale, Texts, read_texts
from cloister_bench.sharing.world import PAGE, Reader, Tokens
from cloister_bench.suite.documents import draw_figures
from tests.cloister_bench.stub_server import MODEL, openai_server, stub_server

SCALE = Scale(requests=8)


@pytest.fixture
def texts(tmp_path: Path) -> Texts:
    """The built-in ones, with traces of eight requests in the form of the real ones."""
    sample, folder = read_texts(None), tmp_path / "chat"
    folder.mkdir()
    rows = [
        {"timestamp": 1000 * n, "output_length": 64, "hash_ids": [0, 10 + n // 2, 100 + n, 200 + n]} for n in range(8)
    ]
    (folder / "mooncake_conversation_trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines = [f"2023-11-16 18:15:{40 + n}.1234567,{100 * n + 100},{8 * n + 8}" for n in range(8)]
    text = "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines])
    (folder / "AzureLLMInferenceTrace_conv.csv").write_text(text)
    return Texts(sample.systems, sample.questions, sample.filler, tmp_path)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_decides_everything(name: str, texts: Texts) -> None:
    one, again, other = (WORKLOADS[name](texts, SCALE, random.Random(seed), 4) for seed in (1, 1, 2))
    assert one == again != other and one.name == name and len(one.chats) == (4 if name == "first-chats" else 8)
    assert {chat.tenant for chat in one.chats} <= set(range(4)) and set(one.systems) == {c.system for c in one.chats}
    assert [one.chats[chat].times[turn] for chat, turn in one.turns] == sorted(t for c in one.chats for t in c.times)


def test_a_tenant_has_one_system_prompt_and_its_second_question_follows_the_first(texts: Texts) -> None:
    made = WORKLOADS["first-chats"](texts, SCALE, random.Random(1), 200)
    assert sorted(chat.tenant for chat in made.chats) == list(range(200)) and len(made.systems) == 10
    popular = sorted(sum(chat.system == system for chat in made.chats) for system in made.systems)
    assert popular[-1] > 3 * popular[0]
    first, second = (made.chats[0].messages(turn) for turn in (0, 1))
    assert second[:2] == first and [one["role"] for one in second] == ["system", "user", "assistant", "user"]
    assert not any("public" in message for message in second)


def test_blocks_of_one_hash_are_one_text_of_one_tenant(texts: Texts) -> None:
    first, second, third, *_ = WORKLOADS["mooncake"](texts, SCALE, random.Random(1), 1000).chats
    assert first.system == third.system and first.tenant == second.tenant != third.tenant
    common = [len(one.questions[0]) for one in (first, second)]
    assert first.questions[0][:100] == second.questions[0][:100] != third.questions[0][:100] and min(common) > 200


def test_without_data_a_trace_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="mooncake"):
        WORKLOADS["mooncake"](read_texts(None), SCALE, random.Random(1), 4)
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
        for name, variant in {**VARIANTS, **EXPLAINED}.items()
    }
    assert sum(found["none"]) == 0 and found["partition"] == [0, 4, *[0] * 39]
    assert found["global"] == found["registered"] == found["counted+registered"] == [0, *[4] * 40]
    assert found["counted"][2:7] == [0] * 5 and found["counted"][-10:] == [4] * 10
    assert found["counted, no veto"] == found["counted"] and found["counted, votes known"][2:] == [4] * 39
    vetoed = [one // PAGE for one in replay_offline(prompts, Passing(PAGE), template, VARIANTS["counted"], 400)]
    assert max(vetoed[2:]) == 1, "what looks private stays private however many sent it"
    assert len(replay_offline(prompts, Passing(PAGE), template, VARIANTS["global"], 40)) == 41, "a full pool makes room"


async def test_a_workload_is_replayed_whole_under_its_tenants_keys(texts: Texts) -> None:
    made = WORKLOADS["azure"](texts, Scale(8, 1000.0), random.Random(1), 2)
    with stub_server(openai_server()) as stub:
        answers = await replay(HttpAddress.parse(stub.url), ["k0", "k1"], MODEL, "shared", made)
    assert len(answers) == 8 and None not in answers
    assert {request.headers["authorization"] for request in stub.requests} == {"Bearer k0", "Bearer k1"}
    assert {request.body["protection"] for request in stub.requests} == {"shared"}


def answer(first: float) -> Answer:
    return Answer(0.0, first, 2.0, 100, 10, 10, [], 0)


def test_first_tokens_are_compared_where_a_policy_shares() -> None:
    sent = {name: [answer(first), answer(9.0)] for name, first in (("counted", 0.21), ("global", 0.2))}
    offline = {"partition": [0, 0], "counted": [64, 0], "global": [64, 64]}
    [counted, _] = compared({**sent, "global": [answer(0.2), None]}, offline, {"counted": 64, "global": 128})
    assert counted["shared"] == 1 and counted["over_global"] == pytest.approx(1.05) and counted["share"] == 0.32
    assert compared({"counted": [None, None]}, offline, {"counted": 0})[0]["errors"] == 2


def test_gains_are_between_partition_and_global_and_what_was_not_measured_is_no_success(tmp_path: Path) -> None:
    plan = Plan(("partition", "counted", "global"), ("chat",), (200,), 2, 1, 100, "none")
    results = Results(plan, "m")
    results.tokens["chat", 200] = [1000, 1000]
    for policy, found in (("partition", [200, 200]), ("counted", [400, 500]), ("global", [600, 600])):
        results.found[("chat", 200), policy] = found
    document = results.document()
    assert document["offline"][1]["gain"] == 0.625 and document["offline"][1]["gains"] == [0.5, 0.75]
    verdicts = {row["name"]: row["met"] for row in document["targets"]}
    assert verdicts["gain of counted, 200 tenants, chat"]
    assert not verdicts["gain of counted+registered, 24 tenants, chat"]
    assert document["table_3"][-1] == {"set": "chat, 200 tenants", "own": 0.2, "others": 0.4}
    assert tables(document)[0].rows[1] == ["counted", "0.450 (0.62)"]
    assert [file.name for file in draw_figures(document, tmp_path, FIGURES)] == ["sharing-workloads.png"]
