"""Folders for --detector-model, a few tens of kilobytes each: a BERT with random weights, or one that flags a word."""

from __future__ import annotations

import json
from pathlib import Path
from string import ascii_letters, digits

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForTokenClassification

WORD = "heron"
LABELS = ("O", "B-PER", "I-PER", "B-ADDRESS")
HIDDEN, POSITIONS = 16, 66


def make_tokenizer() -> Tokenizer:
    letters = [*ascii_letters, *digits, *".,:;?!@-'"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", WORD, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def make_classifier(folder: Path, *, flags: bool = False, seed: int = 0, labels: tuple[str, ...] = LABELS) -> Path:
    """With `flags`: WORD is a person's name and all else is not, each token by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=POSITIONS,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
        architectures=["BertForTokenClassification"],
    )
    model = BertForTokenClassification(config)
    if flags:
        _flag(model, tokenizer.token_to_id(WORD), labels.index("B-PER"))
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return folder


@torch.no_grad()
def _flag(model: BertForTokenClassification, word: int, label: int) -> None:
    """Layers add nothing to their input; the word lies in dimension 0, all others in dimension 1."""
    for name, parameter in model.named_parameters():
        if "LayerNorm" not in name:
            parameter.zero_()
    table = model.get_input_embeddings().weight
    table[:, 1] = 1.0
    table[word, 1], table[word, 0] = 0.0, 1.0
    model.classifier.weight[label, 0] = 4.0
    model.classifier.bias[0] = 6.0


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    kept = {name: value for name, value in {**config, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
