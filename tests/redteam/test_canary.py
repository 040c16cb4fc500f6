"""A secret in a prompt is in the memory of its own vault and nowhere else: not in another process of the server, not in
shared memory, the log, a file, an argument; and nowhere at all once its session has ended.

The whole of every process is searched (tests/redteam/memory.py), for the text and for its tokens.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import string
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from cloister.audit.memory import Search, memory_files_of, start_of, stopped
from cloister.audit.needles import Secret
from cloister.config import DEVELOPMENT_KEY, cache_folder
from cloister.models.source import ModelFolder
from cloister.prompts.tokenizer import Tokenizer
from tests.redteam.conftest import IDLE_S, SPARE_VAULTS
from tests.redteam.family import Family
from tests.redteam.stack import planted_on_the_stack
from tests.served import Server, is_a

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may read another process's memory"),
]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
VAULT_LEVELS = ("partitioned", "isolated")
PASTED = "<confidential></confidential>"


def status(process: psutil.Process) -> str:
    return Path(f"/proc/{process.pid}/status").read_text()


class Node:
    """A server, a client, and the search through all that the server is."""

    def __init__(self, server: Server, temporary: Path, folder: ModelFolder) -> None:
        self.server = server
        self.client = httpx.Client(
            base_url=server.url(), headers={"Authorization": f"Bearer {DEVELOPMENT_KEY}"}, timeout=600
        )
        self._written_in = (temporary, Path.cwd(), cache_folder())
        self._begun = time.time() - 1
        self._tokenizer = Tokenizer(folder)
        self._model = folder.name

    def secret(self) -> Secret:
        """Random letters whose tokens, those at either end left out, are the same in any sentence."""
        while True:
            text = "".join(secrets.choice(string.ascii_lowercase) for _ in range(32))
            tokens = tuple(self._tokenizer.encode(f" {text} "))[1:-2][:8]
            if len(tokens) == 8 and min(tokens) > 256:
                return Secret(text, tokens)

    def body(self, path: str, prompt: Any, **fields: Any) -> dict[str, Any]:
        given = {"prompt": prompt} if path == COMPLETIONS else {"messages": prompt}
        return {"model": self._model, "max_tokens": 2000, "ignore_eos": True, **given, **fields}

    def ask(self, path: str, prompt: Any, **fields: Any) -> httpx.Response:
        return self.client.post(path, json=self.body(path, prompt, **fields))

    def embed(self, secret: Secret, level: str) -> None:
        for given in (f"A story of {secret.text} and others.", [[*range(300, 320), *secret.tokens, *range(300, 320)]]):
            body = {"model": self._model, "input": given, "protection": level}
            assert self.client.post("/v1/embeddings", json=body).status_code == 200

    @contextmanager
    def answering(self, path: str, prompt: Any, **fields: Any) -> Iterator[Iterator[str]]:
        """An answer that has begun to come and is far from its end."""
        with self.client.stream("POST", path, json=self.body(path, prompt, stream=True, **fields)) as response:
            assert response.status_code == 200, response.read()
            lines = response.iter_lines()
            for _ in range(6):
                next(lines)
            yield lines

    def family(self) -> Family:
        """When nothing is being forked or buried any more."""
        before: Family | None = None
        for _ in range(100):
            with suppress(ValueError, OSError):
                now = Family.of(self.server)
                if now == before:
                    return now
                before = now
            time.sleep(0.3)
        raise AssertionError("the server does not come to rest")

    def wait_for_detector(self) -> None:
        """Until it is sealed: before that, nobody reads a text."""
        while not any(is_a(one, "detector") and "Seccomp:\t2" in status(one) for one in self.server.children()):
            time.sleep(0.1)

    def holders(self, secret: Secret) -> dict[str, list[str]]:
        """Who has the secret: processes by name; files, arguments and shared memory by theirs."""
        found: dict[str, list[str]] = {}
        family = self.family()
        with stopped(family.all):
            found |= processes_with(secret, family)
            for pid in family.all:
                found[f"start of {family.name(pid)}"] = secret.found_in(start_of(pid))
            for name, data in memory_files_of(family.controller).items():  # links: also those nobody maps
                found[name] = secret.found_in(data)
            for path in (*Path("/dev/shm").rglob("*"), *self._written()):
                with suppress(OSError):
                    if path.is_file():
                        found[str(path)] = secret.found_in(path.read_bytes())
        found["log"] = secret.found_in(self.server.said.encode())
        return {name: places for name, places in found.items() if places}

    def _written(self) -> Iterator[Path]:
        """Every file that was written since the server began, wherever it could write by itself."""
        folders = [str(folder) for folder in self._written_in]
        while folders:
            with suppress(OSError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                        continue
                    with suppress(OSError):
                        if entry.stat().st_mtime >= self._begun:
                            yield Path(entry.path)


def processes_with(secret: Secret, family: Family) -> dict[str, list[str]]:
    """Where each process has it."""
    search = Search.of(secret)
    return {family.name(pid): search.look_into(pid) for pid in family.all}


@pytest.fixture(scope="module")
def node(searched: tuple[Server, Path, ModelFolder]) -> Node:
    return Node(*searched)


def four_ways(secret: Secret) -> list[tuple[str, Any]]:
    """As a user's words, a system message, a confidential span after public ones, a plain text.

    Tags that came with pasted words make nothing public.
    """
    user = {"role": "user", "content": "Tell me a long story."}
    return [
        (CHAT, [{"role": "user", "content": f"Repeat {secret.text} and tell me a long story. {PASTED}"}]),
        (CHAT, [{"role": "system", "content": f"The word is {secret.text} today."}, user]),
        (CHAT, [{"role": "user", "content": f"Public. <confidential>{secret.text}</confidential>", "public": True}]),
        (COMPLETIONS, f"Once upon {secret.text} there was a long story {PASTED}"),
    ]


def calling(secret: Secret) -> tuple[list[Any], list[Any]]:
    """Messages and tools: a description, a call's arguments and its result say the secret."""
    function = {"name": "find", "description": f"Finds {secret.text} for you"}
    arguments = json.dumps({"who": f"The word {secret.text} today"})
    call = {"id": "a", "type": "function", "function": {"name": "find", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Tell me a long story."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": f"Here is {secret.text} again."},
    ]
    return messages, [{"type": "function", "function": function}]


