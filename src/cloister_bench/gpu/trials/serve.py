"""`cloister serve` on a GPU machine, asked by the `openai` client. Right or wrong: greedy and seeded answers, with
log-probabilities, are those of `open` at every level, alone and among others; a killed process costs requests, with a
clear error, and is replaced. Times: whole requests at `open` and `partitioned`."""

import argparse
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cloister.addresses import HttpAddress
from cloister.config import DEVELOPMENT_KEY
from cloister.errors import ServiceUnavailable
from cloister.models.source import open_folder
from cloister_bench.load import Workload, measure
from cloister_bench.random_model import write_random_model
from cloister_bench.servers import OwnServer

PATIENCE_S = 150
MPS = "nvidia-cuda-mps-server"
WAYS: dict[str, dict[str, Any]] = {"greedy": {}, "seeded": {"temperature": 1.0, "seed": 7, "top_p": 0.9}}
# tokens with their log-probabilities, and the best few of each step with theirs
Answer = list[tuple[str, float, list[tuple[str, float]]]]


@contextmanager
def served(model: Path, log: Path, *options: str) -> Iterator[tuple[str, float]]:
    server, began = OwnServer(model, log.parent, ["--mpc", "off", *options]), time.monotonic()
    server.log = log
    with server:
        try:
            server.wait(PATIENCE_S)
        except ServiceUnavailable:
            print(log.read_text()[-4000:], flush=True)
            raise
        yield str(server.address), time.monotonic() - began


def processes(role: str) -> list[int]:
    """Of the node's, by their titles; or of MPS."""
    title, found = (MPS if role == MPS else f"cloister {role}").encode(), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[0].endswith(title):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


class Client:
    def __init__(self, url: str) -> None:
        from openai import OpenAI

        self.url, self._openai = url, OpenAI(base_url=f"{url}/v1", api_key=DEVELOPMENT_KEY, timeout=120)
        self.about = self._openai.models.list().data[0].model_dump()
        self.model: str = self.about["id"]
        self.levels = [level["id"] for level in self.about["protection"] if level["enabled"]]

    def chat(self, text: str, level: str, way: dict[str, Any] | None = None, retries: int = 2, **more: Any) -> Any:
        asked: dict[str, Any] = {"max_tokens": 24, "temperature": 0, **(way or {})}
        return self._openai.with_options(max_retries=retries).chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": text}],
            extra_body={"protection": level, **more},
            **asked,
        )

    def answer(self, text: str, level: str, way: dict[str, Any], **more: Any) -> Answer:
        found = self.chat(text, level, {**way, "logprobs": True, "top_logprobs": 5}, **more).choices[0].logprobs
        return [(t.token, t.logprob, [(top.token, top.logprob) for top in t.top_logprobs]) for t in found.content]


def divergence(found: Answer, right: Answer) -> dict[str, Any] | None:
    """The first step that differs, and whether its logits do."""
    for step, (one, other) in enumerate(zip(found, right, strict=False)):
        if one != other:
            return {"step": step, "logits_differ": one[2] != other[2], "found": one, "alone": other}
    return None if len(found) == len(right) else {"step": min(len(found), len(right)), "lengths_differ": True}


AT_ONCE = (1, 8, 24)
USERS = 24  # at once while requests are timed: one tenant keeps no more sessions
SPARES_S = 9.0  # after this long, as many spare vaults are there again
CASES = ((64, 64), (512, 128))  # tokens of the prompt, tokens of the answer
OBFUSCATED_S, OBFUSCATED_USERS = 60.0, 4
FAKES, SPARE_VAULTS = 8, 26
# the real secrets and the substitutes
VALUES = [["Ann", "Ghent", "May"], *([f"Bo{i}b", f"Lund{i}", f"Day{i}"] for i in range(FAKES))]
SECRETS = ("My name is {}.", "I live in {}, by the river.", "I was born in {}.")
Found = dict[str, Any]


def together(ask: Callable[[int], Answer], right: Sequence[Answer]) -> list[Found]:
    with ThreadPoolExecutor(len(right)) as many:
        answers = list(many.map(ask, range(len(right))))
    differing = [(number, divergence(answer, right[number])) for number, answer in enumerate(answers)]
    return [{"prompt": number, **how} for number, how in differing if how]


def check_answers(client: Client) -> Found:
    levels = [level for level in client.levels if level != "obfuscated"]
    found: Found = {"differing": [], "compared": {}}
    prompts = [f"Question {i}: what is {i} plus {i + 1}? Explain." for i in range(max(AT_ONCE))]
    for kind, way in WAYS.items():
        alone = [client.answer(text, "open", way) for text in prompts]
        for level in levels:
            for users in AT_ONCE if level != "isolated" else AT_ONCE[:2]:
                case = f"{level} {kind} {users} at once"

                def ask(number: int, level: str = level, way: Found = way) -> Answer:
                    return client.answer(prompts[number], level, way)

                found["differing"] += [{"case": case, **each} for each in together(ask, alone[:users])]
                found["compared"][case] = users
    right = client.chat(prompts[0], "open").choices[0].message.content
    for level in levels:
        stream = client.chat(prompts[0], level, {"stream": True})
        if "".join(part.choices[0].delta.content or "" for part in stream if part.choices) != right:
            found["differing"].append(f"{level} streamed")
    return found


