"""An operator's own model as tier 2: every character is read or private, whatever the text's length; a folder that is
of no use is refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import BertForTokenClassification

from cloister.detection import token_classifier as module
from cloister.detection.classifier_folder import MAX_BYTES, digest_of_folder
from cloister.detection.pipeline import even_blocks, pipeline_of
from cloister.detection.tagger import CATEGORIES, Tags
from cloister.detection.token_classifier import TokenClassifier
from cloister.errors import SetupError
from cloister.messages.controller_detector import Category, Label
from tests.detection.made_classifier import WORD, change_config, make_classifier


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classifier(tmp_path_factory.mktemp("flags"), flags=True)


@pytest.fixture(scope="module")
def flags(folder: Path) -> TokenClassifier:
    return TokenClassifier(folder, digest_of_folder(folder))


def found(text: str, tags: Tags) -> list[str]:
    return [text[tags.starts[at] : tags.ends[at]] for at in np.flatnonzero(tags.scores >= 0.5)]


def test_scores_are_what_the_model_says_of_each_token(tmp_path: Path) -> None:
    folder = make_classifier(tmp_path, seed=5)
    tags = TokenClassifier(folder).tag("A b, c.")
    encoded = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("A b, c.")
    model = BertForTokenClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = 1 - model(torch.tensor([encoded.ids])).logits[0].softmax(1)[1:-1, 0]
    assert tags.scores == pytest.approx(expected.numpy(), abs=1e-5)
    assert list(tags.starts) == [0, 2, 3, 5, 6] and 0.2 < tags.scores.min() < tags.scores.max() < 1


def test_a_word_has_its_highest_tokens_score_and_a_category(flags: TokenClassifier) -> None:
    text = f"a grey {WORD}-like bird, {WORD}s"
    tags = flags.tag(text)
    assert found(text, tags) == [WORD, f"{WORD}s"], "of the plural only the first token is flagged"
    assert CATEGORIES[tags.classes[2]] is Category.NAME
    assert not len(flags.tag(" \n").scores) and not len(flags.tag("").scores)


@pytest.mark.parametrize("before", [0, 40, 58, 61, 64, 130, 2040, 2044, 2049, 6000])
def test_a_long_text_is_read_to_its_end(flags: TokenClassifier, before: int) -> None:
    text = "x " * (before // 2) + f"{WORD} " + "y " * 1200 + WORD
    assert found(text, flags.tag(text)) == [WORD, WORD]


@pytest.mark.parametrize("text", ["дом", "私", "an 𝐀 b", "z" * 120])
def test_what_the_tokenizer_does_not_know_is_private(flags: TokenClassifier, text: str) -> None:
    assert flags.tag(text).scores.max() == 1
    assert flags.tag("→ … ❤").scores.max() == 0, "signs that it does not know are not"


def test_what_there_is_no_time_for_is_private(flags: TokenClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(module, "monotonic", lambda: float(next(clock)))
    tags = flags.tag("x " * 200)
    unread = np.flatnonzero(tags.scores == 1)
    assert 40 < unread[0] < 120 and list(unread) == list(range(unread[0], 200))


def test_numbers_that_are_none_are_private(tmp_path: Path) -> None:
    weights = load_file(make_classifier(tmp_path, flags=True) / "model.safetensors")
    weights["classifier.bias"][1] = torch.nan
    save_file(weights, tmp_path / "model.safetensors")
    assert TokenClassifier(tmp_path).tag("a b").scores.min() == 1


def test_the_pipeline_has_it_in_the_taggers_place_beside_the_rules(folder: Path) -> None:
    pipeline = pipeline_of("", folder)
    text = (
        "Margaret Brown met me at home. Well then, see you. We sort lists"
        + f"a \u200b grey {WORD} "
        + "We sort lists. " * 6
    )
    examined = pipeline.examine(text, even_blocks(text, 64))
    assert [verdict.label for verdict in examined.verdicts] == [Label.PUBLIC, Label.PRIVATE, Label.PUBLIC]
    [finding] = [each for each in examined.findings if each.tier == 2]
    assert text[finding.start : finding.end] == WORD
    mail = pipeline.examine("a@example.org", [13]).verdicts[0]
    assert (mail.label, mail.tier) == (Label.PRIVATE, 1)


def test_the_tokenizer_keeps_no_words(flags: TokenClassifier) -> None:
    assert hasattr(flags._tokenizer.model, "_resize_cache") or "WordPiece" in type(flags._tokenizer.model).__name__


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return spoil


BEFORE_LOADING = {
    **{f"it has no {name}": _without(name) for name in MAX_BYTES},
    "does not name the labels": lambda folder: change_config(folder, id2label={"1": "O"}),
    'one "O"': lambda folder: change_config(folder, id2label={"0": "A", "1": "B"}),
    "no architecture": lambda folder: change_config(folder, architectures=["BertModel"]),
}
WHEN_LOADED = {
    "lacks classifier.bias": _weights(lambda weights: weights.pop("classifier.bias")),
    "alone cannot load it": _weights(lambda weights: weights.update({"classifier.bias": torch.zeros(7)})),
    r"cannot load it \(ValueError": lambda folder: change_config(folder, model_type="nonsense"),
    "is not a tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{}"),
    "cannot load it": lambda folder: (folder / "model.safetensors").write_bytes(b"pickle"),
    "more tokens than the model": _weights(
        lambda weights: weights.update(
            {"bert.embeddings.word_embeddings.weight": weights["bert.embeddings.word_embeddings.weight"][:9].clone()}
        )
    ),
}


@pytest.mark.parametrize("why", BEFORE_LOADING)
def test_a_bad_folder_is_refused_before_anything_is_loaded(why: str, tmp_path: Path) -> None:
    BEFORE_LOADING[why](make_classifier(tmp_path))
    with pytest.raises(SetupError, match=why) as refused:
        digest_of_folder(tmp_path)
    assert "--detector-model" in (refused.value.hint or "")


@pytest.mark.parametrize("why", WHEN_LOADED)
def test_a_folder_that_cannot_be_run_is_refused(why: str, tmp_path: Path) -> None:
    make_classifier(tmp_path)
    WHEN_LOADED[why](tmp_path)
    if why.startswith("more"):
        change_config(tmp_path, vocab_size=9)
    with pytest.raises(SetupError, match=why) as refused:
        TokenClassifier(tmp_path)
    assert "--detector-model" in (refused.value.hint or "")


@pytest.mark.parametrize("name", MAX_BYTES)
def test_what_is_loaded_is_what_was_attested(name: str, tmp_path: Path) -> None:
    digest = digest_of_folder(make_classifier(tmp_path))
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data + b" ")
    assert name == "model.safetensors" or digest_of_folder(tmp_path) != digest
    with pytest.raises(SetupError, match="changed"):
        TokenClassifier(tmp_path, digest)