def of_vaults(holders: dict[str, list[str]]) -> int:
    """How many there are, where they are all there are."""
    assert all(name.startswith("vault ") for name in holders), holders
    return len(holders)


@pytest.mark.parametrize("level", VAULT_LEVELS)
def test_a_prompt_is_in_its_vault_only_and_nowhere_after(node: Node, level: str) -> None:
    secret = node.secret()
    with ExitStack() as answers:
        for path, prompt in four_ways(secret):
            answers.enter_context(node.answering(path, prompt, protection=level))
        assert of_vaults(node.holders(secret)) == 4
    assert node.holders(secret) == {}


def test_tools_calls_and_results_are_in_their_vault_only(node: Node) -> None:
    secret = node.secret()
    messages, tools = calling(secret)
    with node.answering(CHAT, messages, tools=tools, chat_template_kwargs={"word": f"A {secret.text} word"}):
        assert of_vaults(node.holders(secret)) == 1
    assert node.holders(secret) == {}


def secret_form(secret: Secret) -> dict[str, Any]:
    """Only the form says the secret: it is the name of what comes after more numbers than an answer holds."""
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 1500}
    properties = {"numbers": numbers, secret.text: {"type": "integer"}}
    form = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"guided_json": form}


@pytest.mark.parametrize("level", VAULT_LEVELS)
def test_a_form_is_in_its_vault_only_and_nowhere_after(node: Node, level: str) -> None:
    secret, words = node.secret(), [{"role": "user", "content": "Many numbers."}]
    with node.answering(CHAT, words, protection=level, **secret_form(secret)):
        assert of_vaults(node.holders(secret)) == 1
    assert node.holders(secret) == {}


