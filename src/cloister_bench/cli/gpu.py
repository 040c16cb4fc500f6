"""`cloister bench gpu`: trials and times on this machine's GPU."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from cloister.cli.options import settings_command
from cloister.config import option
from cloister.errors import SetupError
from cloister_bench.cli.suite import Bars, Output, known_names, measure_suite, raise_if_failed
from cloister_bench.gpu.trials import MODULES, WITH_MODEL


class GpuOptions(Output):
    model: Path | None = option(None, "For parts with a node: a model's folder, or a GGUF.", metavar="PATH")
    like: Path | None = option(None, "For them: random weights of the shape of this model.", metavar="FOLDER")
    parts: str = option(",".join(MODULES), "What to try and measure.")
    minutes: float = option(25.0, "Begin nothing later.", ge=0.1)


@settings_command(GpuOptions)
def bench_gpu(options: GpuOptions) -> None:
    """Try on this machine's GPU whether kernels, link, node and weights are right, and measure what isolation costs.

    Steps and requests have random weights in the shape of Llama-3-8B; the floor is what reading weights, keys and
    values takes at the bandwidth of a copy. Each part is saved when it is there. The exit status is 0 if all is right.
    Needs a Hopper GPU or a later one; see docs/gpu.md.

    \b
      check       kernels against float64, and bit for bit in any batch, chunk and split
      steps       `open` and `partitioned`, with eight attention processes under MPS and with one: bits, times, floor
      serve       `cloister serve`, asked by the `openai` client at every level; killed under load
      requests    whole requests at `open` and `partitioned`, without HTTP
      obfuscated  steps of λ+1 prompts for each user, beside λ = 0
      weights     whether a sealed vault can write the weights that all processes read
      churn       vaults that come and go under load, of more kept sessions than one tenant may keep: none is lost
      verified    decoding of 32 and 64 users by --verify, where their vaults are there already; the shape of Llama-3-8B
      million     a million honest tokens of a small model at `--verify all`, the service killed on the way: no alarm

    Examples:

      cloister bench gpu --like FOLDER --json gpu.json --plot-dir plots

      cloister bench gpu --parts check,steps --minutes 7 --json gpu.json

      cloister bench gpu --parts churn,verified,million --like FOLDER --minutes 12 --json verify.json
    """
    from cloister.compute.gpu.find import refusal
    from cloister_bench.gpu.run import FIGURES, Bench, Plan, Results, commands, tables

    plan = Plan(known_names(options.parts, "part", tuple(MODULES)), options.minutes)
    if set(WITH_MODEL) & set(plan.parts) and not (options.model or options.like):
        raise SetupError(
            "A node needs a model.", hint="Name one with --model or --like, or give --parts without a node."
        )
    if why := refusal():  # asks in another process: this one must not open the GPU
        raise SetupError(why, hint="Run this on a machine with a Hopper GPU and `cloister[gpu]`.")
    results = Results(plan, "Llama-3-8B's shape")

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        with TemporaryDirectory(prefix="cloister-gpu-") as name:
            made = ["--model", str(Path(name) / "model"), "--like", str(options.like)]
            served = ["--model", str(options.model)] if options.model else made
            Bench(results, commands(plan.parts, served), bars, save).run(Path(name))

    measure_suite(results, measure, options, tables, FIGURES)
    raise_if_failed(results, "Not all is right")
