"""(a) The secret part of a prompt, reconstructed at each layer, in fp32 and bf16, by length."""

import csv
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from cloister.levels import ISOLATED, PARTITIONED
from cloister_bench.privacy.network import Network, continued
from cloister_bench.privacy.reconstruction import Hidden, Search, seen_by_service
from cloister_bench.privacy.rows import Victim, rate_of_prompts, row
from cloister_bench.suite.documents import Row, rate_of

PRECISIONS = (False, True)  # bf16 or not
SHALLOW = (0, 1)
CONTROLS = 4  # prompts whose control is run at deeper layers: it tries words in the order of the model's expectation
FIRST, EVERY = 20, 7  # rows of PUPA
DEVELOPED_ON = (
    "My daughter Lena Fischer was diagnosed with epilepsy in March and takes 500 mg of levetiracetam twice a day."
)


def hidden(tokenizer: Any, text: str, count: int) -> Hidden:
    """The first tokens of a text in a chat whose template is known."""
    whole, bare = (tokenizer.render_chat([{"role": "user", "content": each}]) for each in (text, ""))
    start = next(at for at, (one, other) in enumerate(zip(whole, bare, strict=False)) if one != other)
    end = len(whole) - (len(bare) - start)
    return Hidden(whole[:start], whole[start:end][:count], whole[end:])


def texts_of(victim: Victim) -> list[str]:
    """Without any given: real prompts with private words, by a rule that was fixed before any of them was attacked."""
    if found := [one["text"] for one in victim.texts if "topic" not in one]:
        return found
    try:
        with (victim.data / "pii" / "pupa_tnb.csv").open(newline="", encoding="utf-8") as file:
            return [one["user_query"] for one in islice(csv.DictReader(file), FIRST, None, EVERY)]
    except OSError:
        return [DEVELOPED_ON]


def right(guess: Sequence[int], secret: Sequence[int]) -> int:
    return sum(one == other for one, other in zip(guess, secret, strict=True))


def attack(victim: Victim) -> Iterator[Row]:
    """At layers 0 and 1 for all lengths, deeper for the shortest: a guess costs a pass through all layers below."""
    plan, model = victim.plan, victim.load()
    texts = texts_of(victim)
    for bf16 in PRECISIONS:
        network = Network(model, bf16=bf16)
        for count in plan.tokens:
            cut = partial(hidden, victim.tokenizer, count=count)
            secrets = list(islice((one for one in map(cut, texts) if len(one.secret) == count), plan.prompts))
            if not secrets:
                continue
            prompts = [one.prompt for one in secrets]
            seen = [seen_by_service(network, one, continued(network, one, plan.steps)) for one in prompts]
            for layer in plan.layers if count == plan.tokens[0] else SHALLOW:
                victim.say(f"layer {layer}, {count} tokens, {'bf16' if bf16 else 'fp32'}")
                found: list[int] = []
                known = of = prior = 0
                for number, (one, views) in enumerate(zip(secrets, seen, strict=True)):
                    search = Search(network, views[layer], one.before, one.after, count)
                    found.append(right(search.run(), one.secret))
                    prior += right(search.prior, one.secret)
                    if layer in SHALLOW or number < CONTROLS:
                        known, of = known + right(search.run_with_keys(), one.secret), of + count
                rate, dtype = rate_of_prompts(found, count), "bf16" if bf16 else "fp32"
                more = {"layer": layer, "tokens": count, "dtype": dtype, "guessing": prior / rate["of"]}
                setting = f"contributions of layer {layer}, {dtype}, {count} tokens of {len(found)} prompts"
                yield row("reconstruction", PARTITIONED, setting, rate, known / of, "tokens", **more)
    yield row("reconstruction", ISOLATED, "the service sees no contributions", rate_of(0, 0), None, "tokens")