def secret_prompt(spans: int, user: int) -> tuple[str, str]:
    text = f"Letter {user}. Please answer politely. " + " ".join(SECRETS[:spans]) + " What should I see?"
    return text.format(*(f"<redacted>{value}</redacted>" for value in VALUES[0])), text.format(*VALUES[0])


def check_obfuscated(client: Client) -> Found:
    """With given substitutes and then with sampled ones: the answers of `open`."""
    found: Found = {"differing": [], "failed": [], "compared": 0}
    end = time.monotonic() + OBFUSCATED_S
    cases = [(kind, spans, users) for kind in WAYS for spans in (1, 2, 3) for users in (1, OBFUSCATED_USERS)]
    for kind, spans, users in cases:
        if time.monotonic() > end:
            break
        given = {"fakes": FAKES, "substitutes": [values[:spans] for values in VALUES[1:]]}
        case = f"{kind}, {spans} secrets, {users} users"

        def ask(user: int, spans: int = spans, way: Found = WAYS[kind], given: Found = given) -> Answer:
            marked = secret_prompt(spans, user)[0]
            return client.answer(marked, "obfuscated", way, session=f"s{user}", obfuscation=given)

        try:
            right = [client.answer(secret_prompt(spans, user)[1], "open", WAYS[kind]) for user in range(users)]
            found["differing"] += [{"case": case, **each} for each in together(ask, right)]
        except Exception as failure:
            found["failed"].append(f"{case}: {type(failure).__name__}: {str(failure)[:300]}")
            continue
        found["compared"] += users
    sampled = {"fakes": FAKES, "minimum": 1, "epsilon": 1.0, "candidates": 32}
    marked, plain = secret_prompt(1, 0)
    try:
        answer = client.answer(marked, "obfuscated", {}, session="s0", obfuscation=sampled)
        if differs := divergence(answer, client.answer(plain, "open", {})):
            found["differing"].append({"case": "sampled substitutes", **differs})
    except Exception as failure:
        found["failed"].append(f"sampled substitutes: {type(failure).__name__}: {str(failure)[:300]}")
    return found


def check_kills(client: Client) -> Found:
    """SIGKILL while a long answer is made: what its user gets, and how long until all is well again."""
    found = {}
    vaults = [("vault", level) for level in client.levels if level in ("partitioned", "isolated")]
    shared = [("attention", "partitioned"), (MPS, "partitioned")] if "partitioned" in client.levels else []
    for role, level in [("service", "open"), *vaults, *shared]:
        with ThreadPoolExecutor(1) as one:
            before = processes(role)
            asking = one.submit(client.chat, "Count to a thousand, slowly.", level, {"max_tokens": 4000}, 0)
            time.sleep(1.5)
            for pid in before:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            try:
                got = f"answered {len(asking.result(60).choices[0].message.content or '')} characters"
            except Exception as failure:
                got = f"{type(failure).__name__}: {str(failure)[:200]}"
        while True:
            try:
                client.chat("Hello", level, {"max_tokens": 4}, 0)
                break
            except Exception:
                if time.monotonic() - killed > 30:
                    raise
                time.sleep(0.1)
        found[f"{role} at {level}"] = {"got": got, "well_again_s": round(time.monotonic() - killed, 2)}
    return found


def throughput(client: Client) -> list[Found]:
    rows: list[Found] = []
    for prompt, new in CASES:
        for level, kept in (("open", False), ("partitioned", False), ("partitioned", True)):
            if level not in client.levels:
                continue
            if level != "open" and not kept:
                time.sleep(SPARES_S)
            asked: Found = {"input_tokens": prompt, "output_tokens": new, "protection": level, "sessions": kept}
            load = Workload(requests_per_user=1, warmup=2 if kept else 0, seed=len(rows), **asked)
            run = measure(HttpAddress.parse(client.url), [DEVELOPMENT_KEY], client.model, load, USERS)
            row = {"level": level, "kept": kept, "users": USERS, "prompt": prompt, "new": new, "errors": run.errors}
            row |= {"tokens_per_s": run.output_tokens_per_s, "median_ms": run.answer_ms}
            rows.append(row)
            print(row, flush=True)
    return rows


def serve(options: argparse.Namespace, note: Callable[[str, Any], None]) -> None:
    model = options.model
    if options.like:
        model = write_random_model(model, {}, open_folder(options.like, options.like.name)).path
    parts: dict[str, Callable[[Client], Any]] = {
        "answers": check_answers,
        "obfuscated": check_obfuscated,
        "throughput": throughput,
        "kills": check_kills,
    }
    with served(model, options.json.with_suffix(".log"), "--spare-vaults", str(SPARE_VAULTS)) as (url, seconds):
        client = Client(url)
        note("up_s", seconds)
        note("model", client.about)
        for name, part in parts.items():
            try:
                note(name, part(client))
            except Exception as failure:
                note(name, f"failed: {type(failure).__name__}: {str(failure)[:500]}")
