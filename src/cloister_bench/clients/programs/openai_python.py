"""OpenAI's SDK, or with `CLIENT_CLASS=cloister` Cloister's client, which verifies the node and seals each request."""

import os

from asked import DESCRIPTION, HEADERS, HISTORY, KEY, MODEL, PARAMETERS, QUESTION, TOOL, URL, check, check_city, run

if os.environ.get("CLIENT_CLASS") == "cloister":
    import cloister

    client = cloister.Client(URL, api_key=KEY, allow_software_tee=True, default_headers=HEADERS)
else:
    from openai import OpenAI

    client = OpenAI(base_url=URL, api_key=KEY, default_headers=HEADERS)

MESSAGES = [{"role": "user", "content": QUESTION}]
SHORT = {"model": MODEL, "max_tokens": 24}


def chat():
    check(client.chat.completions.create(messages=MESSAGES, **SHORT).choices[0].message.content)


def stream():
    pieces = [*client.chat.completions.create(messages=MESSAGES, stream=True, **SHORT)]
    check("".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices))


def history():
    check(client.chat.completions.create(messages=HISTORY, **SHORT).choices[0].message.content)


def several():
    check(len(client.chat.completions.create(messages=MESSAGES, n=2, **SHORT).choices) == 2)


def schema():
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": PARAMETERS, "strict": True}}
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=200, response_format=form)
    check_city(answer.choices[0].message.content)


def call():
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200
    ).choices[0]
    check(answer.finish_reason in ("tool_calls", "stop") and answer.message.tool_calls[0].function.name == "weather")
    check_city(answer.message.tool_calls[0].function.arguments)


def result():
    function = {"name": "weather", "arguments": '{"city": "Lyon"}'}
    asked = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    came = {"role": "tool", "tool_call_id": "call_1", "content": "It is sunny in Lyon."}
    answer = client.chat.completions.create(messages=[*MESSAGES, asked, came], tools=[TOOL], **SHORT).choices[0]
    check(answer.message.content or answer.message.tool_calls)


def responses():
    answer = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=24)
    check(answer.output_text and answer.status in ("completed", "incomplete"))
    tool = {"type": "function", "name": "weather", "description": DESCRIPTION, "parameters": PARAMETERS, "strict": True}
    tools = {"tools": [tool], "tool_choice": "required"}
    kinds = [event.type for event in client.responses.create(model=MODEL, input=QUESTION, stream=True, **tools)]
    check("response.function_call_arguments.done" in kinds, "no function call in the stream")


def embeddings():
    check(len(client.embeddings.create(model=MODEL, input=["one", "two"]).data) == 2)


run(globals())
