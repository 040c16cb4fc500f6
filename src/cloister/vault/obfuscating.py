"""Prompts at `obfuscated`, before they are prefilled: finds secrets in them, and substitutes, with the weights that
answer too (§5.1). The result is λ+1 prompts of one request, in an order that the user and this vault can compute
(obfuscation.index). Substitutes are kept for the session's life (obfuscation.store); a request without a session has
new ones each time."""

from collections.abc import Generator, Sequence
from typing import cast

from cloister.detection.redaction import PIECE, Found, Redaction, shipped_redaction
from cloister.engine.base import EngineRequest
from cloister.engine.continuations import Continuations
from cloister.errors import InvalidRequest, LevelUnavailable, ObfuscationRefused, TagsInvalid
from cloister.messages.controller_vault import AssignPrompt
from cloister.messages.prompts import ChatPrompt, ObfuscationParams, ObfuscationSecrets, TextPrompt, TokenPrompt
from cloister.obfuscation.candidates.medications import known_medications
from cloister.obfuscation.conversation import MAX_REMEMBERED, Answers, turn_of
from cloister.obfuscation.elsewhere import Elsewhere
from cloister.obfuscation.entities import Entity, add_mentions, entities_of, replaced, spelt_before
from cloister.obfuscation.goal import SamplingGoal
from cloister.obfuscation.gqs import Quantization
from cloister.obfuscation.index import REQUEST, Order, Prf
from cloister.obfuscation.language_model import SamplingTokenizer, TokenShapes
from cloister.obfuscation.parts import owners_of, refuse_parts
from cloister.obfuscation.sampler import Sampler
from cloister.obfuscation.store import Kept, MemoryStore
from cloister.obfuscation.tags import TaggedText, auto_redact, parse_redacted, regularise
from cloister.obfuscation.variants import AsGiven, Substitutes, check_shape, missing, with_kept
from cloister.prompts.tokenizer import Tokenizer
from cloister.tools.base import Parsed
from cloister.vault.prompt_texts import (
    ReadAs,
    Said,
    fixed_in,
    given_back,
    made_of,
    read_as_of,
    said_in,
    turns_of,
    with_texts,
)
from cloister.vault.reading import Reader

RULES_LIKE_TOKENS, PIECE_LIKE_TOKENS = 24, 8  # to compile the rules, once; to search a piece of a text
MAX_KNOWN = 256  # secrets of one session; none is forgotten: it would get other substitutes the next time

# Yields before each piece its number of tokens; returns the prompts.
Hiding = Generator[int, None, list[EngineRequest]]


