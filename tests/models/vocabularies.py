"""Tiny vocabularies as llama.cpp's converters write those of five families, and what each family's header says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import gguf
from tokenizers import pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["Ġ t", "h e", "Ġt he", "h i"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
    "{{ m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) }}"
    "{{ '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)


@dataclass(frozen=True)
class Vocabulary:
    """What a header says of a tokenizer. `keys` are those below tokenizer.ggml, begin and end tokens by their names."""

    model: str
    pre: str | None
    tokens: list[str]
    types: list[int]
    keys: dict[str, Any]
    template: str
    merges: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def id(self, name: str) -> int:
        return self.tokens.index(name)

    def saying(self, **keys: Any) -> Vocabulary:
        """The same file with other words in its header; None takes one out."""
        return replace(self, keys={key: value for key, value in {**self.keys, **keys}.items() if value is not None})

    def write(self, writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model(self.model)
        if self.pre:
            writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.merges:
            writer.add_token_merges(self.merges)
        if self.scores:
            writer.add_token_scores(self.scores)
        for key, value in self.keys.items():
            if isinstance(value, bool):
                writer.add_bool(f"tokenizer.ggml.{key}", value)
            else:
                writer.add_uint32(f"tokenizer.ggml.{key}", self.id(value) if isinstance(value, str) else value)
        if self.template:
            writer.add_chat_template(self.template)


def byte_level(pre: str, special: list[str], template: str, **keys: Any) -> Vocabulary:
    """Words first, special tokens last, as Llama 3 and Qwen have them. No merge makes "hello": see `ignore_merges`."""
    words = [*ALPHABET, *(merge.replace(" ", "") for merge in MERGES), "hello"]
    types = [NORMAL] * len(words) + [CONTROL] * len(special)
    return Vocabulary("gpt2", pre, words + special, types, keys, template, merges=MERGES)


def sentencepiece(special: list[str], template: str, *more: str, **keys: Any) -> Vocabulary:
    """Special tokens first, then bytes, then pieces, the best first."""
    pieces = [*"▁abcdehilmnorstu[]INST/<>|", "▁a", "hi", "▁hi", "us", "er", "user", "▁[", "▁▁", *more]
    types = [UNKNOWN if name == "<unk>" else CONTROL for name in special] + [BYTE] * 256 + [NORMAL] * len(pieces)
    scores = [0.0] * (len(special) + 256) + [-float(place) for place in range(len(pieces))]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return Vocabulary("llama", "default", tokens, types, keys, template, scores=scores)


LLAMA3 = byte_level(
    "llama-bpe",
    ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"],
    LLAMA3_TEMPLATE,
    bos_token_id="<|begin_of_text|>",
    eos_token_id="<|eot_id|>",
    add_bos_token=True,
)
QWEN = byte_level(
    "qwen2",
    ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    CHATML,
    bos_token_id="<|endoftext|>",
    eos_token_id="<|im_end|>",
    padding_token_id="<|endoftext|>",
    add_bos_token=False,
)
MISTRAL = sentencepiece(
    ["<unk>", "<s>", "</s>"],
    MISTRAL_TEMPLATE,
    bos_token_id="<s>",
    eos_token_id="</s>",
    unknown_token_id="<unk>",
    add_bos_token=True,
    add_eos_token=False,
)
GEMMA = sentencepiece(
    ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"],
    GEMMA_TEMPLATE,
    "\n",
    bos_token_id="<bos>",
    eos_token_id="<eos>",
    unknown_token_id="<unk>",
    padding_token_id="<pad>",
    add_bos_token=True,
    add_eos_token=False,
    add_space_prefix=False,
)
PHI = sentencepiece(
    ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"],
    PHI_TEMPLATE,
    bos_token_id="<s>",
    eos_token_id="<|endoftext|>",
    unknown_token_id="<unk>",
    padding_token_id="<|endoftext|>",
    add_bos_token=True,
    add_eos_token=False,
)
FAMILIES = {"llama": LLAMA3, "qwen2": QWEN, "mistral": MISTRAL, "gemma3": GEMMA, "phi3": PHI}
