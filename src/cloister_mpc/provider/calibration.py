"""How large a model's numbers get, in the clear on our own texts alone: scales (public), heads' offsets (secret)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from typing import NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cloister.errors import InvalidRequest
from cloister.models.source import ModelFolder
from cloister.prompts.tokenizer import Tokenizer
from cloister_mpc.cache.attention import scores
from cloister_mpc.cache.base import PromptLayer
from cloister_mpc.functions.activations import CALM_WITHIN, GATES_ARE_DIVIDED_BY
from cloister_mpc.functions.bundle import EXACT
from cloister_mpc.model.decoder import PlainModel
from cloister_mpc.model.shape import CALM_STEP, ModelShape, bucket_of, shape_of
from cloister_mpc.model.weights import ModelWeights, read_weights

LARGEST_MEAN_SQUARE = 2048.0  # half of what the functions' 1/sqrt is made for: users' texts will exceed ours a little

TYPICAL_BELOW = 64.0

WEIGHTS_ABOVE = 12.0
SUMS_ABOVE = -6.0
"""exp of a score must not exceed e^12, and a row's sum must not fall below e^-6 (functions.exponential, reciprocal)."""

BEYOND_SEEN = 4.0  # how much further than seen a gate is taken to reach, in the standard deviations of `_Gates.reach`

STRANGE_TEXTS, STRANGE_TOKENS = 4, 512
TEXTS: list[str] = msgspec.json.decode((files(__package__) / "calibration_texts.json").read_bytes(), type=list[str])


class Calibration(NamedTuple):
    scales: tuple[float, ...]
    offsets: NDArray[np.float32]  # (layers, H)
    reach: NDArray[np.float32]  # (layers, F): how large each gate may get


def prepare(folder: ModelFolder, texts: Sequence[Sequence[int]] | None = None) -> tuple[ModelShape, ModelWeights]:
    """A folder's model as it is shared: calibrated (on `texts`, else on our own), folded. The shape is public."""
    shape = shape_of(folder)
    found = calibrate(folder, texts or _own_texts(folder), [] if texts else _strange_texts(shape))
    shape = msgspec.structs.replace(shape, scales=found.scales, calm=_calm(found.reach))
    return shape, read_weights(folder, shape, found.offsets, found.reach.argsort(axis=1))


def calibrate(
    folder: ModelFolder, texts: Sequence[Sequence[int]], strange: Sequence[Sequence[int]] = ()
) -> Calibration:
    """Scales and offsets for these texts (tokens). Gates also on `strange` ones: some react to those alone."""
    shape = shape_of(folder)
    gates = _Gates(shape)
    model = PlainModel(shape, read_weights(folder, shape), replace(EXACT, ordered_silu=gates.silu))
    squares = np.zeros((shape.layers, 2))  # largest and median mean square
    highest = np.full((shape.layers, shape.heads), -np.inf)
    lowest = np.full((shape.layers, shape.heads), np.inf)
    for at, text in enumerate((*texts, *strange)):
        tokens = text[: shape.context]
        wide = bucket_of(len(tokens))
        hidden, present = model.columns(tokens, wide)
        for number in range(shape.layers):
            before = hidden
            hidden, prompt = model.prompt_layer(number, wide, hidden, present, model.angles(-wide, wide))
            gates.belong_to(number)
            if at >= len(texts):
                continue
            seen = np.asarray(jnp.mean(jnp.stack([before, hidden])[:, :, wide - len(tokens) :] ** 2, axis=1))
            squares[number] = np.maximum(squares[number], [seen.max(), np.median(seen[0])])
            top, bottom = _extremes(prompt, len(tokens))
            highest[number] = np.maximum(highest[number], top)
            lowest[number] = np.minimum(lowest[number], bottom)
    return Calibration(_scales(squares), _offsets(highest, lowest), gates.reach(model.weights))