class Obfuscating:
    """One request at a time is under way, so that no secret of a session gets two sets of substitutes."""

    def __init__(self, reader: Reader, model: Continuations | None, tokenizer: object) -> None:
        self._reader, self._model = reader, model
        self._tokenizer = cast(SamplingTokenizer, tokenizer)
        self._parsing = cast(Tokenizer, tokenizer).parsing
        self._shapes: TokenShapes | None = None
        self._detector: Redaction | None = None
        self._waiting: dict[int, Hiding] = {}
        self._left = 0
        self._store = MemoryStore(MAX_KNOWN)
        self._asked: dict[int, tuple[str, Order, frozenset[int], ReadAs]] = {}
        self._answers = Answers()

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting

    def add(self, assigned: AssignPrompt) -> None:
        self._waiting[assigned.request_id] = self._hidden(assigned)

    def drop(self, request_id: int) -> None:
        if request_id == self.next_request:
            self._left = 0
        if (hiding := self._waiting.pop(request_id, None)) is not None:
            hiding.close()

    @property
    def next_request(self) -> int | None:
        return next(iter(self._waiting), None)

    @property
    def next_tokens(self) -> int:
        return max(1, self._left) if self._waiting else 0

    def allow(self, most: int) -> None:
        if self._model is not None:
            self._model.at_once = most

    def work(self, request_id: int) -> list[EngineRequest] | None:
        """If the request is the first; its prompts, when they are made."""
        if request_id != self.next_request:
            return None
        try:
            self._left = next(self._waiting[request_id])
            return None
        except StopIteration as end:
            self.drop(request_id)
            prompts: list[EngineRequest] = end.value
            return prompts

    def answered(self, request_id: int, streams: Sequence[Sequence[int]]) -> None:
        """Each up to its own end."""
        turn, order, stops, read_as = self._asked.pop(request_id, ("", None, frozenset[int](), ReadAs()))
        if order is None or len(order.places) != len(streams):
            return
        made = [Parsed()] * len(streams)
        for variant, tokens in zip(order.places, streams, strict=True):
            end = next((at for at, token in enumerate(tokens) if token in stops), len(tokens))
            made[variant] = self._made(tokens[:end], read_as)
        self._answers.remember(turn, [given_back(made[0]), *map(made_of, made)])

    def _made(self, tokens: Sequence[int], read_as: ReadAs) -> Parsed:
        """As the process that reads answers has it: what the user gives back."""
        visible = self._parsing.markers(tools=read_as.tools)
        if visible:
            stream = cast(Tokenizer, self._tokenizer).stream(visible)
            text = stream.push(tokens) + stream.finish()
        else:
            text = self._tokenizer.decode(tokens)
        parsed = self._parsing.read(text, tools=read_as.tools, thinks=read_as.thinks)
        if not read_as.parallel:
            del parsed.calls[1:]
        return parsed

    def _hidden(self, assigned: AssignPrompt) -> Hiding:
        prompt, params = self._reader.prompt(assigned), assigned.obfuscation or ObfuscationParams()
        if assigned.params.embed or assigned.also:
            message = "Embeddings and several answers are not hidden among others."
            raise InvalidRequest(message, param="input", hint="Ask for 'isolated': the vault is alone with it.")
        if isinstance(prompt, TokenPrompt):
            raise TagsInvalid("Secrets are marked in text; token ids have no marks.", hint="Send the prompt as text.")
        secrets = prompt.hidden
        if secrets is None:
            raise InvalidRequest(
                "The request has no secret that sets its answer apart from the others.",
                hint="Use cloister.Client or cloister proxy, or plain HTTP.",
            )
        said = said_in(prompt)
        marked = yield from self._marked(assigned, prompt, said, params)
        known = self._store.known()
        entities = entities_of(marked, known)
        refuse_parts(_common(said, marked), owners_of(marked, known))
        if not entities:
            raise TagsInvalid(
                f"No secret is marked{' or found' if params.auto_redact else ''}: there is nothing to hide.",
                hint="Write <redacted> before and </redacted> after each secret, or ask for the level 'partitioned'.",
            )
        _refuse_public(said, marked)
        elsewhere = Elsewhere([*(entity.secret for entity in entities), *known])
        elsewhere.check_all(secrets.stops, secrets.names)
        for field, text in fixed_in(prompt):
            elsewhere.check(field, text)
        substitutes = yield from self._substitutes(marked, entities, params, secrets)
        spelt = spelt_before(entities, self._store.spelling)
        variants = [[text.text for text in marked]]
        variants += [replaced(marked, spelt, values) for values in substitutes.values]
        real = with_texts(prompt, variants[0])
        answers = self._answers_before(real, said, marked, len(variants))
        order = Prf(secrets.index_secret).order(REQUEST, len(variants))
        if len(self._asked) >= MAX_REMEMBERED:
            self._asked.pop(next(iter(self._asked)))
        stops = frozenset(assigned.params.stop_tokens)
        self._asked[assigned.request_id] = turn_of(turns_of(real)), order, stops, read_as_of(prompt)
        prompts = [with_texts(prompt, texts, own) for texts, own in zip(variants, answers, strict=True)]
        return self._reader.several(assigned, order.shuffled(prompts))

    def _marked(
        self,
        assigned: AssignPrompt,
        prompt: ChatPrompt | TextPrompt,
        said: Sequence[Said],
        params: ObfuscationParams,
    ) -> Generator[int, None, list[TaggedText]]:
        """Every other mention of a secret, and of one of this session, counts as marked: words only add secrets."""
        param = "prompt" if isinstance(prompt, TextPrompt) else "messages"
        found = [parse_redacted(one.text, param=param) for one in said]
        if params.auto_redact:
            # Refused if it is too long.
            self._reader.several(assigned, [with_texts(prompt, [text.text for text in found])])
            for at, one in enumerate(said):
                # Not a text that its user calls public, nor an answer, which the service wrote.
                if not one.public and one.role != "assistant":
                    found[at] = auto_redact(found[at], (yield from self._detected(found[at].text)))
        regular = [regularise(text) for text in found] if params.regularise else found
        return add_mentions(regular, self._store.known())

    def _detected(self, text: str) -> Generator[int, None, list[Found]]:
        if self._detector is None:
            yield RULES_LIKE_TOKENS
            self._detector = shipped_redaction(known_medications())
        found: list[Found] = []
        pieces = self._detector.pieces(text)
        for _ in range(0, len(text), PIECE):
            yield PIECE_LIKE_TOKENS
            found += next(pieces)
        return found

    def _answers_before(
        self, real: ChatPrompt | TextPrompt, said: Sequence[Said], marked: Sequence[TaggedText], count: int
    ) -> list[dict[int, str]]:
        """Each variant's own earlier answers, by message, from the first secret on."""
        own: list[dict[int, str]] = [{} for _ in range(count)]
        begins = next(one.message for one, text in zip(said, marked, strict=True) if text.spans)
        turns = turns_of(real)
        for at, (role, answer) in enumerate(turns):
            if role != "assistant" or at < begins:
                continue
            # The real answer is looked for as it was given before, with the earlier answers in it as given.
            answers = self._answers.find(turn_of(turns[:at]), answer)
            if answers is None or len(answers) <= count:
                raise ObfuscationRefused(
                    "The conversation holds an answer that was not given in this session. The provider would know to "
                    "which of the variants it was given.",
                    hint="Give its answers back as they came, or name no session: your vault then answers alone.",
                )
            for variant, given in zip(own, answers[1:], strict=False):
                variant[at] = given
        return own

    def _substitutes(
        self,
        marked: Sequence[TaggedText],
        entities: Sequence[Entity],
        params: ObfuscationParams,
        secrets: ObfuscationSecrets,
    ) -> Generator[int, None, Substitutes]:
        """Those they had before, and given or sampled ones for the others."""
        by = Quantization(params.epsilon, params.candidates, params.temperature, params.distance)
        goal = SamplingGoal(params.fakes, params.minimum or None, by, params.method)
        if secrets.substitutes:
            check_shape(secrets.substitutes, entities)
            self._keep_given(
                dict(zip((one.secret for one in entities), zip(*secrets.substitutes, strict=True), strict=True))
            )
        new, drawn = missing(marked, entities, self._store, goal), Substitutes(())
        if new.entities:
            if self._model is None:
                raise LevelUnavailable("This vault cannot sample substitutes.", hint="Send substitutes of your own.")
            self._shapes = self._shapes or TokenShapes(self._tokenizer, self._model.vocabulary)
            sampler = Sampler(self._model, self._tokenizer, goal, Prf(secrets.index_secret), self._shapes)
            drawn = yield from sampler.sampling(new.texts, new.entities, new.taken)
        return with_kept(entities, new.entities, drawn, self._store, goal)

    def _keep_given(self, given: dict[str, tuple[str, ...]]) -> None:
        kept = {secret: self._store.find(secret) for secret in given}
        if any(one is not None and one.values != given[secret] for secret, one in kept.items()):
            raise ObfuscationRefused(
                "A secret went among other substitutes earlier in this session.",
                hint="Give the same again, or begin a new session.",
            )
        self._store.keep({secret: Kept(values=values, method=AsGiven.method) for secret, values in given.items()})


def _common(said: Sequence[Said], marked: Sequence[TaggedText]) -> list[TaggedText]:
    """From the first secret on, each variant has its own answers."""
    first = next((at for at, text in enumerate(marked) if text.spans), len(marked))
    return [text for at, text in enumerate(marked) if said[at].role != "assistant" or at < first]


def _refuse_public(said: Sequence[Said], marked: Sequence[TaggedText]) -> None:
    if any(one.public and text.spans for one, text in zip(said, marked, strict=True)):
        raise TagsInvalid(
            "A text that is marked as public says a secret.", hint="Take the mark `public` away from that text."
        )
