"""Each parameter against a plain reference, and each row against itself in other company."""

from __future__ import annotations

import math
import random

import pytest
import torch

from cloister.engine.base import EngineRequest
from cloister.engine.logits import uniform
from cloister.engine.sampler import Forced, Sampler
from cloister.engine.sequence import Sequence
from cloister.messages.types import SamplingParams, TokenLogprob

V = 200  # not a multiple of the lanes: rows are padded


def sequence(prompt=(1, 2, 3), outputs=(), **params) -> Sequence:
    params.setdefault("max_tokens", 1000)
    made = Sequence.of(EngineRequest(0, "t", tuple(prompt), SamplingParams(**params)), arrival=0, max_context=10**6)
    for token in outputs:
        made.append(token)
    return made


def row(seed: int, vocabulary: int = V) -> torch.Tensor:
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def one(logits: torch.Tensor, *args, **params) -> int:
    return Sampler(len(logits)).sample(logits[None], [sequence(*args, **params)], [0]).tokens[0]


def support(logits: torch.Tensor, draws: int = 600, **params) -> set[int]:
    """The tokens that many seeds draw."""
    found: set[int] = set()
    for start in range(0, draws, 50):
        many = [sequence(seed=seed, **params) for seed in range(start, start + 50)]
        found |= set(Sampler(len(logits)).sample(logits.expand(50, -1), many, list(range(50))).tokens)
    return found


def by_likelihood(logits: torch.Tensor) -> list[int]:
    return sorted(range(len(logits)), key=lambda i: (-logits[i].item(), i))


def test_greedy_takes_the_greatest_and_the_lowest_id_among_equals():
    logits = torch.zeros(V)
    logits[[150, 60, 199]] = 5.0
    assert one(logits, temperature=0) == 60
    assert one(logits, temperature=1e-6) == 60
    logits[199] = 5.1
    assert one(logits, temperature=0) == 199


def test_draws_follow_softmax():
    logits = torch.tensor([2.0, 0.0, 1.0, -1.0, 0.5, -3.0])
    probabilities = logits.div(0.7).softmax(-1)
    draws = 12_000
    many = [sequence(seed=seed, temperature=0.7) for seed in range(draws)]
    tokens = Sampler(6).sample(logits.expand(draws, -1), many, list(range(draws))).tokens
    chi_square = sum((tokens.count(i) - draws * p) ** 2 / (draws * p) for i, p in enumerate(probabilities.tolist()))
    assert chi_square < 20.5  # 5 degrees of freedom, p = 0.001


def test_draws_along_one_sequence_follow_softmax_too():
    logits = torch.tensor([1.0, 0.0, -1.0])
    lengths = 1500
    many = [sequence(seed=5, outputs=[0] * n) for n in range(lengths)]
    tokens = Sampler(3).sample(logits.expand(lengths, -1), many, list(range(lengths))).tokens
    expected = (logits.softmax(-1) * lengths).tolist()
    assert sum((tokens.count(i) - e) ** 2 / e for i, e in enumerate(expected)) < 13.8  # 2 degrees, p = 0.001


@pytest.mark.parametrize("index", [0, 1, 17])
def test_the_draw_is_the_inverse_of_the_cumulative_distribution(index):
    logits = row(3)
    cumulative = logits.double().div(0.9).softmax(-1).cumsum(-1)
    for seed in range(50):
        token = int((cumulative <= uniform(seed, index)).sum())
        assert one(logits, outputs=[0] * index, temperature=0.9, seed=seed) == token


def test_temperature_sharpens_and_flattens():
    logits = row(4)
    assert support(logits, temperature=0.05, draws=200) == {int(logits.argmax())}
    assert len(support(logits, temperature=1.0)) < len(support(logits, temperature=10.0))


def test_top_k_draws_from_the_k_most_likely():
    logits = row(5)
    assert support(logits, top_k=1, temperature=2.0, draws=200) == {int(logits.argmax())}
    assert support(logits, top_k=4, temperature=2.0) == set(by_likelihood(logits)[:4])
    assert len(support(logits, top_k=V + 5, temperature=20.0)) > 150


def test_top_p_draws_from_the_nucleus():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert support(logits, top_p=0.6) == {0, 1}
    assert support(logits, top_p=0.8) == {0, 1, 2}
    assert support(logits) == {0, 1, 2, 3}


