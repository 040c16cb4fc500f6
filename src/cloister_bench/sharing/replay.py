"""Over HTTP: one server for each policy at the level `shared`, with tenants' keys and an operator's. It gets the whole
workload, and we note when each first token came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from pathlib import Path

import msgspec

from cloister.addresses import HttpAddress
from cloister.controller.template_file import sign_templates
from cloister.gateway.metrics import COARSE_S
from cloister.keys import key_line
from cloister.prefix.templates import Template
from cloister.transparency.note import Algorithm, new_key_file, read_key_file
from cloister_bench import messages
from cloister_bench.load import User
from cloister_bench.messages import Answer, BrokenAnswer
from cloister_bench.report import Percentiles
from cloister_bench.servers import OwnServer
from cloister_bench.sharing.workloads import Chat, Workload
from cloister_bench.suite.documents import Row

ANSWER_S = 300.0
OPERATOR = "operator"
Answers = Sequence[Answer | None]
STREAMED = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}


class Served(OwnServer):
    """Use it in a `with`. A tenant's name is its key."""

    level = "shared"

    def __init__(
        self, policy: str, model: str | None, folder: Path, tenants: Sequence[str], options: Sequence[str] = ()
    ) -> None:
        keys = folder / "keys.toml"
        lines = ["[keys]", *(key_line(name, name) for name in tenants), key_line(OPERATOR, OPERATOR, operator=True)]
        keys.write_text("\n".join(lines))
        arguments = ["--keys", str(keys), "--mpc", "off", "--shared-policy", policy, *options]
        super().__init__(model, folder, arguments, api_key=OPERATOR)

    async def found_tokens(self) -> int:
        """Prompt tokens that tenants found computed, in steps of 1,000: `usage` hides what others computed."""
        await asyncio.sleep(COARSE_S + 1)  # totals may be that old
        reused = "cloister_prefix_tokens_reused_total"
        return int(sum(one.value for one in await self.metrics() if one.name == reused))

    async def complete(self, tenant: str, prompt: str) -> Answer:
        """The first token after a plain prompt."""
        user = User(self.address, tenant, messages.Workload(timeout_s=ANSWER_S))
        asked = {**STREAMED, "model": self.model, "protection": self.level, "prompt": prompt, "max_tokens": 1}
        try:
            return await user.ask(msgspec.json.encode(asked))
        finally:
            await user.leave()


def registered(folder: Path, templates: Sequence[Template]) -> list[str]:
    """Options of a server that has these templates."""
    new_key_file(folder / "templates.key", "bench.example")
    key = read_key_file(folder / "templates.key", Algorithm.ED25519)
    text = "".join(msgspec.json.encode(one).decode() + "\n" for one in templates)
    (folder / "templates").write_text(sign_templates(text, key))
    return ["--templates", str(folder / "templates"), "--templates-key", str(key.verifier)]


def first_tokens(answers: Iterable[Answer | None], prefix: str = "") -> Row:
    firsts = [answer.first_token - answer.sent for answer in answers if answer is not None]
    spread = Percentiles.of_seconds(firsts)
    mean = round(1000 * sum(firsts) / len(firsts), 3) if firsts else None
    return {f"{prefix}mean_ms": mean, f"{prefix}p50_ms": spread.p50, f"{prefix}p95_ms": spread.p95}


def compared(sent: Mapping[str, Answers], offline: Mapping[str, Sequence[int]], reused: Mapping[str, int]) -> list[Row]:
    """By policy. `shared`: requests of which it found, without a server, as much as `global` and more than `partition`;
    for `none` and `partition`, those of `global`. `over_global`: mean first token over that of `global` on the same.
    `tokens_per_s`: of prompts and answers, as the paper counts."""
    rows = []
    own, every = offline.get("partition", ()), offline.get("global", ())
    for policy, answers in sent.items():
        mine = every if policy in ("none", "partition") else offline[policy]
        shared = [one > alone and one >= most for one, alone, most in zip(mine, own, every, strict=False)]
        first = first_tokens(compress(answers, shared), "shared_")
        best = first_tokens(compress(sent.get("global", ()), shared))["mean_ms"]
        over = round(first["shared_mean_ms"] / best, 4) if first["shared_mean_ms"] and best else None
        known = [answer for answer in answers if answer is not None]
        wall = max((one.last_token for one in known), default=0.0) - min((one.sent for one in known), default=0.0)
        prompts, outputs = (sum(getattr(one, of) for one in known) for of in ("prompt_tokens", "output_tokens"))
        rows.append(
            {"policy": policy, "requests": len(answers), "errors": len(answers) - len(known), **first_tokens(known)}
            | {"shared": sum(shared), **first, "over_global": over, "wall_s": round(wall, 3), "prompt_tokens": prompts}
            | {"tokens_per_s": round((prompts + outputs) / (wall or 1), 1)}
            | {"share": round(reused[policy] / max(1, prompts), 4)}
        )
    return rows


async def replay(
    address: HttpAddress,
    keys: Sequence[str],
    model: str,
    level: str,
    workload: Workload,
    on_answer: Callable[[], None] = lambda: None,
) -> Answers:
    """In the workload's order; None for a request that failed. A chat's next question waits for the answer."""
    load = messages.Workload(endpoint="chat", timeout_s=ANSWER_S)
    common = {**STREAMED, "model": model, "protection": level, "ignore_eos": True}
    clock = asyncio.get_running_loop().time
    answers: dict[tuple[int, int], Answer | None] = {}
    began = clock()

    async def serve(number: int, chat: Chat) -> None:
        user = User(address, keys[chat.tenant], load)
        for turn, at in enumerate(chat.times):
            await asyncio.sleep(began + at - clock())
            asked = {**common, "messages": chat.messages(turn), "max_tokens": chat.output_tokens}
            try:
                answers[number, turn] = await user.ask(msgspec.json.encode(asked))
            except BrokenAnswer:
                answers[number, turn] = None
            on_answer()
        await user.leave()

    await asyncio.gather(*(serve(number, chat) for number, chat in enumerate(workload.chats)))
    return [answers[one] for one in workload.turns]
