"""Bits of one tenant's answer that another receives from a service that cheats, by channel and `--verify`. A real node;
its service alone is patched (cheating_node.py). With `off` the attacks must succeed."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from math import log2
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import httpx2

from cloister.errors import InvalidRequest, QueueFull, ServiceUnavailable
from cloister.keys import add_line, key_line, new_key
from cloister.levels import PARTITIONED
from cloister.models.source import find_model
from cloister.prompts.tokenizer import Tokenizer
from cloister_bench.privacy import cheating_code as code
from cloister_bench.privacy.cheating_code import BYSTANDER, VICTIM, Payload, Symbol
from cloister_bench.privacy.cheating_node import HERE
from cloister_bench.privacy.rows import Victim, row
from cloister_bench.servers import OwnServer
from cloister_bench.streamed import events_of
from cloister_bench.suite.documents import Row, wilson

SETTINGS = ("off", "late", "sample:0.1", "all", "off --beat 150", "all --beat 150")
BITS, QUERIES = "bits per 1,000 tokens", "queries answered per 1,000 tokens"
OPERATOR = "operator"
VICTIM_TOKENS = 8
PATH = "/v1/chat/completions"
PATIENCE_S, RETRY_S, APART_S, RESTART_S = 120.0, 0.25, 0.3, 0.5
RESAMPLES = 2000
BIAS_BITS = 0.72  # 1 / (2 ln 2): what chance alone adds to an estimate of one rate (Miller and Madow 1955)
ALARMS = ("The service deviated at token", "A vault was asked what it must not answer")
_QUESTION = "My case has the number {number}. What should I write to the office about it?"
PROMPT = "Here is what you should know first. " * 12 + "Continue. ({number})"


@dataclass
class Answer:
    """What a user saw: each token's place in the alphabet (None: not there), its scores, and when it came."""

    places: list[int | None] = field(default_factory=list)
    scores: list[tuple[float, list[tuple[int | None, float]]]] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    cached: int = 0
    error: str = ""
    refusal: dict[str, Any] = field(default_factory=dict)
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Attack:
    """On `answers` of `asked` tokens each, at the same time. `accounts`: the receiver has one for each trial."""

    name: str
    asked: int
    answers: int = 1
    body: dict[str, Any] = field(default_factory=dict)
    accounts: bool = True


def read(channel: str, answers: Sequence[Answer]) -> Iterator[Symbol]:
    """What the receiver makes of its answers. The first token is the vault's."""
    one = answers[0]
    if channel == "tokens":
        seen = [(at, place) for at, place in enumerate(one.places) if at and place is not None]
        size = code.TOKEN_BITS
        yield from (Symbol(at * size, size, place) for at, place in seen if place < 1 << size)
    elif channel in ("plausible", "sampled"):
        yield from (Symbol(at, 1, place % 2) for at, place in enumerate(one.places) if at and place is not None)
    elif channel == "logprobs":
        for at, scores in enumerate(one.scores[1:], 1):
            yield from code.read_scores(at, *scores)
    elif channel == "usage" and not one.error:
        yield Symbol(0, code.COUNT_BITS, one.cached % (1 << code.COUNT_BITS))
    elif channel == "length" and not one.error:
        yield Symbol(0, code.END_BITS, max(0, len(one.places) - code.FIRST_END) % (1 << code.END_BITS))
    elif channel in code.DELAYS:
        every, delay = code.DELAYS[channel]
        gaps = [later - earlier for earlier, later in pairwise(one.moments[::every])]
        usual = quantiles(gaps, n=4)[0] if len(gaps) > 3 else 0.0
        yield from (Symbol(at, 1, int(gap > usual + delay / 2)) for at, gap in enumerate(gaps))
    elif channel == "order" and not any(each.error for each in answers):
        yield Symbol(0, 1, int(answers[1].ended_at < one.ended_at))
    elif channel == "aborts" and one.refusal.get("code") in (QueueFull.code, InvalidRequest.code):
        fields = dict(zip(code.FIELDS, count(code.SECONDS), strict=False))
        yield Symbol(0, code.ABORT_BITS, fields.get(one.refusal["param"], one.refusal["retry_after"] - 1))
    elif channel == "failures":
        yield Symbol(0, 1, int(bool(one.error)))
    elif channel == "deviations" and (found := re.match(r"Token (\d+) ", one.error)):
        yield Symbol(0, code.END_BITS, (int(found[1]) - 1 - code.FIRST_END) % (1 << code.END_BITS))
    elif channel == "restarts":
        longest, usual, *_ = sorted((0.0, 0.0, *(b - a for a, b in pairwise(one.moments))), reverse=True)
        yield Symbol(0, 1, int(bool(one.error) or longest > usual + RESTART_S))


