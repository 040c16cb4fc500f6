"""A frontend's part at the level `obfuscated`: over plain HTTP it derives the secret that orders the streams, and picks
the real answer. A repeated prompt gets the same secret, so a service that lets requests fail sees nothing new. Of a
sealed request it knows neither prompt nor secret: the client picks the real stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Literal

import msgspec
from msgspec.structs import replace
from pydantic import ConfigDict, Field, StringConstraints, model_validator

from cloister.errors import InvalidRequest
from cloister.gateway.api import RequestSession
from cloister.gateway.generation import Winnow
from cloister.levels import MOST_FAKES
from cloister.messages.obfuscation import ObfuscationParams, ObfuscationSecrets
from cloister.messages.prompts import Prompt, SealedPrompt, TokenPrompt, write_prompt
from cloister.obfuscation.index import REQUEST, Prf
from cloister.prompts.json_prompt import Given


class ObfuscationOptions(Given):
    """At `obfuscated`: how the prompt is hidden. A misspelt field would hide less, so unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")

    fakes: int | None = Field(default=None, ge=1, le=MOST_FAKES, description="λ: number of made-up prompts; default 7")
    minimum: int | None = Field(
        default=None, ge=1, le=MOST_FAKES, description="λ_min: fewer do not leave the vault; default λ"
    )
    epsilon: float = Field(default=0.1, gt=0, le=100, description="ε, at most 1 for an absolute distance")
    distance: Literal["absolute", "relative"] = "absolute"
    candidates: int = Field(default=128, ge=1, le=512, description="λ_max: candidates for each token")
    temperature: float = Field(default=1.0, gt=0, le=10, description="of the sampling, not of the answer")
    regularise: bool = Field(default=False, description="spell secrets regularly first, which changes the prompt")
    auto_redact: bool = Field(default=False, description="the vault also looks for secrets that are not marked")
    substitutes: list[list[Annotated[str, StringConstraints(min_length=1, max_length=512)]]] | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_FAKES,
        description="your own, variant by variant: one for each secret, in the order of first mentions",
    )

    @model_validator(mode="after")
    def _consistent(self) -> ObfuscationOptions:
        if self.distance == "absolute" and self.epsilon > 1:
            raise ValueError("epsilon is at most 1 for an absolute distance")
        if self.substitutes is not None and self.fakes not in (None, len(self.substitutes)):
            raise ValueError("fakes is the number of substitutes for each secret, where they are given")
        if (self.minimum or 1) > self.params.fakes:
            raise ValueError("minimum is at most fakes")
        return self

    @property
    def params(self) -> ObfuscationParams:
        fakes = self.fakes or (len(self.substitutes) if self.substitutes else ObfuscationParams().fakes)
        others = self.model_dump(exclude={"fakes", "minimum", "substitutes"})
        return ObfuscationParams(fakes, self.minimum or 0, **others)


@dataclass(frozen=True, slots=True)
class Hiding:
    """`secrets` is None for a request that came sealed."""

    params: ObfuscationParams
    secrets: ObfuscationSecrets | None = field(repr=False)

    @classmethod
    def of(
        cls,
        options: ObfuscationOptions,
        prompt: Prompt | SealedPrompt,
        tenant: str,
        session: RequestSession,
        stop_strings: Sequence[str],
        salt: str,
        by: Prf,
    ) -> Hiding:
        if not isinstance(prompt, SealedPrompt):
            given = tuple(tuple(variant) for variant in options.substitutes or ())
            kept = session.name if session.keep else ""
            secret = by.secret(msgspec.msgpack.encode((tenant, kept, options.params, given, write_prompt(prompt))))
            names = tuple(name for name in (kept, salt) if name)
            return cls(options.params, ObfuscationSecrets(secret, given, tuple(stop_strings), names))
        if options.substitutes is not None:
            message = "obfuscation: In a sealed request substitutes are sealed with the prompt, for its vault alone."
            raise InvalidRequest(message, param="obfuscation", hint="Use a Cloister client.")
        return cls(options.params, None)

    def hide(self, prompt: Prompt) -> Prompt:
        """The prompt with the secrets for its vault; the vault refuses token ids."""
        return prompt if isinstance(prompt, TokenPrompt) else replace(prompt, hidden=self.secrets)

    @property
    def winnow(self) -> Winnow | None:
        if self.secrets is None:
            return None
        prf = Prf(self.secrets.index_secret)
        return cache(lambda count: prf.order(REQUEST, count).authentic)
