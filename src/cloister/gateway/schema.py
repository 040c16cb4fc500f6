"""The bodies of requests (OpenAI's API, vLLM's extras). Unknown fields are refused: one may be a misspelt `protection`.
Sealed ones have a prompt's number, which only the sealed API sets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from operator import not_
from typing import Annotated, Any, Literal, cast

import msgspec
import pydantic
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    field_validator,
)
from starlette.requests import Request

from cloister.errors import InvalidRequest
from cloister.gateway.form import GuidedChoice, GuidedJson, GuidedText, ResponseFormat, StructuredOutputs
from cloister.gateway.tool_fields import AnyPrompt, PlainToolFields, SealedToolFields, ToolFields
from cloister.grammar.form import FIELDS, form_of
from cloister.levels import LEVELS, MOST_FAKES, OPEN, PARTITIONED, Level
from cloister.messages.prompts import ObfuscationParams, Prompt, PromptField, SealedPrompt
from cloister.prompts.json_prompt import EMPTY, Given, Messages, OnePrompt, chat_prompt, one_prompt
from cloister.request_fields import SAY_NOTHING, SESSION_PATTERN, UNUSED

MAX_CHOICES = 128
MAX_STOP_TOKENS = 64

Substitute = Annotated[str, StringConstraints(min_length=1, max_length=512)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
StopList = Annotated[list[StopString], Field(max_length=16, fail_fast=True)]
TokenKey = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]

TEXT = {"type": "string", "minLength": 1}
TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, "minItems": 1}
STRINGS = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": MAX_CHOICES}
LISTS = {"type": "array", "items": TOKENS, "minItems": 1, "maxItems": MAX_CHOICES}
_PARTS = {"properties": {"text": TEXT, "public": {"type": "boolean"}}, "required": ["text", "public"]}
_MARKED = {"type": "object", **_PARTS, "additionalProperties": False}
_SCHEMA = {"anyOf": [TEXT, _MARKED, STRINGS, TOKENS, LISTS]}


def given_prompts(value: Any, most: int = MAX_CHOICES) -> tuple[OnePrompt, ...]:
    """A string, token ids, or a list of either. A union would report each element of a wrong list four times."""
    if isinstance(value, list) and value and type(value[0]) is not int:
        if len(value) > most:
            raise ValueError(f"At most {most} prompts are supported in one request")
        if not all(type(each) is type(value[0]) for each in value):
            raise ValueError("Prompts must be all strings or all lists of token ids")
        return tuple(one_prompt(each) for each in value)
    return (one_prompt(value),)


def _only(accepted: Callable[[Any], bool], message: str) -> AfterValidator:
    def check(value: Any) -> Any:
        if not accepted(value):
            raise ValueError(message)
        return value

    return AfterValidator(check)


def _asks_nothing(name: str, message: str) -> AfterValidator:
    return _only(lambda value: value in SAY_NOTHING[name], message)


def _unserved(name: str) -> Any:
    """A field of OpenAI's that no node serves, described by the values that ask for nothing."""
    return Field(default=None, json_schema_extra={"enum": [*cast(Any, SAY_NOTHING[name])]})


Whole = BeforeValidator(lambda value: int(value) if type(value) is float and value.is_integer() else value)
"""Some clients write 4.0."""
NoFunctions = Annotated[list[Any] | None, _only(not_, "Functions are called by their newer name: tools")]
NoFunctionCall = Annotated[Any, _asks_nothing("function_call", "Functions are called by their newer name: tools")]
OnlyTextAnswer = Annotated[Any, _asks_nothing("modalities", "Answers are text: only ['text'] is supported")]
NoAudio = Annotated[Any, _asks_nothing("audio", "Answers are text, not audio")]
NoWebSearch = Annotated[Any, _asks_nothing("web_search_options", "Models here do not search the web")]
NoSuffix = Annotated[str | None, _only(not_, "Insertion before a suffix is not supported")]
_SCORED = f"A prompt is scored by /v1/completions with echo and logprobs, at the level {OPEN!r}"
NoPromptLogprobs = Annotated[Any, _only(lambda value: value is None, _SCORED)]
PlainPrompts = Annotated[Any, AfterValidator(given_prompts), WithJsonSchema(_SCHEMA)]


