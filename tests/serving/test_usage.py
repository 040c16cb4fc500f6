"""A whole node with keys of its tenants: it counts them, ends what a quota does not cover, and knows no expired key."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import openai
import pytest
from typer.testing import CliRunner

import cloister
from cloister.cli import app
from cloister.config import DEVELOPMENT_KEY
from cloister.controller.quotas import DAY_S
from cloister.keys import key_line
from cloister.models.source import ModelFolder
from tests.served import Server, running_server
from tests.serving.conftest import TINY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CANARY = "quixotic zephyr marmalade"
QUOTA = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("metered")
    lines = [
        key_line("key of alice", "alice"),
        key_line("key of bob", "bob", tokens_a_day=QUOTA),
        key_line("other key of bob", "bob"),
        key_line("old key", "carol", expires=date(2026, 1, 31)),
    ]
    (made / "keys.toml").write_text("[keys]\n" + "\n".join(lines))
    return made


@pytest.fixture(scope="module")
def server(folder: Path, tiny_folder: ModelFolder) -> Iterator[Server]:
    words = ("--model", str(tiny_folder.path), "--keys", str(folder / "keys.toml"), *TINY)
    with running_server(folder / "log", *words, "--usage", str(folder / "usage.sqlite")) as server:
        yield server


def plain(server: Server, key: str, **more: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url()}/v1", api_key=key, **more)


def complete(client: openai.OpenAI, level: str, tokens: int = 4) -> openai.types.Completion:
    body = {"protection": level}
    return client.completions.create(
        model=client.models.list().data[0].id, prompt=CANARY, max_tokens=tokens, temperature=0, extra_body=body
    )


def usage(folder: Path, *more: str) -> dict[tuple[str, str], dict[str, int]]:
    result = CliRunner().invoke(app, ["usage", "--usage", str(folder / "usage.sqlite"), "--json", *more])
    assert result.exit_code == 0, result.stderr
    return {(row.pop("tenant"), row.pop("level")): row for row in json.loads(result.stdout)["usage"]}


def test_a_node_counts_and_holds_to_quotas(server: Server, folder: Path) -> None:
    """One test, in order: the later parts need what the earlier ones counted."""
    alice = plain(server, "key of alice")
    answers = [complete(alice, level) for level in ("open", "partitioned", "partitioned")]
    shown = sum(answer.usage.total_tokens for answer in answers if answer.usage)

    # The node writes by itself; at both levels it counted what the answers say.
    until(lambda: len(usage(folder)) == 2)
    counted = usage(folder)
    assert counted["alice", "partitioned"]["requests"] == 2 and counted["alice", "open"]["requests"] == 1
    assert shown == sum(row["prompt_tokens"] + row["completion_tokens"] for row in counted.values()) > 3 * 4

    # What may be taken is reserved; a refusal says when the quota starts again, and OpenAI's client does not repeat it.
    with pytest.raises(openai.RateLimitError) as refused:
        complete(plain(server, "key of bob"), "partitioned", tokens=QUOTA)
    headers = refused.value.response.headers
    assert (refused.value.code, refused.value.type) == ("insufficient_quota", "insufficient_quota")
    assert (headers["x-ratelimit-limit-tokens"], headers["x-ratelimit-remaining-tokens"]) == (str(QUOTA), str(QUOTA))
    assert 0 < int(headers["retry-after"]) <= DAY_S and headers["x-ratelimit-reset-tokens"][-1] == "s"
    used = complete(plain(server, "key of bob"), "open").usage
    assert used is not None
    with pytest.raises(openai.RateLimitError, match="starts again at 00:00 UTC") as refused:
        complete(plain(server, "other key of bob"), "open", tokens=QUOTA - used.total_tokens)
    assert refused.value.response.headers["x-ratelimit-remaining-tokens"] == str(QUOTA - used.total_tokens)

    # In the sealed channel the refusal is sealed, too.
    sealed = cloister.Client(f"{server.url()}/v1", api_key="key of bob", allow_software_tee=True)
    with pytest.raises(openai.RateLimitError, match=f"quota is {QUOTA} a day") as inside:
        complete(sealed, "partitioned", tokens=QUOTA)
    assert inside.value.response.headers["x-ratelimit-limit-tokens"] == str(QUOTA)

    late = cloister.Client(f"{server.url()}/v1", api_key="old key", allow_software_tee=True)
    for client in (plain(server, "old key"), late):
        with pytest.raises(openai.AuthenticationError, match="expired at 2026-02-01 00:00 UTC") as expired:
            client.models.list()
        assert expired.value.code == "expired_api_key"

    server.stop()
    today = datetime.now(UTC).date().isoformat()
    bob = usage(folder, "--since", today, "--tenant", "bob")
    assert {level: (row["requests"], row["refused"]) for (_, level), row in bob.items()} == {
        "open": (1, 1),
        "partitioned": (0, 2),
    }
    kept = (folder / "usage.sqlite").read_bytes()
    assert b"alice" in kept and not any(word.encode() in kept for word in CANARY.split())
    assert "insufficient" not in server.said and not any(word in server.said for word in CANARY.split())


@pytest.mark.release
def test_a_killed_node_knows_after_its_restart_what_it_wrote(tmp_path: Path, tiny_folder: ModelFolder) -> None:
    words = (
        "--model",
        str(tiny_folder.path),
        *TINY,
        "--requests-a-day",
        "2",
        "--usage",
        str(tmp_path / "usage.sqlite"),
    )
    server = Server(tmp_path / "log", *words)
    for level in ("open", "partitioned"):
        complete(plain(server, DEVELOPMENT_KEY), level)
    until(lambda: len(usage(tmp_path)) == 2)
    server.process.kill()
    server.process.wait()
    used_up = pytest.raises(openai.RateLimitError, match="Your 2 requests for today are used up")
    with running_server(tmp_path / "log", *words) as again, used_up:
        complete(plain(again, DEVELOPMENT_KEY), "open")


def until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("the node does not write")
