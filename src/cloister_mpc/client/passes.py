"""A generation's passes over the parties: tokens in, tokens or logits out. Runs where the prompt is."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from cloister.errors import ServiceUnavailable, SetupError
from cloister_mpc.cache.plan import PLANS, CachePlan
from cloister_mpc.certificates import DEFAULT_CLIENT_KEY, Credentials
from cloister_mpc.client.parties import Parties, PartySession
from cloister_mpc.config import PartiesConfig, read_config
from cloister_mpc.messages import Answer, GenerationSpec
from cloister_mpc.model.programs import Programs, dealt, programs_for
from cloister_mpc.model.shape import ModelShape, bucket_of, one_hots, permutations


class ModelAtParties:
    """Connects when it must: a lost party may be back. `shape` is the model's, once `connect` has asked for it."""

    shape: ModelShape

    def __init__(self, config: PartiesConfig, own: Credentials, cache: CachePlan, identity: bytes = b"") -> None:
        self._config, self._own, self._cache, self._identity = config, own, cache, identity
        self._parties: Parties | None = None

    @classmethod
    async def reach(
        cls,
        file: Path,
        patience_s: float,
        key: Path | None = None,
        identity: bytes = b"",
        cache: CachePlan = PLANS["full"],
    ) -> Self:
        """Waits until the parties are ready. `identity`: the digest in the node's evidence, which they must have."""
        config = read_config(file)
        key = key or file.parent / DEFAULT_CLIENT_KEY
        if not key.is_file():
            raise SetupError(f"There is no client key {key}.", hint="`cloister mpc keys` makes keys for clients.")
        made = cls(config, Credentials.beside(key), cache, identity)
        made._check_identity()
        made._parties = await Parties.connect(config, made._own, patience_s)
        await made.connect(patience_s)
        return made

    async def connect(self, patience_s: float) -> Parties:
        if self._parties is None or self._parties.closed:
            self._check_identity()
            self._parties = await Parties.connect(self._config, self._own)
        shapes = {each.shape for each in await self._parties.wait_ready(patience_s)}
        if len(shapes) != 1 or b"" in shapes:
            raise ServiceUnavailable("The parties do not serve one and the same model.", hint="Deal its weights again.")
        self.shape = msgspec.json.decode(shapes.pop(), type=ModelShape)
        return self._parties

    def _check_identity(self) -> None:
        if self._identity and self._config.identity() != self._identity:
            raise SetupError(
                "The file that names the parties, or their authority, changed since the server started.",
                hint="Its evidence names others: start the server again.",
            )

    async def open(
        self, prompt_tokens: int, new_tokens: int, kind: Answer, layer_done: Callable[[int], None]
    ) -> "TokenPasses":
        parties = await self.connect(patience_s=30.0)
        spec = GenerationSpec(bucket_of(prompt_tokens), new_tokens, self._cache, kind)
        programs = programs_for(self.shape, spec)
        return TokenPasses(await parties.open(spec), programs, layer_done)

    async def close(self) -> None:
        if self._parties is not None:
            await self._parties.close()


class TokenPasses:
    """One generation at the parties. What a pass opens is for us alone: tokens (n,) or logits (V, n)."""

    def __init__(self, session: PartySession, programs: Programs, layer_done: Callable[[int], None]) -> None:
        self._session = session
        self._programs = programs
        self._layer_done = layer_done

    async def prefill(self, prompt: Sequence[int], noise: NDArray[np.float32] | None) -> NDArray[np.generic]:
        columns = self._programs.spec.prompt_tokens
        await self._deal(dealt(self._programs), prompt, columns, noise)
        return await self._session.run("prefill", on_progress=self._program_done)

    async def step(self, at: int, tokens: Sequence[int], noise: NDArray[np.float32] | None) -> NDArray[np.generic]:
        """Compute the answer's tokens from number `at` on, forgetting wrong guesses there; what follows each."""
        columns = len(tokens)
        await self._deal(dealt(self._programs, columns), tokens, columns, noise)
        return await self._session.run("step", at, columns, self._program_done)

    async def close(self) -> None:
        """Have the parties forget it; at any time, and after any failure."""
        self._session.forget()

    async def _deal(
        self,
        needed: dict[str, tuple[tuple[int, ...], str]],
        tokens: Sequence[int],
        columns: int,
        noise: NDArray[np.float32] | None,
    ) -> None:
        values: dict[str, NDArray[np.generic]] = dict(one_hots(self._programs.shape, tokens, columns))
        if noise is not None:
            values["noise"] = noise.astype(np.float32)
        for name, (dims, _) in needed.items():
            await self._session.deal(name, values[name] if name in values else permutations(dims[0], dims[1]))

    def _program_done(self, done: int, total: int) -> None:
        # A pass's other programs are the embedding, before the layers, and the head, after them.
        self._layer_done(min(done - 1, self._programs.shape.layers))
