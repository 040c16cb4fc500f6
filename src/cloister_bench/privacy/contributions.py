"""(a) The secret part of a prompt, reconstructed at each layer, in fp32 and bf16, by length."""

from collections.abc import Iterator, Sequence
from typing import Any

from cloister.levels import ISOLATED, PARTITIONED
from cloister_bench.privacy.network import Network, continued
from cloister_bench.privacy.reconstruction import Hidden, Search, seen_by_service
from cloister_bench.privacy.rows import Victim, row
from cloister_bench.suite.documents import Row, rate_of

TEXTS = (
    "My daughter Lena Fischer was diagnosed with epilepsy in March and takes 500 mg of levetiracetam twice a day; "
    "may she swim alone, and what should her teacher know?",
    "Our merger with Halden Logistics closes on 14 May at 31 euros a share and only the board knows; draft "
    "a short note to the bank about the bridge loan.",
    "The password of the backup server is Tulip-7731-Kestrel and the key safe behind the kitchen opens with 4408; "
    "write down how my brother gets in next week.",
)


def hidden(tokenizer: Any, text: str, count: int) -> Hidden:
    """The first tokens of a text in a chat whose template is known."""
    whole, bare = (tokenizer.render_chat([{"role": "user", "content": each}]) for each in (text, ""))
    start = next(at for at, (one, other) in enumerate(zip(whole, bare, strict=False)) if one != other)
    end = len(whole) - (len(bare) - start)
    return Hidden(whole[:start], whole[start:end][:count], whole[end:])


def right(guess: Sequence[int], secret: Sequence[int]) -> int:
    return sum(one == other for one, other in zip(guess, secret, strict=True))


def attack(victim: Victim) -> Iterator[Row]:
    """At layer 0 for all lengths, at deeper layers for the shortest: a guess costs a pass through all layers below."""
    plan, model = victim.plan, victim.load()
    for bf16 in (False, True):
        network = Network(model, bf16=bf16)
        for count in plan.tokens:
            secrets = [hidden(victim.tokenizer, text, count) for text in TEXTS[: plan.prompts]]
            seen = [
                seen_by_service(network, each.prompt, continued(network, each.prompt, plan.steps)) for each in secrets
            ]
            for layer in plan.layers if count == plan.tokens[0] else (0,):
                victim.say(f"layer {layer}, {count} tokens, {'bf16' if bf16 else 'fp32'}")
                found = known = prior = of = 0
                for one, views in zip(secrets, seen, strict=True):
                    search = Search(network, views[layer], one.before, one.after, len(one.secret))
                    found += right(search.run(), one.secret)
                    known += right(search.run_with_keys(), one.secret)
                    prior += right(search.prior, one.secret)
                    of += len(one.secret)
                more = {"layer": layer, "tokens": count, "dtype": "bf16" if bf16 else "fp32", "guessing": prior / of}
                setting = f"contributions of layer {layer}, {more['dtype']}, {count} tokens"
                yield row("reconstruction", PARTITIONED, setting, rate_of(found, of), known / of, "tokens", **more)
    yield row("reconstruction", ISOLATED, "the service sees no contributions", rate_of(0, 0), None, "tokens")
