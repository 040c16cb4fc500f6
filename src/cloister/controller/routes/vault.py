"""Common to the levels with a vault: the prompt waits for a vault, is assigned to it, and is read there."""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from cloister.controller.requests import Request
from cloister.controller.routes.base import Route
from cloister.controller.sessions import SessionKey
from cloister.controller.vault_side import PendingRequest
from cloister.controller.verification import Order
from cloister.errors import CloisterError, LevelUnavailable, ProtocolError, QueueFull, ServiceUnavailable, VaultLost
from cloister.levels import LEVELS
from cloister.messages.controller_service import GeneratePartitioned, GenerateVariants
from cloister.messages.controller_vault import Answered, FinishAlone, Prefilled, PromptAccepted, Release, Verified
from cloister.messages.generation import Accepted, Cancel, Failed, Tokens
from cloister.messages.lifecycle import failed
from cloister.messages.prompts import ObfuscationParams
from cloister.messages.types import Partition, SamplingParams

NO_RECORD = ServiceUnavailable("The vault has no room to verify the answer.", hint="Ask for fewer tokens (max_tokens).")


class VaultRoute(Route):
    def assign(self, asked: PendingRequest) -> None:
        """QueueFull if no vault is free for it."""
        ask = asked.ask
        try:
            key = SessionKey.of(ask.tenant, ask.group, ask.session, keep=ask.keep)
            self.check(key.owner)
            session = self.node.sessions.join(key, asked.params, keep=ask.keep)
        except QueueFull:
            raise
        except CloisterError as reason:
            for request_id in asked.params:
                self.node.requests.refuse(request_id, reason)
            return
        for request_id, params in asked.params.items():
            request = Request(request_id, ask.tenant, self.level, params, "vault", session, ask.salt)
            request.obfuscation, request.asks_verified = ask.obfuscation, ask.verify
            self.node.requests.add(request)
        session.vault.send(asked.assignment)

    def check(self, owner: str) -> None:
        """Raise why this level is not served now, if there is a reason."""
        if self.level.name not in self.node.serving().levels:
            raise LevelUnavailable(f"This server does not offer the level {self.level.name}.", param="protection")

    def cancel(self, request: Request) -> None:
        if request.session is not None:
            request.session.vault.send(Cancel(request.request_id))

    def from_vault(self, request: Request, message: msgspec.Struct) -> None:
        match message:
            case PromptAccepted():
                self.check_sequences(request, message.sequences)
                self.prompt_accepted(request, message.prompt_tokens, message.sequences)
            case Failed():
                self.advance(request, message)
            case _:
                raise ProtocolError("A vault sent a message out of turn.")

    def check_sequences(self, request: Request, sequences: int) -> None:
        if sequences != 1:
            raise ProtocolError("At this level a request has one sequence.")

    def advance(self, request: Request, message: Accepted | Tokens | Failed) -> None:
        """A vault that answered the service late or wrongly answers it no more."""
        self.node.requests.advance(request, message)
        if isinstance(message, Failed) and message.code == VaultLost.code and request.session is not None:
            self.node.unlink(request.session)


class IsolatedRoute(VaultRoute):
    """The vault decodes alone: the service gets no message about the request."""

    level = LEVELS["isolated"]

    def from_vault(self, request: Request, message: msgspec.Struct) -> None:
        if isinstance(message, Tokens):
            self.advance(request, message)
        else:
            super().from_vault(request, message)


