"""What a trial with a whole node needs: `cloister serve`, its processes, and the `openai` client."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cloister.config import DEVELOPMENT_KEY
from cloister.errors import ServiceUnavailable
from cloister_bench.servers import OwnServer

PATIENCE_S = 150
MPS = "nvidia-cuda-mps-server"
WAYS: dict[str, dict[str, Any]] = {"greedy": {}, "seeded": {"temperature": 1.0, "seed": 7, "top_p": 0.9}}
# tokens with their log-probabilities, and the best few of each step with theirs
Answer = list[tuple[str, float, list[tuple[str, float]]]]


@contextmanager
def served(model: Path, log: Path, *options: str) -> Iterator[tuple[str, float]]:
    server, began = OwnServer(model, log.parent, ["--mpc", "off", *options]), time.monotonic()
    server.log = log
    with server:
        try:
            server.wait(PATIENCE_S)
        except ServiceUnavailable:
            print(log.read_text()[-4000:], flush=True)
            raise
        yield str(server.address), time.monotonic() - began


def processes(role: str) -> list[int]:
    """Of the node's, by their titles; or of MPS."""
    title, found = (MPS if role == MPS else f"cloister {role}").encode(), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[0].endswith(title):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def gpu_memory() -> list[str]:
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, timeout=20, check=False).stdout.splitlines()


class Client:
    def __init__(self, url: str) -> None:
        from openai import OpenAI

        self.url, self._openai = url, OpenAI(base_url=f"{url}/v1", api_key=DEVELOPMENT_KEY, timeout=120)
        self.about = self._openai.models.list().data[0].model_dump()
        self.model: str = self.about["id"]
        self.levels = [level["id"] for level in self.about["protection"] if level["enabled"]]

    def chat(self, text: str, level: str, way: dict[str, Any] | None = None, retries: int = 2, **more: Any) -> Any:
        asked: dict[str, Any] = {"max_tokens": 24, "temperature": 0, **(way or {})}
        return self._openai.with_options(max_retries=retries).chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": text}],
            extra_body={"protection": level, **more},
            **asked,
        )

    def answer(self, text: str, level: str, way: dict[str, Any], **more: Any) -> Answer:
        found = self.chat(text, level, {**way, "logprobs": True, "top_logprobs": 5}, **more).choices[0].logprobs
        return [(t.token, t.logprob, [(top.token, top.logprob) for top in t.top_logprobs]) for t in found.content]


def divergence(found: Answer, right: Answer) -> dict[str, Any] | None:
    for step, (one, other) in enumerate(zip(found, right, strict=False)):
        if one != other:
            later = sum(a != b for a, b in zip(found[step + 1 :], right[step + 1 :], strict=False))
            return {"step": step, "logits_differ": one[2] != other[2], "later": later, "found": one, "alone": other}
    return None if len(found) == len(right) else {"step": min(len(found), len(right)), "lengths_differ": True}
