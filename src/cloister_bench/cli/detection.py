"""`cloister bench detection`: accuracy and latency of the detection of private blocks."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import typer

from cloister.cli.options import settings_command
from cloister.config import DEFAULT_MODEL, option
from cloister.errors import SetupError
from cloister_bench.cli.suite import Bars, Output, measure_suite

if TYPE_CHECKING:
    from cloister.detection.pipeline import Pipeline


class DetectionOptions(Output):
    data: Path | None = option(
        None, "The folder that has data/pii.", metavar="DIR", envvar="CLOISTER_SHARED", show_default="$CLOISTER_SHARED"
    )
    quarter: int = option(3, "Which quarter of each set; only 3 was never seen by the tagger.", ge=0, le=3)
    most: int | None = option(None, "Texts of each set at most.", ge=1, show_default="all")
    detector_model: Path | None = option(
        None, "Tier 2 in the tagger's place, as `cloister serve` takes it.", metavar="FOLDER", show_default="ours"
    )
    redaction: bool = option(False, "Measure `auto_redact` alone: which secrets it marks, by category.")
    judge: bool = option(False, "Measure tier 3 alone: whether this model may judge (`cloister serve --judge`).")
    model: str | None = option(None, "With --judge: which model, as for `serve`.", show_default=DEFAULT_MODEL)
    judge_blocks: int = option(150, "With --judge: uncertain blocks of each kind.", ge=1)
    judge_report: Path | None = option(
        None, "With --judge: where to write the result.", metavar="FILE", show_default="beside the model"
    )


@settings_command(DetectionOptions)
def bench_detection(options: DetectionOptions) -> None:
    """Measure how well the detector separates private blocks from public ones, by tier, set, language and type; and its
    speed.

    Nothing is served: the texts are read where they lie and classified here. SafeKV's Figures 7 and 9.

    Example:

      cloister bench detection --data ../shared --json detection.json --plot-dir plots
      cloister bench detection --data ../shared --redaction --json redaction.json
      cloister bench detection --data ../shared --judge
    """
    from cloister.detection.pipeline import pipeline_of
    from cloister.detection.redaction import shipped_redaction
    from cloister.obfuscation.candidates.medications import known_medications
    from cloister_bench.detection.data import read_sets
    from cloister_bench.detection.measure import judge, latencies
    from cloister_bench.detection.redaction_recall import RedactionRecall, clinical_samples
    from cloister_bench.detection.results import FIGURES, Plan, Results, tables

    if (folder := options.data) is None:
        raise SetupError(
            "The texts to measure on are not known.", hint="Name the folder that has data/pii: --data DIR."
        )
    pipeline = pipeline_of("", options.detector_model)
    if options.judge:
        _measure_judge(options, folder, pipeline)
        return
    calibration = pipeline.calibration
    plan = Plan(options.quarter, public_below=calibration.public, private_from=calibration.private)
    results = Results(plan, "rules and tagger" if options.detector_model is None else "rules and another model")

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        began = monotonic()
        taken: Counter[str] = Counter()
        samples = [sample for sample in read_sets(folder) if sample.quarter == options.quarter]
        notes = list(clinical_samples(folder))
        bars.begin("texts", len(samples) + len(notes))
        marks = RedactionRecall(shipped_redaction(known_medications()))
        for sample in (*samples, *notes):
            bars.advance(sample.dataset)
            taken[sample.dataset] += 1
            if options.most is None or taken[sample.dataset] <= options.most:
                marks.add(sample)
                if not options.redaction and sample not in notes:
                    results.texts.append(judge(pipeline, sample))
                    results.blocks += results.texts[-1]
        results.redaction, results.redaction_of_clean = marks.rows(), marks.clean()
        long = "\n".join(sample.text for sample in samples)
        size = 2304
        pieces = [long[place : place + size] for place in range(0, min(len(long), 200 * size), size)]
        results.latency_us = {} if options.redaction else latencies(pipeline, pieces)
        results.seconds = monotonic() - began
        save()

    if options.redaction:
        measure_suite(results, measure, options, lambda document: tables(document)[-2:-1], {})
    else:
        measure_suite(results, measure, options, tables, FIGURES)


def _measure_judge(options: DetectionOptions, folder: Path, pipeline: "Pipeline") -> None:
    import msgspec

    from cloister.controller.judge import place_of_report
    from cloister.files import make_folder, needed, write_whole
    from cloister.models.source import find_model
    from cloister_bench.cli.suite import progress_bars
    from cloister_bench.detection.data import read_sets
    from cloister_bench.detection.judge_accuracy import Asked

    samples = (sample for sample in read_sets(folder) if sample.quarter == options.quarter)
    with progress_bars() as progress:
        bars = Bars(progress)

        def begin(count: int) -> Callable[[str], None]:
            bars.begin("blocks", count)
            return bars.advance

        report = Asked(find_model(options.model)).measure(pipeline, samples, options.judge_blocks, begin)
    place = options.judge_report or place_of_report(report.digest)
    with needed(f"{place} cannot be written"):
        make_folder(place.parent)
        write_whole(place, msgspec.json.encode(report))
    shown = f"area under the curve {report.area:.3f} ({report.low:.3f} to {report.high:.3f})"
    typer.echo(f"{report.model}: {shown}, {report.private} private and {report.clean} clean blocks")
    passed = f"{report.private_passed:.3f} of the private and {report.clean_passed:.3f} of the clean ones"
    typer.echo(f"Called public: {passed}. The report is in {place}.")
    typer.echo(f"It may not judge: {why}." if (why := report.why_not(report.digest)) else "It may judge.")
