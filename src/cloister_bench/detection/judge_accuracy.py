"""How well tier 3 tells private from clean among the blocks that tiers 1 and 2 are not sure of, with a model of
transformers: `cloister bench detection --judge`. Blocks have 16 tokens, as the service has them."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import accumulate
from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from cloister.controller.judge import LEAST_BLOCKS, JudgeReport, digest_of_model
from cloister.detection.judge import MARGIN, Judge, Question, form_of
from cloister.detection.pipeline import Pipeline
from cloister.errors import SetupError
from cloister.messages.controller_detector import Label
from cloister.messages.controller_frontend import JudgeForm
from cloister.models.source import ModelFolder
from cloister_bench.detection.data import Sample
from cloister_bench.detection.measure import UNKNOWN, types_of

BLOCK_TOKENS = 16
TEXTS = 60  # of each set: no set may make up most of the blocks


class Asked:
    """A served model as transformers runs it, and the questions that tier 3 would ask it."""

    def __init__(self, folder: ModelFolder) -> None:
        torch.set_num_threads(1)
        self._folder = folder
        self._tokenizer = AutoTokenizer.from_pretrained(folder.path, local_files_only=True)
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder.path, dtype=torch.float32, local_files_only=True, use_safetensors=True
        ).eval()
        self._form: JudgeForm = form_of(lambda text: self._tokenizer.encode(text, add_special_tokens=False))
        self._judge = Judge(self._form)
        self._begun: Any = None

    def doubts(self, pipeline: Pipeline, sample: Sample) -> list[tuple[bool, Question]]:
        """Of each uncertain block: whether it is private by its set's labels, and the question."""
        tokens = self._tokenizer.encode(sample.text, add_special_tokens=False)
        pieces = [tokens[at : at + BLOCK_TOKENS] for at in range(0, len(tokens), BLOCK_TOKENS)]
        ends = list(accumulate(len(self._tokenizer.decode(piece)) for piece in pieces))
        if not ends or ends[-1] != len(sample.text):  # a character was cut: leave such texts out
            return []
        types = types_of(sample.spans, ends)
        asked = []
        for at, verdict in enumerate(pipeline.examine(sample.text, ends).verdicts):
            if verdict.label is Label.UNCERTAIN and UNKNOWN not in types[at]:
                question = self._judge.question(tokens[: at * BLOCK_TOKENS], pieces[at])
                asked.append((bool(types[at]), question))
        return asked

    @torch.inference_mode()
    def difference(self, question: Question) -> float:
        """By how much "public" is the greater logit. The words before the context are the same in every question."""
        if self._begun is None:
            self._begun = self._model(torch.tensor([self._form.before])).past_key_values
        rest = torch.tensor([question.tokens[len(self._form.before) :]])
        row = self._model(rest, past_key_values=deepcopy(self._begun), logits_to_keep=1).logits[0, -1]
        return float(row[self._form.public] - row[self._form.private])

    def measure(
        self,
        pipeline: Pipeline,
        samples: Iterable[Sample],
        most: int,
        progress: Callable[[int], Callable[[str], None]],
    ) -> JudgeReport:
        """`most` blocks of each kind, drawn from all uncertain ones. SetupError where there are too few to say."""
        found: dict[bool, list[Question]] = {False: [], True: []}
        taken: Counter[str] = Counter()
        for sample in samples:
            taken[sample.dataset] += 1
            if taken[sample.dataset] <= TEXTS:
                for private, question in self.doubts(pipeline, sample):
                    found[private].append(question)
        if (count := min(most, *map(len, found.values()))) < min(most, LEAST_BLOCKS):
            raise SetupError(f"There are only {count} uncertain blocks of one kind.", hint="Name more texts: --data.")
        advance = progress(2 * count)
        scores = {kind: np.zeros(count) for kind in found}
        for kind, questions in found.items():
            for at, question in enumerate(random.Random(0).sample(questions, count)):
                scores[kind][at] = self.difference(question)
                advance("private" if kind else "clean")
        return report_on(self._folder.name, digest_of_model(self._folder.path), scores[False], scores[True])


def report_on(model: str, digest: str, clean: NDArray[np.float64], private: NDArray[np.float64]) -> JudgeReport:
    """`clean` and `private`: by how much "public" won. The interval is Hanley and McNeil's (1982)."""
    area = float((clean[:, None] > private).mean() + 0.5 * (clean[:, None] == private).mean())
    pairs, both = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2
    spread = area * (1 - area) + (len(clean) - 1) * pairs + (len(private) - 1) * both
    half = 1.96 * sqrt(max(0.0, spread) / (len(clean) * len(private)))
    return JudgeReport(
        model,
        digest,
        area=round(area, 4),
        low=round(max(0.0, area - half), 4),
        high=round(min(1.0, area + half), 4),
        private=len(private),
        clean=len(clean),
        private_passed=round(float((private > MARGIN).mean()), 4),
        clean_passed=round(float((clean > MARGIN).mean()), 4),
    )
