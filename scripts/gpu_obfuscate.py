"""The level `obfuscated` of a whole node on a GPU machine: the same answers as `open` and `partitioned`.

    python scripts/gpu_obfuscate.py --json FILE --model FOLDER [--random same --like FOLDER]

`cloister serve` is asked by the `openai` client; tokens and log-probabilities are compared. What a step costs,
`cloister bench gpu` measures. Needs the packages of `cloister` itself.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import gpu_serve

WATCHDOG_S = 200
FAKES = 8
VALUES = [["Ann", "Ghent", "May"], *([f"Bo{i}b", f"Lund{i}", f"Day{i}"] for i in range(FAKES))]
"""The real secrets and the substitutes."""
SECRETS = ("My name is {}.", "I live in {}, by the river.", "I was born in {}.")


def prompts(spans: int, user: int) -> tuple[str, str]:
    """A prompt with so many secrets, marked and not."""
    text = f"Letter {user}. Please answer politely. " + " ".join(SECRETS[:spans]) + " What should I see?"
    marked = (f"<redacted>{value}</redacted>" for value in VALUES[0])
    return text.format(*marked), text.format(*VALUES[0])


def node(found: dict[str, Any], url: str, users: int, save: Callable[[], None], until: float) -> None:
    asked = gpu_serve.Asked(url)
    model = asked.client.models.list().data[0].model_dump()
    found["levels"] = [level["id"] for level in model["protection"] if level["enabled"]]

    def said(text: str, level: str, way: dict[str, Any], **more: Any) -> Any:
        began = time.monotonic()
        answer = asked.client.chat.completions.create(
            model=asked.model,
            messages=[{"role": "user", "content": text}],
            extra_body={"protection": level, **more},
            logprobs=True,
            top_logprobs=5,
            **{"max_tokens": 24, "temperature": 0, **way},
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.content is not None
        tokens = [(t.token, t.logprob, [(top.token, top.logprob) for top in t.top_logprobs]) for t in logprobs.content]
        return tokens, time.monotonic() - began

    found |= {"differing": [], "failed": [], "compared": 0, "seconds": {}}
    for kind, way in gpu_serve.WAYS.items():
        for spans in (1, 2, 3):
            given = {"fakes": FAKES, "substitutes": [values[:spans] for values in VALUES[1:]]}
            ways: dict[str, dict[str, Any]] = {"partitioned": {}, "obfuscated": {"obfuscation": given}}
            for level, more in ways.items():
                for count in (1, users):
                    if time.monotonic() > until:
                        return

                    def ask(
                        user: int,
                        spans: int = spans,
                        level: str = level,
                        more: dict[str, Any] = more,
                        way: dict[str, Any] = way,
                    ) -> Any:
                        session = {"session": f"user-{user}"}
                        return said(prompts(spans, user)[level == "partitioned"], level, way, **session, **more)

                    case = f"{level} {kind} {spans} spans {count} users"
                    try:
                        right = [said(prompts(spans, user)[1], "open", way)[0] for user in range(count)]
                        with ThreadPoolExecutor(count) as many:
                            answers = list(many.map(ask, range(count)))
                    except Exception as failure:
                        found["failed"].append(f"{case}: {type(failure).__name__}: {str(failure)[:300]}")
                        continue
                    found["seconds"][case] = max(seconds for _, seconds in answers)
                    for user, (answer, _) in enumerate(answers):
                        found["compared"] += 1
                        if differs := gpu_serve.divergence(answer, right[user]):
                            found["differing"].append({"case": case, "user": user, **differs})
                    save()
        if "sampled" not in found:
            found["sampled"] = sampled(said)


def sampled(said: Callable[..., Any]) -> Any:
    """With substitutes that the vault finds."""
    wish = {"fakes": FAKES, "minimum": 1, "epsilon": 1.0, "candidates": 32}
    try:
        answer, seconds = said(prompts(1, 0)[0], "obfuscated", {}, session="sampled", obfuscation=wish)
        differs = gpu_serve.divergence(answer, said(prompts(1, 0)[1], "open", {})[0])
    except Exception as failure:
        return f"{type(failure).__name__}: {str(failure)[:400]}"
    return {"seconds": seconds, "differs": differs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--random")
    parser.add_argument("--like", type=Path)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=150.0, help="begin no more cases then")
    parser.add_argument("--option", action="append", default=[], help="passed on to `cloister serve`")
    options = parser.parse_args()
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    began, found = time.monotonic(), dict[str, Any]()

    def save() -> None:
        found["wall_s"] = time.monotonic() - began
        options.json.write_text(json.dumps(found, indent=1))

    if options.random:
        gpu_serve.make_random(options.model, options.like, options.random)
    log = options.json.with_suffix(".log")
    try:
        with gpu_serve.served(options.model, log, *options.option) as (url, seconds):
            found["up_s"] = seconds
            node(found, url, options.users, save, began + options.seconds)
    except Exception as failure:
        found["stopped"] = f"{type(failure).__name__}: {str(failure)[:1500]}"
    save()
    print(json.dumps(found)[:6000], flush=True)


if __name__ == "__main__":
    main()
