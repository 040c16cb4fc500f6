"""The reason why evidence has a setting (MATTERS), or need not have it."""

MATTERS = {
    "controller.allow_degraded_sandbox": "what confines the processes that hold prompts may be missing",
    "controller.vault_host": "vaults, and the prompts in them, are on that machine",
    "controller.session_idle_s": "how long a kept session's vault holds its prompts",
    "controller.prefix_policy": "whether other tenants may tell, by timing, what was computed of a prompt at `open`",
    "controller.shared_policy": "what other tenants may tell of a prompt at `shared`",
    "controller.share_epsilon": "how surely a count of accounts hides one of them",
    "controller.share_threshold": "as controller.share_epsilon",
    "controller.detector": "whether what looks private may be shared when many sent it",
    "controller.templates_key": "who says which texts all tenants may share",
    "controller.quantise_ttft_ms": "whether the time of a first token tells what the service found computed",
    "controller.verify": "whether a service that was taken over can put other users' words into an answer",
    "gateway.beat_ms": "whether sizes and moments of a stream's events tell an observer what an answer is about",
    "gateway.keys_file": "without one all callers are one tenant, whose sessions and views are common",
    "mpc.mode": "whether a process here reads prompts for the level mpc, and starts parties",
    "mpc.parties": "who gets shares of prompts; what the file says counts, not its path",
}

_LIMIT = "a limit: what exceeds it is refused or waits"
_SPEED = "how fast it is, not who sees what"
_WEIGHTS = "the statement has the weights' digest"
_PATIENCE = "when to give up waiting: what is given up is ended"

IRRELEVANT = {
    "model": _WEIGHTS,
    "engine.dtype": _WEIGHTS,
    "engine.weights": _WEIGHTS,
    "engine.kernels": "all kernels are part of the release; the statement has the levels that they allow",
    "engine.threads": _SPEED,
    "engine.kv_cache_mib": _LIMIT,
    "engine.max_running": _LIMIT,
    "engine.chunk_tokens": _SPEED,
    "engine.max_context": _LIMIT,
    "engine.max_waiting": _LIMIT,
    "engine.max_waiting_per_tenant": _LIMIT,
    "engine.vault_kv_mib": _LIMIT,
    "engine.compact_prompts": "how exact an answer is, if its own request allows that; not who sees what",
    "engine.link_deadline_ms": _PATIENCE,
    "engine.attention_processes": "the statement names what is missing where several users share one",
    "controller.templates": "texts that the templates' key signed",
    "controller.detector_rules": "an operator's rules are added to the release's: they keep more private",
    "controller.detector_key": "as controller.detector_rules",
    "controller.gpu_in_turns": "the statement names what is missing where it is not so",
    "controller.spare_vaults": "a spare vault has seen no prompt",
    "controller.max_vaults": _LIMIT,
    "controller.max_waiting_for_vaults": _LIMIT,
    "controller.vault_ready_s": _PATIENCE,
    "controller.vault_deadline_s": _PATIENCE,
    "controller.service_deadline_s": _PATIENCE,
    "controller.vault_host_key": "opens the way to a vault host, whose own evidence says what it is",
    "controller.vault_host_policy": "what the node asks of a vault host; clients see its evidence and ask themselves",
    "controller.sealed_weights": _WEIGHTS,
    "controller.provider_key": _WEIGHTS,
    "controller.attester": "the evidence itself shows which hardware attests the machine",
    "controller.gpu_evidence": "the statement counts the GPUs that evidence shows; one that computes unseen is refused",
    "controller.release": "the evidence has the release and its proof",
    "gateway.host": "sealed requests pass the gateway as bytes, wherever it listens",
    "gateway.port": "as gateway.host",
    "gateway.served_model_name": "a name; the statement has the model's own, and the weights' digest",
    "gateway.max_body_bytes": _LIMIT,
    "gateway.max_connections": _LIMIT,
    "gateway.max_connections_of_one": _LIMIT,
    "gateway.request_timeout_s": _PATIENCE,
    "mpc.max_context": _LIMIT,
    "mpc.draft_tokens": _SPEED,
    "mpc.cache": "how fast answers come and how good they are; MPCache's ranks show nothing about a prompt",
}

HOST_MATTERS = {"allow_degraded_sandbox": MATTERS["controller.allow_degraded_sandbox"]}
HOST_IRRELEVANT = {
    "model": _WEIGHTS,
    "listen": "the channel's key is in the evidence, wherever it listens",
    "key_file": "which servers may request vaults; their prompts stay on the machine",
    "max_vaults": _LIMIT,
    "vault_deadline_s": _PATIENCE,
    "attester": IRRELEVANT["controller.attester"],
    "gpu_evidence": IRRELEVANT["controller.gpu_evidence"],
    "release": "the evidence has its measurement, which must be the node's",
} | {name: reason for name, reason in IRRELEVANT.items() if name.startswith("engine.")}
