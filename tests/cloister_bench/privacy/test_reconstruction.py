"""The attacks on contributions can succeed: a small random model, a few tokens, every layer's keys; and not without."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cloister_bench.privacy import contributions
from cloister_bench.privacy.contributions import DEVELOPED_ON, EVERY, FIRST, hidden, right, texts_of
from cloister_bench.privacy.network import Network, continued
from cloister_bench.privacy.reconstruction import Hidden, Search, Seen, seen_by_service
from cloister_bench.privacy.results import QUICK
from cloister_bench.privacy.rows import Victim
from tests.models.architectures import CONFIGS, random_model

SECRET = Hidden([5, 9], [201, 77, 150], [3])


@pytest.fixture(scope="module")
def model() -> Any:
    """Its attention looks at something: weights that are drawn small make every token's share the same."""
    torch.manual_seed(3)
    model = random_model(CONFIGS["llama"])
    for layer in model.model.layers:
        for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            part.weight.data *= 3
    return model


def searched(model: Any, layer: int, *, bf16: bool = False) -> Search:
    network = Network(model, bf16=bf16)
    views = seen_by_service(network, SECRET.prompt, continued(network, SECRET.prompt, 24))
    return Search(network, views[layer], SECRET.before, SECRET.after, len(SECRET.secret))


def test_the_adversarys_network_is_the_models(model: Any) -> None:
    network, ids = Network(model), torch.tensor([SECRET.prompt])
    with torch.no_grad():
        x, _ = network.run(network.embed(ids), network.layers)
        assert torch.allclose(network.logits(x), model(ids).logits, atol=1e-4)
    answer = continued(network, SECRET.prompt, 4)
    assert model.generate(ids, max_new_tokens=4, do_sample=False)[0, -4:].tolist() == answer


@pytest.mark.parametrize("bf16", [False, True])
def test_contributions_of_layer_zero_give_the_prompt_away(model: Any, bf16: bool) -> None:
    assert searched(model, 0, bf16=bf16).run() == SECRET.secret


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_baseline_succeeds_at_every_layer(model: Any, layer: int) -> None:
    assert searched(model, layer).run_with_keys() == SECRET.secret


def test_deeper_contributions_are_attacked_by_gradient_and_moves(model: Any) -> None:
    assert searched(model, 1).run() == SECRET.secret


def test_without_contributions_there_is_nothing(model: Any) -> None:
    search = searched(model, 1)
    assert right(search.prior, SECRET.secret) == 0


def test_a_true_prompt_leaves_no_residue(model: Any) -> None:
    search = searched(model, 2)
    with torch.no_grad():
        rows = [[*SECRET.secret, *SECRET.after], [*SECRET.secret[::-1], *SECRET.after]]
        true, other = search.loss(torch.stack([model.model.embed_tokens(torch.tensor(row)) for row in rows])).tolist()
    assert true < 1e-3 * other


def test_what_is_seen_is_a_softmax_over_the_prompt_alone(model: Any) -> None:
    network = Network(model)
    seen: Seen = seen_by_service(network, SECRET.prompt, [1, 2, 3])[1]
    weights = (seen.q @ seen.keys.transpose(1, 2)).softmax(-1)
    assert torch.allclose(weights @ seen.values, seen.target[..., 1:], atol=1e-5)


class Chat:
    def render_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [1, 2, *(ord(letter) for letter in messages[0]["content"]), 8, 9]


def test_the_template_is_known_and_the_secret_cut() -> None:
    assert hidden(Chat(), "abcdef", 4) == Hidden([1, 2], [97, 98, 99, 100], [8, 9])


def test_prompts_are_chosen_by_a_rule(tmp_path: Path) -> None:
    victim = Victim(QUICK, None, tmp_path, None, lambda: None, data=tmp_path)
    assert texts_of(victim) == [DEVELOPED_ON]
    (tmp_path / "pii").mkdir()
    with (tmp_path / "pii" / "pupa_tnb.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["user_query"], *([f"line {number}"] for number in range(FIRST + EVERY + 1))])
    assert texts_of(victim) == [f"line {FIRST}", f"line {FIRST + EVERY}"]
    assert texts_of(replace(victim, texts=[{"text": "mine"}, {"text": "other", "topic": 1}])) == ["mine"]


def test_every_length_and_layer_has_its_control(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contributions, "PRECISIONS", (False,))
    monkeypatch.setattr(contributions, "CONTROLS", 1)
    plan = replace(QUICK, layers=(0, 2), tokens=(2, 3, 99), prompts=2, steps=8)
    given = [{"text": "abc"}, {"text": "hij"}, {"text": "k"}]
    *rows, last = contributions.attack(Victim(plan, None, Path(), Chat(), lambda: model, texts=given))
    assert [(row["layer"], row["tokens"], row["of"]) for row in rows] == [(0, 2, 4), (2, 2, 4), (0, 3, 6), (1, 3, 6)]
    assert [row["baseline"] for row in rows] == [1, 1, 1, 1] and last["gets"] is None
