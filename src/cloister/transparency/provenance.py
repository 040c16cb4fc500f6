"""in-toto statements: whether one says that a release was built, and of which release it speaks. in-toto asks readers
to ignore unknown fields; here they refuse a statement, because a field may narrow what was meant, except in the
predicate, where SLSA adds some. The caller has verified the signature."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from cloister.checks import Examination

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPES: Final = ("https://in-toto.io/Statement/v1", "https://in-toto.io/Statement/v0.1")
Predicate = Literal["https://slsa.dev/provenance/v1", "https://slsa.dev/provenance/v0.2"]
PREDICATES: Final[dict[str, tuple[str, ...]]] = {
    "https://slsa.dev/provenance/v1": ("buildDefinition", "runDetails"),
    "https://slsa.dev/provenance/v0.2": ("builder", "buildType"),
}
"""The predicates that say a file was built, with the fields each must have (slsa.dev/spec/v1.0/provenance, …/v0.2)."""
MAX_SUBJECTS: Final = 1024


class _Statement(Struct, frozen=True, forbid_unknown_fields=True):
    type: str = msgspec.field(name="_type")
    subject: Annotated[tuple[msgspec.Raw, ...], Meta(max_length=MAX_SUBJECTS)]
    predicate_type: str = msgspec.field(name="predicateType")
    predicate: dict[str, Any] = {}


class _Subject(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """in-toto's ResourceDescriptor; of a subject, name and digest are needed."""

    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    digest: dict[str, str]
    uri: str = ""
    content: str = ""
    download_location: str = ""
    media_type: str = ""
    annotations: dict[str, Any] = {}


def examine_statement(
    found: Examination, payload_type: str, payload: bytes, measurement: bytes, accepted: Collection[str] = PREDICATES
) -> None:
    """Adds the checks `statement`, `predicate` and `subject` on a statement that was signed over these bytes."""
    statement = _read(payload_type, payload)
    if isinstance(statement, str):
        found.failed("statement", statement)
        return
    found.passed("statement", statement.type)
    kind = statement.predicate_type
    missing = [name for name in PREDICATES.get(kind, ()) if name not in statement.predicate]
    known = kind in PREDICATES and kind in accepted
    why = (
        f"{_shown(kind)} does not say that this is a release; accepted is {', '.join(sorted(accepted))}"
        if not known
        else f"it has no {', '.join(missing)}"
    )
    found.check("predicate", known and not missing, why, kind)
    wrong = _about_subjects(statement.subject, measurement.hex())
    found.check("subject", not wrong, wrong, "the release, once")


def _read(payload_type: str, payload: bytes) -> _Statement | str:
    if payload_type != PAYLOAD_TYPE:
        return f"what was signed is {_shown(payload_type)}, not an in-toto statement"
    try:
        statement = msgspec.json.decode(payload, type=_Statement)
    except msgspec.ValidationError as wrong:
        return f"it is not of in-toto's form: {_shown(str(wrong))}"
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return "it does not decode"
    if statement.type not in STATEMENT_TYPES:
        return f"its type {_shown(statement.type)} is not one of {', '.join(STATEMENT_TYPES)}"
    return statement


def _about_subjects(raw: tuple[msgspec.Raw, ...], wanted: str) -> str:
    """Why the statement does not name this SHA-256 as exactly one subject; nothing if it does."""
    try:
        subjects = [msgspec.json.decode(one, type=_Subject) for one in raw]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return "a subject has not in-toto's form: a name, a digest, and no field that is unknown"
    for one in subjects:
        if "sha256" not in one.digest:
            return f"the subject {_shown(one.name)} has no SHA-256"
        if not re.fullmatch("[0-9a-f]{64}", one.digest["sha256"]):
            return f"the SHA-256 of the subject {_shown(one.name)} is not 64 small hexadecimal digits"
    if len({one.name for one in subjects}) != len(subjects):
        return "two subjects have one name"
    named = sum(one.digest["sha256"] == wanted for one in subjects)
    if named != 1:
        return "the release is not among the subjects" if not named else "two subjects are the release"
    return ""


def _shown(text: str) -> str:
    """A signer's words, on one line."""
    return ascii(" ".join(text.split()))[:120]
