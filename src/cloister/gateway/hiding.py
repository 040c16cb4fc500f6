"""What a frontend does for a request at the level `obfuscated`.

Over plain HTTP it draws the secret that the real answer's place comes from, sends it to the vault with the prompt, and
picks the real answer out: it knows. A prompt that comes again, because a request failed and its sender tried again, has
the same secret again, and goes among the same others: a service that lets requests fail sees nothing new. Of a request
that came sealed this process knows neither prompt nor secret, and hands on all streams; the client winnows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import msgspec
from msgspec.structs import replace

from cloister.errors import InvalidRequest
from cloister.gateway.generation import Winnow
from cloister.gateway.schema import GenerationRequest, ObfuscationOptions
from cloister.gateway.terms import Session
from cloister.messages.obfuscation import ObfuscationParams, ObfuscationSecrets
from cloister.messages.prompts import Prompt, SealedPrompt, TokenPrompt, write_prompt
from cloister.obfuscation.elsewhere import refuse_biases
from cloister.obfuscation.index import REQUEST, Prf


@dataclass(frozen=True, slots=True)
class Hiding:
    """`secrets` are this process's to know where the request came in the clear; None where it came sealed."""

    params: ObfuscationParams
    secrets: ObfuscationSecrets | None = field(repr=False)

    @classmethod
    def of(
        cls, body: GenerationRequest, prompt: Prompt | SealedPrompt, tenant: str, session: Session, by: Prf
    ) -> Hiding:
        """ObfuscationRefused where what is asked could tell the real one. Which words are secrets, the vault knows."""
        options = body.obfuscation or ObfuscationOptions()
        refuse_biases(body.logit_bias)
        if not isinstance(prompt, SealedPrompt):
            given = tuple(tuple(variant) for variant in options.substitutes or ())
            kept = session.name if session.keep else ""
            secret = by.secret(msgspec.msgpack.encode((tenant, kept, options.params, given, write_prompt(prompt))))
            names = tuple(name for name in (kept, body.cache_salt) if name)
            return cls(options.params, ObfuscationSecrets(secret, given, tuple(body.stop_strings), names))
        if options.substitutes is not None:
            raise InvalidRequest(
                "obfuscation: In a sealed request substitutes are sealed with the prompt, for its vault alone.",
                param="obfuscation",
                hint="Use a Cloister client.",
            )
        return cls(options.params, None)

    def hide(self, prompt: Prompt | SealedPrompt) -> Prompt | SealedPrompt:
        """The prompt with what its vault needs; token ids are refused there."""
        if isinstance(prompt, SealedPrompt | TokenPrompt):
            return prompt
        return replace(prompt, hidden=self.secrets)

    @property
    def winnow(self) -> Winnow | None:
        if self.secrets is None:
            return None
        prf = Prf(self.secrets.index_secret)
        return cache(lambda count: prf.order(REQUEST, count).authentic)
