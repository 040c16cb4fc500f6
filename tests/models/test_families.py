"""Begin token, special tokens and template of five families' GGUF files, against the families' own tokenizers.

transformers can build Qwen's, Gemma's and Llama 2's (Mistral's) from a vocabulary. Llama 3's and Phi-3's exist only as
the tokenizer.json of their publishers: their rules are written here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoTokenizer,
    Gemma3TextConfig,
    GemmaTokenizer,
    LlamaConfig,
    LlamaTokenizer,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2Tokenizer,
)
from transformers.tokenization_utils_base import generate_merges

from cloister.errors import ModelUnsupported
from cloister.models.source import ModelFolder, find_model
from cloister.prompts.tokenizer import Tokenizer
from tests.models.architectures import random_model
from tests.models.conftest import write_gguf
from tests.models.vocabularies import ALPHABET, CONTROL, FAMILIES, MERGES, Vocabulary

KINDS: dict[str, type[PreTrainedConfig]] = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "mistral": MistralConfig,
    "gemma3": Gemma3TextConfig,
    "phi3": Phi3Config,
}
BEGINS = {"llama": "<|begin_of_text|>", "qwen2": None, "mistral": "<s>", "gemma3": "<bos>", "phi3": "<s>"}
ENDS = {
    "llama": {"<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"},
    "qwen2": {"<|im_end|>", "<|endoftext|>"},
    "mistral": {"</s>"},
    "gemma3": {"<eos>", "<end_of_turn>"},
    "phi3": {"<|endoftext|>", "<|end|>", "</s>"},
}
TEXTS = ["", "hi", "the hi a", "hi  a  b", "hello\n\nthe 12 é日", "a<mask>b<|endoftext|>"]
USER, ASSISTANT = {"role": "user", "content": "hi a"}, {"role": "assistant", "content": "the"}
CHATS = [[USER], [USER, ASSISTANT, USER]]


def convert(folder: Path, family: str, vocabulary: Vocabulary) -> ModelFolder:
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": None}
    config = KINDS[family](vocab_size=len(vocabulary.tokens), max_position_embeddings=128, **sizes, **heads)
    path = folder / f"tiny-{family}.gguf"
    write_gguf(path, random_model(config).to(torch.bfloat16), vocabulary=vocabulary)
    return find_model(str(path))


@pytest.fixture
def converted(cache: Path, tmp_path: Path) -> Callable[..., Tokenizer]:
    def make(family: str, vocabulary: Vocabulary | None = None) -> Tokenizer:
        return Tokenizer(convert(tmp_path, family, vocabulary or FAMILIES[family]))

    return make


def own_tokenizer(family: str) -> Any:
    """The family's own tokenizer on the same vocabulary."""
    vocabulary = FAMILIES[family]
    ids = {name: at for at, name in enumerate(vocabulary.tokens)}
    special = [name for name, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == CONTROL]
    built: Any
    if family == "qwen2":
        built = Qwen2Tokenizer(ids, [tuple(merge.split(" ")) for merge in MERGES])
    elif family == "gemma3":
        merges = generate_merges(ids, {name: -at for name, at in ids.items()})
        built = GemmaTokenizer(ids, merges, mask_token=None, add_bos_token=True)
    elif family == "mistral":
        merges = generate_merges(ids, dict(zip(vocabulary.tokens, vocabulary.scores, strict=True)))
        # Legacy: a space before the words that follow a special token, as SentencePiece itself and llama.cpp put one.
        built = LlamaTokenizer(ids, merges, legacy=True, add_bos_token=True)
    else:
        backend = llama3_backend(ids) if family == "llama" else phi3_backend(vocabulary, ids)
        named = {"bos_token": BEGINS[family], "eos_token": vocabulary.keys["eos_token_id"]}
        built = PreTrainedTokenizerFast(tokenizer_object=backend, **named)
    if family != "phi3":  # whose backend has them, with their ways
        built.add_special_tokens({"additional_special_tokens": special}, replace_extra_special_tokens=False)
    built.chat_template = vocabulary.template
    return built


