import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.channel.envelope import Envelope, InnerRequest, Validity
from cloister.channel.sealing import ChannelKey, open_prompt, open_request
from cloister.channel.stream import StreamSealer
from cloister.client.message import PARAMETERS, kept_headers, seal_message, split_prompts
from cloister.client.winnow import IndexSecrets
from cloister.errors import InvalidRequest, ObfuscationRefused
from cloister.grammar.form import FIELDS
from cloister.prompts.json_prompt import read_given
from cloister.request_fields import SAY_NOTHING

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, RESPONSES = "/v1/embeddings", "/v1/responses"

SECRETS = IndexSecrets()


def split(path: str, body: Any, *headers: tuple[str, str]) -> tuple[Any, list[Any]]:
    inner, prompts, _ = split_prompts("POST", path, headers, json.dumps(body).encode(), SECRETS)
    return json.loads(inner), [json.loads(prompt) for prompt in prompts]


def test_a_conversation_leaves_the_body_whole_and_as_one_prompt() -> None:
    messages = [{"role": "system", "content": "é 🙂 \u0000"}, {"role": "user", "content": "secret"}]
    body, prompts = split(CHAT, {"model": "m", "messages": messages, "seed": 2**63 - 1, "temperature": 0.1})
    assert prompts == [messages]
    assert body == {"model": "m", "messages": {"sealed": 1}, "seed": 2**63 - 1, "temperature": 0.1}


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("one", ["one"]),
        (["one", "two"], ["one", "two"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([-1], [[-1]]),
        ([], [[]]),
        ("", [""]),
        (None, [None]),
        (7, [7]),
        ({"sealed": 3}, [{"sealed": 3}]),
        (["one", 2], ["one", 2]),
    ],
)
def test_plain_prompts_are_sealed_one_by_one(prompt: Any, prompts: list[Any]) -> None:
    body, found = split(PLAIN, {"model": "m", "prompt": prompt})
    assert found == prompts and body == {"model": "m", "prompt": {"sealed": len(prompts)}}
    more = {"model": "m", "encoding_format": "base64", "dimensions": 3}
    body, found = split(EMBEDDINGS, {**more, "input": prompt, "user": "secret"})
    assert found == prompts and body == {**more, "input": {"sealed": len(prompts)}}


@pytest.mark.parametrize(
    ("in_body", "in_header", "whole"),
    [
        ("open", None, True),
        (None, "open", True),
        ("open", "open", True),
        ("partitioned", None, False),
        ("open", "partitioned", False),  # the node refuses what contradicts itself; nothing shows until then
        ("partitioned", "open", False),
        ("OPEN", None, False),
        (None, None, False),
    ],
)
def test_only_at_open_the_prompt_stays_in_the_body(in_body: str | None, in_header: str | None, whole: bool) -> None:
    headers = [("X-Cloister-Protection", in_header)] if in_header else []
    given = {"model": "m", "messages": [], "protection": in_body}
    body, prompts = split(CHAT, given, *headers)
    assert (body == given, prompts) == (whole, [] if whole else [[]])


@pytest.mark.parametrize("path", [f"{CHAT}/", f"{CHAT}?x=1"])
def test_no_spelling_of_a_path_keeps_the_prompt_in(path: str) -> None:
    assert split(path, {"messages": ["secret"]}) == ({"messages": {"sealed": 1}}, [["secret"]])


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"messages": ["secret one"], "model": "m", "messages": ["secret two"]}', "messages"),
        (b'{"messages": [], "protection": "partitioned", "protection": "open"}', "protection"),
        (b'{"messages": [], "protection": "open", "prote\\u0063tion": "open"}', "protection"),
        (b'{"messages": [{"content": "secret one", "content": "secret two"}]}', "content"),
    ],
)
def test_a_field_that_is_given_twice_is_refused(body: bytes, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}' is given twice") as refused:
        split_prompts("POST", CHAT, (), body, SECRETS)
    assert refused.value.param == name and "secret" not in str(refused.value)


