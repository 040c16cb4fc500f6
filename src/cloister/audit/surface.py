"""Attempts with requests that no user needs: fields and headers that widen access, interfaces of operators, words that
come back in an error."""

from typing import Any

from cloister.audit.finding import Finding, broken, held, not_tried, off
from cloister.audit.proof import stated_by
from cloister.audit.target import COMPLETIONS, Target, random_words

REFUSED, HIDDEN = (400, 404, 405, 422), (401, 403, 404, 405)
PRIORITY = ("priority", "scheduling_priority", "nice")
SPECULATION = ("speculative_config", "draft_model", "prompt_lookup_num_tokens", "medusa")
PLACEMENT = ("kv_transfer_params", "data_parallel_rank", "node", "bootstrap_host")
# Of the servers that operators know: vLLM, SGLang, TGI, Triton, and common web frameworks.
PRIVILEGED = (
    *(("GET", path) for path in ("/debug", "/debug/pprof/profile", "/admin", "/server_info", "/get_server_info")),
    *(("GET", path) for path in ("/get_internal_state", "/env", "/config", "/threads", "/dump", "/logs", "/metrics")),
    *(("POST", path) for path in ("/start_profile", "/stop_profile", "/collective_rpc", "/configure_logging")),
    *(("POST", path) for path in ("/sleep", "/wake_up", "/reset_prefix_cache", "/flush_cache", "/pause", "/abort")),
    *(("POST", path) for path in ("/update_weights_from_disk", "/v1/load_lora_adapter", "/set_internal_state")),
    *(("POST", path) for path in ("/v2/repository/models/x/load", "/invocations", "/release_memory_occupation")),
    *(("PUT", path) for path in ("/v1/models", "/config", "/v1/completions")),
    *(("DELETE", path) for path in ("/v1/models", "/metrics")),
)
CONTENT = 40  # words of a canary


def _served_with(target: Target, fields: tuple[str, ...]) -> str | None:
    """The first of these fields with which a request is served."""
    for field in fields:
        given: dict[str, Any] = {field: 1}
        if target.complete("Say a word.", target.plain_levels[0], tokens=1, **given).status not in REFUSED:
            return field
    return None


def priority(target: Target) -> Finding:
    served = _served_with(target, PRIORITY)
    if served is not None:
        return broken(f"A request with {served!r} is served: its class could be seen, and chosen for a user.")
    return held("A request cannot say how urgent it is: such fields are refused, and turns go by amounts of work.")


def speculation(target: Target) -> Finding:
    served = _served_with(target, SPECULATION)
    if served is not None:
        return broken(f"A request with {served!r} is served.")
    if beat := stated_by(target).settings.beat_ms:  # no node guesses without one: it does not start
        return not_tried(f"Vaults may guess behind a beat of {beat} ms. Fields that ask for it are refused.")
    return off("Tokens come one by one: nothing is guessed ahead, and fields that ask for it are refused.")


def placement(target: Target) -> Finding:
    served = _served_with(target, PLACEMENT)
    if served is not None:
        return broken(f"A request with {served!r} is served: it could be sent elsewhere.")
    return off("A request stays on its node, and fields that would move it are refused.")


def misspelt(target: Target) -> Finding:
    """A level that is misspelt must not be served at another one."""
    level = target.plain_levels[0]
    tries = {
        "an unknown field": target.complete("Say a word.", level, tokens=1, protecton=level),
        "an unknown level": target.complete("Say a word.", "isolatd", tokens=1),
        "an unknown header": target.ask(
            "POST",
            COMPLETIONS,
            {"model": target.model["id"], "prompt": "Say a word.", "max_tokens": 1},
            headers={"X-Cloister-Protecton": level},
        ),
    }
    for name, reply in tries.items():
        if reply.status not in REFUSED:
            return broken(f"A request with {name} is served.")
    return held(f"Refused: {', '.join(tries)}.")


def privileged(target: Target) -> Finding:
    for method, path in PRIVILEGED:
        if target.ask(method, path, {} if method != "GET" else None, key="").status not in HIDDEN:
            return broken(f"{method} {path} answers without a key.")
    for method, path in PRIVILEGED:
        status = target.ask(method, path, {} if method != "GET" else None).status
        if status not in HIDDEN and path != "/metrics":
            return broken(f"{method} {path} answers a tenant.")
    return held(f"{len(PRIVILEGED)} interfaces that servers have for operators answer no tenant.")


def profiling(target: Target) -> Finding:
    """Totals are not for tenants where there are several."""
    if not target.other_key:
        return not_tried("This takes the key of a tenant: set CLOISTER_OTHER_API_KEY.")
    if target.ask("GET", "/metrics", key=target.other_key).status not in HIDDEN:
        return broken("A tenant reads the node's totals.")
    return held("A tenant's key reads no totals.")


def wrong_key(target: Target) -> Finding:
    for key in ("", "sk-wrong", target.key + "x"):
        body = {"model": target.model["id"], "prompt": "Say a word.", "max_tokens": 1}
        if target.ask("POST", COMPLETIONS, body, key=key).status != 401:
            return broken("A request is served without a key of this server.")
    return held("Without a key, or with a wrong one, nothing is served.")


def errors_without_content(target: Target) -> Finding:
    """Bad requests with a canary where the words of users are."""
    canary = random_words(CONTENT)
    model, level = target.model["id"], target.plain_levels[0]
    whole = {"model": model, "prompt": canary, "max_tokens": 1, "protection": level}
    bad: tuple[tuple[str, object], ...] = (
        ("n", {**whole, "n": 10_000}),
        ("temperature", {**whole, "temperature": canary}),
        ("stop", {**whole, "stop": [canary] * 1000}),
        ("prompt", {**whole, "prompt": {"text": canary}}),
        ("max_tokens", {**whole, "max_tokens": -1}),
        ("level", {**whole, "protection": canary}),
        ("messages", {"model": model, "messages": [{"role": canary, "content": canary}]}),
        ("a list", [canary]),
    )
    pieces = canary.encode().split()
    for name, body in bad:
        reply = target.ask("POST", COMPLETIONS, body)
        if reply.status < 400:
            return not_tried(f"A request with a wrong {name} is served.")
        if sum(piece in reply.body for piece in pieces) > 1:
            return broken(f"The error about {name} quotes the request.")
    return held(f"{len(bad)} errors quote no word of their requests.")
