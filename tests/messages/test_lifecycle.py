"""Errors between processes: what one process raises is what another raises again, and nothing else is told."""

from __future__ import annotations

import pytest

from cloister import errors
from cloister.errors import CloisterError, InvalidRequest, QueueFull, StartingUp
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import StartFailed, failed, raised, start_failed, why_not_started


def family(kind: type[CloisterError]) -> list[type[CloisterError]]:
    ours = [kind] if kind.__module__ == errors.__name__ else []
    return ours + [one for below in kind.__subclasses__() for one in family(below)]


FAMILY = family(CloisterError)


def an_error(kind: type[CloisterError]) -> CloisterError:
    if issubclass(kind, QueueFull):
        return kind("It went wrong.", retry_after=7)
    if issubclass(kind, StartingUp):
        return kind("It went wrong.", hint="Wait.", retry_after=7)
    if issubclass(kind, InvalidRequest):
        return kind("It went wrong.", hint="Mend it.", param="logit_bias")
    return kind("It went wrong.", hint="Mend it.")


def test_every_error_has_a_code_of_its_own() -> None:
    assert len({kind.code for kind in FAMILY}) == len(FAMILY) > 20


@pytest.mark.parametrize("kind", FAMILY)
def test_a_failed_request_raises_the_same_error_in_another_process(kind: type[CloisterError]) -> None:
    error = an_error(kind)
    [message] = FrameReader[Failed](Failed).feed(encode_frame((failed(3, error),)))
    assert message.request_id == 3
    again = raised(message)
    assert type(again) is kind and again.code == error.code and str(again) == str(error)
    assert getattr(again, "param", None) == getattr(error, "param", None)
    assert getattr(again, "retry_after", 0) == getattr(error, "retry_after", 0)
    assert raised(error) is error


@pytest.mark.parametrize("kind", FAMILY)
def test_a_process_that_does_not_start_tells_its_error(kind: type[CloisterError]) -> None:
    error = an_error(kind)
    [message] = FrameReader[StartFailed](StartFailed).feed(encode_frame((start_failed(error, "It cannot start"),)))
    again = why_not_started(message)
    assert type(again) is kind and (again.message, again.hint) == (error.message, error.hint)


def test_what_a_library_says_stays_where_it_was_raised() -> None:
    try:
        int("a secret")
    except ValueError as wrong:
        error = wrong
    assert failed(1, error).message == "The computation failed (ValueError). Try again."
    told = start_failed(error, "The gateway cannot start")
    assert told.code == "internal_error" and told.message.startswith("The gateway cannot start: ValueError at test_")
    assert "secret" not in repr((failed(1, error), told))


def test_an_unknown_code_is_an_error_of_the_family() -> None:
    assert type(raised(Failed(1, "of_tomorrow", "Something new."))) is CloisterError