def test_a_response_is_sealed_as_the_chat_it_asks_for_and_the_rest_keeps_its_names() -> None:
    items = [{"role": "user", "content": [{"type": "input_text", "text": "secret"}]}]
    given = {"model": "m", "input": items, "instructions": "secret too", "max_output_tokens": 5, "stream": True}
    given |= {"metadata": {"a": "secret"}, "reasoning": {"effort": "low"}, "store": False, "text": {"verbosity": "low"}}
    body, prompts = split(RESPONSES, given, ("X-Cloister-Protection", "isolated"))
    said = {"role": "user", "content": [{"type": "text", "text": "secret"}]}
    messages = [{"role": "system", "content": "secret too"}, said]
    assert prompts == [{"given": messages, "template": {"reasoning_effort": "low"}}]
    assert body == {"model": "m", "input": {"sealed": 1}, "max_output_tokens": 5, "stream": True}
    assert split(RESPONSES, {**given, "protection": "open"}) == ({**given, "protection": "open"}, [])
    assert split(RESPONSES, {"model": "m"}) == ({"model": "m"}, [])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "secret"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "secret"}]}, "input"),
        ({"inputs": "secret"}, "inputs"),
        ({"messages": ["secret"]}, "messages"),
        ({"tools": [{"type": "secret"}]}, "tools"),
        ({"protecton": "open"}, "protecton"),
    ],
)
def test_a_response_that_cannot_be_sealed_is_refused_in_its_own_words(fields: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        split(RESPONSES, {"model": "m", "input": "secret", **fields})
    assert refused.value.param == param and "secret" not in str(refused.value)


def test_requests_without_a_body_are_left_as_they_are() -> None:
    assert split_prompts("GET", CHAT, (), b"", SECRETS) == (b"", (), None)
    assert split_prompts("DELETE", "/v1/sessions/mine", (), b"", SECRETS) == (b"", (), None)
    assert split(CHAT, {"model": "m"}) == ({"model": "m"}, [])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/responses/input_tokens"),
        ("POST", "/v1/embeddings/batch"),
        ("POST", "/v1/chat%2Fcompletions"),
        ("POST", "/v1/%63hat/completions"),
        ("POST", "/v1//chat/completions"),
        ("POST", "/V1/chat/completions"),
        ("PUT", CHAT),
        ("GET", CHAT),
    ],
)
def test_a_body_that_is_not_known_how_to_seal_is_not_sent(method: str, path: str) -> None:
    """Sent on, it would be read by the process behind the channel, as a prompt never is."""
    with pytest.raises(InvalidRequest, match="cannot be sealed") as refused:
        split_prompts(method, path, (), json.dumps({"messages": ["secret"], "input": "secret"}).encode(), SECRETS)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("field", ["metadata", "prediction", "user"])
def test_fields_no_node_uses_stay_with_the_client(field: str) -> None:
    given = {"messages": ["m"], "model": "m", field: {"content": "secret"}}
    assert split(CHAT, given) == ({"model": "m", "messages": {"sealed": 1}}, [["m"]])
    assert split(CHAT, {field: "secret"}) == ({}, [])  # also where the prompt is missing


@pytest.mark.parametrize(
    ("field", "empty", "told"),
    [
        ("functions", None, [{"name": "secret"}]),
        ("suffix", "", "secret"),
        ("modalities", ["text"], ["text", "audio"]),
        ("audio", None, {"voice": "secret", "format": "wav"}),
        ("web_search_options", None, {}),
        ("function_call", "auto", {"name": "secret"}),
        ("input", ..., "secret"),
        ("protecton", ..., "isolated"),
    ],
)
def test_what_may_be_neither_sent_nor_left_out_is_refused(field: str, empty: object, told: object) -> None:
    if empty is not ...:
        assert split(CHAT, {"messages": [], field: empty}) == ({"messages": {"sealed": 1}}, [[]])
    with pytest.raises(InvalidRequest) as refused:
        split(CHAT, {"messages": [], field: told})
    assert refused.value.param == field and "secret" not in str(refused.value)