class _Gates:
    """The largest gate of every neuron, reported by the activation itself while layers run, one at a time."""

    def __init__(self, shape: ModelShape) -> None:
        self._shape = shape
        self._reported: list[NDArray[np.float32]] = []
        self._largest = np.zeros((shape.layers, shape.inner), np.float32)

    def silu(self, gates: Array, calm: int) -> Array:
        largest = jnp.abs(gates).max(axis=1) * GATES_ARE_DIVIDED_BY
        jax.debug.callback(lambda largest: self._reported.append(np.asarray(largest)), largest)
        return EXACT.ordered_silu(gates, calm)

    def belong_to(self, number: int) -> None:
        """What was reported since the last call belongs to this layer."""
        jax.effects_barrier()  # type: ignore[no-untyped-call]
        for largest in self._reported:
            self._largest[number] = np.maximum(self._largest[number], largest)
        self._reported.clear()

    def reach(self, weights: ModelWeights) -> NDArray[np.float32]:
        """The largest seen plus a multiple of the row's length: the deviation of its gate on a random normed column."""
        rows = np.stack([layer.up[: self._shape.inner, : self._shape.hidden] for layer in weights.layers])
        deviation = np.linalg.norm(rows * GATES_ARE_DIVIDED_BY, axis=2)
        reach: NDArray[np.float32] = self._largest + np.float32(BEYOND_SEEN) * deviation
        return reach


def _calm(reach: NDArray[np.float32]) -> int:
    """How many gates of every layer stay small: as many in each, so that one program serves all."""
    fewest = min(int(count) for count in (reach < CALM_WITHIN).sum(axis=1))
    return fewest // CALM_STEP * CALM_STEP


def _extremes(prompt: PromptLayer, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Per head: the largest score a token sees, and the least log of a row's sum; not of the first token (decoder)."""
    every: Array = scores(prompt.queries[:, -count:], prompt.keys[:, -count:])
    past = jnp.where(jnp.tri(count, dtype=bool), every, -jnp.inf)[:, 1:]
    top = past.max(axis=-1)
    sums = jnp.log(jnp.exp(past - top[..., None]).sum(axis=-1)) + top
    return np.asarray(top.max(axis=-1)), np.asarray(sums.min(axis=-1))


def _scales(squares: NDArray[np.float64]) -> tuple[float, ...]:
    """Powers of two, never rising, and lowered only where they must be, since a change costs two messages."""
    scales: list[float] = []
    for number, (largest, typical) in enumerate(squares):
        if number and largest * scales[-1] ** 2 <= LARGEST_MEAN_SQUARE and typical * scales[-1] ** 2 <= TYPICAL_BELOW:
            scales.append(scales[-1])
            continue
        power = math.floor(math.log2(min(math.sqrt(LARGEST_MEAN_SQUARE / largest), math.sqrt(4 / typical))))
        # The embedding can only be multiplied by an integer (see decoder).
        scales.append(min([*scales, 2.0 ** max(power, -8)]) if number else 2.0 ** min(max(power, 0), 6))
    return tuple(scales)


def _offsets(highest: NDArray[np.float64], lowest: NDArray[np.float64]) -> NDArray[np.float32]:
    """The middle of what is allowed: as far from weights too large as from sums too small."""
    middle = (highest - WEIGHTS_ABOVE + lowest - SUMS_ABOVE) / 2
    return middle.astype(np.float32)


def _own_texts(folder: ModelFolder) -> list[list[int]]:
    """A chat, like most requests; and all of it in a row, since scores depend on distance."""
    tokenizer = Tokenizer(folder)
    turns = [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * 2, TEXTS[:3], strict=False)]
    try:
        chat = tokenizer.render_chat(turns)
    except InvalidRequest:
        chat = tokenizer.encode(TEXTS[0], add_special_tokens=True)
    return [chat, tokenizer.encode("\n\n".join(TEXTS), add_special_tokens=True)]


def _strange_texts(shape: ModelShape) -> list[list[int]]:
    """Tokens in random order: they cover more of the vocabulary than a short text."""
    drawn = np.random.default_rng(0).integers(0, shape.vocabulary, (STRANGE_TEXTS, STRANGE_TOKENS))
    return [[int(token) for token in text] for text in drawn]
