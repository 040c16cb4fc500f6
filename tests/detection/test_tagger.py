"""Tier 2: words are cut and hashed the same wherever they stand; the tagger computes what its layers say; the shipped
one knows a name from a noun, and says how sure it is."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.detection import tagger as tagger_module
from cloister.detection.tagger import CATEGORIES, Tagger, shipped_tagger
from cloister.detection.words import BUCKETS, FEATURES, split
from cloister.errors import SetupError
from cloister.messages.controller_detector import Category


def texts_of(text: str) -> list[str]:
    words = split(text)
    return [text[start:end] for start, end in zip(words.starts, words.ends, strict=True)]


def test_words_are_runs_of_letters_or_digits_single_signs_and_single_ideographs() -> None:
    assert texts_of("Hi, Jo's no 1984b: 我是x") == ["Hi", ",", "Jo", "'", "s", "no", "1984", "b", ":", "我", "是", "x"]
    assert texts_of("") == texts_of("  \n ") == []


def test_a_words_features_do_not_depend_on_where_it_stands_but_for_what_is_before_it() -> None:
    alone, later = split("Heron"), split("a grey Heron")
    assert (np.delete(alone.features[0], 7) == np.delete(later.features[2], 7)).all()
    assert set(alone.trigrams) <= set(later.trigrams)
    small = split("heron")
    assert alone.features[0, 0] == small.features[0, 0], "the word itself is in lower case"
    assert alone.features[0, 6] != small.features[0, 6], "its shape is not"
    assert alone.features[0, 8] != small.features[0, 8], "nor the word as it is cased"


@given(st.text(max_size=300))
def test_any_text_is_cut_into_words_that_cover_what_is_not_space(text: str) -> None:
    words = split(text)
    assert "".join(texts_of(text)) == "".join(each for each in text if not each.isspace() and each != "\0")
    assert len(words.first) == len(words.starts) + 1 and words.first[-1] == len(words.trigrams)
    assert ((words.features >= 0) & (words.features < BUCKETS)).all()


def made(seed: int = 0) -> dict[str, np.ndarray]:
    """Two nets of four and six units."""
    draw = np.random.default_rng(seed)
    return {
        "table": draw.integers(-127, 127, (BUCKETS, 8)).astype(np.int8),
        "scale": np.full(8, 0.01, dtype=np.float32),
        "kernel0": draw.normal(size=(2, 20, 6)).astype(np.float16),
        "bias0": draw.normal(size=(2, 6)).astype(np.float16),
        "kernel1": draw.normal(size=(2, 30, 6)).astype(np.float16),
        "bias1": np.ones((2, 6), dtype=np.float16),
        "out": draw.normal(size=(2, 6, len(CATEGORIES))).astype(np.float16),
        "out_bias": np.zeros(len(CATEGORIES), dtype=np.float16),
        "dilations": np.array([1, 2]),
    }


def logits_on_paper(arrays: dict[str, np.ndarray], text: str, net: int, known: int = FEATURES) -> np.ndarray:
    """One net's, which knows so many features, by loops over words."""
    words = split(text)
    table = (arrays["table"].astype(np.float32) * arrays["scale"])[:, 4 * net : 4 * net + 4]
    rows = [
        table[features[:known]].sum(0) + table[words.trigrams[words.first[i] : words.first[i + 1]]].mean(0)
        for i, features in enumerate(words.features)
    ]
    for number, dilation in enumerate((1, 2)):
        kernel, bias = (arrays[f"{name}{number}"][net].astype(np.float32) for name in ("kernel", "bias"))
        zero = np.zeros(len(rows[0]))
        near = [
            np.concatenate([rows[j] if 0 <= (j := i + dilation * (k - 2)) < len(rows) else zero for k in range(5)])
            for i in range(len(rows))
        ]
        following = [np.maximum(each @ kernel + bias, 0) for each in near]
        rows = following if number == 0 else [one + other for one, other in zip(rows, following, strict=True)]
    logits: np.ndarray = np.stack(rows) @ arrays["out"][net].astype(np.float32)
    return logits


def test_the_tagger_computes_its_layers_and_takes_the_mean_of_its_nets() -> None:
    arrays, text = made(), "Ada met Bo in the old town, twice."
    logits = (logits_on_paper(arrays, text, 0) + logits_on_paper(arrays, text, 1)) / 2
    likely = np.exp(logits - logits.max(1, keepdims=True))
    expected = 1 - likely[:, 0] / likely.sum(1)
    assert Tagger(arrays).tag(text).scores == pytest.approx(expected, abs=1e-4)


def test_a_net_that_does_not_know_the_last_feature_is_not_told_it() -> None:
    arrays, text = made() | {"features": np.array([FEATURES, FEATURES - 1])}, "Ada met Bo in the old town, twice."
    logits = (logits_on_paper(arrays, text, 0) + logits_on_paper(arrays, text, 1, FEATURES - 1)) / 2
    likely = np.exp(logits - logits.max(1, keepdims=True))
    assert Tagger(arrays).tag(text).scores == pytest.approx(1 - likely[:, 0] / likely.sum(1), abs=1e-4)


def test_a_long_text_is_tagged_in_pieces_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tagger, text = Tagger(made()), "Ada met Bo in the old town, twice. " * 60
    whole = tagger.tag(text)
    monkeypatch.setattr(tagger_module, "_PIECE", 300)
    pieces = tagger.tag(text)
    assert (pieces.starts == whole.starts).all() and (pieces.ends == whole.ends).all()
    assert pieces.scores == pytest.approx(whole.scores, abs=1e-4)


@pytest.mark.parametrize("name", ["table", "kernel0", "kernel1", "bias1", "out", "out_bias"])
def test_weights_of_another_version_are_refused(name: str) -> None:
    arrays = made()
    for wrong in ({name: arrays[name][..., :-1]}, {name: arrays[name][None]}, {name: arrays[name][:0]}, {}):
        changed = {each: array for each, array in arrays.items() if each != name} | wrong
        with pytest.raises(SetupError):
            Tagger(changed)


def test_the_shipped_file_is_small() -> None:
    with files(tagger_module.__package__).joinpath("tagger.npz").open("rb") as file:
        assert file.seek(0, 2) <= 8_000_000


def test_the_shipped_tagger_tells_people_from_things() -> None:
    tagger = shipped_tagger()
    public = tagger.calibration.public

    def highest(text: str) -> float:
        return float(tagger.tag(text).scores.max())

    private = ("Please ask Margaret about it.", "Sie trifft Jürgen Schäfer in Bremen.", "请给王伟写信。")
    clean = (
        "Write a function that sorts a list.",
        "Summarise the text in three sentences.",
        "¿Cómo funciona un motor?",
    )
    assert all(highest(text) >= public for text in private)
    assert all(highest(text) < public for text in clean)
    tags = tagger.tag("Please ask Margaret about it.")
    assert CATEGORIES[tags.classes[2]] is Category.NAME
