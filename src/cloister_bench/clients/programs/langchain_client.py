from asked import HEADERS, HISTORY, KEY, MODEL, PARAMETERS, QUESTION, URL, check, run, weather
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

TO = {"model": MODEL, "base_url": URL, "api_key": KEY, "default_headers": HEADERS}
model = ChatOpenAI(max_tokens=200, **TO)
short = ChatOpenAI(max_tokens=24, **TO)
CITY = {"title": "place", "description": "A place.", **PARAMETERS}


def chat():
    check(short.invoke(QUESTION).content)


def stream():
    check("".join(piece.text for piece in short.stream(QUESTION)))


def history():
    turns = [HumanMessage, AIMessage, HumanMessage]
    check(short.invoke([kind(each["content"]) for kind, each in zip(turns, HISTORY, strict=True)]).content)


def several():
    check(len(ChatOpenAI(max_tokens=24, n=2, **TO).generate([[HumanMessage(QUESTION)]]).generations[0]) == 2)


def schema():
    check(model.with_structured_output(CITY, method="json_schema").invoke(QUESTION)["city"])


def call():
    check(model.bind_tools([tool(weather)], tool_choice="any").invoke(QUESTION).tool_calls[0]["name"] == "weather")


def result():
    calls = [{"name": "weather", "args": {"city": "Lyon"}, "id": "call_1", "type": "tool_call"}]
    messages = [HumanMessage(QUESTION), AIMessage("", tool_calls=calls), ToolMessage("Sunny.", tool_call_id="call_1")]
    answer = short.bind_tools([tool(weather)]).invoke(messages)
    check(answer.content or answer.tool_calls)


def responses():
    check(ChatOpenAI(max_tokens=24, use_responses_api=True, **TO).invoke(QUESTION).text)


def embeddings():
    check(len(OpenAIEmbeddings(check_embedding_ctx_length=False, **TO).embed_documents(["one", "two"])) == 2)


run(globals())