def test_all_parameters_of_the_api_are_known_and_none_holds_words() -> None:
    from cloister.gateway.embeddings import EmbeddingRequest
    from cloister.gateway.schema import SealedChatRequest, SealedCompletionRequest

    forms = (SealedChatRequest, SealedCompletionRequest, EmbeddingRequest)
    fields = {name for form in forms for name in form.model_fields}
    assert fields - {"messages", "prompt", "input", "constrained", "alone"} == PARAMETERS | set(SAY_NOTHING) | set(
        FIELDS
    )


SCHEMA = {"type": "object", "properties": {"secret": {"type": "string"}}}
FORMS = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "secret", "schema": SCHEMA}}}, SCHEMA),
    ({"guided_json": json.dumps(SCHEMA)}, SCHEMA),
    ({"structured_outputs": {"json": SCHEMA}}, SCHEMA),
]


@pytest.mark.parametrize(("asked", "schema"), FORMS)
def test_a_form_is_sealed_with_each_prompt(asked: dict[str, Any], schema: object) -> None:
    body, prompts = split(PLAIN, {"model": "m", "prompt": ["one", [1, 2]], **asked})
    assert body == {"model": "m", "prompt": {"sealed": 2}, "constrained": True}
    assert prompts == [{"given": given, "form": {"json_schema": schema}} for given in ("one", [1, 2])]
    read = [read_given("prompt", json.dumps(prompt).encode()) for prompt in prompts]
    assert [json.loads(prompt.form) for prompt in read] == [{"json_schema": schema}] * 2


def test_a_format_that_asks_for_nothing_stays_with_the_client() -> None:
    given = {"messages": ["m"], "response_format": {"type": "text"}, "guided_json": None}
    assert split(CHAT, given) == ({"messages": {"sealed": 1}}, [["m"]])


def test_a_form_goes_to_no_level_that_cannot_follow_one() -> None:
    with pytest.raises(InvalidRequest) as refused:
        split(CHAT, {"messages": ["m"], "protection": "mpc", "response_format": {"type": "json_object"}})
    assert refused.value.param == "response_format" and refused.value.hint


SAID = {"role": "user", "content": "I am <redacted>Ann</redacted>."}
TURNS = [SAID, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Who?"}]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHAT, {"messages": [SAID], "response_format": {"type": "json_object"}}),
        (CHAT, {"messages": [SAID], "tools": [{"type": "function"}], "tool_choice": "required"}),
        (CHAT, {"messages": [SAID], "n": 2}),
        (CHAT, {"messages": TURNS}),
        (PLAIN, {"prompt": ["<redacted>Ann</redacted>", "b"]}),
        (RESPONSES, {"input": [SAID]}),
        ("/v1/embeddings", {"input": "<redacted>Ann</redacted>"}),
    ],
)
def test_what_cannot_be_hidden_among_others_is_sealed_for_a_vault_alone(path: str, asked: dict[str, Any]) -> None:
    """Its object says that it has tags, and no stream is picked out."""
    hidden = {"model": "m", "protection": "obfuscated", "obfuscation": {"substitutes": [["Bo"]]}}
    made = split_prompts("POST", path, (), json.dumps({**hidden, **asked}).encode(), SECRETS)
    body = json.loads(made.body)
    assert made.winnower is None and "Ann" not in made.body.decode() and "Bo" not in made.body.decode()
    assert body.get("alone") is (None if path == "/v1/embeddings" else True) and "obfuscation" not in body
    for prompt in map(json.loads, made.prompts):
        assert "hidden" in prompt and "substitutes" not in prompt["hidden"]


def test_what_can_be_hidden_among_others_is() -> None:
    for more in ({}, {"n": 1}, {"messages": TURNS, "session": "s"}):
        given = {"model": "m", "protection": "obfuscated", "messages": [SAID], **more}
        made = split_prompts("POST", CHAT, (), json.dumps(given).encode(), SECRETS)
        assert made.winnower is not None and "alone" not in json.loads(made.body)
    kept = (("X-Cloister-Session", "s"),)
    given = {"model": "m", "protection": "obfuscated", "messages": TURNS}
    assert split_prompts("POST", CHAT, kept, json.dumps(given).encode(), SECRETS).winnower is not None


