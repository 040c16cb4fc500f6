"""The paper's design (Petridish §5), rebuilt for comparison: plain torch kernels, and in every layer the queries go
through the host, by GLOO, to a process for each user, which sends back what it attended to.
As there: Q is projected first and sent at once; keys, values and the attention over the answer's tokens are computed
meanwhile; then all are waited for and merged (Theorem 1). Random numbers stand for weights, keys and values."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from cloister.errors import ServiceUnavailable
from cloister.models.plain_config import PlainConfig
from cloister_bench.gpu.phases import PHASES

Row = dict[str, Any]
PATIENCE = timedelta(seconds=60)
WARM, TIMED, ANSWERED = 2, 6, 32
Attended = tuple[torch.Tensor, torch.Tensor]


def attended(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Attended:
    """Softmax attention and its log-sum-exp: q is [users, heads, dim], the others [users, kv heads, tokens, dim]."""
    users, heads, dim = q.shape
    grouped = q.view(users, keys.shape[1], heads // keys.shape[1], dim)
    scores = (grouped @ keys.transpose(-1, -2)).float() * dim**-0.5
    lse = scores.logsumexp(-1)
    out = torch.exp(scores - lse[..., None]).to(values.dtype) @ values
    return out.view(users, heads, dim), lse.view(users, heads)


def merged(one: Attended, other: Attended) -> torch.Tensor:
    """Theorem 1."""
    weight = torch.sigmoid(one[1] - other[1])[..., None]
    return (one[0].float() * weight + other[0].float() * (1 - weight)).to(one[0].dtype)


def _join(rank: int, users: int, port: int) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=users + 1, timeout=PATIENCE
    )


def _on_host(*size: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Memory of the host that the GPU copies to and from directly."""
    made = torch.empty(*size, dtype=dtype)
    return made.pin_memory() if device == "cuda" else made


def be_vault(rank: int, users: int, port: int, config: PlainConfig, prompt: int, steps: int, device: str) -> None:
    """One user's process: for each layer of each step it answers for its prompt, on the GPU, through the host."""
    torch.set_num_threads(1)
    _join(rank, users, port)
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    size = (config.num_hidden_layers, 1, kv_heads, prompt, dim)
    keys, values = (torch.randn(size, device=device, dtype=torch.bfloat16) for _ in range(2))
    asked = _on_host(1, heads, dim, dtype=torch.bfloat16, device=device)
    dist.barrier()
    for _ in range(steps):
        for layer in range(config.num_hidden_layers):
            dist.recv(asked, 0)
            out, lse = attended(asked.to(device), keys[layer], values[layer])
            answer = torch.cat((out.float(), lse[..., None]), dim=-1).cpu()
            dist.send(answer, 0)


class GlooService:
    """The service: weights once, the answers' keys and values, and the processes it asks."""

    def __init__(self, config: PlainConfig, users: int, device: str = "cuda") -> None:
        self._config, self._users, self._device = config, users, device
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim

        def weight(rows: int, columns: int) -> torch.Tensor:
            drawn: torch.Tensor = torch.randn(rows, columns, device=device, dtype=torch.bfloat16)
            return drawn.mul_(float(columns) ** -0.5)

        shapes = ((queries, hidden), (2 * keys, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner))
        self._layers = [[weight(*shape) for shape in shapes] for _ in range(config.num_hidden_layers)]
        self._head = weight(config.vocab_size, hidden)
        self._norm = torch.ones(hidden, device=device, dtype=torch.bfloat16)
        size = (config.num_hidden_layers, 2, users, config.num_key_value_heads, ANSWERED, dim)
        self._own = torch.randn(size, device=device, dtype=torch.bfloat16)
        heads = config.num_attention_heads
        self._asked = _on_host(users, 1, heads, dim, dtype=torch.bfloat16, device=device)
        self._answers = _on_host(users, 1, heads, dim + 1, dtype=torch.float32, device=device)
        self._x = torch.randn(users, hidden, device=device, dtype=torch.bfloat16)

    def step(self, mark: Callable[[str], None]) -> None:
        """`mark` gets the name of the part that ends there."""
        config, users, dim = self._config, self._users, self._config.head_dim
        x = self._x
        for layer, (wq, wkv, wo, gate_up, down) in enumerate(self._layers):
            normed = F.rms_norm(x, (config.hidden_size,), self._norm)
            mark("other")
            q = F.linear(normed, wq).view(users, -1, dim)
            mark("q_projection")
            self._asked.copy_(q[:, None])
            waiting = [dist.irecv(self._answers[user], user + 1) for user in range(users)]
            sent = [dist.isend(self._asked[user], user + 1) for user in range(users)]
            mark("waiting_for_input_attention")
            fresh = F.linear(normed, wkv).view(users, 2, -1, dim)
            self._own[layer, :, :, :, -1] = fresh.transpose(0, 1)
            mark("kv_projection")
            own = attended(q, self._own[layer, 0], self._own[layer, 1])
            mark("output_attention")
            for one in (*waiting, *sent):
                one.wait()
            answers = self._answers.to(self._device, non_blocking=True)[:, 0]
            mark("waiting_for_input_attention")
            whole = merged((answers[..., :dim].bfloat16(), answers[..., dim]), own)
            mark("merge")
            x = x + F.linear(whole.view(users, -1), wo)
            gate, up = F.linear(F.rms_norm(x, (config.hidden_size,), self._norm), gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, down)
            mark("output_projection_and_mlp")
        F.linear(F.rms_norm(x, (config.hidden_size,), self._norm), self._head).argmax(-1).tolist()
        mark("other")


class Marks:
    def __init__(self) -> None:
        self._marks: list[tuple[str, torch.cuda.Event]] = []

    def __call__(self, name: str) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append((name, event))

    def ms(self) -> dict[str, float]:
        """Of each part, in all since the first mark."""
        torch.cuda.synchronize()
        found = dict.fromkeys(PHASES, 0.0)
        for (_, before), (name, event) in pairwise(self._marks):
            found[name] += before.elapsed_time(event)
        return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def with_vaults(config: PlainConfig, users: int, prompt: int, steps: int, device: str = "cuda") -> Iterator[None]:
    """A process for each user, forked now, that answers `steps` steps. This one must not have opened the GPU yet."""
    port, vaults = free_port(), []
    for user in range(users):
        if not (pid := os.fork()):
            try:
                be_vault(user + 1, users, port, config, prompt, steps, device)
                os._exit(0)
            finally:
                os._exit(1)
        vaults.append(pid)
    try:
        _join(0, users, port)
        yield
    except RuntimeError as failure:
        raise ServiceUnavailable(f"The GLOO design stopped: {str(failure).splitlines()[0]}") from failure
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for pid in vaults:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def measure_gloo(config: PlainConfig, users: int, prompt: int) -> Iterator[Row]:
    with with_vaults(config, users, prompt, WARM + TIMED):
        service = GlooService(config, users)
        dist.barrier()
        for _ in range(WARM):
            service.step(lambda name: None)
        steps = []
        for _ in range(TIMED):
            marks = Marks()
            marks("other")
            service.step(marks)
            steps.append(marks.ms())
    middle = sorted(steps, key=lambda parts: sum(parts.values()))[len(steps) // 2]
    yield {"design": "gloo", "processes": users, "ms": sum(middle.values()), "phases_ms": middle}
