"""Text to ids and back. Starts no thread; after `warm` it opens no file and imports nothing: for sealed processes."""

import codecs
import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from cloister.errors import CloisterError, InvalidRequest, ModelCorrupt, ModelUnsupported
from cloister.models.source import ModelFolder
from cloister.prompts.chat_template import ChatTemplate, Rendered, any_of, shared_length
from cloister.prompts.text_stream import ByteStream, MarkedStream, TextStream, WindowStream
from cloister.tools.families import Parsing, ToolParser

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> Any:
    """GPT-2's printable character for each byte, as a codec."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(256)
    return codecs.charmap_build("".join(chr(byte if byte in printable else next(others)) for byte in range(256)))


_ALPHABET = _byte_alphabet()


def byte_level_bytes(entry: str) -> bytes:
    """Each character is a byte in GPT-2's alphabet; an entry with any other character is literal text."""
    try:
        return codecs.charmap_encode(entry, "strict", _ALPHABET)[0]
    except UnicodeEncodeError:
        return entry.encode()


def sentencepiece_bytes(entry: str) -> bytes:
    """▁ is a space and <0x0A> is a byte."""
    if found := _BYTE_FALLBACK.fullmatch(entry):
        return bytes([int(found[1], 16)])
    return entry.replace("▁", " ").encode()