@pytest.mark.parametrize("more", [{"stop": ["Ann"]}, {"session": "ann"}])
def test_also_then_no_secret_stands_beside_the_prompt(more: dict[str, Any]) -> None:
    with pytest.raises(ObfuscationRefused):
        split(CHAT, {"messages": TURNS, "n": 2, "protection": "obfuscated", **more})


def test_users_do_not_say_that_a_form_is_sealed() -> None:
    with pytest.raises(InvalidRequest, match="'constrained' is not known"):
        split(CHAT, {"messages": ["m"], "constrained": True})
    with pytest.raises(InvalidRequest, match="'alone' is not known"):
        split(CHAT, {"messages": ["m"], "alone": True})


TOOL = {"type": "function", "function": {"name": "f", "description": "secret"}}


@pytest.mark.parametrize(
    ("given", "left", "beside"),
    [
        ({"tools": [], "tool_choice": "auto"}, {}, None),
        ({"tools": None, "tool_choice": "none"}, {}, None),
        (
            {"tools": [TOOL]},
            {"calls_tools": True},
            {"tools": {"tools": [TOOL], "choice": None, "parallel": None}},
        ),
        (
            {"tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False},
            {"calls_tools": False, "parallel_tool_calls": False},
            {"tools": {"tools": [TOOL], "choice": "none", "parallel": False}},
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "secret"}}},
            {"calls_tools": True, "constrained": True},
            {
                "tools": {
                    "tools": None,
                    "choice": {"type": "function", "function": {"name": "secret"}},
                    "parallel": None,
                }
            },
        ),
        (
            {"chat_template_kwargs": {"a": "secret", "thinking": False}},
            {"enable_thinking": False},
            {"template": {"a": "secret", "thinking": False}},
        ),
        (
            {"chat_template_kwargs": {"a": "secret"}, "enable_thinking": True},
            {"enable_thinking": True},
            {"template": {"a": "secret", "enable_thinking": True}},
        ),
        ({"reasoning_effort": "low"}, {}, {"template": {"reasoning_effort": "low"}}),
        ({"reasoning_effort": None}, {}, None),
    ],
)
def test_tools_and_words_for_the_template_are_sealed_with_the_messages(given: Any, left: Any, beside: Any) -> None:
    body, prompts = split(CHAT, {"messages": ["m"], **given})
    assert body == {"messages": {"sealed": 1}, **left}
    assert prompts == [["m"] if beside is None else {"given": ["m"], **beside}]


