"""(b) A secret of the prompt, from the answer that the service sees: the candidate that makes this answer likeliest, by
the served model itself. The baseline's answer repeats the secret."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import torch

from cloister.levels import ISOLATED, PARTITIONED
from cloister_bench.privacy.network import Network, continued
from cloister_bench.privacy.rows import Row, Victim, share_row

CANDIDATES = {
    "illness": ("asthma", "diabetes", "epilepsy", "depression", "migraine", "cancer", "arthritis", "anemia"),
    "city": ("Paris", "Berlin", "Tokyo", "Madrid", "Cairo", "Sydney", "Toronto", "Rome"),
    "job": ("nurse", "teacher", "lawyer", "farmer", "pilot", "soldier", "waiter", "judge"),
    "name": ("Maria", "James", "Sofia", "Omar", "Elena", "David", "Aisha", "Peter"),
}
FORMS = {
    "illness": "I have {}. Write me a short poem about a quiet morning at home.",
    "city": "I live in {}. How do I boil an egg?",
    "job": "I work as a {}. What could I give a friend for a birthday?",
    "name": "My name is {}. Suggest a short walk for a rainy day.",
}
REPEATED = "You said {}."  # the baseline's answer
UNIT = f"secrets, one of {len(CANDIDATES['name'])}"


def likelihoods(network: Network, prompts: Sequence[Sequence[int]], answer: Sequence[int]) -> list[float]:
    """ln P of one answer after each prompt."""
    found = []
    with torch.no_grad():
        for prompt in prompts:
            x, _ = network.run(network.embed(torch.tensor([[*prompt, *answer]])), network.layers)
            logits = network.logits(x[0, len(prompt) - 1 : -1]).log_softmax(-1)
            found.append(float(logits.gather(1, torch.tensor(answer)[:, None]).sum()))
    return found


def attack(victim: Victim) -> Iterator[Row]:
    network, draw = Network(victim.load()), Random(f"{victim.plan.seed} stealing")
    kinds, guessing = tuple(CANDIDATES), 1 / len(CANDIDATES["name"])
    silent, spoken, repeated = [0, 0], [0, 0], [0, 0]
    for number in range(victim.plan.secrets):
        kind = kinds[number % len(kinds)]
        true = draw.randrange(len(CANDIDATES[kind]))
        victim.say(f"secret {number + 1} of {victim.plan.secrets}")
        texts = [FORMS[kind].format(each) for each in CANDIDATES[kind]]
        prompts = [victim.tokenizer.render_chat([{"role": "user", "content": text}]) for text in texts]
        answer = continued(network, prompts[true], victim.plan.steps)
        says = CANDIDATES[kind][true].lower() in victim.tokenizer.decode(answer).lower()
        given = victim.tokenizer.encode(REPEATED.format(CANDIDATES[kind][true]))
        for tally, said in ((spoken if says else silent, answer), (repeated, given)):
            scores = likelihoods(network, prompts, said)
            tally[0] += scores.index(max(scores)) == true
            tally[1] += 1
    baseline = repeated[0] / repeated[1]
    for setting, (hits, of) in (("answers without the secret's word", silent), ("answers with it", spoken)):
        if of:
            yield share_row("stealing", PARTITIONED, setting, hits, of, baseline, UNIT, guessing=guessing)
    yield share_row("stealing", ISOLATED, "the service sees no answer", 0, 0, baseline, UNIT, guessing=guessing)
