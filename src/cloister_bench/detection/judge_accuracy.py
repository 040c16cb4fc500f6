"""How well tier 3 tells private from clean among what tiers 1 and 2 are not sure of, with a model of transformers:
`python -m cloister_bench.detection.judge_accuracy --shared DIR --model FOLDER`.

On blocks of 16 tokens, as the service has them; with `--quarter 3`, texts that nothing was trained or calibrated on.
Prints how often "public" wins among private and among clean blocks by margin, and the area under the curve: 0.5 is
guessing.
"""

import argparse
import random
from collections import Counter
from copy import deepcopy
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cloister.detection.judge import Judge, Question, form_of
from cloister.detection.pipeline import Pipeline, shipped_pipeline
from cloister.messages.controller_detector import Label
from cloister.messages.controller_frontend import JudgeForm
from cloister_bench.detection.data import read_sets
from cloister_bench.detection.measure import UNKNOWN, types_of

BLOCK_TOKENS = 16


def doubts(pipeline: Pipeline, tokenizer: Any, judge: Judge, text: str, spans: Any) -> list[tuple[bool, Question]]:
    """Of each uncertain block: whether it is private by its set's labels, and the question."""
    tokens = tokenizer.encode(text, add_special_tokens=False)
    pieces = [tokens[at : at + BLOCK_TOKENS] for at in range(0, len(tokens), BLOCK_TOKENS)]
    ends = list(accumulate(len(tokenizer.decode(piece)) for piece in pieces))
    if not ends or ends[-1] != len(text):  # a character was cut: leave such texts out
        return []
    types = types_of(spans, ends)
    asked = []
    for at, verdict in enumerate(pipeline.examine(text, ends).verdicts):
        if verdict.label is Label.UNCERTAIN and UNKNOWN not in types[at]:
            question = judge.question(tokens[: at * BLOCK_TOKENS], pieces[at])
            asked.append((bool(types[at]), question))
    return asked


@torch.inference_mode()
def difference(model: Any, form: JudgeForm, question: Question) -> float:
    """By how much "public" is the greater logit. The words before the context are the same in every question."""
    if not hasattr(model, "begun"):
        model.begun = model(torch.tensor([form.before])).past_key_values
    rest = torch.tensor([question.tokens[len(form.before) :]])
    row = model(rest, past_key_values=deepcopy(model.begun), logits_to_keep=1).logits[0, -1]
    return float(row[form.public] - row[form.private])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--quarter", type=int, default=3)
    parser.add_argument("--most", type=int, default=100, help="blocks of each kind")
    parser.add_argument("--texts", type=int, default=60, help="texts of each set")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    form = form_of(lambda text: tokenizer.encode(text, add_special_tokens=False))
    judge, pipeline = Judge(form), shipped_pipeline()
    found: dict[bool, list[Question]] = {False: [], True: []}
    taken: Counter[str] = Counter()
    for sample in read_sets(arguments.shared):
        if sample.quarter == arguments.quarter and taken[sample.dataset] < arguments.texts:
            taken[sample.dataset] += 1
            for private, question in doubts(pipeline, tokenizer, judge, sample.text, sample.spans):
                found[private].append(question)
    print(f"uncertain blocks: {len(found[True])} private, {len(found[False])} clean", flush=True)
    for questions in found.values():
        random.Random(0).shuffle(questions)
    most = min(arguments.most, *(len(questions) for questions in found.values()))
    rows = []
    for pair in zip(found[False][:most], found[True][:most], strict=True):
        rows.append([difference(model, form, question) for question in pair])
        print("clean {:+.2f}, private {:+.2f}".format(*rows[-1]), flush=True)
    clean, private = np.array(rows).T
    for margin in (0.0, 0.5, 1.0, 2.0, 3.0):
        passed = [f"{(each > margin).mean():.3f} of {len(each)}" for each in (private, clean)]
        print(f"margin {margin}: called public {passed[0]} private, {passed[1]} clean blocks")
    wins = (clean[:, None] > private[None, :]).mean() + 0.5 * (clean[:, None] == private[None, :]).mean()
    print(f"area under the curve {wins:.3f}")


if __name__ == "__main__":
    main()
