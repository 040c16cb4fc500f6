"""vLLM's core as the engine sees it, without vLLM: it answers a prompt with its own tokens, one a step, and keeps the
jobs and links that it was given. `late` are links that fail in the next step."""

from __future__ import annotations

from cloister.messages.types import TokenLogprob
from cloister_vllm.core import Core, Job, Made


class EchoCore(Core):
    vocabulary, max_context, blocks, block_tokens = 300, 128, 64, 32

    def __init__(self) -> None:
        self.requests: dict[int, list[int]] = {}
        self.scored: dict[int, int | None] = {}
        self.order: list[int] = []
        self.breaks = False
        self.jobs: dict[int, Job] = {}
        self.links: set[int] = set()
        self.late: dict[int, str] = {}
        self.asks_vaults = True

    def add(self, job: Job) -> None:
        if job.params.seed == 13:
            raise ValueError("the prompt's words")
        self.jobs[job.number] = job
        self.requests[job.number] = [job.prompt[at % len(job.prompt)] for at in range(job.most)]
        self.order.append(job.number)
        self.scored[job.number] = job.params.logprobs

    def abort(self, number: int) -> None:
        self.requests.pop(number, None)

    def step(self) -> list[Made]:
        if self.breaks:
            raise RuntimeError("the prompt's words")
        made = []
        for number, left in list(self.requests.items()):
            token = left.pop(0)
            if not left:
                del self.requests[number]
            wanted = self.scored[number]
            best = ((token, -0.5), (0, -1.5))[:wanted]
            scores = None if wanted is None else (TokenLogprob(-0.5, best),)
            made.append(Made(number, (token,), scores, None if left else "length"))
        return made

    def attach(self, link: int, question: int, answer: int) -> None:
        if question < 0:
            raise OSError("cannot be mapped")
        self.links.add(link)

    def detach(self, link: int) -> None:
        self.links.discard(link)

    def broken(self) -> dict[int, str]:
        return self.late