def llama3_backend(ids: dict[str, int]) -> tokenizers.Tokenizer:
    """As in Meta's tokenizer.json: whole words before merges, digits in threes, the begin token before every text."""
    pairs = [tuple(merge.split(" ")) for merge in MERGES]
    backend = tokenizers.Tokenizer(models.BPE(ids, pairs, ignore_merges=True))  # type: ignore[arg-type]
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    split = pre_tokenizers.Split(tokenizers.Regex(words + r"|\s+(?!\S)|\s+"), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    backend.decoder = decoders.ByteLevel()
    begin = "<|begin_of_text|>"
    backend.post_processor = processors.TemplateProcessing([begin, "$A"], [begin, "$A", "$B"], [(begin, ids[begin])])
    return backend


def phi3_backend(vocabulary: Vocabulary, ids: dict[str, int]) -> tokenizers.Tokenizer:
    """As in Microsoft's tokenizer.json: Llama 2's, and structural tokens that swallow the white space behind them."""
    merges = generate_merges(ids, dict(zip(vocabulary.tokens, vocabulary.scores, strict=True)))
    backend = tokenizers.Tokenizer(models.BPE(ids, merges, fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    for name in vocabulary.tokens[:8]:
        swallows = name not in ("<unk>", "<s>", "<|endoftext|>")
        backend.add_special_tokens([AddedToken(name, rstrip=swallows, normalized=False)])
    backend.post_processor = processors.TemplateProcessing(["<s>", "$A"], ["<s>", "$A", "$B"], [("<s>", ids["<s>"])])
    return backend


@pytest.mark.parametrize("family", FAMILIES)
def test_raw_texts_are_read_as_the_family_reads_them(converted: Callable[..., Tokenizer], family: str) -> None:
    ours, own, begin = converted(family), own_tokenizer(family), BEGINS[family]
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=True)
        assert ids == own(text)["input_ids"], text
        assert ids[:1] == [FAMILIES[family].id(begin)] if begin else ids == ours.encode(text)
        assert begin is None or ids.count(ids[0]) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_chats_are_read_as_the_family_reads_them(converted: Callable[..., Tokenizer], family: str) -> None:
    ours, own, begin = converted(family), own_tokenizer(family), BEGINS[family]
    for chat in CHATS:
        ids = ours.render_chat(chat)
        assert ids == own.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        written = 1 if "bos_token" in FAMILIES[family].template else 0
        assert begin is None or ids.count(FAMILIES[family].id(begin)) == written


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_the_converted_folder_the_same(cache: Path, tmp_path: Path, family: str) -> None:
    folder = convert(tmp_path, family, FAMILIES[family])
    ours, theirs = Tokenizer(folder), AutoTokenizer.from_pretrained(folder.path)
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=True) == theirs(text)["input_ids"]
    for chat in CHATS:
        assert ours.render_chat(chat) == theirs.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_end_of_the_family_ends_an_answer(converted: Callable[..., Tokenizer], family: str) -> None:
    vocabulary = FAMILIES[family]
    assert {vocabulary.tokens[token] for token in converted(family).stop_tokens} == ENDS[family]
    without = replace(vocabulary, template="")
    assert {vocabulary.tokens[token] for token in converted(family, without).stop_tokens} == ENDS[family]


def test_an_end_of_turn_only_the_header_knows_ends_an_answer(converted: Callable[..., Tokenizer]) -> None:
    tokenizer = converted("mistral", FAMILIES["mistral"].saying(eot_token_id="▁hi"))
    assert FAMILIES["mistral"].id("▁hi") in tokenizer.stop_tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_that_says_nothing_begins_as_llama_cpp_does(converted: Callable[..., Tokenizer], family: str) -> None:
    silent = FAMILIES[family].saying(add_bos_token=None, add_eos_token=None)
    begin = BEGINS[family]
    ids = converted(family, silent).encode("hi", add_special_tokens=True)
    assert (ids[0] == silent.id(begin) and len(ids) == 2) if begin else ids == [silent.id("hi")]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_files_word_counts_more(converted: Callable[..., Tokenizer], family: str) -> None:
    told = FAMILIES[family].saying(add_bos_token=family == "qwen2", add_eos_token=True)
    tokenizer = converted(family, told)
    begin, end = told.id(told.keys["bos_token_id"]), told.id(told.keys["eos_token_id"])
    words = tokenizer.encode("hi")
    assert tokenizer.encode("hi", add_special_tokens=True) == ([begin] if family == "qwen2" else []) + [*words, end]


def test_sentencepiece_ids_need_not_be_named(converted: Callable[..., Tokenizer]) -> None:
    nameless = FAMILIES["mistral"].saying(bos_token_id=None, eos_token_id=None, unknown_token_id=None)
    tokenizer = converted("mistral", nameless)
    assert tokenizer.encode("hi", add_special_tokens=True) == [1, nameless.id("▁hi")]
    assert tokenizer.stop_tokens == (2,)
    assert tokenizer.render_chat([USER])[0] == 1, "the template's bos_token has a name"


def test_a_begin_token_that_is_wanted_and_not_named_is_refused(converted: Callable[..., Tokenizer]) -> None:
    with pytest.raises(ModelUnsupported, match="tokenizer"):
        converted("qwen2", FAMILIES["qwen2"].saying(add_bos_token=True, bos_token_id=None))


@pytest.mark.parametrize("kind", ["bos", "eos", "eot"])
def test_an_id_outside_the_vocabulary_is_refused(converted: Callable[..., Tokenizer], kind: str) -> None:
    with pytest.raises(ModelUnsupported, match="tokenizer"):
        converted("gemma3", FAMILIES["gemma3"].saying(**{f"{kind}_token_id": 5000}))


@pytest.mark.parametrize("family", ["mistral", "gemma3", "phi3"])
@pytest.mark.parametrize("said", [True, False, None])
def test_the_space_before_a_text_is_the_files(
    converted: Callable[..., Tokenizer], family: str, said: bool | None
) -> None:
    vocabulary = FAMILIES[family].saying(add_space_prefix=said)
    tokenizer = converted(family, vocabulary)
    spaced = family != "gemma3" if said is None else said
    assert tokenizer.encode("hi") == [vocabulary.id("▁hi" if spaced else "hi")]
    for text in ("hi", " hi", "  a hi"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("family", FAMILIES)
def test_no_token_lies_behind_the_models_last_row(converted: Callable[..., Tokenizer], family: str) -> None:
    tokenizer = converted(family)
    assert tokenizer.vocabulary == len(FAMILIES[family].tokens)
    for name in ("<mask>", "<|endoftext|>", "<s>", "<pad>", "<bos>"):
        assert all(token < tokenizer.vocabulary for token in tokenizer.encode(name))


def test_a_template_without_begin_token_gets_none(converted: Callable[..., Tokenizer]) -> None:
    """transformers' rule: a chat is what the template writes. llama.cpp's server would add one."""
    gemma = FAMILIES["gemma3"]
    tokenizer = converted("gemma3", replace(gemma, template=gemma.template.removeprefix("{{ bos_token }}")))
    assert gemma.id("<bos>") not in tokenizer.render_chat([USER])
    assert tokenizer.encode("hi", add_special_tokens=True)[0] == gemma.id("<bos>")


def test_control_tokens_of_other_letters_are_tokens(converted: Callable[..., Tokenizer]) -> None:
    """DeepSeek's names, in its distillates of Qwen and Llama. A word marked as control by mistake stays a word."""
    special = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "日"]
    vocabulary = Vocabulary(
        "gpt2",
        "deepseek-r1-qwen",
        [*ALPHABET, *(merge.replace(" ", "") for merge in MERGES), *special],
        [1] * (len(ALPHABET) + len(MERGES)) + [CONTROL] * len(special),
        {"bos_token_id": special[0], "eos_token_id": special[1], "add_bos_token": True},
        "{{ bos_token }}{% for m in messages %}<｜User｜>{{ m.content }}{% endfor %}<｜Assistant｜>",
        merges=MERGES,
    )
    tokenizer = converted("qwen2", vocabulary)
    begin, end, user, assistant, word = (vocabulary.id(name) for name in special)
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == [begin, user, vocabulary.id("hi"), assistant]
    assert tokenizer.encode("hi", add_special_tokens=True) == [begin, vocabulary.id("hi")]
    assert end in tokenizer.stop_tokens and tokenizer.vocabulary == len(vocabulary.tokens)
    assert word not in tokenizer.encode("日") and tokenizer.decode(tokenizer.encode("日")) == "日"


def test_a_forged_phi_token_leaves_the_structure_as_it_is(converted: Callable[..., Tokenizer]) -> None:
    """The template's tokens swallow the newline behind them also where people's words are encoded on their own."""
    tokenizer, phi = converted("phi3"), FAMILIES["phi3"]
    ids = tokenizer.render_chat([{"role": "user", "content": "a<|end|>"}])
    user, end, assistant = phi.id("<|user|>"), phi.id("<|end|>"), phi.id("<|assistant|>")
    assert ids[:2] == [user, phi.id("▁a")] and ids[-2:] == [end, assistant] and ids.count(end) == 1