class PartitionedRoute(VaultRoute):
    level = LEVELS["partitioned"]
    unserved: Callable[[SamplingParams], str | None] = staticmethod(lambda params: None)  # with another engine
    policy = "partition"  # all tokens that the service gets were marked public: it may keep them, for this tenant alone

    def assign(self, asked: PendingRequest) -> None:
        if field := next(filter(None, map(self.unserved, asked.params.values())), None):
            reason = LevelUnavailable(f"{field}: The engine here does not serve it.", param=field, hint="Leave it out.")
            for request_id in asked.params:
                self.node.requests.refuse(request_id, reason)
        else:
            super().assign(asked)

    def check(self, owner: str) -> None:
        super().check(owner)
        if not self.node.verification.always:  # then its vault would do without
            self.node.working_service()

    def cancel(self, request: Request) -> None:
        if request.holder == "service" and self.node.service is not None:
            # The vault answers until the service is past the step under way.
            self.node.service.cancel(request.request_id, lambda: self.release(request))
        else:
            super().cancel(request)

    def release(self, request: Request) -> None:
        """Of an answer that was taken from the service: this may be in a step still."""
        if request.exposed and request.session is not None:
            vault, release = request.session.vault, Release(request.request_id)
            if request.alone and self.node.service is not None:
                self.node.service.ask_stats(lambda _: vault.send(release))
            else:
                vault.send(release)

    def _end_service(self, request: Request) -> None:
        """The vault ends the answer; it answers the service until that is past the step under way."""
        if request.session is not None and request.exposed and self.node.service is not None:
            request.exposed, vault = False, request.session.vault
            self.node.service.cancel(request.request_id, lambda: vault.send(Release(request.request_id)))

    def from_vault(self, request: Request, message: msgspec.Struct) -> None:
        if isinstance(message, Prefilled):
            self._prefilled(request, message)
        elif isinstance(message, Verified):
            if message.finish == "content_filter":
                self._end_service(request)
            vocabulary = self.node.serving().vocabulary
            self.node.verification.verified(request, message, vocabulary, self.node.service)
        elif isinstance(message, FinishAlone):
            if not self.node.verification.goes_alone(request):
                self._end_service(request)
                self.advance(request, failed(request.request_id, NO_RECORD))
        elif isinstance(message, Failed) and request.holder == "service":
            self._end_service(request)
            self.advance(request, message)
        elif isinstance(message, Tokens) and request.params.embed:  # its vault computes it alone
            self.advance(request, message)
        else:
            super().from_vault(request, message)

    def from_service(self, request: Request, message: msgspec.Struct) -> None:
        if request.holder != "service":
            super().from_service(request, message)
        if request.withheld or request.alone:
            return  # it was cancelled a moment ago
        assert isinstance(message, Accepted | Tokens | Failed)
        if isinstance(message, Tokens) and request.verified:
            self.node.verification.claimed(request, message, self.node.serving().vocabulary)
        elif isinstance(message, Failed) and request.verified:
            if message.code == VaultLost.code and self.node.verification.goes_alone(request) and request.session:
                self.node.unlink(request.session)
            elif not self.node.verification.goes_on_after(request, message, self.node.working_service()):
                # One error for all: which one the service chose could tell this user something.
                self.advance(request, failed(request.request_id, VaultLost.because("vault_lost")))
        else:
            self.advance(request, message)

    def _check(self, request: Request, message: Prefilled) -> None:
        """The message goes on to the service, which serves all tenants: nothing in it may exceed the request."""
        context = self.node.serving().max_context
        if message.max_tokens > min(request.params.max_tokens, context - request.prompt_tokens):
            raise ProtocolError("A vault would have more tokens generated than were asked for.")
        if len(message.public) >= request.prompt_tokens or request.prompt_tokens > context:
            raise ProtocolError("A vault shows more tokens than the prompt has.")
        if request.params.seed not in (None, message.seed):
            raise ProtocolError("A vault would have another seed than was asked for.")
        if any(token >= self.node.serving().vocabulary for token in message.public):
            raise ProtocolError("A token is not of this model.")
        if any(max(each.origin, each.rotation) > request.prompt_tokens for each in message.sequences):
            raise ProtocolError("A vault places the answer outside of its prompt.")
        if len({each.slot for each in message.sequences}) < len(message.sequences):
            raise ProtocolError("A vault has two sequences in one slot.")
        if len(message.sequences) > 1 and {each.finish for each in message.sequences} not in ({None}, {"length"}):
            raise ProtocolError("The sequences of a request end together.")

    def _prefilled(self, request: Request, message: Prefilled) -> None:
        if request.session is None or not request.accepted or len(message.sequences) != request.sequences:
            raise ProtocolError("A vault prefills as many sequences as it said, for a session.")
        self._check(request, message)
        request.exposed = True
        for number, sequence in enumerate(message.sequences):
            logprobs = None if sequence.logprob is None else (sequence.logprob,)
            finish = sequence.finish if number == request.sequences - 1 else None
            first = Tokens(message.request_id, (sequence.token,), logprobs, finish=finish, sequence=number)
            self.node.requests.advance(request, first)
        if message.sequences[-1].finish is not None:
            return
        request.holder = "service"
        request.shown = message.public
        link = request.session.vault.number
        partitions = tuple(
            Partition(link, each.slot, each.token, each.origin, each.rotation) for each in message.sequences
        )
        params = replace(request.params, max_tokens=message.max_tokens, seed=message.seed, stop_recitation=False)
        order = self.order(request, message.public, params, partitions)
        request.verified = self.node.verification.begin(request, order, self.node.service)
        if not request.alone:
            try:
                self.node.working_service().send(order)
            except ServiceUnavailable as reason:
                self.node.requests.fail(request, reason)

    def order(
        self, request: Request, public: tuple[int, ...], params: SamplingParams, partitions: tuple[Partition, ...]
    ) -> Order:
        [partition] = partitions
        return GeneratePartitioned(request.request_id, request.tenant, public, params, partition, request.salt)


class ObfuscatedRoute(PartitionedRoute):
    """λ+1 sequences of one request ("Confidential Prompting", §5). Nothing here depends on which of them is real."""

    level = LEVELS["obfuscated"]

    def advance(self, request: Request, message: Accepted | Tokens | Failed) -> None:
        super().advance(request, message)
        if isinstance(message, Tokens) and message.finish is not None:
            self._remember(request)

    def from_vault(self, request: Request, message: msgspec.Struct) -> None:
        super().from_vault(request, message)
        if isinstance(message, Prefilled) and message.sequences[-1].finish is not None:
            self._remember(request)

    def order(
        self, request: Request, public: tuple[int, ...], params: SamplingParams, partitions: tuple[Partition, ...]
    ) -> Order:
        return GenerateVariants(request.request_id, request.tenant, public, params, partitions, request.salt)

    def _remember(self, request: Request) -> None:
        """A conversation may go on where its session is kept; whose answers these are, its vault knows."""
        if request.session is not None and request.session.keep:
            made = tuple(tuple(request.made[number]) for number in range(request.sequences))
            request.session.vault.send(Answered(request.request_id, made))

    def check_sequences(self, request: Request, sequences: int) -> None:
        asked = request.obfuscation or ObfuscationParams()
        if not 1 + (asked.minimum or asked.fakes) <= sequences <= 1 + asked.fakes:
            raise ProtocolError("A vault has more or fewer sequences than were asked for.")
