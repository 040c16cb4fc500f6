"""Before the seal: requests that have vLLM load all it will need. Afterwards there are no files and no new threads."""

from collections.abc import Iterator

from cloister.config import EngineSettings
from cloister.messages.types import SamplingParams
from cloister_vllm.core import Core, Job

MOST = 4  # tokens of an answer
EVERY_FIELD = SamplingParams(
    max_tokens=MOST,
    min_tokens=2,
    temperature=0.8,
    top_k=20,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    seed=1,
    logprobs=5,
    logit_bias={3: 1.0},
    stop_tokens=(2,),
)
PLAIN = SamplingParams(max_tokens=MOST, temperature=0.0)
DRAWN = SamplingParams(max_tokens=MOST, temperature=1.0)


def warm(core: Core, settings: EngineSettings) -> None:
    """A prompt that takes several steps, several answers in one, and every field that is served."""
    kinds = (PLAIN, DRAWN, EVERY_FIELD)
    several_steps = min(settings.chunk_tokens + 1, core.max_context - MOST - 1)
    for job in _numbered(core, [(several_steps, EVERY_FIELD), (2, DRAWN)]):
        _run(core, [job])
    _run(core, list(_numbered(core, [(3, kinds[at % 3]) for at in range(min(6, settings.max_running))])))


def _numbered(core: Core, wanted: list[tuple[int, SamplingParams]]) -> Iterator[Job]:
    for number, (length, params) in enumerate(wanted):
        prompt = [1 + at % (core.vocabulary - 1) for at in range(length)]
        yield Job(number, prompt, params, MOST, own="" if number % 2 else "warm")


def _run(core: Core, jobs: list[Job]) -> None:
    for job in jobs:
        core.add(job)
    left = {job.number for job in jobs}
    while left:
        left -= {made.number for made in core.step() if made.finish is not None}
