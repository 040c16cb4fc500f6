"""Named programs, compiled by each party from its own code for public shapes. Unchanged inputs are not rewritten."""

import threading
from collections.abc import Callable, Collection
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array, ShapeDtypeStruct
from spu import libspu
from spu.utils import frontend

from cloister_mpc.cache.base import Shuffles
from cloister_mpc.cache.methods import make_method
from cloister_mpc.functions.bundle import LEAN, Functions
from cloister_mpc.functions.ring import tracing_for_shares
from cloister_mpc.messages import GenerationSpec
from cloister_mpc.model.decoder import Angles, Decoder
from cloister_mpc.model.program_store import Program as Program
from cloister_mpc.model.program_store import ProgramStore
from cloister_mpc.model.shape import FINE, ModelShape
from cloister_mpc.model.weights import LayerWeights, OuterWeights

Tree = Any
_compiling = threading.Lock()


class Programs:
    """All programs of one generation, compiled when first asked for. Threads may share it."""

    def __init__(
        self,
        shape: ModelShape,
        spec: GenerationSpec,
        like: "Programs | None" = None,
        store: ProgramStore | None = None,
        functions: Functions = LEAN,
    ) -> None:
        """`like`: programs whose spec differs only in its answer: what both have in common is compiled once."""
        self.shape = shape
        self.spec = spec
        self.decoder = Decoder(shape, functions)
        self.method = make_method(spec.cache, spec.prompt_tokens, spec.new_tokens)
        self._compiled: dict[tuple[str, int, str], Program] = like._compiled if like else {}
        self._store = store if functions is LEAN else None  # it does not tell functions apart

    def embed(self, columns: int) -> Program:
        shape = self.shape
        inputs = {
            "outer": self._outer(),
            "coarse": _integers(shape.coarse, columns),
            "fine": _integers(FINE, columns),
        }

        def run(outer: OuterWeights, coarse: Array, fine: Array) -> Tree:
            hidden, present = self.decoder.embed(outer, coarse, fine)
            return {"hidden": hidden, "present": present}

        return self._program("embed", columns, run, lambda: inputs)

    def prompt(self) -> Program:
        return self._program("prompt", self.spec.prompt_tokens, self._run_prompt, lambda: self._prompt_inputs, PUBLIC)

    def step(self, columns: int) -> Program:
        def inputs() -> dict[str, Tree]:
            return {
                "hidden": _floats(self.shape.hidden, columns),
                "weights": self._layer(),
                "cache": self._prompt_results["cache"],
                "angles": self._angles(columns),
                "epsilon": _floats(),
                "slot": _integers(),
                "shuffles": self._shuffles(self.method.choose_shuffles),
            }

        def run(**given: Tree) -> Tree:
            hidden, cache = self.decoder.step_layer(self.method, **given)
            return {"hidden": hidden, "cache": cache}

        return self._program("step", columns, run, inputs, PUBLIC)

    def rescale(self, columns: int) -> Program:
        inputs = {"hidden": _floats(self.shape.hidden, columns), "factor": _floats()}

        return self._program(
            "rescale", columns, lambda hidden, factor: {"hidden": hidden * factor}, lambda: inputs, PUBLIC
        )

    def last(self, columns: int) -> Program:
        """The stream's last column alone. Not in the head, which then is the same after a prompt and after a step."""
        inputs = {"hidden": _floats(self.shape.hidden, columns)}

        return self._program("last", columns, lambda hidden: {"hidden": hidden[:, -1:]}, lambda: inputs)

    def head(self, columns: int) -> Program:
        noise = _floats(self.shape.vocabulary, columns) if self.spec.answer == "sampled" else None
        inputs = {"outer": self._outer(), "hidden": _floats(self.shape.hidden, columns), "noise": noise}

        def run(outer: OuterWeights, hidden: Array, noise: Array | None) -> Tree:
            return {"answer": self.decoder.answer(self.spec.answer, outer, hidden, noise)}

        return self._program("head", columns, run, lambda: inputs)

    def _run_prompt(self, weights: LayerWeights, shuffles: Shuffles, **given: Tree) -> Tree:
        hidden, prompt = self.decoder.prompt_layer(self.method.window, weights=weights, **given)
        eviction = self.method.evict(prompt, self.decoder.functions.softmax, weights.offset, shuffles)
        return {"hidden": hidden, "cache": self.method.build(prompt, eviction)}

    @property
    def _prompt_inputs(self) -> dict[str, Tree]:
        columns = self.spec.prompt_tokens
        return {
            "hidden": _floats(self.shape.hidden, columns),
            "present": _integers(1, columns),
            "weights": self._layer(),
            "angles": self._angles(columns),
            "epsilon": _floats(),
            "shuffles": self._shuffles(self.method.evict_shuffles),
        }

    @cached_property
    def _prompt_results(self) -> Tree:
        return jax.eval_shape(self._run_prompt, **self._prompt_inputs)

    def _outer(self) -> OuterWeights:
        shape = self.shape
        return OuterWeights(
            embedding=_floats(shape.vocabulary, shape.hidden),
            gain=_floats(shape.hidden, 1) if shape.tied else _floats(0, 0),
            head=_floats(0, 0) if shape.tied else _floats(shape.vocabulary, shape.hidden + shape.extra),
        )

    def _layer(self) -> LayerWeights:
        shape = self.shape
        attended = shape.heads * shape.head_size
        return LayerWeights(
            qkv=_floats(attended + 2 * shape.kv_heads * shape.head_size, shape.hidden + shape.extra),
            out=_floats(shape.hidden, attended + shape.extra),
            up=_floats(2 * shape.inner, shape.hidden + shape.extra),
            down=_floats(shape.hidden, shape.inner + shape.extra),
            offset=_floats(shape.heads, 1, 1),
        )

    def _angles(self, columns: int) -> Angles:
        size = 2 * len(self.shape.rotation)
        return Angles(_floats(columns, size), _floats(columns, size))

    def _shuffles(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple(_integers(self.shape.kv_heads, size, size) for size in sizes)

    def _program(
        self,
        name: str,
        columns: int,
        run: Callable[..., Tree],
        inputs: Callable[[], dict[str, Tree]],
        public: Collection[str] = (),
    ) -> Program:
        """`inputs` is asked, and so traced for, only where the program has to be compiled."""
        key = (name, columns, self.spec.answer if name == "head" else "any")

        def compiled() -> Program:
            return _compiled(f"{name}_{columns}", run, inputs(), public)

        with _compiling:
            if key not in self._compiled:
                self._compiled[key] = self._store.get(self._terms(key), compiled) if self._store else compiled()
            return self._compiled[key]

    def _terms(self, key: tuple[str, int, str]) -> object:
        """All that the program depends on beside the code. Programs around the layers do not depend on the cache."""
        spec = self.spec
        kept = None if key[0] in AROUND else (spec.prompt_tokens, spec.new_tokens, spec.cache)
        return key, self.shape, kept


AROUND = ("embed", "rescale", "last", "head")
PUBLIC = ("angles", "epsilon", "slot", "factor")

APART = 64  # constants of at least this size are given beside a program's text, not within it


@lru_cache(maxsize=8)
def programs_for(shape: ModelShape, spec: GenerationSpec, store: ProgramStore | None = None) -> Programs:
    plain = msgspec.structs.replace(spec, answer="token")
    return Programs(shape, spec, None if spec == plain else programs_for(shape, plain, store), store)


def _compiled(name: str, run: Callable[..., Tree], inputs: dict[str, Tree], public: Collection[str]) -> Program:
    paths, tree = jax.tree_util.tree_flatten_with_path(inputs)
    leaves = [leaf for _, leaf in paths]
    given = [at for at, leaf in enumerate(leaves) if leaf.size]
    names = [_name(path) for path, _ in paths]

    def on_leaves(*arrays: Array) -> Tree:
        filled = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
        for at, array in zip(given, arrays, strict=True):
            filled[at] = array
        return run(**jax.tree_util.tree_unflatten(tree, filled))

    with tracing_for_shares():
        traced, results = jax.make_jaxpr(on_leaves, return_shape=True)(*(leaves[at] for at in given))
    given_vars = set(traced.jaxpr.invars)
    out_paths, _ = jax.tree_util.tree_flatten_with_path(results)
    new = [
        at
        for at, variable in enumerate(traced.jaxpr.outvars)
        if out_paths[at][1].size and not (isinstance(variable, jax.core.Var) and variable in given_vars)
    ]

    apart = [at for at, constant in enumerate(traced.consts) if np.size(constant) >= APART]
    constants = tuple(np.asarray(traced.consts[at]) for at in apart)

    def changed(*arrays: Array) -> list[Array]:
        known = list(traced.consts)
        for at, constant in zip(apart, arrays[len(given) :], strict=True):
            known[at] = constant
        every = jax.core.eval_jaxpr(traced.jaxpr, known, *arrays[: len(given)])
        return [every[at] for at in new]

    visible = [
        libspu.Visibility.VIS_PUBLIC if names[at].split("/")[0] in public else libspu.Visibility.VIS_SECRET
        for at in given
    ]
    visible += [libspu.Visibility.VIS_PUBLIC] * len(constants)
    outputs = [_name(out_paths[at][0]) for at in new]
    inputs_named = [names[at] for at in given] + [f"constant/{at}" for at in range(len(constants))]
    executable, _ = frontend.compile(
        frontend.Kind.JAX, changed, [*(leaves[at] for at in given), *constants], {}, inputs_named, visible,
        lambda _: outputs, copts=libspu.CompilerOptions(),
    )  # fmt: skip
    return Program(name, executable.code, tuple(inputs_named[: len(given)]), tuple(outputs), constants)


def _name(path: tuple[Any, ...]) -> str:
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", None)))) for key in path)


def _floats(*sizes: int) -> Any:
    return ShapeDtypeStruct(sizes, jnp.float32)  # type: ignore[no-untyped-call]


def _integers(*sizes: int) -> Any:
    return ShapeDtypeStruct(sizes, jnp.int32)  # type: ignore[no-untyped-call]


def dealt(programs: Programs, columns: int | None = None) -> dict[str, tuple[tuple[int, ...], str]]:
    """What a client deals before a step of `columns`, or before the prefill: name without `{g}/` → shape, type."""
    shape, method = programs.shape, programs.method
    wide = columns or programs.spec.prompt_tokens
    needed = {"coarse": ((shape.coarse, wide), "int32"), "fine": ((FINE, wide), "int32")}
    if programs.spec.answer == "sampled":
        needed["noise"] = ((shape.vocabulary, columns or 1), "float32")
    shuffles = method.choose_shuffles if columns else method.evict_shuffles
    return needed | {
        f"{number}/shuffles/{at}": ((shape.kv_heads, size, size), "int32")
        for number in range(shape.layers)
        for at, size in enumerate(shuffles)
    }
