"""A GGUF file's tokenizer as Hugging Face's files, by llama.cpp's rules (`llama_vocab::impl::load`, `tokenize`)."""

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer, get_gguf_tokenizer

_CONTROL, _USER_DEFINED = 3, 4

# Vocabularies learned on single digits; transformers' GGUF reader leaves that out and would split "a  1" wrongly.
_DIGIT_BY_DIGIT = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}

# llama.cpp's LLAMA_VOCAB_PRE_TYPE_LLAMA3.
_LLAMA3 = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"}
_BEGIN_BY_DEFAULT = {*_LLAMA3, "tekken", "chameleon"}
_WHOLE_WORDS_FIRST = {*_LLAMA3, "tekken", "youtu", "minicpm5"}

# llama.cpp gives a SentencePiece vocabulary these ids where the file names none.
_SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}

_ENDS = {
    *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),  # Llama 3
    "<|im_end|>",  # Qwen and other ChatML models
    *("<end_of_turn>", "<eos>", "<turn|>"),  # Gemma
    *("</s>", "<|end|>"),  # Llama 2 and Mistral; Phi
    *("<EOT>", "[EOT]", "<end_of_utterance>", "<｜end▁of▁sentence｜>"),
}
_HARMONY = {"<|return|>", "<|call|>"}


