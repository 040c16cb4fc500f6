"""Sampling with a model on this machine, for clients that obfuscate before sending. Secrets stay in this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from cloister.compute.choose import choose_device
from cloister.compute.layout import BLOCK_TOKENS
from cloister.config import EngineSettings, data_folder
from cloister.detection.redaction import shipped_redaction
from cloister.engine.continuations import Continuations
from cloister.models.decoder import RawParts
from cloister.models.load import load_decoder
from cloister.models.source import ModelFolder, find_model
from cloister.models.weights import open_weights
from cloister.obfuscation.candidates.medications import known_medications
from cloister.obfuscation.goal import Method, SamplingGoal
from cloister.obfuscation.gqs import Distance, Quantization, finished
from cloister.obfuscation.index import Prf, new_secret
from cloister.obfuscation.language_model import TokenShapes
from cloister.obfuscation.pool_draw import split_rows
from cloister.obfuscation.requests import Obfuscation
from cloister.obfuscation.sampler import Sampler
from cloister.obfuscation.store import MemoryStore, Store
from cloister.obfuscation.store_file import FileStore, SubstitutesFile
from cloister.obfuscation.tags import Detector
from cloister.prompts.tokenizer import Tokenizer

MAX_CONTEXT = 4096
LONGEST_SECRET_TOKENS = 64


class LocalModel:
    def __init__(self, model: str | ModelFolder | None = None, *, lambda_max: int = 128) -> None:
        folder = find_model(model) if model is None or isinstance(model, str) else model
        self.name = folder.name
        self.tokenizer = Tokenizer(folder)
        device = choose_device(EngineSettings())
        device.open()
        decoder = load_decoder(folder, RawParts(open_weights(folder), device.kernels), device, MAX_CONTEXT)
        # Memory is taken when it is written to: this is how much may be, not how much is.
        blocks = decoder.max_context // BLOCK_TOKENS + 1 + (lambda_max + 1) * (LONGEST_SECRET_TOKENS // BLOCK_TOKENS)
        self._shapes = TokenShapes(self.tokenizer, decoder.vocabulary)
        self.continuations = Continuations(decoder, device.cache(decoder.cache_shape, blocks))

    def sampler(self, goal: SamplingGoal | None = None, secret: bytes | None = None) -> Sampler:
        goal, prf = goal or SamplingGoal(), Prf(secret or new_secret())
        return Sampler(self.continuations, self.tokenizer, goal, prf, self._shapes)

    def likelihoods(self, texts: Sequence[str]) -> list[float]:
        """ln P of each text, as far as the model's context goes."""
        beginning, rows = split_rows(self.tokenizer, texts, self.continuations.max_context)
        return finished(self.continuations.likelihoods(beginning, rows))


class GqsOptions(TypedDict, total=False):
    """Of Greedy Quantized Sampling: ε, how it is measured, λ_max, and the sampling temperature."""

    epsilon: float
    distance: Distance
    candidates: int
    temperature: float


def local_obfuscation(
    model: str | None = None,
    *,
    fakes: int = 7,
    method: Method = "exchangeable",
    auto_redact: bool = False,
    detector: Detector | None = None,
    regular: bool = False,
    store: Path | str | None = None,
    **gqs: Unpack[GqsOptions],
) -> Obfuscation:
    """What `Client(obfuscate=…)` takes. `store`: the substitutes' file, or "none"; None: in the user's data folder."""
    epsilon, candidates = gqs.get("epsilon", 2.0), gqs.get("candidates", 128)
    by = Quantization(epsilon, candidates, gqs.get("temperature", 1.0), gqs.get("distance", "relative"))
    goal, kept = SamplingGoal(fakes, None, by, method), open_store(store)
    local = LocalModel(model, lambda_max=by.lambda_max)
    found = detector or (shipped_redaction(known_medications()) if auto_redact else None)
    more: dict[str, Any] = {"new_sampler": lambda: local.sampler(goal), "store": kept, "goal": goal}
    return Obfuscation(local.sampler(goal), detector=found, regular=regular, **more)


def open_store(named: Path | str | None) -> Store:
    """ "none" keeps substitutes while the process lives: the next process draws others."""
    if str(named) == "none":
        return MemoryStore()
    return FileStore(SubstitutesFile(Path(named or data_folder() / "substitutes.json").expanduser()))
