from contextlib import suppress
from typing import Literal

from asked import HEADERS, KEY, MODEL, QUESTION, URL, check, run, weather
from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, RunContext, UsageLimitExceeded, UsageLimits
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

SHORT, LONG = {"max_tokens": 24}, {"max_tokens": 200}


def _model(kind=OpenAIChatModel):
    """A new one for each feature: its connections belong to one event loop."""
    client = AsyncOpenAI(base_url=URL, api_key=KEY, default_headers=HEADERS)
    return kind(MODEL, provider=OpenAIProvider(openai_client=client))


class Place(BaseModel):
    city: Literal["Lyon", "Paris", "Rome"]


def chat():
    check(Agent(_model()).run_sync(QUESTION, model_settings=SHORT).output)


async def stream():
    async with Agent(_model()).run_stream(QUESTION, model_settings=SHORT) as answer:
        check("".join([piece async for piece in answer.stream_text(delta=True)]))


def history():
    turns = [
        ModelRequest(parts=[UserPromptPart(QUESTION)]),
        ModelResponse(parts=[TextPart("It is sunny in Lyon.")]),
    ]
    check(Agent(_model()).run_sync("And in one word?", message_history=turns, model_settings=SHORT).output)


def schema():
    answer = Agent(_model(), output_type=NativeOutput(Place)).run_sync(QUESTION, model_settings=LONG)
    check(answer.output.city)


def call():
    """Its own way to structured output: a tool that must be called."""
    check(Agent(_model(), output_type=Place).run_sync(QUESTION, model_settings=LONG).output.city)


def result():
    agent = Agent(_model(), tools=[weather])
    check(agent.run_sync(QUESTION, model_settings=SHORT).output)


def responses():
    check(Agent(_model(OpenAIResponsesModel)).run_sync(QUESTION, model_settings=SHORT).output)


class SupportOutput(BaseModel):
    support_advice: str = Field(description="Advice returned to the customer")
    block_card: bool = Field(description="Whether to block the customer's card")
    risk: int = Field(description="Risk level of query", ge=0, le=10)


def readme():
    """Its greeting, and its bank: the model may never stop asking for the balance."""
    concise = Agent(_model(), instructions="Be concise, reply with one sentence.", model_settings=LONG)
    check(concise.run_sync('Where does "hello world" come from?').output)
    support = Agent(_model(), deps_type=int, output_type=SupportOutput, model_settings=LONG)

    @support.instructions
    def name(context: RunContext[int]) -> str:
        return f"You are a support agent in our bank. The customer's id is {context.deps}."

    @support.tool
    def customer_balance(context: RunContext[int], include_pending: bool) -> str:
        """The customer's current account balance."""
        return "123.45" if include_pending else "100.00"

    with suppress(UsageLimitExceeded):
        limits = UsageLimits(request_limit=3)
        check(support.run_sync("What is my balance?", deps=123, usage_limits=limits).output.risk <= 10)


run(globals())
