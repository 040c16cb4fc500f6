"""What λ made-up prompts cost a server: time between tokens, a vault's memory; beside `partitioned` (Figures 10, 14).
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
from cloister_bench.memory import descendants, kv_bytes, memory_of
from cloister_bench.servers import OwnServer
from cloister_bench.streamed import events
from cloister_bench.suite.documents import Row

REQUEST_S = 600.0
OPTIONS = ("--mpc", "off", "--no-detector", "--max-vaults", "16", "--kv-cache-mib", "512")
SECRET = "Ann"
NAMES = ("Bob", "Eve", "Kim", "Tom", "Ida", "Max", "Lea", "Sam", "Joe", "Amy", "Ben", "Zoe", "Dan", "Liz", "Ray", "Sue")
BEFORE, AFTER = "My friend ", " wants to write a letter about a walk in the woods. What should she write?"
LONG_BEFORE = " ".join(f"Note {number} says that the river is calm." for number in range(12)) + " My friend "
LONG_AFTER = " asks: " + " ".join(f"is line {number} of the letter long enough?" for number in range(40))


class Ask(Protocol):
    def answer(self, session: str, before: str, after: str, fakes: int, tokens: int) -> tuple[list[float], int]:
        """Seconds, and how many tokens the prompt had."""
        ...

    def end(self, session: str) -> None: ...

    def largest_vault(self) -> int | None:
        """Private bytes of the largest vault; None where only root may read them."""
        ...

    def kv_bytes(self, tokens: int) -> int | None: ...


def gap_ms(times: Sequence[float]) -> float:
    return 1000 * (times[-1] - times[0]) / (len(times) - 1)


def time_between_tokens(asked: Ask, users: int, fakes: int, tokens: int, rounds: int) -> float:
    """The median over users and rounds. The first round is not counted: vaults are made in it."""
    found: list[float] = []
    sessions = [f"bench-{fakes}-{user}" for user in range(users)]
    with ThreadPoolExecutor(users) as all_users:
        for number in range(rounds + 1):
            asking = [all_users.submit(asked.answer, name, BEFORE, AFTER, fakes, tokens) for name in sessions]
            times = [each.result()[0] for each in asking]
            found += [gap_ms(each) for each in times] if number else []
    for name in sessions:
        asked.end(name)
    return median(found)


def vault_memory(asked: Ask, fakes: Sequence[int]) -> list[Row]:
    """Beside the formula: λ times the keys and values from the secret's block on. (The paper shares more: adr/0011.)"""
    rows: list[Row] = []
    alone = before = 0
    for number in fakes:
        session = f"bench-memory-{number}"
        _, whole = asked.answer(session, LONG_BEFORE, LONG_AFTER, number, 2)
        held = asked.largest_vault()
        if not number:
            _, before = asked.answer("bench-memory-before", LONG_BEFORE, "", 0, 2)
            asked.end("bench-memory-before")
        asked.end(session)
        if held is None:
            return []
        if not number:
            alone = held
            continue
        rest = asked.kv_bytes(whole - before // 16 * 16)
        formula = None if rest is None else number * rest
        rows.append({"fakes": number, "bytes": held - alone, "formula": formula})
    return rows


class Server(OwnServer):
    """Use it in a `with`, which waits until it is up."""

    def __init__(self, model: str | None, logs: Path) -> None:
        self._folder = find_model(model)
        super().__init__(self._folder.path, logs, OPTIONS)
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

    def answer(self, session: str, before: str, after: str, fakes: int, tokens: int) -> tuple[list[float], int]:
        body: dict[str, Any] = {"model": self.model, "max_tokens": tokens, "temperature": 0, "stream": True}
        body |= {"session": session, "ignore_eos": True, "stream_options": {"include_usage": True}}
        secret = SECRET
        if fakes:
            secret = f"<redacted>{SECRET}</redacted>"
            body["obfuscation"] = {"fakes": fakes, "substitutes": [[name] for name in NAMES[:fakes]]}
        body["protection"] = OBFUSCATED if fakes else PARTITIONED
        body["messages"] = [{"role": "user", "content": before + secret + after}]
        times, counted = [], 0
        for event in events(self._http, "/v1/chat/completions", body):
            counted = (event.get("usage") or {}).get("prompt_tokens", counted)
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                times.append(perf_counter())
        return times, int(counted)

    def end(self, session: str) -> None:
        self._http.delete(f"/v1/sessions/{session}")

    def largest_vault(self) -> int | None:
        vaults = []
        for pid in descendants(self.pid):
            try:
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"cloister vault"):
                    vaults.append(memory_of(pid).private)
            except PermissionError:
                return None
            except OSError:
                continue  # it has just ended
        return max(vaults, default=None)

    def kv_bytes(self, tokens: int) -> int | None:
        return kv_bytes(self._folder.config, tokens)
