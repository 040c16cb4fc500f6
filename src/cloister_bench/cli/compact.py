"""`cloister bench compact`: compact virtual prompts beside exact ones."""

from collections.abc import Callable
from pathlib import Path

from cloister.cli.options import settings_command
from cloister.config import EngineSettings, option
from cloister_bench.cli.suite import Bars, Output, measure_suite


class CompactOptions(Output):
    model: str | None = option(None, "Model of this machine, as for `serve`.", show_default="SmolLM2-135M-Instruct")
    shared: Path = option(Path("shared"), "Folder with data/clinical.", metavar="DIR", envvar="CLOISTER_SHARED")
    cases: int = option(8, "Prompts of each category.", ge=1)
    fakes: int = option(7, "λ of the answers and of the adversaries.", ge=1, le=31)
    tokens: int = option(32, "Of each answer.", ge=2)
    lambdas: str = option("7,31", "λ whose memory and time are measured.")
    rounds: int = option(3, "Of which the median time counts.", ge=1)
    kv_mib: int = option(512, "Memory for keys and values.", ge=16)


@settings_command(CompactOptions)
def bench_compact(options: CompactOptions) -> None:
    """Measure compact virtual prompts: how far answers are from the exact ones, what memory and time they save, and
    how often a service finds the real prompt if only the fakes are compact.

    Substitutes are secrets of other texts of the same category.

    Example:

      cloister bench compact --shared ../shared --json compact.json
    """
    from cloister.compute.choose import choose_device
    from cloister.models.decoder import RawParts
    from cloister.models.load import load_decoder
    from cloister.models.source import find_model
    from cloister.models.weights import open_weights
    from cloister.prompts.tokenizer import Tokenizer
    from cloister_bench.obfuscation.compact import TASKS, CompactLab, clinical_cases, measure_case, measure_cost
    from cloister_bench.obfuscation.compact_results import Plan, Results, tables

    folder, device = find_model(options.model), choose_device(EngineSettings())
    tokenizer = Tokenizer(folder)
    lab = CompactLab(load_decoder(folder, RawParts(open_weights(folder), device.kernels), device, 4096), options.kv_mib)
    lambdas = tuple(int(each) for each in options.lambdas.split(","))
    results = Results(Plan(options.cases, options.fakes, options.tokens, lambdas), folder.name)

    def prompts_of(texts: list[str], fakes: int, task: str) -> list[tuple[int, ...]]:
        chats = ([{"role": "user", "content": f"{text}\n\n{task}"}] for text in texts[: fakes + 1])
        return [tuple(tokenizer.render_chat(chat)) for chat in chats]

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        cases = clinical_cases(options.shared, tokenizer, options.cases, max(options.fakes, *lambdas))
        bars.begin("cost", len(lambdas))
        for fakes in lambdas:
            able = (texts for _, texts in cases if len(texts) > fakes)
            texts = min(able, key=lambda texts: abs(len(tokenizer.encode(texts[0])) - 490), default=None)
            if texts is not None:
                results.cost.append(measure_cost(lab, prompts_of(texts, fakes, TASKS[0]), options.rounds))
            bars.advance(f"λ = {fakes}")
            save()
        bars.begin("answers", len(cases))
        for number, (category, texts) in enumerate(cases):
            row = measure_case(lab, prompts_of(texts, options.fakes, TASKS[number % len(TASKS)]), options.tokens)
            results.cases.append({"category": str(category), **row})
            bars.advance(str(category))
            save()

    measure_suite(results, measure, options, tables, {})
