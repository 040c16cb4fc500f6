from typing import Literal

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from asked import HEADERS, HISTORY, KEY, MODEL, QUESTION, URL, check, run, weather
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
SHORT, LONG = ModelSettings(max_tokens=24), ModelSettings(max_tokens=200)


def _client():
    """A new one for each feature: its connections belong to one event loop."""
    return AsyncOpenAI(base_url=URL, api_key=KEY, default_headers=HEADERS)


def _model(kind=OpenAIChatCompletionsModel):
    return kind(MODEL, _client())


class Place(BaseModel):
    city: Literal["Lyon", "Paris", "Rome"]


def chat():
    check(Runner.run_sync(Agent("one", model=_model(), model_settings=SHORT), QUESTION).final_output)


async def stream():
    running = Runner.run_streamed(Agent("one", model=_model(), model_settings=SHORT), QUESTION)
    check(len([event async for event in running.stream_events()]) > 2)


def history():
    check(Runner.run_sync(Agent("one", model=_model(), model_settings=SHORT), HISTORY).final_output)


def schema():
    agent = Agent("one", model=_model(), model_settings=LONG, output_type=Place)
    check(Runner.run_sync(agent, QUESTION).final_output.city)


def call():
    settings = ModelSettings(max_tokens=200, tool_choice="required")
    called = []

    @function_tool
    def weather_of(city: Literal["Lyon", "Paris", "Rome"]) -> str:
        """The weather of a city."""
        called.append(city)
        return weather(city)

    agent = Agent(
        "one", model=_model(), model_settings=settings, tools=[weather_of], tool_use_behavior="stop_on_first_tool"
    )
    Runner.run_sync(agent, QUESTION)
    check(called)


def responses():
    """Its default. An answer that its limit cuts is an error there, so this one has a form that ends."""
    agent = Agent("one", model=_model(OpenAIResponsesModel), model_settings=LONG, output_type=Place)
    check(Runner.run_sync(agent, QUESTION).final_output.city)


def readme():
    """Its default model, with the history of a call and its result; the model may never stop calling."""

    @function_tool
    def get_weather(city: str) -> str:
        return f"The weather in {city} is sunny."

    set_default_openai_client(_client(), use_for_tracing=False)
    helpful = Agent("Assistant", instructions="You are a helpful assistant", model=MODEL, model_settings=LONG)
    with_tool = helpful.clone(tools=[get_weather], model_settings=ModelSettings(max_tokens=200, tool_choice="required"))
    try:
        Runner.run_sync(with_tool, "What's the weather in Tokyo?", max_turns=3)
        Runner.run_sync(helpful, "Write a haiku about recursion in programming.")
    except (MaxTurnsExceeded, ModelBehaviorError) as wrong:
        check(isinstance(wrong, MaxTurnsExceeded) or "incomplete" in str(wrong), str(wrong))


run(globals())
