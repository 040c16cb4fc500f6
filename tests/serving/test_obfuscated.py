"""A whole server at `obfuscated`, asked three ways: as plain HTTP, by the verifying client, by the local proxy.

Each gets one ordinary answer, the one that `partitioned` gives to the prompt without its marks. What a vault finds by
itself it finds whatever the way: that goes one of them, and all before a release.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

import cloister
from cloister.compute.choose import choose_device
from cloister.config import EngineSettings
from cloister.models.decoder import RawParts
from cloister.models.load import load_decoder
from cloister.models.weights import open_weights
from cloister.prompts.tokenizer import Tokenizer
from cloister_bench.obfuscation.compact import CompactLab
from tests.client.local_proxy import proxy_to
from tests.short_model import short_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BY_THE_VAULT = pytest.mark.parametrize(
    "client",
    [pytest.param("plain", marks=pytest.mark.release), "verified", pytest.param("proxy", marks=pytest.mark.release)],
    indirect=True,
)
SAID = "I am {} and I live in {}. Is {} a good name for a child from {}?"
REAL = ("Ann", "Ghent")
GIVEN = [["Bob", "Paris"], ["Eve", "Delft"], ["Kim", "Liege"]]


def text(name: str, place: str) -> str:
    return SAID.format(name, place, REAL[0], REAL[1])


MARKED = text("<redacted>Ann</redacted>", '<redacted category="place">Ghent</redacted>')


@pytest.fixture(scope="module", params=["plain", "verified", "proxy"])
def client(request: pytest.FixtureRequest, short_server: str) -> Iterator[openai.OpenAI]:
    options: dict[str, Any] = {"api_key": "cloister-dev", "max_retries": 0}
    match request.param:
        case "plain":
            yield openai.OpenAI(base_url=f"{short_server}/v1", **options)
        case "verified":
            yield cloister.Client(f"{short_server}/v1", allow_software_tee=True, **options)
        case "proxy":
            with proxy_to(short_server) as local:
                yield openai.OpenAI(base_url=f"{local}/v1", **options)


def ask(client: openai.OpenAI, content: str, level: str, *, stream: bool = False, **wish: Any) -> Any:
    return client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": content}],
        max_tokens=12,
        temperature=0.7,
        seed=3,
        stream=stream,
        extra_body={"protection": level, **({"obfuscation": wish} if wish else {})},
    )


def test_the_answer_is_partitioneds_whole_and_streamed(client: openai.OpenAI) -> None:
    alone = ask(client, text(*REAL), "partitioned").choices[0]
    [choice] = ask(client, MARKED, "obfuscated", substitutes=GIVEN).choices
    assert (choice.index, choice.message.content) == (0, alone.message.content)
    assert choice.finish_reason == alone.finish_reason
    streamed = [event.choices[0] for event in ask(client, MARKED, "obfuscated", stream=True, substitutes=GIVEN)]
    assert "".join(part.delta.content or "" for part in streamed) == alone.message.content
    assert [part.finish_reason for part in streamed if part.finish_reason] == [alone.finish_reason]


def test_a_conversation_goes_on(client: openai.OpenAI) -> None:
    """In a session that is kept; and none takes an answer to one of the variants alone for all of them."""

    def talk(level: str, words: str, session: str, **wish: Any) -> tuple[str, str]:
        said = [{"role": "user", "content": words}]
        options: dict[str, Any] = {"model": client.models.list().data[0].id, "max_tokens": 8, "temperature": 0}
        body = {"protection": level, "session": session, **({"obfuscation": wish} if wish else {})}
        texts = []
        for following in ("What else?", ""):
            answer = client.chat.completions.create(messages=said, extra_body=body, **options)  # type: ignore[arg-type]
            texts.append(answer.choices[0].message.content or "")
            said += [{"role": "assistant", "content": texts[-1]}, {"role": "user", "content": following}]
        return texts[0], texts[1]

    name = f"talk-{id(client)}"
    alone = talk("partitioned", text(*REAL), f"{name}-alone")
    assert talk("obfuscated", MARKED, name, substitutes=GIVEN) == alone
    with pytest.raises(openai.BadRequestError, match="not given in this session"):
        client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[
                {"role": "user", "content": MARKED},
                {"role": "assistant", "content": alone[0]},
                {"role": "user", "content": "What else?"},
            ],
            extra_body={"protection": "obfuscated", "session": f"{name}-other", "obfuscation": {"substitutes": GIVEN}},
        )


@BY_THE_VAULT
def test_compact_prompts_are_answered_as_a_vault_without_a_link_answers_them(client: openai.OpenAI) -> None:
    """The service asks over the link and merges; the laboratory has all keys in one place."""
    rest = " Say also what one does there on a Sunday in November, when it rains and all shops are closed, in one line."
    folder, device = short_model(), choose_device(EngineSettings())
    lab = CompactLab(load_decoder(folder, RawParts(open_weights(folder), device.kernels), device, 2048), 64)
    chats = [
        [{"role": "user", "content": text(*values).replace("Ann", values[0]).replace("Ghent", values[1]) + rest}]
        for values in (REAL, *GIVEN)
    ]
    tokenizer = Tokenizer(folder)
    prompts = [tuple(tokenizer.render_chat(chat)) for chat in chats]
    with lab.prefilled(prompts, compact=False) as exact:
        pass
    with lab.prefilled(prompts, compact=True) as held:
        expected, *_ = lab.answers(held.prompts, 12)
    assert held.blocks < exact.blocks
    body = {"protection": "obfuscated", "obfuscation": {"substitutes": GIVEN, "compact": True}}
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": MARKED + rest}],
        max_tokens=12,
        temperature=0,
        extra_body=body,
    )
    assert answer.choices[0].message.content == tokenizer.decode(expected)


@BY_THE_VAULT
def test_the_vault_finds_substitutes_itself(client: openai.OpenAI) -> None:
    alone = ask(client, text(*REAL), "partitioned").choices[0]
    wish = {"method": "gqs", "fakes": 3, "epsilon": 1.0, "distance": "absolute", "candidates": 16}
    found = ask(client, MARKED, "obfuscated", **wish).choices[0]
    assert found.message.content == alone.message.content


@BY_THE_VAULT
def test_the_vault_draws_from_its_lists(client: openai.OpenAI) -> None:
    """In its sandbox, where no file can be opened: the lists were read before."""
    said = "I have lived in {} for ten years. Is it large?"
    alone = ask(client, said.format("Boston"), "partitioned").choices[0]
    marked = said.format('<redacted category="place">Boston</redacted>')
    found = ask(client, marked, "obfuscated", method="dictionary", fakes=3).choices[0]
    assert found.message.content == alone.message.content


@BY_THE_VAULT
def test_the_vault_finds_secrets_itself(client: openai.OpenAI) -> None:
    """In its sandbox, where nothing can be opened any more; what nobody marked is substituted like what is."""
    said = "Dr. Sarah Connor lives in {}. Where is that?"
    alone = ask(client, said.format("Ghent"), "partitioned").choices[0]
    half = said.format("<redacted>Ghent</redacted>")
    given = [["Dr. Maria Lopez", "Paris"], ["Dr. Peter Novak", "Delft"]]
    found = ask(client, half, "obfuscated", auto_redact=True, substitutes=given).choices[0]
    assert found.message.content == alone.message.content
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, half, "obfuscated", substitutes=given)
    assert refused.value.code == "tags_invalid", "unasked there is one secret, and two substitutes do not fit it"


def test_alerts_say_what_to_change_and_no_word_of_the_secret(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, MARKED, "obfuscated", fakes=31, distance="relative", epsilon=1e-9, candidates=31)
    assert refused.value.code == "too_few_candidates" and "Secret" in str(refused.value)
    assert "Ann" not in str(refused.value) and "Ghent" not in str(refused.value)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, "I am <redacted>Ann.", "obfuscated", fakes=3)
    assert refused.value.code == "tags_invalid"
