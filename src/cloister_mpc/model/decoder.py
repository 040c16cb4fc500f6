"""The decoder, for shares and plain numbers: activations (D, n), weights (out, in); `present` is 0 where a column pads.
argmax(logits + temperature x Gumbel noise): the client deals it, so parties learn neither."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cloister_mpc.cache.attention import scores, shown, weighted
from cloister_mpc.cache.base import Cache, PromptLayer, Shuffles, seen_slots, write_slots
from cloister_mpc.cache.methods import Method
from cloister_mpc.functions.bundle import Functions
from cloister_mpc.functions.largest import largest
from cloister_mpc.functions.ring import fine, integers, numbers, settled
from cloister_mpc.messages import Answer
from cloister_mpc.model.shape import ModelShape, one_hots
from cloister_mpc.model.weights import LayerWeights, ModelWeights, OuterWeights

BLOCK = 256  # columns of a prompt computed at once: a block's scores are the most memory a prefill needs

FAR = 48  # how far the first token's score with itself is lowered (see `_causal`): e^-48 vanishes in fixed point

EMBED_BLOCK = 64  # columns whose one-hots are multiplied at once, to bound memory


class Angles(NamedTuple):
    """Cosines and sines of the columns' positions, (n, d) each and public."""

    cosine: Array
    sine: Array


class Attended(NamedTuple):
    """What attention reads of new columns: queries (H, n, d), scaled; keys (G, n, d); values (G, n, d + 1)."""

    queries: Array
    keys: Array
    values: Array


