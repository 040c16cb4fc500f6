from asked import HEADERS, HISTORY, KEY, MODEL, QUESTION, URL, check, run, weather
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

TO = {"api_base": URL, "api_key": KEY, "default_headers": HEADERS}
KIND = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 2048}
model = OpenAILike(model=MODEL, max_tokens=200, **KIND, **TO)
short = OpenAILike(model=MODEL, max_tokens=24, **KIND, **TO)


class Place(BaseModel):
    city: str


def chat():
    check(short.chat([ChatMessage(QUESTION)]).message.content)


def stream():
    check("".join(piece.delta or "" for piece in short.stream_chat([ChatMessage(QUESTION)])))


def history():
    check(short.chat([ChatMessage(each["content"], role=each["role"]) for each in HISTORY]).message.content)


def schema():
    check(model.as_structured_llm(Place).chat([ChatMessage(QUESTION)]).raw.city is not None)


def call():
    tool = FunctionTool.from_defaults(weather)
    answer = model.chat_with_tools([tool], user_msg=QUESTION, tool_required=True)
    check(model.get_tool_calls_from_response(answer)[0].tool_name == "weather")


def embeddings():
    check(len(OpenAILikeEmbedding(model_name=MODEL, **TO).get_text_embedding_batch(["one", "two"])) == 2)


run(globals())
