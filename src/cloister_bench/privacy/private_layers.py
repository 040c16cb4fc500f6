"""(h) Private layers: what is left to see of a prompt at k, and what k costs. At k the service sees contributions from
layer k on, and the states of the answer's rows before it."""

from collections.abc import Iterator

from cloister.levels import PARTITIONED
from cloister_bench.privacy.contributions import PRECISIONS, hidden, right, texts_of
from cloister_bench.privacy.network import Network, continued
from cloister_bench.privacy.reconstruction import Search, seen_by_service
from cloister_bench.privacy.rows import Victim, row
from cloister_bench.privacy.states import FirstStates, StateSearch, states_seen
from cloister_bench.suite.documents import Row, rate_of

KEPT = (0, 1, 2, 4, 8)
ROWS = 12  # of the answer: their states are compared


def attack(victim: Victim) -> Iterator[Row]:
    """For each k: contributions of layer k alone, states alone, and both; the guess that fits best counts."""
    plan, model = victim.plan, victim.load()
    kept = [k for k in KEPT if k <= max(plan.layers)]
    for bf16 in PRECISIONS:
        network, dtype = Network(model, bf16=bf16), "bf16" if bf16 else "fp32"
        for k in kept:
            victim.say(f"{k} private layers, {dtype}")
            found: dict[str, int] = {}
            known = prior = of = 0
            for text in texts_of(victim)[: plan.prompts]:
                one = hidden(victim.tokenizer, text, plan.tokens[0])
                answer = continued(network, one.prompt, plan.steps)
                views = seen_by_service(network, one.prompt, answer)
                search = Search(network, views[k], one.before, one.after, len(one.secret))
                guesses = {f"contributions of layer {k}": search.run()}
                if k:
                    states = states_seen(network, one.prompt, answer, k)
                    begun = [FirstStates(network, search, states, answer).run()] if k == 1 else []
                    sought = StateSearch(network, search, k, states[:ROWS], answer[:ROWS], plan.seed)
                    guesses[f"states before layer {k}"] = sought.run(*begun)
                    sought.with_parts = True
                    guesses["both"] = sought.run(*guesses.values())
                    before = states_seen(network, one.before, one.secret, k)
                    known += right(sought.run_with_rows(before), one.secret)
                else:
                    known += right(search.run_with_keys(), one.secret)
                for name, guess in guesses.items():
                    found[name] = found.get(name, 0) + right(guess, one.secret)
                prior += right(search.prior, one.secret)
                of += len(one.secret)
            for name, count in found.items():
                more = {"layer": k, "dtype": dtype, "guessing": prior / of, "seen": name}
                setting = f"k = {k}, {name}, {dtype}, {plan.tokens[0]} tokens"
                yield row("private layers", PARTITIONED, setting, rate_of(count, of), known / of, "tokens", **more)
