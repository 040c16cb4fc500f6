"""A prompt becomes tokens, and its public part: marked messages up to `<confidential>`. The mark stands beside a text:
a pasted tag makes nothing public. Tags are exact and paired: a forgotten one must never make a secret public."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from jinja2 import TemplateError

from cloister.errors import InvalidRequest, PromptTooLong
from cloister.grammar.constraint import answer_part
from cloister.messages.prompts import MOST_BESIDE, ChatPrompt, Prompt, PromptCall, PromptMessage, TextPrompt
from cloister.prompts.chat_template import free_mark, shared_length
from cloister.prompts.tokenizer import Tokenizer
from cloister.tools.form import lark_of
from cloister.tools.offered import arguments_of, read_offered, read_words

# Models' templates know three roles; OpenAI's newer name for the first is "developer".
_ROLES = {"developer": "system"}

OPENING, CLOSING = "<confidential>", "</confidential>"

_ALWAYS_READ = 10  # characters for each token of the context that are tokenised first, to refuse long texts early

_TAG = re.compile(f"({re.escape(OPENING)}|{re.escape(CLOSING)})")
_HINT = f"In a public text, write {OPENING} before and {CLOSING} after each private part, without nesting."


@dataclass(frozen=True, slots=True, repr=False)
class Marked:
    """A text without its tags. `spans` are its private parts, in order, as (start, end) characters."""

    text: str
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, text: str, *, public: bool, param: str) -> "Marked":
        return parse_confidential(text, param=param) if public else cls(text, ((0, len(text)),))

    @property
    def first_private(self) -> int | None:
        return next((start for start, end in self.spans if start < end), None)

    def without_private(self, placeholder: str) -> str:
        pieces = []
        at = 0
        for start, end in self.spans:
            if start < end:
                pieces += [self.text[at:start], placeholder]
                at = end
        return "".join(pieces) + self.text[at:]


def parse_confidential(text: str, *, param: str) -> Marked:
    """`param` names the request's field in the errors."""
    parts = _TAG.split(text)
    words, tags = parts[::2], parts[1::2]
    for place, tag in enumerate(tags):
        inside = place % 2 == 1
        if tag == OPENING and inside:
            raise _refusal(param, f"{OPENING} inside another.")
        if tag == CLOSING and not inside:
            raise _refusal(param, f"{CLOSING} without {OPENING} before it.")
    if len(tags) % 2:
        raise _refusal(param, f"{OPENING} without {CLOSING} after it.")
    plain = "".join(words)
    if tags and _TAG.search(plain):
        # Stripping again would read this text differently.
        raise _refusal(param, "A tag is split by other tags.")
    ends = list(accumulate(map(len, words)))
    return Marked(plain, tuple(zip(ends[:-1:2], ends[1::2], strict=True)))