class StreamOptions(Given):
    include_usage: bool | None = None


class SealedCount(Given):
    sealed: int = Field(ge=1, le=MAX_CHOICES)


class ObfuscationOptions(Given):
    """At `obfuscated`: how the prompt is hidden. A misspelt field would hide less, so unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")

    fakes: int | None = Field(default=None, ge=1, le=MOST_FAKES, description="λ: number of made-up prompts; default 7")
    minimum: int | None = Field(default=None, ge=1, le=MOST_FAKES, description="λ_min: nothing leaves with fewer")
    method: Literal["exchangeable", "dictionary", "gqs"] = Field(
        default="exchangeable", description="values that exist, drawn by the model or evenly, or made up (the paper's)"
    )
    epsilon: float = Field(default=2.0, gt=0, le=100, description="of gqs: ε, at most 1 for an absolute distance")
    distance: Literal["absolute", "relative"] = "relative"
    candidates: int = Field(default=128, ge=1, le=512, description="λ_max: candidates for each token")
    temperature: float = Field(default=1.0, gt=0, le=10, description="of the sampling, not of the answer")
    regularise: bool = Field(default=False, description="spell secrets regularly first, which changes the prompt")
    auto_redact: bool = Field(default=False, description="the vault also looks for secrets that are not marked")
    compact: bool = Field(default=False, description="less memory and an earlier first token; answers are approximate")
    substitutes: list[list[Substitute]] | None = Field(
        default=None, min_length=1, max_length=MOST_FAKES, description="your own: of each variant one for each secret"
    )

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "ObfuscationOptions":
        if self.distance == "absolute" and self.epsilon > 1:
            raise ValueError("epsilon is at most 1 for an absolute distance")
        if self.substitutes is not None and self.fakes not in (None, len(self.substitutes)):
            raise ValueError("fakes is the number of substitutes for each secret, where they are given")
        if (self.minimum or 1) > self.params.fakes:
            raise ValueError("minimum is at most fakes")
        return self

    @property
    def params(self) -> ObfuscationParams:
        fakes = self.fakes or (len(self.substitutes) if self.substitutes else ObfuscationParams().fakes)
        others = self.model_dump(exclude={"fakes", "minimum", "substitutes"})
        return ObfuscationParams(fakes, self.minimum or 0, **others)


class KnownFields(Given):
    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": False})

    model: Annotated[str, StringConstraints(max_length=1024)]
    protection: str | None = Field(
        default=None,
        description=f"a level of protection: what the provider may see; default {PARTITIONED!r}",
        json_schema_extra={"enum": [*LEVELS, None]},
    )
    session: str | None = Field(
        default=None, pattern=SESSION_PATTERN, description="names the conversation, so that its vault is kept"
    )

    def refuse_unknown(self) -> None:
        """Known fields that are not used are dropped."""
        given = self.model_extra or {}
        if unknown := next((name for name in given if name not in UNUSED), None):
            like = get_close_matches(unknown, type(self).model_fields, n=1)
            hint = f"Is {like[0]!r} meant?" if like else "Leave it out."
            raise InvalidRequest(f"The field {unknown[:64]!r} is not known here.", param=unknown[:64], hint=hint)
        given.clear()


class GenerationRequest(KnownFields):
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int | None, Whole] = Field(default=None, ge=1, le=MAX_CHOICES)
    temperature: float | None = Field(default=None, ge=0, le=2, description="0 is greedy; default the model's, else 1")
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: Annotated[int | None, Whole] = Field(default=None, ge=-1, le=2**31 - 1, description="0 or -1 switch it off")
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=100)
    logit_bias: dict[TokenKey, Annotated[float, Field(ge=-100, le=100)]] | None = Field(default=None, max_length=1024)
    seed: Annotated[int | None, Whole] = Field(
        default=None, ge=-(2**63), le=2**63 - 1, description="drawn at random when left out"
    )
    stop: StopString | StopList | None = Field(default=None, description="one string or at most 16")
    stop_token_ids: list[Annotated[int, Field(ge=0, le=2**31 - 1)]] | None = Field(
        default=None, max_length=MAX_STOP_TOKENS, description="tokens that end the answer, beside the model's own"
    )
    min_tokens: Annotated[int | None, Whole] = Field(
        default=None, ge=0, le=2**31 - 1, description="nothing ends the answer before this number"
    )
    ignore_eos: bool | None = Field(default=None, description="go on past the model's own end tokens")
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = Field(
        default=None, description="only requests with the same salt reuse each other's computed prompts"
    )
    mpc_reveal: Literal["token", "logits"] | None = Field(
        default=None,
        description="at 'mpc': what each step reveals to the MPC client; default 'token'. 'logits' allows top_p etc.",
    )
    obfuscation: ObfuscationOptions | None = Field(default=None, description="at 'obfuscated': how secrets are hidden")
    stop_recitation: bool | None = Field(
        default=None, description="at 'partitioned': the vault ends an answer that recites its system prompt"
    )
    guided_json: GuidedJson = Field(default=None, description="a JSON schema; this and the next four as in vLLM")
    guided_regex: GuidedText = None
    guided_choice: GuidedChoice = None
    guided_grammar: GuidedText = Field(default=None, description="Lark, as llguidance reads it")
    structured_outputs: StructuredOutputs = None
    verify: bool | None = Field(
        default=None, description="tokens leave when a vault that read the prompt computed the same; not at 'mpc'"
    )
    prompt_logprobs: NoPromptLogprobs = Field(default=None, json_schema_extra={"type": "null"})

    @property
    def echoes(self) -> bool:
        return False

    @property
    def requested(self) -> set[str]:
        """The fields in use that not every level serves (levels.Refusal)."""
        off = {"top_p": (None, 1), "top_k": (None, 0, -1), "min_p": (None, 0), "repetition_penalty": (None, 1)}
        off |= {"mpc_reveal": (None,), "obfuscation": (None,), "n": (None, 1)}
        off |= {"min_tokens": (None, 0)}
        off |= {"stop_recitation": (None, False), "verify": (None, False)}
        used = {name for name, values in off.items() if getattr(self, name) not in values}
        used |= {"response_format"} if self.has_form else set()
        used |= {"alone"} if getattr(self, "alone", None) else set()
        return used | ({"stop_token_ids"} if self.stop_token_ids else set())

    @cached_property
    def form(self) -> str:
        return form_of({name: getattr(self, name, None) for name in FIELDS})

    @property
    def has_form(self) -> bool:
        """Also where it was sealed with the prompt."""
        return bool(self.form or getattr(self, "constrained", None) or getattr(self, "must_call", None))

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatOptions(ToolFields, GenerationRequest):
    max_tokens: Annotated[int | None, Whole] = Field(
        default=None, ge=1, le=2**31 - 1, description="default 1024; the older name"
    )
    max_completion_tokens: Annotated[int | None, Whole] = Field(default=None, ge=1, le=2**31 - 1)
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Whole] = Field(default=None, ge=0, le=20, description="needs logprobs: true")
    response_format: ResponseFormat = Field(default=None, description="what the answer must look like")
    functions: NoFunctions = Field(default=None, json_schema_extra=EMPTY)
    function_call: NoFunctionCall = _unserved("function_call")
    modalities: OnlyTextAnswer = _unserved("modalities")
    audio: NoAudio = _unserved("audio")
    web_search_options: NoWebSearch = _unserved("web_search_options")

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def requested(self) -> set[str]:
        used = {"logprobs": self.logprobs, "tools": self.offers_tools}
        return super().requested | {name for name, is_used in used.items() if is_used}

    @field_validator("top_logprobs")
    @classmethod
    def _with_logprobs(cls, value: int | None, info: Any) -> int | None:
        if value and not info.data.get("logprobs"):
            raise ValueError("top_logprobs needs logprobs to be true")
        return value


class ChatRequest(PlainToolFields, ChatOptions):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[Messages, AfterValidator(lambda given: (chat_prompt(given),))]


class SealedChatRequest(SealedToolFields, ChatOptions):
    """The same with sealed messages: one prompt, however many messages there are."""

    messages: Annotated[SealedCount, _only(lambda count: count.sealed == 1, "All messages are sealed as one")]
    constrained: bool | None = None  # a form is sealed with them
    alone: bool | None = None  # the vault decodes alone, where the level would hide the prompt among others


class CompletionOptions(GenerationRequest):
    max_tokens: Annotated[int | None, Whole] = Field(
        default=None, ge=0, le=2**31 - 1, description="default 16; 0 only scores"
    )
    logprobs: Annotated[int | None, Whole] = Field(
        default=None, ge=0, le=20, description="alternatives reported beside each token"
    )
    echo: bool | None = None
    suffix: NoSuffix = None
    best_of: Annotated[int | None, Whole] = Field(default=None, ge=1, le=MAX_CHOICES)

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def echoes(self) -> bool:
        return bool(self.echo)

    @property
    def requested(self) -> set[str]:
        used = {"echo": self.echo, "max_tokens": self.max_tokens == 0, "logprobs": self.logprobs is not None}
        return super().requested | {name for name, is_used in used.items() if is_used}

    @field_validator("best_of")
    @classmethod
    def _best_is_all(cls, value: int | None, info: Any) -> int | None:
        if value is not None and value != (info.data.get("n") or 1):
            raise ValueError("best_of is supported only when it equals n")
        return value


class CompletionRequest(CompletionOptions):
    """The body of POST /v1/completions."""

    prompt: PlainPrompts


class SealedCompletionRequest(CompletionOptions):
    prompt: SealedCount
    constrained: bool | None = None  # a form is sealed with each
    alone: bool | None = None


Body = ChatOptions | CompletionOptions
SCOPE = "cloister.sealed"
_Fields = dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class SealedRequest:
    number: int
    prompts: int

    def counts_prompts(self, raw: bytes, field: PromptField) -> bool:
        try:
            given = msgspec.json.decode(raw, type=_Fields).get(field)
            return given is not None and "sealed" in msgspec.json.decode(given, type=_Fields)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False  # the plain form then reports what is wrong with it


def sealed_request_of(request: Request) -> SealedRequest | None:
    """Set by the sealed API; None for a request that came in the clear."""
    sealed = request.scope.get(SCOPE)
    assert sealed is None or isinstance(sealed, SealedRequest)
    return sealed


def prompts_of(
    given: Sequence[Prompt] | SealedCount, field: PromptField, level: Level, sealed: SealedRequest | None
) -> Sequence[AnyPrompt]:
    """The prompts, or references to sealed ones; InvalidRequest where the level wants the other form."""
    if not isinstance(given, SealedCount):
        if sealed is not None and level.uses_vault:
            message = f"{field}: In a sealed request a prompt is sealed by itself, for its vault alone."
            raise InvalidRequest(message, param=field, hint=f"Use a Cloister client, or ask for the level {OPEN!r}.")
        return given
    if sealed is None or given.sealed != sealed.prompts:
        raise InvalidRequest(f"{field}: The number of sealed prompts is not the one that came.", param=field)
    if not level.uses_vault:
        message = f"{field}: At the level {level.name!r} the prompt is read outside vaults, not sealed by itself."
        raise InvalidRequest(message, param=field)
    return tuple(SealedPrompt(sealed.number, index, field) for index in range(given.sealed))
