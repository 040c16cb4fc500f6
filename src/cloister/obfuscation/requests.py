"""One request of OpenAI's API as λ+1 of them. A secret keeps its substitutes from request to request, and each
variant's conversation its own answers: what came again among others that did not would be the real one. A conversation
whose earlier answers are not known here is refused. No sockets; answers are remembered for this object's life."""

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cloister.errors import InvalidRequest, ObfuscationRefused
from cloister.obfuscation.conversation import Answers, turn_of
from cloister.obfuscation.elsewhere import Elsewhere, refuse_biases, refused, strings_in
from cloister.obfuscation.entities import Entity, add_mentions, entities_of, replaced, spelt_before
from cloister.obfuscation.index import Order, Prf, new_secret
from cloister.obfuscation.parts import Owners, owners_of, refuse_parts, says_part
from cloister.obfuscation.store import MemoryStore, Store
from cloister.obfuscation.tags import Detector, TaggedText, auto_redact, parse_redacted, regularise
from cloister.obfuscation.variants import AsGiven, Goal, Substitutes, Substituting, missing, with_kept
from cloister.request_fields import refuse_repeated_names

FIELDS = {"/chat/completions": "messages", "/completions": "prompt"}
_ANY_TAG = re.compile(rb"<\s*/?\s*redact", re.IGNORECASE)


@dataclass(frozen=True, slots=True, repr=False)
class Obfuscated:
    """In the order in which they go out. `turn` names the conversation so far; "" if it cannot go on."""

    bodies: tuple[bytes, ...]
    order: Order
    turn: str
    report: dict[str, Any]


class Obfuscation:
    """For one user. `detector` marks secrets beside tagged ones; `regular` respells secrets (§7.1). `new_sampler`: for
    `another` user, if a sampler draws from a secret. `goal` says what to expect of substitutes in the store."""

    def __init__(
        self,
        by: Substituting,
        *,
        secret: bytes | None = None,
        detector: Detector | None = None,
        regular: bool = False,
        new_sampler: Callable[[], Substituting] | None = None,
        store: Store | None = None,
        goal: Goal | None = None,
    ) -> None:
        self._by, self._detector, self._regular, self._new_sampler = by, detector, regular, new_sampler
        self._prf = Prf(secret or new_secret())
        self._count = 0
        self._store: Store = store or MemoryStore()
        self._goal: Goal = goal or AsGiven()
        self._answers = Answers()
        self._lock, self._sampling = threading.Lock(), threading.Lock()

    def another(self, user: bytes | None = None) -> "Obfuscation":
        """Neither user knows anything of what the other said, but they sample in turns. Of one without a name nothing
        is kept."""
        by = self._by if self._new_sampler is None else self._new_sampler()
        store = MemoryStore() if user is None else self._store.of(user)
        more: dict[str, Any] = {"new_sampler": self._new_sampler, "store": store, "goal": self._goal}
        other = Obfuscation(by, detector=self._detector, regular=self._regular, **more)
        other._sampling = self._sampling
        return other

    @property
    def remembers(self) -> bool:
        """Whether it knows a secret, which must keep its substitutes."""
        return bool(self._store.known())

    def obfuscate(self, path: str, body: bytes) -> Obfuscated | None:
        """None if the request may go as it is, having no secrets. Raises TagsInvalid, TooFewCandidates or
        ObfuscationRefused; then nothing may be sent."""
        field = next((name for end, name in FIELDS.items() if path.partition("?")[0].rstrip("/").endswith(end)), None)
        if field is None:
            if _ANY_TAG.search(body) or any(map(Elsewhere(self._store.known()).mentions, _said(body))):
                raise ObfuscationRefused(
                    "Only chat completions and completions can be obfuscated, and this request says a tag or a secret.",
                    hint="Take it out, or send the request past this client if the provider may read it.",
                )
            return None
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            raise InvalidRequest("The body is not a JSON object.")
        refuse_repeated_names(body)
        return self._obfuscate(field, request)

    def remember(self, sent: Obfuscated, answers: Sequence[Sequence[str]]) -> None:
        """What was answered: for each body in its order the text of every choice. Nothing is kept that is not whole."""
        choices = {len(each) for each in answers}
        if not sent.turn or len(answers) != len(sent.bodies) or len(choices) != 1:
            return
        by_variant: list[Sequence[str]] = [()] * len(answers)
        for place, variant in enumerate(sent.order.places):
            by_variant[variant] = answers[place]
        with self._lock:
            for choice in range(choices.pop()):
                self._answers.remember(sent.turn, [variant[choice] for variant in by_variant])

    def _obfuscate(self, field: str, request: dict[str, Any]) -> Obfuscated | None:
        places = list(_texts(request.get(field), (field,)))
        found = [self._marked(text, place, given=_given_before(request, place)) for place, text in places]
        known = self._store.recall(found)
        marked = add_mentions(found, known)
        entities = entities_of(marked, known)
        owners = owners_of(marked, known)
        first = next((at for at, text in enumerate(marked) if text.spans), len(marked))
        given = [at >= first and _given_before(request, place) for at, (place, _) in enumerate(places)]
        # From the first secret on, each variant has its own answers: what they say of a secret tells nothing.
        refuse_parts((text for text, own in zip(marked, given, strict=True) if not own), owners)
        secrets = {entity.secret for entity in entities}.union(known)
        _refuse_elsewhere(request, {place for place, _ in places}, Elsewhere(secrets), owners)
        if not entities:
            return None
        refuse_biases(request.get("logit_bias"))
        substitutes = self._substitutes(marked, entities)
        spelt = spelt_before(entities, self._store.spelling)
        variants = [[text.text for text in marked]]
        variants += [replaced(marked, spelt, values) for values in substitutes.values]
        keys = [place for place, _ in places]
        if field == "messages":
            self._answer_as_before(request["messages"], keys, marked, variants)
        bodies = [json.dumps(_with(request, keys, texts), ensure_ascii=False).encode() for texts in variants]
        with self._lock:
            self._count += 1
            number = self._count
        order = self._prf.order(b"request %d" % number, len(bodies))
        turn = _turn(request["messages"], keys, variants[0], len(request["messages"])) if field == "messages" else ""
        count, named = len(substitutes.values), [str(entity.category) for entity in entities]
        report = {"lambda": count, "secrets": named, "methods": list(substitutes.methods), "kept": substitutes.kept}
        return Obfuscated(tuple(order.shuffled(bodies)), order, turn, report)

    def _marked(self, text: str, place: tuple[Any, ...], *, given: bool) -> TaggedText:
        """What was `given` as an answer is not searched for secrets: the provider has said it."""
        found = parse_redacted(text, param=str(place[0]))
        if self._detector is not None and not given:
            found = auto_redact(found, self._detector(found.text))
        return regularise(found) if self._regular else found

    def _substitutes(self, marked: Sequence[TaggedText], entities: Sequence[Entity]) -> Substitutes:
        with self._sampling:  # seconds: one at a time, and no secret twice
            new = missing(marked, entities, self._store, self._goal)
            drawn = Substitutes(())
            if new.entities:
                drawn = self._by.substitutes(new.texts, new.entities, new.taken)
            return with_kept(entities, new.entities, drawn, self._store, self._goal)

    def _answer_as_before(
        self,
        messages: list[Any],
        keys: Sequence[tuple[Any, ...]],
        marked: Sequence[TaggedText],
        variants: list[list[str]],
    ) -> None:
        secret = [key[1] for key, text in zip(keys, marked, strict=True) if text.spans]
        begins = min(secret)
        for number, message in enumerate(messages):
            if not isinstance(message, dict) or message.get("role") != "assistant" or number < begins:
                continue
            mine = [at for at, key in enumerate(keys) if key[1] == number]
            content = "".join(variants[0][at] for at in mine)
            answers = self._answers.find(_turn(messages, keys, variants[0], number), content)
            if len(mine) != 1 or answers is None or len(answers) < len(variants):
                known = "The provider would know to which of the variants it was given."
                hint = "Begin a new conversation, and say in your own words what matters of this one."
                raise ObfuscationRefused(f"The conversation holds an answer not given here. {known}", hint=hint)
            for variant, answer in zip(variants, answers, strict=False):
                variant[mine[0]] = answer


