"""(b) A secret of the prompt, from the answer that the service sees: the candidate that makes this answer likeliest, by
the served model itself. The baseline's answer repeats the secret."""

from collections.abc import Iterator, Sequence
from random import Random

import torch

from cloister.levels import ISOLATED, PARTITIONED
from cloister_bench.privacy.network import Network, continued
from cloister_bench.privacy.rows import Victim, row
from cloister_bench.suite.documents import Row, rate_of

SECRETS = {
    "I have {}. Write me a short poem about a quiet morning at home.": "asthma diabetes epilepsy depression migraine "
    "cancer arthritis anemia",
    "I live in {}. How do I boil an egg?": "Paris Berlin Tokyo Madrid Cairo Sydney Toronto Rome",
    "I work as a {}. What could I give a friend?": "nurse teacher lawyer farmer pilot soldier waiter judge",
    "My name is {}. Suggest a walk for a rainy day.": "Maria James Sofia Omar Elena David Aisha Peter",
}
REPEATED = "You said {}."  # the baseline's answer
UNIT, GUESSING = "secrets, one of 8", 1 / 8


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
    silent, spoken, repeated = [0, 0], [0, 0], [0, 0]
    for number in range(victim.plan.secrets):
        form, words = list(SECRETS.items())[number % len(SECRETS)]
        secret = draw.choice(candidates := words.split())
        victim.say(f"secret {number + 1} of {victim.plan.secrets}")
        asked = [[{"role": "user", "content": form.format(each)}] for each in candidates]
        prompts = [victim.tokenizer.render_chat(each) for each in asked]
        true = candidates.index(secret)
        answer = continued(network, prompts[true], victim.plan.steps)
        says = secret.lower() in victim.tokenizer.decode(answer).lower()
        given = victim.tokenizer.encode(REPEATED.format(secret))
        for tally, said in ((spoken if says else silent, answer), (repeated, given)):
            scores = likelihoods(network, prompts, said)
            tally[0] += scores.index(max(scores)) == true
            tally[1] += 1
    baseline = repeated[0] / repeated[1]
    for setting, (hits, of) in (("answers without the secret's word", silent), ("answers with it", spoken)):
        if of:
            yield row("stealing", PARTITIONED, setting, rate_of(hits, of), baseline, UNIT, guessing=GUESSING)
    yield row("stealing", ISOLATED, "the service sees no answer", rate_of(0, 0), baseline, UNIT, guessing=GUESSING)
