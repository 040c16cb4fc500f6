"""Tier 2 by an operator's own model (--detector-model), run by torch on one core in the tagger's place. A token's score
is 1 − P("O"). What the model has not read counts as private: what its tokenizer does not know, and what is left after
`SECONDS`. No code of the folder runs."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray

from cloister.detection.classifier_folder import read_config, read_files, refused
from cloister.detection.tagger import CATEGORIES, Calibration, Tags
from cloister.detection.words import word_bounds
from cloister.messages.controller_detector import Category

SECONDS = 4.0  # for one text; a detector that is silent for 10 s is ended
_WINDOW = 512  # tokens that the model sees at once, at most; a quarter of them overlaps with the next window's
_PIECE, _OVERLAP = 2048, 256  # characters that are tokenised at once, and of their neighbours
_PARTS = {"PER": "NAME", "NAME": "NAME", "LOC": "LOCATION", "ADDR": "LOCATION", "ORG": "ORGANISATION", "DATE": "TIME"}


class TokenClassifier:
    folds = False  # such models learned from texts as they are
    calibration = Calibration(0.1, 0.5)  # not measured on this model: `cloister bench detection --detector-model`

    def __init__(self, folder: Path, digest: bytes | None = None) -> None:
        """SetupError if it is of no use, or not of this digest."""
        files = read_files(folder, digest)
        config, labels = read_config(folder, files["config.json"])
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
        except Exception:  # the package raises bare Exception
            raise refused(folder, "tokenizer.json is not a tokenizer") from None
        self._model = _loaded(folder, config, files["model.safetensors"])
        if max(self._tokenizer.get_vocab().values()) >= self._model.get_input_embeddings().num_embeddings:
            raise refused(folder, "tokenizer.json has more tokens than the model")
        self._outside = labels.index("O")
        self._kinds = [_kind_of(label) for label in labels]
        self._unknown = self._tokenizer.token_to_id(getattr(self._tokenizer.model, "unk_token", None) or "")
        positions = int(config.get("max_position_embeddings") or 0)
        window = min(_WINDOW, positions - 2) if positions > 0 else _WINDOW  # RoBERTa's begin behind the padding's
        self._tokenizer.no_padding()
        if (resize := getattr(self._tokenizer.model, "_resize_cache", None)) is not None:
            resize(0)  # it would keep words that it split, as in prompts.tokenizer
        try:
            self._tokenizer.enable_truncation(window, stride=window // 4)
            self.tag("Rehearsal " * (_PIECE // 8))
        except Exception as wrong:  # whatever torch stumbles over, it would do so again
            raise refused(folder, f"it cannot be run ({type(wrong).__name__})") from None

    def tag(self, text: str) -> Tags:
        until = monotonic() + SECONDS
        best = np.full(len(text) + 1, -1, dtype=np.int64)  # of each character: the bits of its score, then its class
        for start in range(0, len(text), _PIECE):
            first = max(0, start - _OVERLAP)
            whole = self._tokenizer.encode(text[first : start + _PIECE + _OVERLAP]) if monotonic() < until else None
            for window in (whole, *whole.overflowing) if whole else ():
                if monotonic() < until:
                    self._read(window, best[first:])
        return _by_words(text, best)

    @torch.inference_mode()
    def _read(self, window: Any, best: NDArray[np.int64]) -> None:
        """Where windows overlap the higher score counts."""
        ids, mask = torch.tensor([window.ids]), torch.tensor([window.attention_mask])
        logits = self._model(input_ids=ids, attention_mask=mask).logits[0]
        outside = logits.softmax(1)[:, self._outside]
        logits[:, self._outside] = -torch.inf
        # The bits of floats from 0 on are in order.
        scores = (1 - outside).clamp(0, 1).nan_to_num(1.0).numpy().view(np.int32).tolist()
        for token, (start, end), added, score, label in zip(
            window.ids, window.offsets, window.special_tokens_mask, scores, logits.argmax(1).tolist(), strict=True
        ):
            if not added and token != self._unknown:
                np.maximum(best[start:end], score << 8 | self._kinds[label], out=best[start:end])


def _loaded(folder: Path, config: dict[str, Any], weights: bytes) -> Any:
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # a process with threads cannot leave the host
    from safetensors.torch import load
    from transformers import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, AutoConfig
    from transformers.utils import logging

    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # it compiles, which the seal forbids
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        known = AutoConfig.for_model(**config)
        made = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING[type(known)]
        model, info = made.from_pretrained(
            None, config=known, state_dict=load(weights), dtype=torch.float32, output_loading_info=True
        )
    except Exception as wrong:  # transformers and safetensors raise a dozen unrelated types
        raise refused(folder, f"transformers alone cannot load it ({type(wrong).__name__})") from None
    if info["missing_keys"]:  # they would be random
        raise refused(folder, f"model.safetensors lacks {min(info['missing_keys'])}")
    return model.eval().requires_grad_(False)


def _kind_of(label: str) -> int:
    """Only shown: all that is not "O" is private."""
    return CATEGORIES.index(Category[next((name for part, name in _PARTS.items() if part in label.upper()), "TRAIT")])


def _by_words(text: str, best: NDArray[np.int64]) -> Tags:
    """A word has the score of its highest character. Signs that were not read are no secret."""
    starts, ends = word_bounds(text)
    highest = np.maximum.reduceat(best, np.stack((starts, ends), axis=1).ravel())[::2]
    scores = (np.maximum(highest, 0) >> 8).astype(np.int32).view(np.float32)
    for word in np.flatnonzero(highest < 0).tolist():
        scores[word] = any(each.isalnum() for each in text[starts[word] : ends[word]])
    return Tags(starts, ends, scores, np.where(highest < 0, CATEGORIES.index(Category.SECRET), highest & 255))