def _refusal(param: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {what}", param=param, hint=_HINT)


@dataclass(frozen=True, slots=True, repr=False)
class ReadPrompt:
    """The service may hold the first `public` tokens, never all: those that the text before the first private character
    gives. Later ones would reveal it (Petridish §4). `marked`: the request marked something."""

    tokens: tuple[int, ...]
    public: int
    marked: bool = False


class PromptReading:
    """Make it before forking: it reads the whole vocabulary once."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, max_context: int) -> None:
        self.tokenizer = self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._context = max_context
        self._longest_token = max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocabulary))

    def read(self, prompt: Prompt) -> ReadPrompt:
        """Raises InvalidRequest or PromptTooLong, without a word of the prompt."""
        if isinstance(prompt, ChatPrompt):
            return self._chat(prompt)
        if isinstance(prompt, TextPrompt):
            return self._text(prompt)
        return self._checked(prompt.tokens, None, "prompt")

    def form(self, prompt: Prompt) -> str:
        """What the answer follows: the form that came with the prompt, that of a call it requires, or of either.
        Reasoning that the prompt begins comes first."""
        if not isinstance(prompt, ChatPrompt) or not (prompt.form or prompt.tools):
            return prompt.form
        offered = read_offered(prompt.tools) if prompt.tools else None
        required = offered.required if offered else ()
        if required and prompt.form:
            message = "tool_choice: An answer that must call has the call's form and no other."
            raise InvalidRequest(message, param="tool_choice", hint="Leave it out, or response_format.")
        words = read_words(prompt.template) if prompt.template else {}
        given = (words.get(name) for name in ("enable_thinking", "thinking"))
        thinks = next((one for one in given if isinstance(one, bool)), None)
        tools, parsing = required or (offered.tools if offered and prompt.form else ()), self._tokenizer.parsing
        if not tools and not (prompt.form and parsing.opens(thinks)):
            return prompt.form
        answer = answer_part(prompt.form) if prompt.form else ""
        if prompt.form and not answer:
            if not tools:
                return prompt.form
            message = "guided_grammar: Where tools are offered, an answer's form is a schema, a regex or choices."
            raise InvalidRequest(message, param="guided_grammar", hint="Leave the tools out.")
        parallel = offered is None or offered.parallel
        lark = lark_of(parsing, tools, parallel=parallel, thinks=thinks, answer=answer)
        if len(form := json.dumps({"grammar": lark}, ensure_ascii=False)) > MOST_BESIDE["form"]:
            message = "tool_choice: These tools are too long for the answer's form."
            raise InvalidRequest(message, param="tool_choice", hint="Name the tool, or offer fewer.")
        return form

    def system_span(self, prompt: ChatPrompt, tokens: Sequence[int]) -> tuple[int, int]:
        """Where system messages are in a chat's tokens: there they differ from those of a chat with other ones."""
        roles = [_ROLES.get(turn.role, turn.role) for turn in prompt.messages]
        texts = [Marked.of(turn.content, public=turn.public, param="messages").text for turn in prompt.messages]
        other = free_mark(texts)
        twins = [other if role == "system" else text for role, text in zip(roles, texts, strict=True)]
        rest = self._tokenizer.render_chat(_messages(prompt.messages, twins), self._words(prompt))
        start = shared_length(tokens, rest)
        return start, max(start, len(tokens) - shared_length(tokens[::-1], rest[::-1]))

    def _chat(self, prompt: ChatPrompt) -> ReadPrompt:
        turns, words = prompt.messages, self._words(prompt)
        contents = [Marked.of(turn.content, public=turn.public, param="messages") for turn in turns]
        called = (call.arguments for turn in turns for call in turn.calls)
        self._check_length([*(content.text for content in contents), *called], "messages")
        messages = _messages(turns, [content.text for content in contents])
        try:
            if not any(turn.public for turn in turns):
                return self._checked(self._tokenizer.render_chat(messages, words), None, "messages")
            if not words and all(content.first_private is None for content in contents):
                tokens = self._tokenizer.render_chat(messages)
                return self._checked(tokens, tokens, "messages")
            # Tools and words are private: what a chat without them has not, is not public.
            twin = _messages([PromptMessage(turn.role, "") for turn in turns], _twins(contents))
            tokens, public = self._tokenizer.render_chat_beside(messages, twin, words)
        except TemplateError:
            # This is how a template refuses an order of roles; its message may quote the prompt.
            raise InvalidRequest(
                "messages: The model's chat template does not accept this conversation.",
                param="messages",
                hint="Many models want one system message first, then user and assistant in turn.",
            ) from None
        return self._checked(tokens, public, "messages")

    def _text(self, prompt: TextPrompt) -> ReadPrompt:
        """A raw text begins with the model's begin-of-text token, if it has one, as its training texts did."""
        content = Marked.of(prompt.text, public=prompt.public, param="prompt")
        self._check_length([content.text], "prompt")
        tokens = self._tokenizer.encode(content.text, add_special_tokens=True)
        if not prompt.public:
            return self._checked(tokens, None, "prompt")
        if content.first_private is None:
            return self._checked(tokens, tokens, "prompt")
        before = content.text[: content.first_private]
        return self._checked(tokens, self._tokenizer.encode(before, add_special_tokens=True), "prompt")

    def _words(self, prompt: ChatPrompt) -> dict[str, Any]:
        """What the template gets beside messages."""
        words = self._tokenizer.parsing.words(read_words(prompt.template)) if prompt.template else {}
        offered = read_offered(prompt.tools) if prompt.tools else None
        return words if offered is None else {**words, "tools": offered.tools}

    def _check_length(self, texts: Sequence[str], param: str) -> None:
        """Refuse what cannot fit before all is tokenised: how a text goes on changes few tokens, never an eighth."""
        least = -(-sum(map(len, texts)) // self._longest_token)
        whole = "\n".join(texts)
        tried = _ALWAYS_READ * self._context
        while least <= self._context and tried < len(whole):
            least = max(least, len(self._tokenizer.encode(whole[:tried])) * 7 // 8)
            tried *= 2
        if least > self._context:
            raise PromptTooLong(
                f"This model's context holds {self._context} tokens; the prompt has {least} or more.",
                param=param,
                hint="Shorten the prompt.",
            )

    def _checked(self, tokens: Sequence[int], public: Sequence[int] | None, param: str) -> ReadPrompt:
        """The tokens; public are those that begin the same way as `public`, if anything was marked so."""
        if not tokens:
            raise InvalidRequest(f"{param}: There is no token in it.", param=param)
        if min(tokens) < 0 or max(tokens) >= self._vocabulary:
            raise InvalidRequest(f"{param}: Token ids must be below {self._vocabulary}.", param=param)
        known = min(shared_length(tokens, public or ()), len(tokens) - 1)
        return ReadPrompt(tuple(tokens), known, public is not None)


def _messages(turns: Sequence[PromptMessage], contents: Sequence[str]) -> list[dict[str, Any]]:
    messages, names = [], dict[str, str]()
    for turn, content in zip(turns, contents, strict=True):
        message: dict[str, Any] = {"role": _ROLES.get(turn.role, turn.role), "content": content}
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.calls:
            message["tool_calls"] = [_call(call) for call in turn.calls]
            names |= {call.id: call.name for call in turn.calls}
        if turn.call_id:
            message["tool_call_id"] = turn.call_id
            message |= {"name": names[turn.call_id]} if turn.call_id in names else {}
        messages.append(message)
    return messages


def _call(call: PromptCall) -> dict[str, Any]:
    try:
        function = {"name": call.name, "arguments": arguments_of(call.arguments)}
    except ValueError as wrong:
        raise InvalidRequest(f"messages: {wrong}.", param="messages") from None
    return {"id": call.id, "type": "function", "function": function}


def _twins(contents: Sequence[Marked]) -> list[str]:
    """The same words without the private ones. Where two renderings differ, private text begins to matter."""
    placeholder = free_mark(content.text for content in contents)
    return [content.without_private(placeholder) for content in contents]