class GgufTokenizer:
    """`field` gives a value of the file's header by its key, None where it is missing."""

    def __init__(self, path: Path, architecture: str, field: Callable[[str], Any]) -> None:
        self._architecture = architecture
        self._field = field
        self._kind: str = field("tokenizer.ggml.model")
        self._split = field("tokenizer.ggml.pre")
        _, self._known, self._settings = get_gguf_tokenizer(str(path))
        self._names: list[str] = self._known["tokens"]

    def write(self, folder: Path, longest: int | None) -> None:
        """`longest` is the model's context."""
        built, _ = convert_gguf_tokenizer(self._architecture, dict(self._known))
        described = json.loads(built.to_str())
        self._correct_tokens(described)
        self._correct_splitting(described)
        self._add_begin_and_end(described)
        tokenizers.Tokenizer.from_str(json.dumps(described)).save(str(folder / "tokenizer.json"))
        settings = {key: value for key, value in self._settings.items() if value is not None}
        for kind, key in {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token"}.items():
            if key not in settings and (token := self._id(kind)) is not None and token in self._special:
                settings[key] = self._names[token]
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        settings["clean_up_tokenization_spaces"] = False
        settings["model_max_length"] = longest
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (folder / "tokenizer_config.json").write_text(text)

    @cached_property
    def ends(self) -> list[int]:
        """The file's ids, then llama.cpp's (`is_eog`). <|endoftext|> only where it is begin or padding too (Qwen)."""
        said = [self._id(kind) for kind in ("eos", "eot", "eom")]
        known = _ENDS - {"<|end|>"} if set(self._names) >= _HARMONY else _ENDS
        found = [at for at, name in enumerate(self._names) if name in known and at in self._special]
        doubled = [self._id(kind) for kind in ("bos", "padding")]
        found += [at for at in doubled if at is not None and self._names[at] == "<|endoftext|>"]
        return list(dict.fromkeys(token for token in [*said, *found] if token is not None))

    @property
    def _spaced(self) -> bool:
        """Whether words get a space before them at the start and after special tokens (not so for Gemma)."""
        said = self._field("tokenizer.ggml.add_space_prefix")
        return not self._architecture.startswith("gemma") if said is None else bool(said)

    def _id(self, kind: str) -> int | None:
        default = _SENTENCEPIECE_IDS.get(kind) if self._kind == "llama" else None
        said = self._field(f"tokenizer.ggml.{kind}_token_id")
        token = default if said is None else int(said)
        if token is not None and token >= len(self._names):
            if said is not None:
                raise ValueError(f"the {kind} token is not in the vocabulary")
            return None
        return token

    @cached_property
    def _named(self) -> set[int]:
        keys = [f"tokenizer.ggml.{kind}_token_id" for kind in ("bos", "eos", "eot", "eom")]
        return {int(token) for key in keys if (token := self._field(key)) is not None}

    @cached_property
    def _types(self) -> list[int]:
        return list(self._field("tokenizer.ggml.token_type") or [])

    @cached_property
    def _special(self) -> set[int]:
        """Tokens whose names in a text are those tokens: what the file marks, and what it names."""
        return self._named | {at for at, kind in enumerate(self._types) if kind in (_CONTROL, _USER_DEFINED)}

    def _correct_tokens(self, described: dict[str, Any]) -> None:
        """Remove tokens behind the model's last row; mark begin, end and control tokens (<｜User｜>) as special."""
        added = {token["id"]: token for token in described["added_tokens"] if token["id"] < len(self._names)}
        vocabulary = described["model"]["vocab"]
        spelled = {token: name for name, token in vocabulary.items()}
        control = [at for at, kind in enumerate(self._types) if kind == _CONTROL]
        # Some files mark single words as control tokens by mistake: not in brackets.
        bracketed = {at for at in control if self._names[at].startswith("<") and self._names[at].endswith(">")}
        for token in sorted((self._named | bracketed) - added.keys()):
            name = self._names[token]
            vocabulary[name] = vocabulary.pop(spelled[token])
            added[token] = {"id": token, "content": name, "single_word": False, "lstrip": False, "rstrip": False}
            added[token] |= {"normalized": False, "special": True}
        for token in self._named:
            added[token]["special"] = True
        if self._architecture == "phi3" and self._kind == "llama":
            # Phi-3's structural tokens swallow the newline its template writes after them.
            kept = {"<unk>", "<s>", "<|endoftext|>"}
            for entry in added.values():
                entry["rstrip"] = entry["content"] not in kept
        described["added_tokens"] = [added[token] for token in sorted(added)]

    def _correct_splitting(self, described: dict[str, Any]) -> None:
        if self._split in _DIGIT_BY_DIGIT:
            digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
            words = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
            described["pre_tokenizer"] = json.loads(tokenizers.pre_tokenizers.Sequence([digits, words]).__getstate__())
        if self._kind == "gpt2" and self._split in _WHOLE_WORDS_FIRST:
            described["model"]["ignore_merges"] = True
        if self._kind == "llama":
            spaces = [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
            before = [{"type": "Prepend", "prepend": "▁"}] if self._spaced else []
            described["normalizer"] = {"type": "Sequence", "normalizers": [*before, *spaces]}
            described["pre_tokenizer"] = None
            steps = [step for step in described["decoder"]["decoders"] if step["type"] != "Strip"]
            strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if self._spaced else []
            described["decoder"]["decoders"] = [*steps, *strip]

    def _add_begin_and_end(self, described: dict[str, Any]) -> None:
        # As the file says, else by llama.cpp's defaults. Gemma 4 always begins: files of it say otherwise by mistake.
        begins = self._field("tokenizer.ggml.add_bos_token")
        if begins is None or self._kind == "gemma4":
            begins = self._kind in ("llama", "gemma4") or self._split in _BEGIN_BY_DEFAULT
        begin = self._wanted("bos", bool(begins))
        end = self._wanted("eos", bool(self._field("tokenizer.ggml.add_eos_token")))
        if begin is None and end is None:
            return
        described["post_processor"] = {
            "type": "TemplateProcessing",
            "single": self._around("A", 0, begin, end),
            "pair": self._around("A", 0, begin, end) + self._around("B", 1, begin, end),
            "special_tokens": {
                self._names[token]: {"id": self._names[token], "ids": [token], "tokens": [self._names[token]]}
                for token in (begin, end)
                if token is not None
            },
        }

    def _wanted(self, kind: str, wanted: bool) -> int | None:
        token = self._id(kind) if wanted else None
        if wanted and token is None and self._field(f"tokenizer.ggml.add_{kind}_token"):
            raise ValueError(f"the file adds a {kind} token and names none")
        return token

    def _around(self, text: str, which: int, begin: int | None, end: int | None) -> list[dict[str, Any]]:
        before, after = (
            [] if token is None else [{"SpecialToken": {"id": self._names[token], "type_id": which}}]
            for token in (begin, end)
        )
        return [*before, {"Sequence": {"id": text, "type_id": which}}, *after]
