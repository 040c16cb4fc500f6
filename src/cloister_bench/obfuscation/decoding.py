"""What λ made-up prompts cost a server: time between tokens beside `partitioned` (Figure 10).
Substitutes are given, so nothing is sampled; sessions are kept, so no vault is made while the clock runs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Protocol, Self

import httpx2

from cloister.config import DEVELOPMENT_KEY
from cloister.levels import OBFUSCATED, PARTITIONED
from cloister.models.source import find_model
from cloister_bench.servers import OwnServer
from cloister_bench.streamed import events

REQUEST_S = 600.0
OPTIONS = ("--mpc", "off", "--no-detector", "--max-vaults", "16", "--kv-cache-mib", "512")
SECRET = "Ann"
NAMES = ["Bob", "Eve", "Kim", "Tom", "Ida", "Max", "Lea", "Sam", "Joe", "Amy", "Ben", "Zoe", "Dan", "Liz", "Ray", "Sue"]
NAMES += ["Jim", "Pam", "Ron", "Fay", "Ted", "Meg", "Hal", "Una", "Lou", "Nan", "Rex", "Ivy", "Gus", "Dot", "Art"]
BEFORE, AFTER = "My friend ", " wants to write a letter about a walk in the woods. What should she write?"


class Ask(Protocol):
    def answer(self, session: str, fakes: int, tokens: int) -> list[float]:
        """The seconds at which tokens came."""

    def end(self, session: str) -> None: ...


def gap_ms(times: Sequence[float]) -> float:
    return 1000 * (times[-1] - times[0]) / (len(times) - 1)


def time_between_tokens(asked: Ask, users: int, fakes: int, tokens: int, rounds: int) -> float:
    """The median over users and rounds. The first round is not counted: vaults are made in it."""
    found: list[float] = []
    sessions = [f"bench-{fakes}-{user}" for user in range(users)]
    with ThreadPoolExecutor(users) as all_users:
        for number in range(rounds + 1):
            asking = [all_users.submit(asked.answer, name, fakes, tokens) for name in sessions]
            times = [each.result() for each in asking]
            found += [gap_ms(each) for each in times] if number else []
    for name in sessions:
        asked.end(name)
    return median(found)


class Server(OwnServer):
    """Use it in a `with`, which waits until it is up."""

    def __init__(self, model: str | None, logs: Path) -> None:
        super().__init__(find_model(model).path, logs, OPTIONS)
        headers = {"Authorization": f"Bearer {DEVELOPMENT_KEY}"}
        self._http = httpx2.Client(base_url=str(self.address), headers=headers, timeout=REQUEST_S)

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        super().__exit__()

    def answer(self, session: str, fakes: int, tokens: int) -> list[float]:
        body: dict[str, Any] = {"model": self.model, "max_tokens": tokens, "temperature": 0, "stream": True}
        body |= {"session": session, "ignore_eos": True}
        secret = SECRET
        if fakes:
            secret = f"<redacted>{SECRET}</redacted>"
            body["obfuscation"] = {"fakes": fakes, "substitutes": [[name] for name in NAMES[:fakes]]}
        body["protection"] = OBFUSCATED if fakes else PARTITIONED
        body["messages"] = [{"role": "user", "content": BEFORE + secret + AFTER}]
        return [
            perf_counter()
            for event in events(self._http, "/v1/chat/completions", body)
            if event["choices"] and event["choices"][0]["delta"].get("content")
        ]

    def end(self, session: str) -> None:
        self._http.delete(f"/v1/sessions/{session}")
