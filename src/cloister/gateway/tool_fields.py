"""The fields of a chat's body that say what the template gets beside messages: tools, and words of the user's."""

from typing import Any, Literal

from msgspec import structs
from pydantic import Field, field_validator, model_validator
from pydantic.config import JsonDict

from cloister.messages.prompts import ChatPrompt, Prompt, SealedPrompt
from cloister.prompts.json_prompt import Given
from cloister.tools.offered import TOOL_NAME, check_choice, check_tools, check_words, written, written_words

AnyPrompt = Prompt | SealedPrompt
_FUNCTION: JsonDict = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": f"^{TOOL_NAME}$"},
        "description": {"type": "string"},
        "parameters": {"type": "object"},
    },
    "required": ["name"],
}
_TOOL: JsonDict = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "function": _FUNCTION},
    "required": ["type", "function"],
}
_CHOICE: JsonDict = {"enum": [None, "none", "auto", "required"]}
_NAMED: JsonDict = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
    "required": ["type", "function"],
}
_WORD: JsonDict = {"type": ["string", "number", "boolean", "null"]}


class ToolFields(Given):
    """Of every chat. The process that reads the answer needs them, sealed or not."""

    parallel_tool_calls: bool | None = Field(default=None, description="false: of several calls the first counts")
    enable_thinking: bool | None = Field(default=None, description="for templates that think; others ignore it")

    @property
    def offers_tools(self) -> bool:
        return False

    @property
    def must_call(self) -> bool:
        """Of sealed ones only their reader knows."""
        return False

    @property
    def thinks(self) -> bool | None:
        return self.enable_thinking

    def completed(self, prompt: AnyPrompt) -> AnyPrompt:
        """With what goes to its reader beside it."""
        return prompt


class SealedToolFields(ToolFields):
    calls_tools: bool | None = Field(default=None, description="tools are sealed with the messages")

    @property
    def offers_tools(self) -> bool:
        return bool(self.calls_tools)


class PlainToolFields(ToolFields):
    tools: list[dict[str, Any]] | None = Field(
        default=None, max_length=128, json_schema_extra={"items": _TOOL}, description="functions with different names"
    )
    tool_choice: Any = Field(default=None, json_schema_extra={"anyOf": [_CHOICE, _NAMED]})
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None,
        json_schema_extra={"additionalProperties": _WORD, "maxProperties": 32},
        description="words for the model's chat template",
    )

    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        default=None, description="for templates that know it; others ignore it"
    )

    @field_validator("tools")
    @classmethod
    def _are_functions(cls, value: Any) -> Any:
        return check_tools(value)

    @field_validator("tool_choice")
    @classmethod
    def _can_be_chosen(cls, value: Any, info: Any) -> Any:
        check_choice(value, info.data.get("tools"))
        return value

    @field_validator("chat_template_kwargs")
    @classmethod
    def _are_words(cls, value: Any) -> Any:
        return check_words(value)

    @model_validator(mode="after")
    def _fit(self) -> "PlainToolFields":
        self._beside()
        return self

    @property
    def offers_tools(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def must_call(self) -> bool:
        return self.tool_choice not in (None, "auto", "none")

    @property
    def thinks(self) -> bool | None:
        words = self.chat_template_kwargs or {}
        asked = (self.enable_thinking, words.get("enable_thinking"), words.get("thinking"))
        return next((one for one in asked if isinstance(one, bool)), None)

    def completed(self, prompt: AnyPrompt) -> AnyPrompt:
        return structs.replace(prompt, **self._beside()) if isinstance(prompt, ChatPrompt) else prompt

    def _beside(self) -> dict[str, str]:
        words = written_words(self.chat_template_kwargs, self.enable_thinking, self.reasoning_effort)
        return {"tools": written(self.tools, self.tool_choice, self.parallel_tool_calls), "template": words}