@pytest.mark.parametrize("words", ["secret", ["secret"], {"enable_thinking": False}])
def test_words_that_contradict_or_are_none_are_not_sent(words: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        split(CHAT, {"messages": ["m"], "chat_template_kwargs": words, "enable_thinking": True})
    assert refused.value.param == "chat_template_kwargs" and "secret" not in str(refused.value)


@pytest.mark.parametrize("effort", ["secret", 3, ["low"]])
def test_an_effort_that_is_none_is_not_sent(effort: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        split(CHAT, {"messages": ["m"], "reasoning_effort": effort})
    assert refused.value.param == "reasoning_effort" and "secret" not in str(refused.value)


@pytest.mark.parametrize("body", [b"", b"not json", b'["messages"]', b'{"messages": NaN}', b"\xff", b"[" * 100_000])
def test_a_body_that_cannot_be_split_is_not_sent(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="JSON object") as refused:
        split_prompts("POST", CHAT, (), body, SECRETS)
    assert refused.value.__cause__ is None and refused.value.__suppress_context__


def test_too_many_prompts_are_refused_here() -> None:
    with pytest.raises(InvalidRequest, match="128"):
        split(PLAIN, {"prompt": ["x"] * 129})


def test_headers_of_connection_and_machine_stay_behind() -> None:
    given = [
        *[("Host", "node"), ("Content-Length", "3"), ("Connection", "keep-alive, X-Mine"), ("X-Mine", "1")],
        *[("User-Agent", "me"), ("X-Stainless-OS", "Linux"), ("Accept-Encoding", "gzip"), ("Transfer-Encoding", "x")],
        *[("Authorization", "Bearer k"), ("X-Cloister-Session", "s"), ("Content-Type", "application/json")],
    ]
    assert kept_headers(given) == (
        ("authorization", "Bearer k"),
        ("x-cloister-session", "s"),
        ("content-type", "application/json"),
    )


def test_the_message_opens_with_the_nodes_key_alone_and_each_part_with_its_own() -> None:
    channel = ChannelKey.generate()
    body = json.dumps({"model": "m", "prompt": ["secret one", "secret two"]}).encode()
    message = seal_message(channel.public, "POST", PLAIN, [("Authorization", "Bearer k")], body, 77, SECRETS)
    envelope, opener = message.envelope, message.opener
    assert b"secret" not in envelope and b"Bearer" not in envelope and b"completions" not in envelope
    read = Envelope.decode(envelope)
    assert read.key_id == channel.key_id
    keys = channel.accept(read.enc)
    inner = InnerRequest.decode(open_request(keys.request, read.enc, read.request))
    assert (inner.method, inner.path, dict(inner.headers)) == ("POST", PLAIN, {"authorization": "Bearer k"})
    assert b"secret" not in inner.body
    assert inner.validity == Validity.beginning(77, 0), "when it was sealed is under the seal"
    assert [open_prompt(keys.prompt, read.enc, index, each) for index, each in enumerate(read.prompts)] == [
        b'"secret one"',
        b'"secret two"',
    ]
    sealer = StreamSealer(keys.response, read.enc)
    assert [frame.data for frame in opener.feed(sealer.head(b"h") + sealer.data(b"d"))] == [b"h", b"d"]


def test_no_two_messages_share_anything() -> None:
    channel = ChannelKey.generate()
    first, second = (seal_message(channel.public, "GET", "/v1/models", (), b"", 0, SECRETS).envelope for _ in range(2))
    assert Envelope.decode(first).enc != Envelope.decode(second).enc
    assert Envelope.decode(first).request != Envelope.decode(second).request


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "no-slash", ()),
        ("get", "/", ()),
        ("GET", "/" + "x" * 4096, ()),
        ("GET", "/", [("a\r\nb", "c")]),
        ("GET", "/", [("a", "b\r\nc: d")]),
        ("GET", "/", [(f"h{number}", "x") for number in range(65)]),
    ],
)
def test_what_http_does_not_allow_is_refused_here(method: str, path: str, headers: Any) -> None:
    with pytest.raises(InvalidRequest):
        seal_message(ChannelKey.generate().public, method, path, headers, b"", 0, SECRETS)


def test_what_is_too_large_is_refused_here_without_quoting_it() -> None:
    body = json.dumps({"messages": "secret" * (3 << 20)}).encode()
    with pytest.raises(InvalidRequest, match="at most") as refused:
        seal_message(ChannelKey.generate().public, "POST", CHAT, (), body, 0, SECRETS)
    assert "secret" not in str(refused.value)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(sorted(PARAMETERS)), json_values), json_values)
def test_splitting_loses_and_adds_nothing(rest: dict[str, Any], value: Any) -> None:
    for name in ("protection", "enable_thinking"):  # these two change what goes where
        rest.pop(name, None)
    body, prompts = split(CHAT, {**rest, "messages": value})
    assert prompts == [value] and body.pop("messages") == {"sealed": 1}
    rest.pop("messages", None)
    assert body == rest


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_split_or_refused(body: bytes) -> None:
    try:
        inner, prompts, _ = split_prompts("POST", PLAIN, (), body, SECRETS)
    except InvalidRequest:
        return
    assert isinstance(json.loads(inner), dict) and all(json.loads(prompt) is not ... for prompt in prompts)