def test_top_p_counts_the_mass_that_top_k_left():
    logits = torch.tensor([3.0, 2.0, 1.0] + [0.9] * 50)
    assert support(logits, top_p=0.9, top_k=3) == {0, 1}
    assert len(support(logits, top_p=0.9)) > 3


def test_min_p_is_relative_to_the_most_likely():
    logits = torch.tensor([0.5, 1.0, 0.1, 0.2, 0.05]).log()
    assert support(logits, min_p=0.15) == {0, 1, 3}
    assert support(logits, min_p=1.0) == {1}


def test_repetition_penalty_reaches_prompt_and_output():
    logits = torch.tensor([2.0, 1.9, 1.8, -5.0])
    assert one(logits, prompt=(0,), temperature=0, repetition_penalty=1.2) == 1
    assert one(logits, prompt=(0,), outputs=(1,), temperature=0, repetition_penalty=1.2) == 2
    negative = torch.tensor([-1.0, -1.1])
    assert one(negative, prompt=(0,), temperature=0, repetition_penalty=1.2) == 1


def test_no_stop_token_comes_before_so_many_others():
    logits = torch.zeros(V)
    logits[[7, 8]] = 5.0
    limits = {"temperature": 0, "stop_tokens": (7, 150), "min_tokens": 3}
    assert [one(logits, outputs=(1,) * count, **limits) for count in range(5)] == [8, 8, 8, 7, 7]
    grown = sequence(**limits)
    said = []
    for _ in range(4):
        said += Sampler(V).sample(logits[None], [grown], [0]).tokens
        grown.append(said[-1])
    assert said == [8, 8, 8, 7] and grown.output.stopped
    assert 7 not in support(logits, temperature=1.0, stop_tokens=(7,), min_tokens=1)


def test_presence_penalty_is_for_outputs_and_once():
    logits = torch.tensor([2.0, 1.0, 0.0])
    assert one(logits, prompt=(0,), temperature=0, presence_penalty=1.5) == 0
    assert one(logits, outputs=(0,), temperature=0, presence_penalty=1.5) == 1
    assert one(logits, outputs=(0, 0, 0), temperature=0, presence_penalty=0.9) == 0


def test_frequency_penalty_counts():
    logits = torch.tensor([2.0, 1.0, 0.0])
    assert one(logits, prompt=(0, 0, 0), temperature=0, frequency_penalty=0.6) == 0
    assert one(logits, outputs=(0,), temperature=0, frequency_penalty=0.6) == 0
    assert one(logits, outputs=(0, 0), temperature=0, frequency_penalty=0.6) == 1


def test_penalties_follow_the_sequence_as_it_grows():
    logits, sampler = row(8) * 0.3, Sampler(V)
    grown = sequence(temperature=0, frequency_penalty=0.3, presence_penalty=1.2, repetition_penalty=1.1)
    for _ in range(150):  # more distinct tokens than the first allocation holds
        token = sampler.sample(logits[None], [grown], [0]).tokens[0]
        fresh = sequence(grown.tokens[:3], grown.tokens[3:], **_dict(grown.params))
        assert sampler.sample(logits[None], [fresh], [0]).tokens[0] == token
        grown.append(token)
    assert len(set(grown.tokens)) > 64


def _dict(params: SamplingParams) -> dict[str, object]:
    return {name: getattr(params, name) for name in params.__struct_fields__}


def test_logit_bias_forces_and_bans():
    logits = row(9)
    best = int(logits.argmax())
    assert one(logits, temperature=0, logit_bias={77: 100.0}) == 77
    assert one(logits, temperature=0, logit_bias={best: -100.0}) == by_likelihood(logits)[1]


def test_the_given_logits_are_not_changed():
    logits = row(10)[None]
    before = logits.clone()
    one_row = sequence(outputs=(4,), logit_bias={3: 9.0}, repetition_penalty=2.0, top_k=3, top_p=0.5, logprobs=2)
    Sampler(V).sample(logits, [one_row], [0])
    assert torch.equal(logits, before)


