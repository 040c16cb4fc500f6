"""Prompts in JSON, checked by gateway and vault with the same rules. Errors hold no word of the user's."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import MsgspecError, Raw, Struct, json, structs
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.config import JsonDict

from cloister.errors import InvalidRequest, PromptTooLong
from cloister.messages.prompts import (
    MAX_CALLS,
    MAX_PROMPT_BYTES,
    MOST_BESIDE,
    ChatPrompt,
    ObfuscationSecrets,
    Prompt,
    PromptCall,
    PromptField,
    PromptMessage,
    TextPrompt,
    TokenPrompt,
)
from cloister.request_fields import refuse_repeated_names
from cloister.tools.offered import TOOL_NAME, arguments_of

MAX_PROMPT_TOKENS = 1_048_576

# No cache of strings: pydantic's would keep a short prompt for as long as this process lives.
STRICT = ConfigDict(
    strict=True, extra="ignore", allow_inf_nan=False, frozen=True, cache_strings="none", hide_input_in_errors=True
)
# What is only there to be refused is described as what is accepted of it.
EMPTY: JsonDict = {"maxItems": 0}
_ROLES = ("system", "developer", "user", "assistant", "tool")

OnePrompt: TypeAlias = TextPrompt | TokenPrompt


class Given(BaseModel):
    """Whatever comes from a user: known fields are checked strictly, unknown ones are ignored."""

    model_config = STRICT


class ContentPart(Given):
    model_config = ConfigDict(json_schema_extra={"required": ["type", "text"]})

    type: str = Field(json_schema_extra={"const": "text"})
    text: str | None = Field(default=None, json_schema_extra={"type": "string"})

    @model_validator(mode="after")
    def _only_text(self) -> "ContentPart":
        if self.type != "text" or self.text is None:
            raise ValueError("Only content parts of type 'text' are supported, no images or sounds")
        return self


class CalledFunction(Given):
    name: Annotated[str, Field(pattern=f"^{TOOL_NAME}$")]
    arguments: str = Field(description="the JSON text of an object")

    @field_validator("arguments")
    @classmethod
    def _is_object(cls, value: str) -> str:
        arguments_of(value)
        return value


class ToolCall(Given):
    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Given):
    role: str = Field(json_schema_extra={"enum": [*_ROLES]})
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = Field(
        default=None, description="only an assistant that calls tools may leave it out"
    )
    public: bool | None = Field(
        default=None,
        description="the service may have this message, except what is tagged <confidential>…</confidential> in it; "
        "it counts up to the first message without this mark",
    )
    tool_calls: list[ToolCall] | None = Field(default=None, max_length=MAX_CALLS, description="an assistant's")
    tool_call_id: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="which call a tool's result answers"
    )
    reasoning_content: str | None = Field(default=None, description="what an assistant thought; also `reasoning`")
    reasoning: str | None = None
    function_call: Any = Field(default=None, json_schema_extra={"type": "null"})

    @model_validator(mode="after")
    def _servable(self) -> "ChatMessage":
        if self.role == "function" or self.function_call is not None:
            raise ValueError("Functions are called by their newer name: tools")
        if self.role not in _ROLES:
            raise ValueError("A message's role must be 'system', 'developer', 'user', 'assistant' or 'tool'")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("Only an assistant calls tools")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("A tool's result, and nothing else, has a tool_call_id")
        if self.public and (self.role == "tool" or self.tool_calls or self.thought):
            raise ValueError("Tools' results, calls and reasoning are never public")
        if self.content is None and not self.tool_calls:
            raise ValueError("A message needs content: a string or a list of text parts")
        return self

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    @property
    def turn(self) -> PromptMessage:
        calls = tuple(PromptCall(one.id, one.function.name, one.function.arguments) for one in self.tool_calls or ())
        return PromptMessage(self.role, self.text, bool(self.public), calls, self.tool_call_id or "", self.thought)

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text or "" for part in self.content or ())


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=65536, fail_fast=True)]


def one_prompt(value: Any) -> OnePrompt:
    """ValueError if it is none. {"text": …, "public": true} is public except its tagged parts."""
    public = False
    if isinstance(value, dict):
        if set(value) != {"text", "public"} or type(value["text"]) is not str or type(value["public"]) is not bool:
            raise ValueError('A prompt that is an object must have "text", a string, and "public", true or false')
        value, public = value["text"], value["public"]
    if not isinstance(value, str | list):
        raise ValueError("A prompt must be a string or a list of token ids")
    if not value:
        raise ValueError("A prompt must not be empty")
    if isinstance(value, str):
        return TextPrompt(value, public)
    if len(value) > MAX_PROMPT_TOKENS:
        raise ValueError(f"A prompt may have at most {MAX_PROMPT_TOKENS} tokens")
    if not all(type(token) is int and 0 <= token < 2**31 for token in value):
        raise ValueError("Token ids must be integers from 0 to 2147483647")
    return TokenPrompt(tuple(value))


def chat_prompt(messages: Sequence[ChatMessage]) -> ChatPrompt:
    return ChatPrompt(tuple(each.turn for each in messages))


_messages: TypeAdapter[list[ChatMessage]] = TypeAdapter(Messages, config=STRICT)
_one_prompt: TypeAdapter[OnePrompt] = TypeAdapter(Annotated[Any, AfterValidator(one_prompt)], config=STRICT)


_NAMES = frozenset(name for kind in (ChatMessage, ContentPart, ToolCall, CalledFunction) for name in kind.model_fields)


def read_given(field: PromptField, data: bytes) -> Prompt:
    """All messages of a chat or one plain prompt, or what was sealed beside it and `given`, in an object."""
    check_size(len(data))
    beside, data = _unwrapped(data)
    try:
        prompt = chat_prompt(_messages.validate_json(data)) if field == "messages" else _one_prompt.validate_json(data)
    except ValidationError as wrong:
        raise invalid_from(wrong, field) from None
    refuse_repeated_names(data, _NAMES)
    return prompt if beside is None else beside.put_on(prompt)


class _Beside(Struct, forbid_unknown_fields=True):
    given: Raw
    hidden: ObfuscationSecrets | None = None
    form: Raw = Raw(b"")
    tools: Raw = Raw(b"")
    template: Raw = Raw(b"")

    def put_on(self, prompt: Prompt) -> Prompt:
        """The process that reads a text checks it; here its length is bounded."""
        texts = {name: bytes(getattr(self, name)).decode() for name in MOST_BESIDE}
        if too_long := next((name for name, text in texts.items() if len(text) > MOST_BESIDE[name]), None):
            raise InvalidRequest(f"{too_long}: This is longer than {MOST_BESIDE[too_long]} characters.")
        changes: dict[str, Any] = {name: text for name, text in texts.items() if text}
        if self.hidden is not None and not isinstance(prompt, TokenPrompt):
            changes["hidden"] = self.hidden
        if not set(changes) <= set(prompt.__struct_fields__):
            raise InvalidRequest("Only messages have tools, and words for their template.")
        return structs.replace(prompt, **changes)


def _unwrapped(data: bytes) -> tuple[_Beside | None, bytes]:
    """A prompt that is itself an object has "text" and "public", never "given"."""
    if not data.lstrip().startswith(b"{") or b'"given"' not in data:
        return None, data
    try:
        if "given" not in json.decode(data, type=dict[str, Raw]):
            return None, data
        refuse_repeated_names(data, _NAMES)
        found = json.decode(data, type=_Beside)
    except (MsgspecError, ValueError, RecursionError):
        raise InvalidRequest("What was sealed with the prompt is not what its level needs.") from None
    return found, bytes(found.given)


def check_size(size: int) -> None:
    """PromptTooLong for what no vault would take."""
    if size > MAX_PROMPT_BYTES:
        raise PromptTooLong(f"A prompt may have at most {MAX_PROMPT_BYTES} bytes.", hint="Shorten the prompt.")


def invalid_from(wrong: ValidationError, *within: str) -> InvalidRequest:
    """The first thing wrong with a body (or with what is `within` this field), in our words, without the user's."""
    errors = wrong.errors(include_url=False, include_context=False, include_input=False)
    # Where several forms are allowed (a text, a list of parts), the one that was tried is the one that got furthest.
    place = errors[0]["loc"][:-1]
    first = max((each for each in errors if each["loc"][: len(place)] == place), key=lambda each: len(each["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        message = "This field is required"
    elif first["type"] == "model_type":
        message = "Input should be a JSON object"
    path = (*within, *first["loc"])
    where = path[0] if path else None
    param = where if isinstance(where, str) else None
    within_list = "".join(f"[{step}]" for step in path[1:2] if isinstance(step, int))
    return InvalidRequest(f"{param}{within_list}: {message}." if param else f"{message}.", param=param)