WHOLE: dict[str, Any] = {"stream": False, "stream_options": None}  # an error then has its HTTP status and headers
ATTACKS = (
    Attack("tokens", 64),
    Attack("plausible", 64),
    Attack("sampled", 64, body={"temperature": 1.0}),
    Attack("logprobs", 16, body={"top_logprobs": code.TOPS}),
    Attack("usage", 18),
    Attack("length", 18),
    Attack("timing", 64),
    Attack("pauses", 1 + 6 * code.CHUNK),
    Attack("order", 18, answers=2),
    Attack("aborts", 4, body=WHOLE, accounts=False),
    Attack("failures", 4),
    Attack("deviations", 18, body=WHOLE, accounts=False),
    Attack("restarts", 64),
    *(Attack(name, 18) for name in code.NOSY),
)
NAMES = tuple(one.name for one in ATTACKS)
TIMED = [one for one in ATTACKS if one.name in ("timing", "pauses", "order", "restarts")]  # what a beat may change


class CheatingNode(OwnServer):
    """The name of a receiver's account says which channel it reads."""

    def __init__(self, folder: Path, setting: str, model: str | None, arguments: Sequence[str], accounts: int) -> None:
        source, plan, keys = find_model(model), folder / "alphabet.json", folder / "keys.toml"
        tokenizer = Tokenizer(source)
        self.alphabet = alphabet_of(tokenizer)
        self._place = {tokenizer.token_bytes(token): place for place, token in enumerate(self.alphabet)}
        plan.write_text(json.dumps(self.alphabet))
        others = [f"{name}-{number}" for name in NAMES for number in range(accounts)]
        self.keys = {name: new_key() for name in (VICTIM, BYSTANDER, OPERATOR, *others)}
        for name, key in self.keys.items():
            add_line(keys, key_line(key, name, operator=name == OPERATOR))
        given = ["--keys", str(keys), "--mpc", "off", "--no-detector", "--verify", *setting.split(), *arguments]
        super().__init__(source.path, folder, given, self.keys[OPERATOR])
        self._command[2] = HERE
        self._environment[code.PLAN] = str(plan)

    def ask(self, tenant: str, prompt: str, level: str, tokens: int, **more: Any) -> Answer:
        """As any client of OpenAI's API would; while the service restarts, again."""
        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
        body |= {"temperature": 0, "logprobs": True, "stream": True, "stream_options": {"include_usage": True}}
        body |= {"ignore_eos": True, "protection": level, **more}
        headers, begun = {"Authorization": f"Bearer {self.keys[tenant]}"}, perf_counter()
        with httpx2.Client(base_url=str(self.address), headers=headers, timeout=PATIENCE_S) as http:
            while True:
                answer = self._answered(http, body)
                answer.ended_at = perf_counter()
                if "restarting" not in answer.error or answer.ended_at - begun > PATIENCE_S:
                    return answer
                sleep(RETRY_S)

    def settle(self) -> None:
        """Until the service is up: while it restarts, vaults answer alone, and it cannot cheat."""
        begun = perf_counter()
        while perf_counter() - begun < PATIENCE_S:
            with suppress(httpx2.HTTPError):
                if httpx2.get(f"{self.address}/health").status_code == httpx2.codes.OK:
                    return
            sleep(RETRY_S)

    def alarms(self) -> int:
        """How often the service was caught."""
        return sum(self.log.read_text().count(words) for words in ALARMS)

    def _answered(self, http: httpx2.Client, body: dict[str, Any]) -> Answer:
        answer = Answer()
        try:
            with http.stream("POST", PATH, json=body) as reply:
                if reply.status_code != httpx2.codes.OK:
                    return _refused(reply)
                for event in events_of(reply) if body["stream"] else ():
                    self._note(answer, event)
        except (ServiceUnavailable, httpx2.HTTPError) as reason:
            answer.error = str(reason)
        return answer

    def _note(self, answer: Answer, event: dict[str, Any]) -> None:
        if usage := event.get("usage"):
            answer.cached = usage["prompt_tokens_details"]["cached_tokens"]
        for choice in event.get("choices", ()):
            for scored in (choice.get("logprobs") or {}).get("content", ()):
                answer.places.append(self._place.get(bytes(scored["bytes"])))
                top = [(self._place.get(bytes(each["bytes"])), each["logprob"]) for each in scored["top_logprobs"]]
                answer.scores.append((scored["logprob"], top))
                answer.moments.append(perf_counter())


def _refused(reply: httpx2.Response) -> Answer:
    said = json.loads(reply.read())["error"] | {"retry_after": int(reply.headers.get("retry-after", 0))}
    return Answer(error=said["message"], refusal=said)


