"""Secrets outside the texts where something stands in their place are refused, and so are their words."""

from __future__ import annotations

import pytest

from cloister.errors import ObfuscationRefused, TagsInvalid
from cloister.obfuscation.elsewhere import Elsewhere, marked_secrets, refuse_biases, refuse_words, strings_in

SECRETS = ["Ann Lee", "14", "University of Ghent", "the Hague"]


@pytest.mark.parametrize(
    "text", ["Ann Lee", "it is ANN LEE.", "lee", "x-ann-1", "{14}", "ghent", "University", "a university of ghent b"]
)
def test_a_field_that_says_a_secret_or_a_word_of_one_is_refused(text: str) -> None:
    with pytest.raises(ObfuscationRefused) as caught:
        Elsewhere(SECRETS).check("user", text)
    assert caught.value.param == "user" and text not in str(caught.value)


@pytest.mark.parametrize("text", ["", "Annual", "sleep", "2014", "of", "the name", "Genti", "uni"])
def test_other_words_are_not(text: str) -> None:
    Elsewhere(SECRETS).check("user", text)


def test_a_model_may_be_called_as_a_part_of_a_secret_is() -> None:
    Elsewhere(["Meta Lane"]).check("model", "meta/model-1")
    with pytest.raises(ObfuscationRefused):
        Elsewhere(["Meta Lane"]).check("model", "meta lane")


@pytest.mark.parametrize("stop", ["Ann Lee", "Lee", "sleep", "nivers", "GHE" + "N", "in 2014", "\nAnn:"])
def test_a_stop_string_is_refused_for_any_part_of_a_word(stop: str) -> None:
    with pytest.raises(ObfuscationRefused) as caught:
        Elsewhere(SECRETS).check_stops(["\n", stop])
    assert caught.value.param == "stop" and caught.value.code == "obfuscation_refused"


@pytest.mark.parametrize("stop", ["\n", "###", ".", " of ", "e", "User:", "</s>", "2015"])
def test_usual_stop_strings_are_not(stop: str) -> None:
    Elsewhere(SECRETS).check_stops([stop])


def test_where_secrets_are_found_later_stop_strings_have_no_words() -> None:
    refuse_words(["\n\n", "###", "…"])
    for stop in ("a", "1", "-é-"):
        with pytest.raises(ObfuscationRefused):
            refuse_words(["\n", stop])


def test_tokens_are_refused_as_nobody_here_can_read_them() -> None:
    refuse_biases(None)
    refuse_biases({})
    with pytest.raises(ObfuscationRefused):
        refuse_biases({"50": 5})


def test_marked_secrets_are_found_wherever_they_are() -> None:
    deep: object = "<redacted>Bo</redacted>"
    for _ in range(900):
        deep = [deep]
    given = [{"role": "user", "content": [{"type": "text", "text": "I am <redacted>Ann Lee</redacted>."}]}, deep]
    assert marked_secrets(given) == {"Ann Lee", "Bo"} and "user" in set(strings_in(given))
    with pytest.raises(TagsInvalid):
        marked_secrets("<redacted>Ann")