def test_logprobs_are_of_the_raw_logits_best_first():
    logits = row(11)
    logits[50] = logits[40] = 9.0
    asked = sequence(temperature=0.3, logit_bias={7: 100.0}, logprobs=5)
    sampled = Sampler(V).sample(logits[None], [asked], [0])
    reference = logits.double().log_softmax(-1)
    assert sampled.tokens == [7]
    reported = sampled.logprobs[0]
    assert reported.logprob == pytest.approx(reference[7].item(), abs=2e-6)
    assert [token for token, _ in reported.top] == by_likelihood(logits)[:5]
    assert [token for token, _ in reported.top][:2] == [40, 50]
    assert [value for _, value in reported.top] == pytest.approx(
        [reference[t].item() for t, _ in reported.top], abs=2e-6
    )


def test_logprobs_only_where_asked_and_as_many_as_asked():
    rows = torch.stack([row(i) for i in range(3)])
    mixed = [sequence(), sequence(logprobs=0), sequence(logprobs=3)]
    reports = Sampler(V).sample(rows, mixed, [0, 1, 2]).logprobs
    assert reports[0] is None and reports[1].top == () and len(reports[2].top) == 3


def test_a_forced_pass_reports_what_decoding_reported():
    rows = torch.stack([row(i) for i in range(9)])
    decoded: list[TokenLogprob] = []
    tokens: list[int] = []
    for i in range(8):
        sampled = Sampler(V).sample(rows[i : i + 1], [sequence(seed=i, logprobs=4)], [0])
        tokens += sampled.tokens
        decoded += sampled.logprobs
    other = sequence(temperature=0, logprobs=20)
    replay = Sampler(V).sample(rows, [other], [8], [Forced(0, tokens[:3], 4), Forced(3, tokens[3:], 4)])
    assert replay.forced[0] + replay.forced[1] == decoded
    assert len(replay.logprobs[0].top) == 20


def some_params(chance: random.Random) -> dict[str, object]:
    """A random mix of parameters, each at rest about half the time."""

    def maybe(rest, value):
        return chance.choice([rest, value])

    return {
        "temperature": maybe(0.0, chance.uniform(0.3, 2)),
        "top_k": maybe(0, chance.randrange(1, 60)),
        "top_p": maybe(1.0, chance.uniform(0.05, 0.99)),
        "min_p": maybe(0.0, chance.uniform(0.001, 0.3)),
        "repetition_penalty": maybe(1.0, chance.uniform(0.8, 1.5)),
        "presence_penalty": maybe(0.0, chance.uniform(-2, 2)),
        "frequency_penalty": maybe(0.0, chance.uniform(-2, 2)),
        "logit_bias": maybe({}, {chance.randrange(V): chance.uniform(-5, 5) for _ in range(4)}),
        "logprobs": maybe(None, chance.randrange(0, 21)),
        "seed": chance.randrange(2**63),
    }


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("vocabulary", [V, 4099, 49_152])
def test_neighbours_leave_no_trace(threads, vocabulary):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        chance = random.Random(vocabulary)
        prompts = [[chance.randrange(V) for _ in range(chance.randrange(1, 40))] for _ in range(32)]
        params = [some_params(chance) for _ in range(32)]
        outputs = [[chance.randrange(V) for _ in range(chance.randrange(0, 40))] for _ in range(32)]
        rows = torch.stack([row(1000 + i, vocabulary) for i in range(32)])
        sampler = Sampler(vocabulary)

        def run(members: list[int]) -> list[tuple[int, TokenLogprob | None]]:
            batch = [sequence(prompts[i], outputs[i], **params[i]) for i in members]
            sampled = sampler.sample(rows[members], batch, list(range(len(members))))
            return list(zip(sampled.tokens, sampled.logprobs, strict=True))

        by_itself = [run([i])[0] for i in range(32)]
        for size in (8, 32):
            members = chance.sample(range(32), size)
            assert run(members) == [by_itself[i] for i in members]
    finally:
        torch.set_num_threads(before)


def test_every_token_is_of_the_vocabulary_even_with_hopeless_logits():
    for logits in (torch.full((V,), float("nan")), torch.full((V,), -1e30), torch.full((V,), 1e30)):
        for seed in range(20):
            assert 0 <= one(logits, seed=seed, top_p=0.9) < V


def test_uniform_logits_have_exact_logprobs():
    sampled = Sampler(128).sample(torch.zeros(1, 128), [sequence(logprobs=0)], [0])
    assert sampled.logprobs[0].logprob == -math.log(128)
