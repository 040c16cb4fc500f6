"""Architectures that our own engine refuses, and two processes that share each layer, in the real vLLM and in fp32: the
tokens are those of transformers, or of one process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cloister_vllm.real import PYTHON, WITH_VLLM

pytestmark = [pytest.mark.slow, WITH_VLLM, pytest.mark.timeout(1800)]
PROMPT = [5, 17, 3, 42, 8, 90, 11, 2, 64, 33, 7]
MOST = 12
SIZES = {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}

PROGRAM = """
import json, sys
from pathlib import Path
from cloister.config import EngineSettings
from cloister.messages.types import SamplingParams
from cloister_vllm.core import Job
from cloister_vllm.names import open_core
path, parallel, prompt, most, compare = json.loads(sys.argv[1])
def main():
    asked = dict(kind="vllm", dtype="fp32", kv_cache_mib=64, max_running=4, chunk_tokens=64, max_context=128)
    core = open_core(Path(path), EngineSettings(**asked, tensor_parallel=parallel))
    core.add(Job(1, prompt, SamplingParams(max_tokens=most, temperature=0.0), most))
    made = []
    while len(made) < most:
        made += [token for one in core.step() for token in one.tokens]
    expected = None
    if compare:
        import torch
        from transformers import AutoModelForCausalLM
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        whole = torch.tensor([prompt])
        for _ in range(most):
            whole = torch.cat((whole, model(whole).logits[:, -1:].argmax(-1)), 1)
        expected = whole[0, len(prompt):].tolist()
    print(json.dumps({"made": made, "expected": expected, "asks_vaults": core.asks_vaults}), flush=True)
    core._client.shutdown()
if __name__ == "__main__":
    main()
"""


def answered(tmp_path: Path, model: Path, parallel: int = 1, *, compare: bool) -> dict[str, Any]:
    """The program is a file: vLLM's workers import it."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [str(PYTHON), "-P", str(program), json.dumps([str(model), parallel, PROMPT, MOST, compare])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def random_model(folder: Path, architecture: str) -> Path:
    """Random weights, large enough that no two tokens are near a tie."""
    import torch
    import transformers

    torch.manual_seed(11)
    names = {"gpt2": "GPT2", "mixtral": "Mixtral", "falcon": "Falcon", "opt": "OPT", "llama": "Llama"}
    more: dict[str, Any] = {
        "gpt2": {"n_positions": 256},
        "mixtral": {"num_key_value_heads": 1, "intermediate_size": 128, "num_local_experts": 4},
        "falcon": {"multi_query": True, "parallel_attn": True, "bias": False, "new_decoder_architecture": False},
        "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64, "max_position_embeddings": 256},
        "llama": {"num_key_value_heads": 2, "intermediate_size": 128},
    }[architecture]
    config = getattr(transformers, f"{names[architecture]}Config")(**SIZES, **more, initializer_range=0.2)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("architecture", ["gpt2", "mixtral", "falcon", "opt"])
def test_an_architecture_that_our_engine_refuses_answers_as_in_transformers(tmp_path: Path, architecture: str) -> None:
    found = answered(tmp_path, random_model(tmp_path / "model", architecture), compare=True)
    assert found["made"] == found["expected"] and len(set(found["made"])) > 1


def test_two_processes_make_the_tokens_of_one(tmp_path: Path) -> None:
    """And do not claim to ask vaults. (SmolLM2's nine heads are not two processes' work.)"""
    model = random_model(tmp_path / "model", "llama")
    one, two = (answered(tmp_path, model, parallel, compare=False) for parallel in (1, 2))
    assert one["made"] == two["made"] and (one["asks_vaults"], two["asks_vaults"]) == (True, False)
