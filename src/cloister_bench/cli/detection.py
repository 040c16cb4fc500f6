"""`cloister bench detection`: accuracy and latency of the detection of private blocks."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from cloister.cli.options import settings_command
from cloister.config import option
from cloister.errors import SetupError
from cloister_bench.cli.suite import Bars, Output, measure_suite


class DetectionOptions(Output):
    data: Path | None = option(
        None, "The folder that has data/pii.", metavar="DIR", envvar="CLOISTER_SHARED", show_default="$CLOISTER_SHARED"
    )
    quarter: int = option(3, "Which quarter of each set; only 3 was never seen by the tagger.", ge=0, le=3)
    most: int | None = option(None, "Texts of each set at most.", ge=1, show_default="all")
    redaction: bool = option(False, "Measure `auto_redact` alone: which secrets it marks, by category.")


@settings_command(DetectionOptions)
def bench_detection(options: DetectionOptions) -> None:
    """Measure how well the detector separates private blocks from public ones, by tier, set and language; and its
    speed.

    Nothing is served: the texts are read where they lie and classified here.

    Example:

      cloister bench detection --data ../shared --json detection.json --plot-dir plots
      cloister bench detection --data ../shared --redaction --json redaction.json
    """
    from cloister.detection.pipeline import shipped_pipeline
    from cloister.detection.redaction import shipped_redaction
    from cloister.obfuscation.candidates.medications import known_medications
    from cloister_bench.detection.data import read_sets
    from cloister_bench.detection.redaction_recall import RedactionRecall, clinical_samples
    from cloister_bench.detection.results import FIGURES, Plan, Results, examined, latencies, tables

    if (folder := options.data) is None:
        raise SetupError(
            "The texts to measure on are not known.", hint="Name the folder that has data/pii: --data DIR."
        )
    pipeline = shipped_pipeline()
    calibration = pipeline.calibration
    plan = Plan(options.quarter, public_below=calibration.public, private_from=calibration.private)
    results = Results(plan, "rules and tagger")

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
                    results.blocks += examined(pipeline, sample)
        results.redaction, results.redaction_of_clean = marks.rows(), marks.clean()
        whole = "\n".join(sample.text for sample in samples)
        results.latency_us = {} if options.redaction else latencies(pipeline, whole)
        results.seconds = monotonic() - began
        save()

    if options.redaction:
        measure_suite(results, measure, options, lambda document: tables(document)[-2:-1], {})
    else:
        measure_suite(results, measure, options, tables, FIGURES)