def test_at_open_a_form_leaves_nothing_either(node: Node) -> None:
    secret, words = node.secret(), [{"role": "user", "content": "Many numbers."}]
    assert node.ask(CHAT, words, protection="open", **secret_form(secret) | {"max_tokens": 4}).status_code == 200
    with node.answering(CHAT, words, protection="open", **secret_form(secret)):
        assert "service" in node.holders(secret)
    assert node.ask(CHAT, words, protection="open", guided_regex=f"({secret.text}").status_code == 400
    assert node.holders(secret) == {}


@pytest.mark.release  # four searches; a secret goes the way that it goes at the other levels
def test_a_hidden_prompt_and_its_substitutes_are_in_their_vault_only(node: Node) -> None:
    """At `obfuscated`, while it is answered and after: nobody else learns a secret or what it goes among."""
    secret, other = node.secret(), node.secret()
    prompt = [{"role": "user", "content": f"A long story of <redacted>{secret.text}</redacted> and others."}]
    with node.answering(CHAT, prompt, protection="obfuscated", obfuscation={"substitutes": [[other.text]]}):
        assert of_vaults(node.holders(secret)) == of_vaults(node.holders(other)) == 1
    assert node.holders(secret) == node.holders(other) == {}


def test_whole_answers_leave_nothing(node: Node) -> None:
    """Not cut short by the client, and not streamed."""
    secret = node.secret()
    for level in VAULT_LEVELS:
        node.embed(secret, level)
        for path, prompt in four_ways(secret):
            assert node.ask(path, prompt, protection=level, max_tokens=4).status_code == 200
    assert node.holders(secret) == {}


def test_a_kept_session_holds_its_prompt_until_it_ends(node: Node) -> None:
    """One is deleted, the other forgotten for as long as sessions may be idle."""
    secret = node.secret()
    path, prompt = four_ways(secret)[0]
    for name in ("deleted", "forgotten"):
        assert node.ask(path, prompt, session=name, max_tokens=4).status_code == 200
    assert of_vaults(node.holders(secret)) == 2
    for name in ("deleted", "forgotten"):  # again: the search may have taken longer than a session may be idle
        assert node.ask(path, prompt, session=name, max_tokens=4).status_code == 200
    vaults = len(node.family().vaults)
    assert node.client.delete("/v1/sessions/deleted").is_success
    assert len(node.family().vaults) < vaults
    end = time.monotonic() + 30 * IDLE_S
    while len(node.family().vaults) > SPARE_VAULTS and time.monotonic() < end:
        pass  # to see the family takes a while
    assert node.holders(secret) == {}


def test_the_search_finds_what_the_service_is_given(node: Node) -> None:
    """At `open` the service has the tokens: were it given them at another level, the search would find them too."""
    secret = node.secret()
    path, prompt = four_ways(secret)[0]
    with node.answering(path, prompt, protection="open"):
        holders = node.holders(secret)
    assert any(form.startswith("tokens") for form in holders["service"])
    assert not any(name.startswith("vault ") for name in holders)


def test_the_search_finds_what_is_planted_in_any_process(node: Node) -> None:
    """Also in the templates, the fork server and the detector, which no request brings a prompt's tokens to."""
    node.wait_for_detector()
    secret, family = node.secret(), node.family()
    kinds = {family.name(pid).split()[0] for pid in family.all}
    assert {"edge_code", "computing_code", "forkserver", "detector", "service", "vault"} <= kinds
    with stopped(family.all):
        with ExitStack() as plants:
            for number, pid in enumerate(family.all):
                needle = list(secret.forms.values())[number % len(secret.forms)]
                plants.enter_context(planted_on_the_stack(pid, needle))
            found = processes_with(secret, family)
        assert [name for name, places in found.items() if len(places) != 1] == []
        assert not any(processes_with(secret, family).values())


