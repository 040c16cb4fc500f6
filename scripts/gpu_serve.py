"""`cloister serve` on a GPU machine, asked by the real `openai` client: answers, levels, kills, throughput.

    python scripts/gpu_serve.py --json FILE --model FOLDER_OR_GGUF [--users 32]
    python scripts/gpu_serve.py --json FILE --model FOLDER --random 8b --like FOLDER     # random weights, made first

Checks: the node computes on the GPU unasked; greedy and seeded answers are the same at every level offered, alone and
among others; logprobs; a killed service, vault or MPS costs requests, with a clear error, and is replaced.
Times: whole requests by so many users at once at each level, in one run; at `partitioned` in kept sessions, too. Needs
the packages of `cloister` itself.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"
PATIENCE_S = 150
PR_SET_PDEATHSIG = 1
SHAPES = {
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
        "max_position_embeddings": 8192,
    },
    "same": {},
}
AT_ONCE = (1, 8, 24)
TIMED = ("open", "partitioned", "isolated")
MPS = "nvidia-cuda-mps-server"
MOST_KEPT = 24
"""Sessions that one tenant keeps at most, of those that a GPU has room for."""
SPARES_S = 9.0
"""So long after others were taken, as many spare vaults are there again."""
CASES = ((64, 64), (512, 128))
"""Tokens of the prompt, tokens of the answer."""


def make_random(folder: Path, like: Path, shape: str) -> None:
    """A model of this shape with the other's tokenizer and vocabulary."""
    import torch

    sys.path.insert(0, str(SOURCE))
    from cloister.models.weights import ShardWriter

    folder.mkdir(parents=True, exist_ok=True)
    for path in like.iterdir():
        if path.name not in ("model.safetensors", "cloister-manifest.json", "config.json"):
            shutil.copy(path, folder / path.name)
    config = json.loads((like / "config.json").read_text()) | SHAPES[shape]
    (folder / "config.json").write_text(json.dumps(config))
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        for part, size in (
            *(("self_attn.q_proj", (queries, hidden)), ("self_attn.k_proj", (keys, hidden))),
            *(("self_attn.v_proj", (keys, hidden)), ("self_attn.o_proj", (hidden, queries))),
            *(("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)), ("mlp.down_proj", (hidden, inner))),
            *(("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,))),
        ):
            shapes[f"{name}.{part}.weight"] = size
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    writer = ShardWriter(folder / "model.safetensors", shapes, torch.bfloat16)
    generator = torch.Generator("cuda").manual_seed(3)
    for name, size in shapes.items():
        drawn = torch.empty(size, dtype=torch.bfloat16, device="cuda")
        drawn.fill_(1.0) if len(size) == 1 else drawn.normal_(0, size[-1] ** -0.5, generator=generator)
        writer.write(name, drawn.cpu())
        del drawn
    writer.close()
    torch.cuda.empty_cache()


def make_real(folder: Path, like: Path, gguf: Path) -> None:
    """The GGUF's weights as transformers reads them, beside the other's configuration and tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM

    sys.path.insert(0, str(SOURCE))
    from cloister.models.weights import ShardWriter

    shutil.copytree(like, folder, dirs_exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}  # tied
    writer = ShardWriter(folder / "model.safetensors", {k: tuple(v.shape) for k, v in weights.items()}, torch.bfloat16)
    for name, tensor in weights.items():
        writer.write(name, tensor)
    writer.close()


def end_with_parent() -> None:
    """In a child before it becomes another program: a signal when this process has ended, however that came about."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def served(model: Path, log: Path, *options: str) -> Iterator[tuple[str, float]]:
    """The running server's address, and how long it took to come up."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
    command = [
        sys.executable,
        "-m",
        "cloister",
        "serve",
        "--model",
        str(model),
        "--port",
        "0",
        "--mpc",
        "off",
        *options,
    ]
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**environment, "COLUMNS": "200"},
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    try:
        while (found := re.search(r"(http://127\.0\.0\.1:\d+)", log.read_text())) is None:
            if process.poll() is not None or time.monotonic() - began > PATIENCE_S:
                raise RuntimeError(f"it is not up:\n{log.read_text()[-4000:]}")
            time.sleep(0.1)
        yield found[1], time.monotonic() - began
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def processes(role: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[0].endswith((f"cloister {role}".encode(), MPS.encode())[role == MPS]):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def gpu_memory() -> list[str]:
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, timeout=20, check=False).stdout.splitlines()


class Asked:
    """The real client."""

    def __init__(self, url: str) -> None:
        from openai import OpenAI

        self.client = OpenAI(base_url=f"{url}/v1", api_key="cloister-dev", timeout=120)
        self.model = self.client.models.list().data[0].id

    def chat(self, text: str, level: str, retries: int = 2, **more: Any) -> str:
        try:
            answer = self.client.with_options(max_retries=retries).chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": text}],
                extra_body={"protection": level},
                **{"max_tokens": 24, "temperature": 0, **more},
            )
        except Exception as failure:
            failure.add_note(f"at {level}")
            raise
        return answer.choices[0].message.content or ""

    def tokens(self, prompt: list[int], new: int, level: str, session: str | None = None) -> float:
        """How long a whole request takes, in a session of its own or in one that is kept."""
        began = time.monotonic()
        answer = self.client.completions.create(
            model=self.model,
            prompt=prompt,
            max_tokens=new,
            temperature=0,
            logit_bias={"0": -100, "2": -100},
            extra_body={"protection": level} | ({"session": session} if session else {}),
        )
        usage = answer.usage
        assert usage is not None and (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), new)
        return time.monotonic() - began


Said = list[tuple[str, float, list[tuple[str, float]]]]
"""An answer's tokens with their log-probabilities, and the best few of each step with theirs."""
WAYS: dict[str, dict[str, Any]] = {"greedy": {}, "seeded": {"temperature": 1.0, "seed": 7, "top_p": 0.9}}


def said(asked: Asked, text: str, level: str, way: dict[str, Any]) -> Said:
    answer = asked.client.chat.completions.create(
        model=asked.model,
        messages=[{"role": "user", "content": text}],
        extra_body={"protection": level},
        logprobs=True,
        top_logprobs=5,
        **{"max_tokens": 24, "temperature": 0, **way},
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    return [(t.token, t.logprob, [(top.token, top.logprob) for top in t.top_logprobs]) for t in logprobs.content]


def divergence(found: Said, right: Said) -> dict[str, Any] | None:
    """The first step at which two answers differ, whether the log-probabilities do there or the choice alone, and how
    many of the steps after it differ."""
    for step, (one, other) in enumerate(zip(found, right, strict=False)):
        if one != other:
            later = sum(a != b for a, b in zip(found[step + 1 :], right[step + 1 :], strict=False))
            return {"step": step, "logits_differ": one[2] != other[2], "later": later, "found": one, "alone": other}
    return None if len(found) == len(right) else {"step": min(len(found), len(right)), "lengths_differ": True}


def check_answers(asked: Asked, levels: list[str], rounds: int) -> dict[str, Any]:
    """Every level against `open` alone, tokens and log-probabilities, in several rounds; `isolated` in the first. Not
    `obfuscated`, which needs secrets (gpu_obfuscate.py)."""
    levels = [level for level in levels if level != "obfuscated"]
    found: dict[str, Any] = {"differing": [], "compared": {}}
    prompts = [f"Question {i}: what is {i} plus {i + 1}? Explain." for i in range(max(AT_ONCE))]
    for kind, way in WAYS.items():
        alone = [said(asked, text, "open", way) for text in prompts]
        for number in range(rounds):
            for level in levels if number == 0 else [level for level in levels if level != "isolated"]:
                for users in AT_ONCE if level != "isolated" else AT_ONCE[:2]:
                    with ThreadPoolExecutor(users) as many:
                        asking = many.map(
                            lambda text, level=level, way=way: said(asked, text, level, way), prompts[:users]
                        )
                        together = list(asking)
                    case = f"{level} {kind} {users} at once"
                    found["compared"][case] = found["compared"].get(case, 0) + users
                    for i, answer in enumerate(together):
                        if differs := divergence(answer, alone[i]):
                            found["differing"].append({"case": case, "round": number, "prompt": i, **differs})
        found[f"answer {kind}"] = "".join(token for token, *_ in alone[0])[:200]
    for level in levels:
        stream = asked.client.chat.completions.create(
            model=asked.model,
            messages=[{"role": "user", "content": prompts[0]}],
            max_tokens=24,
            temperature=0,
            stream=True,
            extra_body={"protection": level},
        )
        streamed = "".join(part.choices[0].delta.content or "" for part in stream if part.choices)
        if streamed != asked.chat(prompts[0], "open"):
            found["differing"].append(f"{level} streamed")
    return found


def check_kills(asked: Asked, levels: list[str]) -> dict[str, Any]:
    """SIGKILL while a long answer is made: what its user is told, and how long it takes until all is well again."""
    found = {}
    vaults = [("vault", level) for level in levels if level in ("partitioned", "isolated")]
    shared = [("attention", "partitioned"), (MPS, "partitioned")] if "partitioned" in levels else []
    for role, level in [("service", "open"), *vaults, *shared]:
        with ThreadPoolExecutor(1) as one:
            before = set(processes(role))
            asking = one.submit(asked.chat, "Count to a thousand, slowly.", level, 0, max_tokens=4000)
            time.sleep(1.5)
            for pid in before:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            killed = time.monotonic()
            try:
                told = f"answered {len(asking.result(60))} characters"
            except Exception as failure:
                told = f"{type(failure).__name__}: {str(failure)[:200]}"
        while True:
            try:
                asked.chat("Hello", level, 0, max_tokens=4)
                break
            except Exception:
                if time.monotonic() - killed > 30:
                    raise
                time.sleep(0.1)
        found[f"{role} at {level}"] = {"told": told, "well_again_s": round(time.monotonic() - killed, 2)}
    return found


def throughput(asked: Asked, levels: list[str], of_open: int, of_vaults: int) -> list[dict[str, Any]]:
    rows, vocabulary = [], 49152
    for prompt, new in CASES:
        for level in levels:
            users = of_open if level == "open" else of_vaults
            if level != "open":
                time.sleep(SPARES_S)
            prompts = [[(13 * u + 7 * t) % (vocabulary - 100) + 50 for t in range(prompt)] for u in range(users)]
            with ThreadPoolExecutor(users) as many:
                began = time.monotonic()
                each = list(many.map(lambda p, new=new, level=level: asked.tokens(p, new, level), prompts))
                seconds = time.monotonic() - began
            row = {"level": level, "users": users, "prompt": prompt, "new": new, "tokens_per_s": users * new / seconds}
            row |= {"median_s": statistics.median(each), "wall_s": seconds}
            rows.append(row)
            print(row, flush=True)
        if "partitioned" in levels:  # in sessions that are kept: their vaults are there
            users = min(of_vaults, MOST_KEPT)
            again = [[(17 * u + 5 * t) % (vocabulary - 100) + 50 for t in range(prompt)] for u in range(users)]
            asks = [(p, new, "partitioned", f"s{u}") for u, p in enumerate(again)]
            with ThreadPoolExecutor(users) as many:
                for _ in range(3):
                    began = time.monotonic()
                    each = list(many.map(lambda ask: asked.tokens(*ask), asks))
                    seconds = time.monotonic() - began
                    asks = [([p[0] + 1, *p[1:]], *rest) for p, *rest in asks]  # nothing is reused
            row = {"level": "partitioned", "kept": True, "users": users, "prompt": prompt, "new": new}
            row |= {"tokens_per_s": users * new / seconds, "median_s": statistics.median(each), "wall_s": seconds}
            rows.append(row)
            print(row, flush=True)
    return rows


def gaps(asked: Asked, level: str, tokens: int) -> list[float]:
    """Seconds between the tokens of one streamed answer."""
    stream = asked.client.completions.create(
        model=asked.model,
        prompt=[50 + t for t in range(64)],
        max_tokens=tokens,
        temperature=0,
        logit_bias={"0": -100, "2": -100},
        stream=True,
        extra_body={"protection": level, "session": f"streams-{level}"},
    )
    came = [time.monotonic() for _ in stream]
    return [after - before for before, after in pairwise(came)][1:-2]


def disturbance(asked: Asked, levels: list[str], others: int = 16) -> dict[str, Any]:
    """How far apart an answer's tokens are, alone and beside sessions that send prompts of 512 tokens without pause."""
    found: dict[str, Any] = {}
    for level in [level for level in ("open", "partitioned") if level in levels]:
        enough = threading.Event()

        def keep_asking(user: int, level: str = level, enough: threading.Event = enough) -> int:
            count = 0
            while not enough.is_set():
                count += 1
                prompt = [(13 * user + 7 * t + count) % 49000 + 50 for t in range(512)]
                asked.tokens(prompt, 1, level, f"s{user}")
            return count

        gaps(asked, level, 32)
        quiet = gaps(asked, level, 400)
        with ThreadPoolExecutor(others) as many:
            asking = [many.submit(keep_asking, user) for user in range(others)]
            time.sleep(3.0)
            began = time.monotonic()
            beside = gaps(asked, level, 400)
            lasted = time.monotonic() - began
            enough.set()
            prompts = sum(each.result() for each in asking)
        row: dict[str, Any] = {"prompts_per_s": round(prompts / (lasted + 3.0), 1)}
        for name, each in (("quiet", quiet), ("beside", beside)):
            cut = statistics.quantiles(each, n=100)
            row[name] = {"p50_ms": 1e3 * cut[49], "p95_ms": 1e3 * cut[94], "most_ms": 1e3 * max(each)}
        found[level] = row
        print(level, row, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--random", choices=list(SHAPES))
    parser.add_argument("--gguf", type=Path, help="make the model from this file first")
    parser.add_argument("--like", type=Path, help="folder with a configuration and a tokenizer")
    parser.add_argument("--users", type=int, default=32, help="at once at the level open")
    parser.add_argument("--vault-users", type=int, default=32, help="at once at the others")
    parser.add_argument("--rounds", type=int, default=1, help="of answers")
    parser.add_argument("--skip", default="", help="of answers, throughput, disturbance, kills")
    parser.add_argument("--timed", default=",".join(TIMED), help="levels whose throughput is measured")
    parser.add_argument("--option", action="append", default=[], help="passed on to `cloister serve`")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if options.random:
        began = time.monotonic()
        make_random(options.model, options.like, options.random)
        found["made_s"] = time.monotonic() - began
    elif options.gguf:
        make_real(options.model, options.like, options.gguf)
    log = options.json.with_suffix(".log")
    parts: dict[str, Callable[[Asked, list[str]], Any]] = {
        "answers": lambda asked, levels: check_answers(asked, levels, options.rounds),
        "throughput": lambda asked, levels: throughput(
            asked, [level for level in options.timed.split(",") if level in levels], options.users, options.vault_users
        ),
        "disturbance": disturbance,
        "kills": check_kills,
    }
    with served(options.model, log, *options.option) as (url, seconds):
        found["up_s"] = seconds
        asked = Asked(url)
        model = asked.client.models.list().data[0].model_dump()
        found["model"] = {key: value for key, value in model.items() if key not in ("object", "created", "owned_by")}
        levels = [level["id"] for level in model["protection"] if level["enabled"]]
        found["memory"] = gpu_memory()
        for name, part in parts.items():
            if name not in options.skip.split(","):
                try:
                    found[name] = part(asked, levels)
                except Exception as failure:
                    notes = getattr(failure, "__notes__", [])
                    found[name] = f"failed: {type(failure).__name__}: {str(failure)[:500]} {notes}"
                print(name, json.dumps(found[name]), flush=True)
                options.json.write_text(json.dumps(found, indent=1))
        found["memory_at_the_end"] = gpu_memory()
    options.json.write_text(json.dumps(found, indent=1))
    print(json.dumps({key: value for key, value in found.items() if key not in parts}, indent=1))


if __name__ == "__main__":
    main()