class Decoder:
    def __init__(self, shape: ModelShape, functions: Functions) -> None:
        self.shape = shape
        self.functions = functions

    def embed(self, outer: OuterWeights, coarse: Array, fine: Array) -> tuple[Array, Array]:
        """Columns (D, n), and which hold a token, (1, n)."""
        blocks = []
        for start in range(0, coarse.shape[1], EMBED_BLOCK):
            here = slice(start, start + EMBED_BLOCK)
            tokens = (coarse[:, None, here] * fine[None, :, here]).reshape(-1, coarse[:, here].shape[1])
            # An integer scale costs nothing here, and the matrix itself must stay as the head needs it.
            # As rows: a single column's product with the transposed matrix takes half as long again.
            rows = (tokens[: self.shape.vocabulary].T * int(self.shape.scales[0])).astype(jnp.float32)
            blocks.append((rows @ outer.embedding).T)
        return jnp.concatenate(blocks, axis=1), jnp.sum(coarse, axis=0, keepdims=True)

    def prompt_layer(
        self, window: int, epsilon: Array, hidden: Array, present: Array, weights: LayerWeights, angles: Angles
    ) -> tuple[Array, PromptLayer]:
        """A whole prompt (D, T) through one layer, every token seeing those before it, block by block of columns."""
        blocks: list[Array] = []
        queries: list[Array] = []
        keys: list[Array] = []
        values: list[Array] = []
        # Padding is on the left, so the first token is where `present` rises.
        first = present - jnp.concatenate([jnp.zeros_like(present[:, :1]), present[:, :-1]], axis=1)
        for start in range(0, hidden.shape[1], BLOCK):
            here = slice(start, start + BLOCK)
            columns, there = hidden[:, here], present[:, here]
            new = self._project(columns, weights, Angles(*(angle[here] for angle in angles)), there, epsilon)
            new = new._replace(values=new.values * there.reshape(1, -1, 1).astype(hidden.dtype))
            queries.append(new.queries)
            keys.append(new.keys)
            values.append(new.values)
            out = self._causal(new.queries, keys, values, weights.offset, there, first[:, here])
            blocks.append(self._finish(columns, out, weights, there, epsilon))
        last = jnp.concatenate(queries, axis=1)[:, -window:]
        prompt = PromptLayer(last, jnp.concatenate(keys, axis=1), jnp.concatenate(values, axis=1))
        return jnp.concatenate(blocks, axis=1), prompt

    def _causal(
        self, queries: Array, keys: list[Array], values: list[Array], offset: Array, present: Array, first: Array
    ) -> Array:
        """The last block over all before it. The first token sees itself alone, out of calibration's range: lowered to
        nothing, its answer put in. Padding sees nothing: its denominator is one."""
        softmax, columns = self.functions.softmax, queries.shape[1]
        every_key, every_value = jnp.concatenate(keys, axis=1), jnp.concatenate(values, axis=1)
        before = every_key.shape[1] - columns
        visible = jnp.tri(columns, before + columns, before, dtype=jnp.int32)
        itself = jnp.eye(columns, before + columns, before, dtype=jnp.int32)
        lowered = scores(queries, every_key) - (first.reshape(columns, 1) * itself * FAR).astype(queries.dtype)
        sums = weighted(shown(softmax.weigh(lowered, offset), visible), every_value)
        alone = values[-1] * first.reshape(1, columns, 1).astype(queries.dtype)
        padding = jnp.pad((1 - present).reshape(1, columns, 1), ((0, 0), (0, 0), (alone.shape[-1] - 1, 0)))
        instead = jnp.repeat(alone + padding.astype(queries.dtype), queries.shape[0] // alone.shape[0], axis=0)
        return softmax.divide(sums + instead)

    def step_layer(
        self,
        method: Method,
        epsilon: Array,
        hidden: Array,
        weights: LayerWeights,
        cache: Cache,
        angles: Angles,
        slot: Array,
        shuffles: Shuffles,
    ) -> tuple[Array, Cache]:
        new = self._project(hidden, weights, angles, _ones(hidden), epsilon)
        cache = write_slots(cache, slot, new.keys, new.values)
        choice = method.choose(new.queries, cache, shuffles)
        seen = seen_slots(cache.pinned_keys.shape[1], slot, hidden.shape[1])
        out = method.attend(new.queries, cache, choice, self.functions.softmax, weights.offset, seen)
        return self._finish(hidden, out, weights, _ones(hidden), epsilon), cache

    def _project(
        self, hidden: Array, weights: LayerWeights, angles: Angles, present: Array, epsilon: Array
    ) -> Attended:
        shape, columns = self.shape, hidden.shape[1]
        normed = self._normalise(hidden, epsilon)
        every = (weights.qkv @ self._with_biases(normed, present)).reshape(-1, shape.head_size, columns)
        every = every.transpose(0, 2, 1)
        turning = shape.heads + shape.kv_heads
        turned = rotate(every[:turning], angles)
        last = jnp.broadcast_to(present.reshape(1, columns, 1), (shape.kv_heads, columns, 1))
        values = jnp.concatenate([every[turning:], last.astype(every.dtype)], axis=-1)
        return Attended(turned[: shape.heads], turned[shape.heads :], values)

    def _finish(self, hidden: Array, out: Array, weights: LayerWeights, present: Array, epsilon: Array) -> Array:
        """What follows attention's answer (H, n, d): its matrix, then the MLP; both added to the stream."""
        shape, functions = self.shape, self.functions
        answer = out.transpose(0, 2, 1).reshape(-1, hidden.shape[1])
        hidden = hidden + weights.out @ self._with_biases(answer, present)
        normed = self._normalise(hidden, epsilon)
        wide = weights.up @ self._with_biases(normed, present)
        inner = functions.ordered_silu(wide[: shape.inner], shape.calm) * wide[shape.inner :]
        written: Array = hidden + weights.down @ self._with_biases(inner, present)
        return written

    def logits(self, outer: OuterWeights, hidden: Array) -> Array:
        """(V, n), fine (functions.ring): comparing them needs no truncation."""
        normed = self._normalise(hidden, self.shape.epsilon * self.shape.scales[-1] ** 2)
        if self.shape.tied:
            matrix, columns = outer.embedding, normed * outer.gain
        else:
            matrix, columns = outer.head, self._with_biases(normed, jnp.ones((1, hidden.shape[1]), hidden.dtype))
        # A number times an integer is not truncated; scaling the much larger matrix would copy it.
        fine_logits: Array = matrix @ integers(columns).astype(matrix.dtype)
        return fine_logits

    def answer(self, kind: Answer, outer: OuterWeights, hidden: Array, noise: Array | None) -> Array:
        """What is fetched after a pass: (n,) numbers of tokens, or logits (V, n)."""
        values = self.logits(outer, hidden)
        if kind == "logits":
            return settled(values)
        return largest(values + fine(noise) if noise is not None else values)

    def _normalise(self, hidden: Array, epsilon: Array | float) -> Array:
        """RMSNorm without its gain (weights hold it); `epsilon` is public and scaled as the stream's squares are."""
        return hidden * self.functions.rms_scale(_squares(hidden) * (1 / self.shape.hidden) + epsilon)

    def _with_biases(self, columns: Array, present: Array) -> Array:
        return jnp.concatenate([columns, present.astype(columns.dtype)]) if self.shape.biases else columns


def _squares(hidden: Array) -> Array:
    """(D, n) → (1, n), each column with itself: a product costs by its output, and n is less than D."""
    elements, columns = integers(hidden), hidden.shape[1]
    own = (elements.T @ elements) * np.eye(columns, dtype=elements.dtype)
    return settled(numbers(jnp.ones((1, columns), elements.dtype) @ own))


def _ones(hidden: Array) -> Array:
    """Made from shares: public ones would have to be shared first, which is a message."""
    return hidden[:1] - hidden[:1] + 1


def rotate(heads: Array, angles: Angles) -> Array:
    """Rotary positions on (…, n, d): one truncation of what two public products add up to."""
    half = heads.shape[-1] // 2
    turned = jnp.concatenate([-heads[..., half:], heads[..., :half]], axis=-1)
    return settled(numbers(integers(heads) * integers(angles.cosine) + integers(turned) * integers(angles.sine)))


class PlainModel:
    """The same layers in the clear, for calibration and tests. One compiled function serves all layers."""

    def __init__(self, shape: ModelShape, weights: ModelWeights, functions: Functions) -> None:
        self.shape = shape
        self.decoder = Decoder(shape, functions)
        self.weights = jax.tree_util.tree_map(jnp.asarray, weights)
        self.epsilons = [jnp.float32(shape.epsilon * scale * scale) for scale in shape.scales]
        self._embed = jax.jit(self.decoder.embed)
        self._prompt = jax.jit(self.decoder.prompt_layer, static_argnums=0)
        self._logits = jax.jit(self.decoder.logits)

    def columns(self, tokens: Sequence[int], wide: int) -> tuple[Array, Array]:
        """Embedded tokens (D, wide), padded on the left, and which columns hold one."""
        embedded: tuple[Array, Array] = self._embed(self.weights.outer, **one_hots(self.shape, tokens, wide))
        return embedded

    def angles(self, first: int, columns: int) -> Angles:
        return Angles(*map(jnp.asarray, self.shape.angles(first, columns)))

    def rescaled(self, number: int, hidden: Array) -> Array:
        scales = self.shape.scales
        return hidden * (scales[number] / scales[number - 1]) if number else hidden

    def prompt_layer(
        self, number: int, window: int, hidden: Array, present: Array, angles: Angles
    ) -> tuple[Array, PromptLayer]:
        hidden = self.rescaled(number, hidden)
        result: tuple[Array, PromptLayer] = self._prompt(
            window, self.epsilons[number], hidden, present, self.weights.layers[number], angles
        )
        return result

    def logits(self, hidden: Array) -> NDArray[np.float32]:
        """(n, V)."""
        return np.asarray(self._logits(self.weights.outer, hidden)).T
