"""A small model's folder with a tokenizer of its own: weights random, one token a byte."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from cloister.models.source import ModelFolder, open_folder
from tests.models.architectures import CONFIGS, save_random_model

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def save_model(folder: Path, architecture: str = "llama", layers: int | None = None) -> ModelFolder:
    config = deepcopy(CONFIGS[architecture])
    config.num_hidden_layers = layers or config.num_hidden_layers
    save_random_model(folder, config)
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({word: place for place, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return open_folder(folder, "tiny")
