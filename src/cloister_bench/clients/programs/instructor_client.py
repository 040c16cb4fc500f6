from typing import Literal

import instructor
from asked import HEADERS, KEY, MODEL, QUESTION, URL, check, run
from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=URL, api_key=KEY, default_headers=HEADERS)


class Place(BaseModel):
    city: Literal["Lyon", "Paris", "Rome"]


def _place(mode):
    made = instructor.from_openai(client, mode=mode)
    messages = [{"role": "user", "content": QUESTION}]
    return made.chat.completions.create(
        model=MODEL, response_model=Place, messages=messages, max_tokens=200, max_retries=0
    )


def schema():
    check(_place(instructor.Mode.JSON_SCHEMA).city)


def call():
    """Its default."""
    check(_place(instructor.Mode.TOOLS).city)


class User(BaseModel):
    name: str
    age: int


def readme():
    messages = [{"role": "user", "content": "John is 25 years old"}]
    made = instructor.from_openai(client)
    check(made.chat.completions.create(model=MODEL, response_model=User, messages=messages).age is not None)


run(globals())
