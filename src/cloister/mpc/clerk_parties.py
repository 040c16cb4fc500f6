"""Puts a clerk together: the parties a file names, a model's tokenizer, and what is revealed to whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cloister.errors import SetupError
from cloister.models.source import ModelFolder
from cloister.mpc.cache.plan import RECOMMENDED
from cloister.mpc.certificates import Credentials
from cloister.mpc.clerk import Clerk, Said
from cloister.mpc.config import read_config
from cloister.mpc.passes import ModelAtParties
from cloister.mpc.serve_weights import connect_patiently
from cloister.prompts.reading import PromptReading
from cloister.prompts.tokenizer import Tokenizer

CLIENT_KEY = "keys/client-clerk.key"


async def reach_parties(file: Path, patience_s: float, key: Path | None = None) -> ModelAtParties:
    """The parties of this file, once they are ready. Our key lies beside it, unless another is given."""
    config = read_config(file)
    key = key or file.parent / CLIENT_KEY
    if not key.is_file():
        raise SetupError(f"There is no client key {key}.", hint="`cloister mpc keys` makes keys for clients.")
    own = Credentials(key.with_suffix(".crt"), key)
    probe = await connect_patiently(config, own, patience_s)
    await probe.close()
    parties = ModelAtParties(config, own, RECOMMENDED)
    await parties.connect(patience_s)
    return parties


def make_clerk(
    parties: ModelAtParties,
    folder: ModelFolder,
    say: Callable[[Said], None],
    *,
    max_context: int,
    vocabulary: int | None = None,
    draft_tokens: int = 0,
) -> Clerk:
    """A clerk for the model that the parties have; SetupError if it is not the folder's."""
    if vocabulary is not None and vocabulary != parties.vocabulary:
        raise SetupError(
            f"The parties' model has a vocabulary of {parties.vocabulary}, ours of {vocabulary}.",
            hint="Serve the model that was dealt to them.",
        )
    tokenizer = Tokenizer(folder)
    tokenizer.warm()
    reading = PromptReading(tokenizer, parties.vocabulary, max_context)
    return Clerk(parties, reading, say, max_context=max_context, draft_tokens=draft_tokens)
