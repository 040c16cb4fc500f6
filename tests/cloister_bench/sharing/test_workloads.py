"""Workloads are the same for the same seed, have in common what they should, and are replayed whole."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from cloister.addresses import HttpAddress
from cloister.errors import SetupError
from cloister_bench.messages import Answer
from cloister_bench.sharing.replay import replay, summarise
from cloister_bench.sharing.results import FIGURES, Plan, Results, tables
from cloister_bench.sharing.workloads import QUICK, WORKLOADS, Scale, Workload, azure, chat, mooncake, system_prompt
from cloister_bench.suite.documents import draw_figures
from tests.cloister_bench.stub_server import MODEL, openai_server, stub_server


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Traces of eight requests, in the form of the real ones."""
    (tmp_path / "chat").mkdir()
    rows = [
        {"timestamp": 1000 * n, "input_length": 700, "output_length": 64, "hash_ids": [0, 10 + n // 2, 100 + n]}
        for n in range(8)
    ]
    (tmp_path / "chat" / "mooncake_conversation_trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines = [f"2023-11-16 18:15:{40 + n}.1234567,{100 * n + 100},{8 * n + 8}" for n in range(8)]
    text = "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines])
    (tmp_path / "chat" / "AzureLLMInferenceTrace_conv.csv").write_text(text)
    return tmp_path


def text_of(workload: Workload, session: int, turn: int = 0) -> str:
    return "\n".join(message["content"] for message in workload.sessions[session].turns[turn])


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_says_all(name: str, data: Path) -> None:
    one, again, other = (WORKLOADS[name](QUICK, random.Random(seed), data) for seed in (1, 1, 2))
    assert one == again and one.name == name and one.requests
    assert name == "mooncake" or one != other, "a trace of hashes is the same whoever draws"
    assert all(0 <= session.tenant < QUICK.tenants for session in one.sessions)


def test_tenants_have_the_system_prompt_in_common_and_nothing_else() -> None:
    made = system_prompt(Scale(), random.Random(1), None)
    assert len({session.tenant for session in made.sessions}) == 32
    systems = {session.turns[0][0]["content"] for session in made.sessions}
    assert len(systems) == 1 and 3000 < len(systems.pop()) < 8000
    assert made.sessions[0].turns[0][0]["public"] and len({text_of(made, tenant) for tenant in range(32)}) == 32


def test_a_conversation_grows() -> None:
    made = chat(Scale(), random.Random(1), None)
    for before, after in zip(made.sessions[0].turns, made.sessions[0].turns[1:], strict=False):
        assert after[: len(before)] == before and len(after) == len(before) + 2


def test_blocks_of_one_hash_are_one_text_and_a_conversation_is_one_tenants(data: Path) -> None:
    made = mooncake(QUICK, random.Random(1), data)
    first, second, third = (text_of(made, number) for number in range(3))
    common = (
        len(first)
        - len(first.lstrip())
        + next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    )
    apart = next(i for i, (a, b) in enumerate(zip(first, third, strict=False)) if a != b)
    assert common > apart > 20, "two turns share more than two conversations do"
    assert made.sessions[0].tenant == made.sessions[1].tenant and made.users == 0
    assert (made.sessions[0].at, made.sessions[-1].at) == (0.0, QUICK.trace_seconds)


def test_azures_requests_have_their_lengths_and_rhythm(data: Path) -> None:
    made = azure(QUICK, random.Random(1), data)
    assert len({text_of(made, number)[:40] for number in range(6)}) == 6
    steps = [later.at - one.at for one, later in zip(made.sessions, made.sessions[1:], strict=False)]
    assert steps == pytest.approx([QUICK.trace_seconds / 5] * 5)


def test_without_data_a_trace_says_what_to_do() -> None:
    with pytest.raises(SetupError, match="--data"):
        mooncake(QUICK, random.Random(1), None)


async def test_a_workload_is_replayed_whole_under_its_tenants_keys() -> None:
    made = chat(QUICK, random.Random(1), None)
    with stub_server(openai_server()) as stub:
        served = await replay(HttpAddress.parse(stub.url), ["k0", "k1"], MODEL, "shared", made)
    assert (served.requests, served.errors) == (made.requests, 0) and served.mean_ms is not None
    assert {request.headers["authorization"] for request in stub.requests} == {"Bearer k0", "Bearer k1"}
    assert {request.body["protection"] for request in stub.requests} == {"shared"}
    assert all(request.body["messages"][0]["public"] for request in stub.requests)


def answer(first: float, cached: int = 0) -> Answer:
    return Answer(0.0, first, 2.0, 100, 10, 10, [], cached)


def test_rounds_are_medians_and_targets_compare_policies(tmp_path: Path) -> None:
    results = Results(Plan(workloads=("chat", "system-prompt")), "m")
    rounds = {
        policy: [summarise([answer(first, 50), answer(first)], Counter()) for first in firsts]
        for policy, firsts in (("global", (0.1, 0.2, 0.9)), ("safekv", (0.2, 0.21, 0.22)), ("partition", (0.5, 0.5)))
    }
    results.served = {"chat": rounds, "system-prompt": rounds}
    document = results.document()
    assert document["workloads"]["chat"]["global"]["mean_ms"] == 200.0
    assert document["workloads"]["chat"]["safekv"]["requests"] == 6
    verdicts = {row["name"]: (row["measured"], row["met"]) for row in document["targets"]}
    assert verdicts["first token of safekv over global, chat"] == (pytest.approx(1.05), True)
    assert verdicts["throughput of safekv over partition, long system prompt"] == (1.0, False)
    assert "found, %" in tables(document)[0].heads and tables(document)[0].rows[0][-1] == "25"
    assert [file.name for file in draw_figures(document, tmp_path, FIGURES)] == ["sharing-workloads.png"]