# One text at a time does not need the package's pool of threads, and in a forked child the pool would hang.
_POOL = "TOKENIZERS_PARALLELISM"
os.environ.setdefault(_POOL, "false")

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """generation_config.json; None: not said. No penalties: some need the prompt where tokens are chosen."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None

    @classmethod
    def read(cls, given: dict[str, Any]) -> "GenerationDefaults":
        """Values that a request could not say count as not said."""
        highest = {"temperature": 2, "top_p": 1, "top_k": 2**31 - 1, "min_p": 1}
        fitting: dict[str, Any] = {
            name: int(value) if name == "top_k" else value
            for name, most in highest.items()
            if isinstance(value := given.get(name), int | float) and type(value) is not bool and 0 <= value <= most
        }
        return cls(**fitting)


class Tokenizer:
    def __init__(self, folder: ModelFolder, tool_parser: ToolParser = "auto") -> None:
        self._tool_parser = tool_parser
        self._folder = folder.path
        self._settings = _read_json(folder.path / "tokenizer_config.json")
        written = _describe(folder.path)
        self._backend = _build(written, folder.path)
        described = msgspec.json.decode(written, type=_Described)
        self._backend.no_truncation()
        self._backend.no_padding()
        self.vocabulary: int = self._backend.get_vocab_size(with_added_tokens=True)
        added = self._backend.get_added_tokens_decoder()
        self._special = {token: known.content for token, known in added.items() if known.special}
        template = self._template = self._template_source()
        # Names the template builds its structure from; others, such as runs of spaces, are just long words.
        self._reserved = {
            known.content: token for token, known in added.items() if known.special or known.content in template
        }
        self._swallows_before = {known.content for known in added.values() if known.lstrip}
        self._swallows_after = {known.content for known in added.values() if known.rstrip}
        self._reserved_ids = frozenset(self._reserved.values())
        self._reserved_pattern = any_of(self._reserved)
        self._plain = _without_added(written, described, self._reserved, self._backend)
        self._byte_level = (described.decoder or {}).get("type") == "ByteLevel"
        self._chat = self._compile(template)
        generation = _read_json(folder.path / "generation_config.json")
        self.stop_tokens: tuple[int, ...] = self._find_stop_tokens(folder, generation)
        self.generation = GenerationDefaults.read(generation)

    @property
    def special(self) -> frozenset[int]:
        """Tokens that are no text: those the template builds its structure from."""
        return self._reserved_ids | self._special.keys()

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """For raw prompts: special tokens named in the text become those tokens."""
        return self._ids(self._backend, text, add_special_tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        if self._byte_level:
            stream = self.stream()
            return stream.push(tokens) + stream.finish()
        text: str = self._backend.decode(list(tokens), skip_special_tokens=True)
        return text

    def stream(self, visible: Mapping[int, str] | None = None) -> TextStream | MarkedStream:
        """`visible`: special tokens whose names are text here."""
        return MarkedStream(self._stream, visible) if visible else self._stream()

    def _stream(self) -> TextStream:
        if self._byte_level:
            return ByteStream(self._visible_bytes)
        return WindowStream(self.decode, self._special)

    @cached_property
    def parsing(self) -> Parsing:
        """How answers of a chat are read."""
        return Parsing(self._template, dict(self._special), self._tails, self._tool_parser)

    @cached_property
    def _tails(self) -> dict[bool | None, str]:
        return {thinks: self._tail(thinks) for thinks in (None, True, False)}

    def _tail(self, thinks: bool | None) -> str:
        """What the template writes before an answer."""
        words = {} if thinks is None else {"enable_thinking": thinks, "thinking": thinks}
        try:
            rendered = self._render([{"role": "user", "content": "a"}], words)
        except CloisterError:
            return ""
        return rendered.text.rpartition(rendered.mark)[2]

    def token_bytes(self, token: int) -> bytes:
        """Empty for an id without a token."""
        return self._all_bytes[token] if 0 <= token < len(self._all_bytes) else b""

    def render_chat(self, messages: list[dict[str, Any]], words: Mapping[str, Any] | None = None) -> list[int]:
        """No text of messages, tools or words can become a special token; only the template adds a begin token."""
        return self._encode_rendered(self._render(messages, words))[0]

    def render_chat_beside(
        self, messages: list[dict[str, Any]], twin: list[dict[str, Any]], words: Mapping[str, Any] | None = None
    ) -> tuple[list[int], list[int]]:
        """A chat's ids, and of the text it shares with its twin's, which has other private parts: there it matters.
        The twin has no tools and no words."""
        ids, encode = self._encode_rendered(rendered := self._render(messages, words))
        try:
            other = self._render(twin).plain
        except InvalidRequest:
            other = ""  # the template decides by the private part whether it renders at all: nothing is public
        return ids, encode(rendered.until(shared_length(rendered.plain, other)))

    def warm(self) -> None:
        assert self.parsing
        for token in self.encode("a", add_special_tokens=True):
            self.token_bytes(token)
            self.stream().push([token])
        if self._chat is not None:
            with suppress(CloisterError):  # a template may refuse this chat
                self._encode_in_pieces(self._chat.render([{"role": "user", "content": "a"}]))

    def _render(self, messages: list[dict[str, Any]], words: Mapping[str, Any] | None = None) -> Rendered:
        if self._chat is None:
            raise InvalidRequest("This model has no chat template.", hint="Use /v1/completions with a raw prompt.")
        return self._chat.render(messages, words)

    def _encode_rendered(self, rendered: Rendered) -> tuple[list[int], Callable[[Rendered], list[int]]]:
        ids = self._encode_whole(rendered)
        meant = [self._reserved[found[0]] for found in self._reserved_pattern.finditer(rendered.text)]
        if [token for token in ids if token in self._reserved_ids] == meant:
            return ids, self._encode_whole
        return self._encode_in_pieces(rendered), self._encode_in_pieces

    def _encode_whole(self, rendered: Rendered) -> list[int]:
        return self.encode(rendered.plain)

    def _encode_in_pieces(self, rendered: Rendered) -> list[int]:
        """Encode the template's token names as tokens and everything between as words, whatever it spells."""
        ids: list[int] = []
        start, before = 0, ""
        for found in self._reserved_pattern.finditer(rendered.text):
            words = self._without_swallowed(rendered.text[start : found.start()], before, found[0])
            ids += self._encode_words(words.replace(rendered.mark, ""))
            ids.append(self._reserved[found[0]])
            start, before = found.end(), found[0]
        words = self._without_swallowed(rendered.text[start:], before, "")
        return ids + self._encode_words(words.replace(rendered.mark, ""))

    def _without_swallowed(self, words: str, before: str, after: str) -> str:
        """Some tokens take the white space beside them: Phi-3's, the newline which the template writes behind them."""
        words = words.lstrip() if before in self._swallows_after else words
        return words.rstrip() if after in self._swallows_before else words

    def _encode_words(self, text: str) -> list[int]:
        ids = self._ids(self._plain, text)
        if self._reserved_ids.isdisjoint(ids):
            return ids
        # The model's own merges spell a reserved name; single characters cannot.
        by_character = [token for character in text for token in self._ids(self._plain, character)]
        if self._reserved_ids.isdisjoint(by_character):
            return by_character
        raise InvalidRequest("A message spells a special token that this model cannot read as text.", param="messages")

    @staticmethod
    def _ids(backend: tokenizers.Tokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
        try:
            if os.environ.get(_POOL) == "false":
                # As a batch of one: unlike `encode` it lets other threads run, and a long text takes a while.
                [encoded] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            else:
                encoded = backend.encode(text, add_special_tokens=add_special_tokens)
            ids: list[int] = encoded.ids
        except (UnicodeEncodeError, TypeError):
            raise InvalidRequest("The text is not valid Unicode: it holds half a surrogate pair.") from None
        return ids

    @cached_property
    def _all_bytes(self) -> list[bytes]:
        spell = byte_level_bytes if self._byte_level else sentencepiece_bytes
        table = [b""] * self.vocabulary
        for name, token in self._backend.get_vocab(with_added_tokens=True).items():
            if token >= len(table):
                table.extend([b""] * (token + 1 - len(table)))
            table[token] = name.encode() if token in self._special else spell(name)
        return table

    @cached_property
    def _visible_bytes(self) -> list[bytes]:
        return [b"" if token in self._special else spelled for token, spelled in enumerate(self._all_bytes)]

    def _template_source(self) -> str:
        """Empty if there is none."""
        own_file = self._folder / "chat_template.jinja"
        if own_file.is_file():
            return own_file.read_text()
        source = self._settings.get("chat_template") or _read_json(self._folder / "chat_template.json").get(
            "chat_template"
        )
        if isinstance(source, list):
            named = {str(entry.get("name")): entry.get("template") for entry in source if isinstance(entry, dict)}
            source = named.get("default") or next(iter(named.values()), None)
        return source if isinstance(source, str) else ""

    def _compile(self, source: str) -> ChatTemplate | None:
        if not source:
            return None
        return ChatTemplate(
            source,
            named_tokens={key: text for key in _NAMED if (text := _token_name(self._settings.get(key)))},
            reserved=self._reserved,
            reserved_for_assistant=self._special.values(),
        )

    def _find_stop_tokens(self, folder: ModelFolder, generation: dict[str, Any]) -> tuple[int, ...]:
        configured = generation.get("eos_token_id", folder.config.get("eos_token_id"))
        known = [configured] if isinstance(configured, int) else list(configured or [])
        named = _token_name(self._settings.get("eos_token"))
        known += [self._reserved.get(named), self._end_of_turn()]
        return tuple(dict.fromkeys(token for token in known if isinstance(token, int)))

    def _end_of_turn(self) -> int | None:
        """The special token which the template puts right after an assistant's words."""
        if self._chat is None:
            return None
        chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        try:
            rendered = self._chat.render(chat, add_generation_prompt=False)
        except CloisterError:
            return None
        if rendered.mark not in rendered.text:
            return None
        _, _, after = rendered.text.rpartition(rendered.mark)
        found = self._reserved_pattern.match(after.lstrip())
        token = self._reserved[found[0]] if found else None
        return token if token in self._special else None


class _Described(msgspec.Struct):
    """Of tokenizer.json what is needed beside the backend: to read all of it as Python objects takes as long."""

    added_tokens: tuple[dict[str, Any], ...] = ()
    decoder: dict[str, Any] | None = None


def _describe(folder: Path) -> str:
    """The content of tokenizer.json, made by transformers where the folder has only older forms."""
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except ValueError as wrong:
            raise _not_a_tokenizer(folder) from wrong
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        return str(found.backend_tokenizer.to_str())
    except Exception as wrong:  # whatever transformers stumbles over, the folder has no tokenizer we can use
        raise ModelUnsupported(f"{folder} has no tokenizer that can be read.", hint="Add tokenizer.json.") from wrong


def _build(written: str, folder: Path) -> tokenizers.Tokenizer:
    try:
        return _forgetful(tokenizers.Tokenizer.from_str(written))
    except Exception as wrong:  # the package raises bare Exception
        raise _not_a_tokenizer(folder) from wrong


def _not_a_tokenizer(folder: Path) -> ModelCorrupt:
    message = f"{folder / 'tokenizer.json'} is not a tokenizer."
    return ModelCorrupt(message, hint="Fetch or convert the model again.")


def _without_added(
    written: str, described: _Described, names: Mapping[str, int], whole: tokenizers.Tokenizer
) -> tokenizers.Tokenizer:
    kept = [token for token in described.added_tokens if token["content"] not in names]
    if not kept:  # then only the words and their merges are left, which both may have
        plain = tokenizers.Tokenizer(whole.model)
        plain.normalizer, plain.pre_tokenizer, plain.decoder = whole.normalizer, whole.pre_tokenizer, whole.decoder
        return _forgetful(plain)
    # The post-processor may name tokens that are gone; nothing here adds any.
    less = json.loads(written) | {"added_tokens": kept, "post_processor": None, "truncation": None, "padding": None}
    return _forgetful(tokenizers.Tokenizer.from_str(json.dumps(less)))


def _forgetful(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The package's models keep words they split, and clearing leaves some (tokenizers 0.23): so none is kept."""
    if (resize := getattr(backend.model, "_resize_cache", None)) is not None:
        resize(0)
    return backend


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as wrong:
        raise ModelCorrupt(f"{path} is not JSON.", hint="Fetch or convert the model again.") from wrong
    return content if isinstance(content, dict) else {}


def _token_name(value: object) -> str:
    """Publishers write a token as its name or as a description that holds the name."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""
