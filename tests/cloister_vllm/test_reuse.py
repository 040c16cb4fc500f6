"""Which names go into the hashes of a request's blocks: what decides whether another request finds them."""

from __future__ import annotations

from typing import Any

import pytest

from cloister.compute.layout import Remote
from cloister.engine.base import EngineRequest
from cloister.levels import PolicyName
from cloister.messages.types import Partition, SamplingParams
from cloister_vllm.core import Job
from cloister_vllm.reuse import Reuse

SIZE = 32
PROMPT = tuple(range(100))


def job(reuse: Reuse, tenant: str = "a", policy: PolicyName = "counted", public: int = 0, **more: Any) -> Job:
    request = EngineRequest(1, tenant, PROMPT, SamplingParams(), policy=policy, **more)
    if public:
        reuse.label(1, public)
    made = reuse.job(request, None, 4)
    reuse.ended(1)
    return made


def found(one: Job, other: Job) -> int:
    """Of the first job's tokens, how many the second finds."""
    if not one.own or not other.own:
        return 0
    return len(PROMPT) if one.own == other.own and one.public == other.public else min(one.public, other.public)


@pytest.mark.parametrize(("policy", "same", "others"), [("none", 0, 0), ("partition", 100, 0), ("global", 100, 100)])
def test_policies_without_labels(policy: PolicyName, same: int, others: int) -> None:
    reuse = Reuse(SIZE)
    first, again, other = (job(reuse, tenant, policy) for tenant in "aab")
    assert (found(first, again), found(first, other)) == (same, others)


@pytest.mark.parametrize("policy", ["counted", "registered"])
def test_others_find_what_is_labelled_in_whole_blocks(policy: PolicyName) -> None:
    reuse = Reuse(SIZE)
    assert job(reuse, policy=policy, public=95).public == 64 and job(reuse, policy=policy).public == 0
    mine, theirs = job(reuse, "a", policy, 95), job(reuse, "b", policy, 95)
    assert found(mine, theirs) == 64 and mine.own != theirs.own
    assert found(job(reuse, "a", policy), theirs) == 0, "without a label nothing is public"


@pytest.mark.parametrize("policy", ["counted", "global"])
def test_a_salt_leaves_nothing_public(policy: PolicyName) -> None:
    reuse = Reuse(SIZE)
    assert found(job(reuse, "a", policy, 95, salt="s"), job(reuse, "b", policy, 95, salt="s")) == 0
    assert found(job(reuse, "a", policy, salt="s"), job(reuse, "a", policy, salt="t")) == 0


def test_names_do_not_run_together_and_cannot_be_guessed() -> None:
    reuse = Reuse(SIZE)
    assert job(reuse, "ab", salt="c").own != job(reuse, "a", salt="bc").own
    assert job(Reuse(SIZE)).own != job(Reuse(SIZE)).own


def test_a_forgotten_tenant_finds_nothing_of_before() -> None:
    reuse = Reuse(SIZE)
    before, other = job(reuse, "a"), job(reuse, "b")
    reuse.forget("a")
    assert found(before, job(reuse, "a")) == 0 and found(other, job(reuse, "b")) == 100


def test_an_answer_that_a_vault_began_has_no_name() -> None:
    request = EngineRequest(1, "a", (), SamplingParams(), partitions=(Partition(5, 0, 7),), policy="partition")
    made = Reuse(SIZE).job(request, Remote(5, 0), 4)
    assert (made.own, made.prompt) == ("", (7,))


def test_a_forgotten_tenant_stays_forgotten_when_too_many_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloister_vllm.reuse.MOST_LIVES", 2)
    reuse = Reuse(SIZE)
    names = {job(reuse, "a", "partition").own}
    for tenant in ("a", "b", "c", "d", "a"):
        reuse.forget(tenant)
        name = job(reuse, "a", "partition").own
        assert name not in names or tenant in ("b", "d")
        names.add(name)
    assert len(reuse._lives) <= 2
