"""One party's side of a generation: which programs run over which variables, `w/…` of the provider, `{generation}/…` of
the client, at every party in the same order. Sees no plain prompt, token or weight."""

from collections.abc import Callable, Mapping

import numpy as np
from spu import Runtime, libspu

from cloister.errors import CloisterError
from cloister_mpc.model.programs import Program, Programs
from cloister_mpc.shares import Dealer

OUTSIDE = {"outer": "w"}  # where the programs before and after the layers find the model

Progress = Callable[[int, int], None]  # called after every program: how many are done, of how many in this pass


class GenerationError(CloisterError):
    code = "mpc_generation"


class Generation:
    """A generation under way. `name` is a prefix of variables; `dealer` makes public values."""

    def __init__(
        self, runtime: Runtime, programs: Programs, dealer: Dealer, *, name: str, progress: Progress | None = None
    ) -> None:
        self._runtime = runtime
        self._programs = programs
        self._dealer = dealer
        self._name = name
        self._progress = progress
        self._written = -1
        self._variables: set[str] = set()
        self._done = 0

    @property
    def answer(self) -> str:
        return f"{self._name}/answer"

    def prefill(self) -> None:
        programs, shape, columns = self._programs, self._programs.shape, self._programs.spec.prompt_tokens
        self._done = 0
        self._place(-columns, columns)
        for number, scale in enumerate(shape.scales):
            self._publish(f"{number}/epsilon", np.float32(shape.epsilon * scale * scale))
        self._run(programs.embed(columns))
        for number in range(shape.layers):
            self._rescale(number, columns)
            self._run(programs.prompt(), self._layer(number))
            self._used(number, len(programs.method.evict_shuffles))
        self._run(programs.last(columns), counts=False)
        self._run(programs.head(1))
        self._written = 0

    def step(self, at: int, columns: int = 1) -> None:
        """Tokens from position `at` on; those beyond the first are drafts, which a later step at or before forgets."""
        programs, shape = self._programs, self._programs.shape
        if not 0 <= at <= self._written:
            raise GenerationError(f"Position {at} does not follow what was computed so far.")
        if columns < 1 or at + columns > programs.spec.new_tokens:
            raise GenerationError(
                f"There is no room for {columns} tokens at position {at}.",
                hint="Ask for room when the prompt is shared.",
            )
        self._done = 0
        self._place(at, columns)
        self._publish("slot", np.int32(programs.method.first_free + at))
        self._run(programs.embed(columns))
        for number in range(shape.layers):
            self._rescale(number, columns)
            self._run(programs.step(columns), self._layer(number))
            self._used(number, len(programs.method.choose_shuffles))
        self._run(programs.head(columns))
        self._written = at + columns

    def close(self) -> None:
        for variable in self._variables | {f"{self._name}/{name}" for name in ("coarse", "fine", "noise")}:
            self._runtime.del_var(variable)
        self._variables.clear()

    def _rescale(self, number: int, columns: int) -> None:
        scales = self._programs.shape.scales
        if number and scales[number] != scales[number - 1]:
            self._publish("factor", np.float32(scales[number] / scales[number - 1]))
            self._run(self._programs.rescale(columns), counts=False)

    def _layer(self, number: int) -> dict[str, str]:
        own = {part: f"{self._name}/{number}/{part}" for part in ("cache", "epsilon", "shuffles")}
        return own | {"weights": f"w/{number}"}

    def _place(self, first: int, columns: int) -> None:
        cosine, sine = self._programs.shape.angles(first, columns)
        self._publish("angles/cosine", cosine)
        self._publish("angles/sine", sine)

    def _publish(self, name: str, value: np.ndarray | np.generic) -> None:  # type: ignore[type-arg]
        variable = f"{self._name}/{name}"
        self._runtime.set_var(variable, self._dealer.publish(np.asarray(value)))
        self._variables.add(variable)

    def _run(self, program: Program, where: Mapping[str, str] = OUTSIDE, counts: bool = True) -> None:
        outputs = [self._variable(where, output) for output in program.outputs]
        inputs = [self._variable(where, given) for given in program.inputs]
        executable = libspu.Executable(
            name=program.name, input_names=[*inputs, *self._constants(program)], output_names=outputs, code=program.code
        )
        self._runtime.run(executable)
        self._variables.update(outputs)
        if counts:
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._programs.shape.layers + 2)

    def _constants(self, program: Program) -> list[str]:
        names = [f"constant/{program.name}/{number}" for number in range(len(program.constants))]
        for name, values in zip(names, program.constants, strict=True):
            if f"{self._name}/{name}" not in self._variables:
                self._publish(name, values)
        return [f"{self._name}/{name}" for name in names]

    def _used(self, layer: int, shuffles: int) -> None:
        for at in range(shuffles):
            self._runtime.del_var(f"{self._name}/{layer}/shuffles/{at}")

    def _variable(self, where: Mapping[str, str], path: str) -> str:
        """The variable of `path`: by the longest beginning of it that `where` knows, else the generation's own."""
        parts = path.split("/")
        for length in range(len(parts), 0, -1):
            if (prefix := where.get("/".join(parts[:length]))) is not None:
                return "/".join([prefix, *parts[length:]])
        return f"{self._name}/{path}"
