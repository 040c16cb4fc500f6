import litellm
from asked import HEADERS, HISTORY, KEY, MODEL, PARAMETERS, QUESTION, TOOL, URL, check, check_city, run

TO = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY, "extra_headers": HEADERS}
MESSAGES = [{"role": "user", "content": QUESTION}]


def chat():
    check(litellm.completion(messages=MESSAGES, max_tokens=24, **TO).choices[0].message.content)


def stream():
    pieces = litellm.completion(messages=MESSAGES, max_tokens=24, stream=True, **TO)
    check("".join(piece.choices[0].delta.content or "" for piece in pieces))


def history():
    check(litellm.completion(messages=HISTORY, max_tokens=24, **TO).choices[0].message.content)


def several():
    check(len(litellm.completion(messages=MESSAGES, max_tokens=24, n=2, **TO).choices) == 2)


def schema():
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": PARAMETERS, "strict": True}}
    answer = litellm.completion(messages=MESSAGES, max_tokens=200, response_format=form, **TO)
    check_city(answer.choices[0].message.content)


def call():
    answer = litellm.completion(messages=MESSAGES, tools=[TOOL], tool_choice="required", max_tokens=200, **TO)
    check_city(answer.choices[0].message.tool_calls[0].function.arguments)


def result():
    function = {"name": "weather", "arguments": '{"city": "Lyon"}'}
    asked = {"role": "assistant", "content": None}
    asked["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    came = {"role": "tool", "tool_call_id": "call_1", "content": "It is sunny in Lyon."}
    answer = litellm.completion(messages=[*MESSAGES, asked, came], tools=[TOOL], max_tokens=24, **TO)
    check(answer.choices[0].message.content or answer.choices[0].message.tool_calls)


def responses():
    check(litellm.responses(input=QUESTION, max_output_tokens=24, **TO).output)


def embeddings():
    check(len(litellm.embedding(input=["one", "two"], **TO).data) == 2)


run(globals())
