"""What every program runs: `python program.py FEATURE …`, the server in the environment. It prints what
each feature came to, in a line of JSON."""

import asyncio
import json
import os
import sys

URL, KEY, MODEL, LEVEL = (os.environ[f"CLIENT_{name}"] for name in ("URL", "KEY", "MODEL", "LEVEL"))
HEADERS = {"X-Cloister-Protection": LEVEL}
NAME = "<redacted>Anna Berger</redacted>" if LEVEL == "obfuscated" else "Anna Berger"
QUESTION = f"My friend {NAME} lives in Lyon. What is the weather like where my friend lives?"
HISTORY = [
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": "It is sunny in Lyon."},
    {"role": "user", "content": "And in one word?"},
]
DESCRIPTION = "The weather of a city."
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Lyon", "Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": DESCRIPTION, "parameters": PARAMETERS}}


def weather(city: str) -> str:
    """The weather of a city."""
    return f"It is sunny in {city}."


def check(holds, what="the answer is not as it must be"):
    if not holds:
        raise ValueError(what)


def check_city(arguments):
    check(json.loads(arguments)["city"] in ("Lyon", "Paris", "Rome"), "the arguments do not follow the schema")


def run(features):
    for name in sys.argv[1:]:
        has = name in features and not (name == "readme" and LEVEL == "obfuscated")  # there no README marks a secret
        came_to = _tried(features[name]) if has else "absent"
        print(json.dumps({"feature": name, "came_to": came_to}), flush=True)


def _tried(feature):
    try:
        done = feature()
        if asyncio.iscoroutine(done):
            asyncio.run(done)
    except Exception as wrong:
        return f"{type(wrong).__name__}: {wrong}".splitlines()[0][:300]
    return "works"
