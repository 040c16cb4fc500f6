"""`cloister bench detection`: accuracy and latency of the detection of private blocks."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic

from cloister.cli.options import settings_command
from cloister.config import option
from cloister_bench.cli.suite import Bars, Output, measure_suite


class DetectionOptions(Output):
    data: Path = option(Path("../shared"), "The folder that has data/pii.", metavar="DIR", envvar="CLOISTER_SHARED")


@settings_command(DetectionOptions)
def bench_detection(options: DetectionOptions) -> None:
    """Measure how well the detector separates private blocks from public ones, by tier, set and language; its
    speed; and which secrets `auto_redact` marks.

    Nothing is served: the texts are read where they lie and classified here. Of each set it takes the quarter that the
    tagger never saw.

    Example:

      cloister bench detection --data ../shared --json detection.json --plot-dir plots
    """
    from cloister.detection.pipeline import shipped_pipeline
    from cloister.detection.redaction import shipped_redaction
    from cloister.obfuscation.candidates.medications import known_medications
    from cloister_bench.detection.data import read_sets
    from cloister_bench.detection.redaction_recall import RedactionRecall, clinical_samples
    from cloister_bench.detection.results import FIGURES, Plan, Results, examined, latencies, tables

    folder, pipeline = options.data, shipped_pipeline()
    calibration = pipeline.calibration
    plan = Plan(public_below=calibration.public, private_from=calibration.private)
    results = Results(plan, "rules and tagger")

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        began = monotonic()
        samples = [sample for sample in read_sets(folder) if sample.quarter == plan.quarter]
        notes = list(clinical_samples(folder))
        bars.begin("texts", len(samples) + len(notes))
        marks = RedactionRecall(shipped_redaction(known_medications()))
        for sample in samples:
            bars.advance(sample.dataset)
            marks.add(sample)
            results.blocks += examined(pipeline, sample)
        for sample in notes:
            bars.advance(sample.dataset)
            marks.add(sample)
        results.redaction, results.redaction_of_clean = marks.rows(), marks.clean()
        results.latency_us = latencies(pipeline, "\n".join(sample.text for sample in samples))
        results.seconds = monotonic() - began
        save()

    measure_suite(results, measure, options, tables, FIGURES)