def alphabet_of(tokenizer: Tokenizer) -> list[int]:
    """Tokens that a reader of the API can tell apart; as many even places as odd ones."""
    spelled: dict[bytes, list[int]] = {}
    for token in range(tokenizer.vocabulary):
        if token not in tokenizer.special and tokenizer.token_bytes(token):
            spelled.setdefault(tokenizer.token_bytes(token), []).append(token)
    alone = sorted(tokens[0] for tokens in spelled.values() if len(tokens) == 1)
    return alone[: len(alone) // 2 * 2]


@dataclass
class Trial:
    bits: int
    wrong: int
    tokens: int
    failed: bool


def run_trial(node: CheatingNode, attack: Attack, level: str, number: int) -> Trial | None:
    """The victim asks, then the receiver. None where the victim's answer cannot be known from outside."""
    node.settle()
    victim = node.ask(VICTIM, _QUESTION.format(number=7919 * number + 1), level, VICTIM_TOKENS)
    if victim.error or None in victim.places:
        return None
    payload = Payload([node.alphabet[place] for place in victim.places if place is not None])

    def receive(place: int) -> Answer:
        sleep(APART_S * place)
        account = f"{attack.name}-{number * attack.accounts}"
        return node.ask(account, PROMPT.format(number=number), level, attack.asked, **attack.body)

    with ThreadPoolExecutor(attack.answers) as together:
        alarms = node.alarms()
        answers = list(together.map(receive, range(attack.answers)))
    asked, failed = attack.asked * attack.answers, any(one.error for one in answers)
    if attack.name in code.NOSY:
        caught = failed or node.alarms() > alarms
        return Trial(0 if caught else len(answers[0].places) - 1, 0, asked, caught)
    symbols = list(read(attack.name, answers))
    return Trial(sum(one.bits for one in symbols), sum(map(payload.wrong, symbols)), asked, failed)


def information(share_wrong: float) -> float:
    """Bits in a received bit; none where it is wrong as often as a guess, or more often."""
    if not 0 < share_wrong < 0.5:
        return float(share_wrong <= 0)
    return 1 + share_wrong * log2(share_wrong) + (1 - share_wrong) * log2(1 - share_wrong)


def rate(trials: Sequence[Trial]) -> tuple[float, float, float]:
    """Per 1,000 tokens asked for, with a 95% interval: of the errors (Wilson) and over the trials (bootstrap)."""

    def sums(some: Sequence[Trial]) -> tuple[int, int, float]:
        bits, wrong = sum(one.bits for one in some), sum(one.wrong for one in some)
        return bits, wrong, 1000 * bits / max(1, sum(one.tokens for one in some))

    bits, wrong, whole = sums(trials)
    if not bits:
        return 0.0, 0.0, 0.0
    (least, most), draws = wilson(wrong, bits), random.Random(1)
    again = (sums([draws.choice(trials) for _ in trials]) for _ in range(RESAMPLES))
    rates = sorted(of * information(errors / max(1, drawn)) for drawn, errors, of in again)
    low = min(rates[RESAMPLES // 40], whole * information(most)) if most < 0.5 else 0.0
    high = max(rates[-RESAMPLES // 40], whole * information(least))
    return max(0.0, whole * (information(wrong / bits) - BIAS_BITS * bool(wrong) / bits)), low, high


def attack(victim: Victim) -> Iterator[Row]:
    """`baseline` is what `off` gave."""
    controls: dict[str, float] = {}
    for setting in SETTINGS:
        with running(setting, victim.model, (), victim.plan.trials) as node:
            for one in ATTACKS if " " not in setting else TIMED:
                victim.say(f"{setting}: {one.name}")
                every = (run_trial(node, one, PARTITIONED, number) for number in range(victim.plan.trials))
                tried = [made for made in every if made]
                got, low, high = (round(each, 2) for each in rate(tried))
                gets = {"share": got, "low": low, "high": high, "of": sum(each.tokens for each in tried)}
                counts = {"requests": len(tried), "failed": sum(each.failed for each in tried)}
                unit = QUERIES if one.name in code.NOSY else BITS
                control = controls.setdefault(one.name, got)
                yield row(f"cheating service: {one.name}", PARTITIONED, setting, gets, control, unit, **counts)


@contextmanager
def running(
    setting: str, model: str | None = None, arguments: Sequence[str] = (), accounts: int = 1
) -> Iterator[CheatingNode]:
    folder = TemporaryDirectory(prefix="cloister-cheating-")
    with folder as path, CheatingNode(Path(path), setting, model, arguments, accounts) as node:
        node.wait()
        yield node
