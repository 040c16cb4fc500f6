"""A generation on shares, three parties as threads: the tokens are the plain model's, drafts and padding included."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.functions.bundle import LEAN
from cloister_mpc.messages import GenerationSpec
from cloister_mpc.model.decoder import PlainModel
from cloister_mpc.model.generation import Generation, GenerationError
from cloister_mpc.model.programs import dealt
from cloister_mpc.model.shape import one_hots, permutations
from tests.cloister_mpc.kept import kept_programs
from tests.cloister_mpc.model.plain_generation import PlainGeneration
from tests.cloister_mpc.model.tiny import TinyModel, some_tokens
from tests.cloister_mpc.thread_parties import ThreadParties

PROMPT = some_tokens(23, seed=1)
SHORT = GenerationSpec(prompt_tokens=32, new_tokens=4, answer="logits")
MPCACHE = CachePlan(
    method="mpcache", budget=0.5, at_least=0, static_keep=0.75, cluster=4, pinned_first=4, pinned_last=4
)


@pytest.fixture(scope="module")
def threads(model: TinyModel) -> Iterator[ThreadParties]:
    """Parties that hold the model's shares."""
    with ThreadParties() as threads:
        threads.put_all(dict(model.weights.named()))
        yield threads


class Client:
    """Deals, has all parties run a pass, and puts the answer together."""

    def __init__(self, threads: ThreadParties, model: TinyModel, spec: GenerationSpec, name: str) -> None:
        self.threads, self.model, self.name = threads, model, name
        self.programs = kept_programs(model.shape, spec)
        self.parties = [
            Generation(party.runtime, self.programs, threads.dealer, name=name) for party in threads.parties
        ]

    def prefill(self, tokens: list[int]) -> np.ndarray:
        self._deal(tokens, None)
        self.threads.each(lambda party: self.parties[party.rank].prefill())
        return self.threads.join(f"{self.name}/answer")

    def step(self, at: int, tokens: list[int]) -> np.ndarray:
        self._deal(tokens, len(tokens))
        self.threads.each(lambda party: self.parties[party.rank].step(at, len(tokens)))
        return self.threads.join(f"{self.name}/answer")

    def _deal(self, tokens: list[int], columns: int | None) -> None:
        wanted = dealt(self.programs, columns)
        hots = one_hots(self.model.shape, tokens, columns or self.programs.spec.prompt_tokens)
        shuffles = {name: permutations(*sizes[:2]) for name, (sizes, _) in wanted.items() if "shuffles" in name}
        values = hots | shuffles
        assert {name: (value.shape, str(value.dtype)) for name, value in values.items()} == wanted
        self.threads.put_all(values, f"{self.name}/")


def test_positions_must_follow_there_must_be_room_and_logits_are_the_plain_models(
    threads: ThreadParties, model: TinyModel
) -> None:
    """Logits of a padded prompt, of a step whose draft was wrong, and of one whose draft was right."""
    client = Client(threads, model, SHORT, "logits")
    with pytest.raises(GenerationError):
        client.parties[0].step(0)
    answers = some_tokens(3, seed=2)
    expected = model.logits(PROMPT + answers)[len(PROMPT) - 1 :]
    first = client.prefill(PROMPT)
    for at, columns in ((1, 1), (0, 5)):
        with pytest.raises(GenerationError):
            client.parties[0].step(at, columns)
    found = [first, client.step(0, [answers[0], 7]), client.step(1, answers[1:])]
    ours = np.concatenate([found[0], found[1][:, :1], found[2]], axis=1).T  # 7 was wrong, and is forgotten
    assert np.abs(ours - expected).max() < 0.15
    assert np.corrcoef(ours.ravel(), expected.ravel())[0, 1] > 0.999


def test_the_likeliest_token_is_found_inside_and_closing_forgets_all_but_the_model(
    threads: ThreadParties, model: TinyModel
) -> None:
    client = Client(threads, model, GenerationSpec(prompt_tokens=32, new_tokens=4), "token")
    first = int(client.prefill(PROMPT)[0])
    expected = model.logits(PROMPT)[-1]
    assert expected[first] > expected.max() - 0.2
    for party in client.parties:
        party.close()
    for gone in ("token/answer", "token/0/cache/keys", "token/coarse", "token/hidden"):
        with pytest.raises(RuntimeError):
            threads.parties[0].runtime.get_var(gone)
    assert threads.join("w/embedding").shape == (model.shape.vocabulary, model.shape.hidden)


def test_selection_on_shares_reads_what_its_twin_reads(threads: ThreadParties, model: TinyModel) -> None:
    spec = GenerationSpec(prompt_tokens=32, new_tokens=2, cache=MPCACHE, answer="logits")
    prompt = some_tokens(29, seed=3)
    client = Client(threads, model, spec, "selecting")
    assert any("shuffles" in name for name in dealt(client.programs, 1))
    twin = PlainGeneration(PlainModel(model.shape, model.weights, LEAN), MPCACHE, len(prompt), 2)
    expected = [twin.prefill(prompt), twin.step(0, [9])[0]]
    found = [client.prefill(prompt)[:, 0], client.step(0, [9])[:, 0]]
    assert np.abs(np.stack(found) - np.stack(expected)).max() < 0.15
    threads.put_all(one_hots(model.shape, [9], 1), "selecting/")
    with pytest.raises(RuntimeError):  # a shuffle serves once, and no new ones were dealt
        threads.each(lambda party: client.parties[party.rank].step(1))


def test_specs_that_differ_in_their_answer_share_all_but_the_head(model: TinyModel) -> None:
    token, logits = (kept_programs(model.shape, replace(SHORT, answer=answer)) for answer in ("token", "logits"))
    assert token.prompt() is logits.prompt()
    assert token.head(1).code != logits.head(1).code
