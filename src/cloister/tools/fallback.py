"""Tools for a model whose template has none, in the manner of Hermes: a system text lists them, calls stand in the
assistant's words, and results in a user's turn."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_ASK = """You may call functions to help with the request. Their signatures are within <tools></tools>:
<tools>
{}
</tools>
To call one, answer with its name and arguments as a JSON object within <tool_call></tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-object>}}
</tool_call>"""


def as_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, system: bool
) -> list[dict[str, Any]]:
    """The same conversation in messages that have only a role and content. `system`: the template has that role;
    otherwise the first message lists the tools."""
    turns: list[dict[str, Any]] = []
    if tools:
        asked = _ASK.format("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        first, *rest = messages
        if not system or first["role"] == "system":
            said = (first["content"], asked) if system else (asked, first["content"])
            messages = [{**first, "content": "\n\n".join(filter(None, said))}, *rest]
        else:
            messages = [{"role": "system", "content": asked}, *messages]
    answered = False  # whether the last turn has results, to which the next ones belong
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            result = f"<tool_response>\n{content}\n</tool_response>"
            if answered:
                turns[-1]["content"] += f"\n{result}"
            else:
                turns.append({"role": "user", "content": result})
        else:
            calls = [_call(each["function"]) for each in message.get("tool_calls", ())]
            others = {name: value for name, value in message.items() if name != "tool_calls"}
            turns.append({**others, "content": "\n".join(filter(None, [content, *calls]))})
        answered = role == "tool"
    return turns


def _call(function: Mapping[str, Any]) -> str:
    said = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(said, ensure_ascii=False)}\n</tool_call>"