def test_at_open_nothing_is_left_either(node: Node) -> None:
    """The service and who speaks HTTP were given the tokens: whole answers, and ones cut short by the client."""
    secret = node.secret()
    node.embed(secret, "open")
    for path, prompt in four_ways(secret):
        assert node.ask(path, prompt, protection="open", max_tokens=4).status_code == 200
        with node.answering(path, prompt, protection="open"):
            pass
    assert node.ask(path, prompt, protection="open", max_tokens=1).status_code == 200  # read in its last step
    assert node.holders(secret) == {}


def in_all_widths(secret: Secret) -> list[tuple[str, Any]]:
    """Beside one character that decides how wide Python holds all of them; and in texts that are short and long."""
    words = [f"{secret.text} {strange}" for strange in ("", "é", "Миша", "王伟", "😀")]
    texts = (*words, f"{'A long story. ' * 40}{secret.text}", f"{secret.text}{' A long story.' * 40} 王伟")
    return [(COMPLETIONS, text) for text in texts]


def test_at_shared_nothing_is_left_once_it_is_forgotten(node: Node) -> None:
    """The service keeps what it computed for the tenant's next request, until it is told to forget. The detector has
    read the prompt, and so has who brought it there; neither keeps it."""
    node.wait_for_detector()
    secret = node.secret()
    for path, prompt in (*four_ways(secret), *in_all_widths(secret)):
        assert node.ask(path, prompt, protection="shared", max_tokens=4).status_code == 200
    assert set(node.holders(secret)) == {"service"}
    assert node.client.delete("/v1/sessions/any", params={"private": "true"}).status_code == 204
    assert node.holders(secret) == {}


def kill_the_vault_at_work(family: Family) -> None:
    """The one that has computed: the others are spare."""
    os.kill(max(family.vaults, key=lambda pid: sum(psutil.Process(pid).cpu_times()[:2])), signal.SIGKILL)


def test_failures_say_and_leave_nothing_of_the_prompt(node: Node) -> None:
    secret = node.secret()
    text = secret.text
    replies: list[httpx.Response] = []
    wrong: list[Callable[[str], httpx.Response]] = [
        lambda level: node.ask(
            CHAT, [{"role": "user", "content": f"<confidential>{text}", "public": True}], protection=level
        ),
        lambda level: node.ask(COMPLETIONS, {"text": f"{text}</confidential>", "public": True}, protection=level),
        lambda level: node.ask(CHAT, [{"role": "user", "content": f"{text} word" * 2000}], protection=level),
        lambda level: node.ask(COMPLETIONS, text, protection=level, max_tokens=-1),
        lambda level: node.ask(COMPLETIONS, text, protection=level, temperature=text),
        lambda level: node.ask(CHAT, [{"role": text, "content": text}], protection=level),
        lambda level: node.ask(CHAT, [{"role": "user", "content": text}], protection=level, session=text * 20),
        lambda level: node.client.post(CHAT, content=b'{"messages": [{"content": "%b' % text.encode()),
        lambda level: node.client.post(CHAT, content=text.encode(), headers={"Content-Type": "text/plain"}),
    ]
    for level in VAULT_LEVELS:
        replies += [attempt(level) for attempt in wrong]
    assert {reply.status_code for reply in replies} <= {400, 413, 415}
    with node.answering(CHAT, four_ways(secret)[0][1], protection="partitioned") as lines:
        kill_the_vault_at_work(node.family())
        last = "".join(lines)
    assert "vault_lost" in last
    said = last + "".join(str(reply.headers) + reply.text for reply in replies) + node.server.said
    assert not secret.found_in(said.encode())
    assert node.holders(secret) == {}