def _said(body: bytes) -> list[str]:
    try:
        return list(strings_in(json.loads(body)))
    except (ValueError, RecursionError):
        return [body.decode("utf-8", "replace")]


def _texts(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Texts that a model reads, and where they are: prompts, a message's content, the parts of one."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for number, each in enumerate(value):
            if isinstance(each, dict):
                key = "content" if place == ("messages",) else "text"
                yield from _texts(each.get(key), (*place, number, key))
            elif not isinstance(each, int):
                yield from _texts(each, (*place, number))


def _given_before(request: dict[str, Any], place: tuple[Any, ...]) -> bool:
    message = request["messages"][place[1]] if place[0] == "messages" and len(place) > 1 else None
    return isinstance(message, dict) and message.get("role") == "assistant"


def _strings(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield (*place, name), name
            yield from _strings(each, (*place, name))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _strings(each, (*place, number))


def _refuse_elsewhere(
    request: dict[str, Any], places: set[tuple[Any, ...]], elsewhere: Elsewhere, owners: Owners
) -> None:
    """A secret that is also said where nothing is replaced would be the same in all variants."""
    elsewhere.check_stops(strings_in(request.get("stop")))
    for place, text in _strings(request):
        if place in places:
            continue
        elsewhere.check(str(place[0]), text)
        if place[0] != "model" and text not in ("user", "system", place[-1]) and says_part(TaggedText(text), owners):
            raise refused(str(place[0]))
        if _ANY_TAG.search(text.encode("utf-8", "replace")):
            message = f"The field {str(place[0])[:64]!r} has a tag where nothing can stand in a secret's place."
            hint = "Mark secrets in the texts of messages or prompts alone."
            raise ObfuscationRefused(message, hint=hint)


def _with(request: dict[str, Any], places: Sequence[tuple[Any, ...]], texts: Sequence[str]) -> dict[str, Any]:
    changed = json.loads(json.dumps(request))
    for place, text in zip(places, texts, strict=True):
        holder = changed
        for step in place[:-1]:
            holder = holder[step]
        holder[place[-1]] = text
    return dict(changed)


def _turn(messages: Sequence[Any], keys: Sequence[tuple[Any, ...]], texts: Sequence[str], before: int) -> str:
    return turn_of(
        (messages[key[1]].get("role") if isinstance(messages[key[1]], dict) else None, text)
        for key, text in zip(keys, texts, strict=True)
        if key[1] < before
    )
