"""The ledger (seed 003 §3.4, §4.1-4.3, and published audits of others): each optimisation of serving, the requirements
that it endangers (S stateless, E enforceable, P no privileged access, T non-targetable, V verifiable), the attack, what
stands against it, its test, and the attempt that tells whether that holds at a running node."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloister.audit import doors, line, machine, proof, same_bits, surface, tenants
from cloister.audit.finding import Finding, not_tried, off
from cloister.audit.target import Target
from cloister.errors import CloisterError

Attempt = Callable[[Target], Finding]


@dataclass(frozen=True, slots=True)
class Row:
    """`mitigation`: a file below src/cloister. `test`: a file below tests."""

    name: str
    endangers: str
    attack: str
    mitigation: str
    test: str
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Absent:
    """No attempt: Cloister has no such thing."""

    why: str

    def __call__(self, target: Target) -> Finding:
        return off(self.why)


_ONE_DEVICE = Absent("One process on one device decodes: no layer, matrix or sequence is split.")
_ONE_NODE = Absent("A request is read and answered by the node that got it; no node sends one on.")
_STEPS = "count tokens a step: they identify prompts"
_SPECULATION = {
    "by a draft model": _STEPS,
    "by extra heads": _STEPS,
    "from the prompt": "learn by its pace that an answer quotes the prompt",
    "from others' answers": "learn by its pace that another user got the same answer",
}
_SMALLER = {
    "quantisation": "serve a worse model under the same name",
    "sparsity and distillation": "serve a smaller model under the same name",
}

LEDGER = (
    # The deck's table, in its order.
    Row(
        "iteration-level batching",
        "T",
        "see a neighbour in one's own answer",
        "engine/scheduler.py",
        "serving/test_invariance.py",
        same_bits.batching,
    ),
    Row(
        "chunked prefill",
        "T",
        "learn by an answer's bits how long neighbours' prompts are",
        "engine/scheduler.py",
        "serving/test_invariance.py",
        same_bits.chunked_prefill,
    ),
    Row(
        "prepacked prefill",
        "T",
        "see a prompt that was computed in the same pass",
        "engine/runner.py",
        "serving/test_invariance.py",
        same_bits.prepacked_prefill,
    ),
    *(
        Row(f"speculation {kind}", "S", attack, "gateway/schema.py", "audit/test_attempts.py", surface.speculation)
        for kind, attack in _SPECULATION.items()
    ),
    Row("tensor parallelism", "S", "read what devices exchange", "placement.py", "test_placement.py", _ONE_DEVICE),
    Row("pipeline parallelism", "S", "read what stages exchange", "placement.py", "test_placement.py", _ONE_DEVICE),
    Row("sequence parallelism", "S", "read what devices exchange", "placement.py", "test_placement.py", _ONE_DEVICE),
    Row(
        "paging",
        "S",
        "find in a page what it held before",
        "engine/paged.py",
        "engine/test_blocks.py",
        same_bits.reused_pages,
    ),
    Row(
        "disk offloading",
        "SE",
        "find keys, values or prompts on a disk or in swap",
        "process/hardening.py",
        "redteam/test_canary.py",
        machine.offloading,
    ),
    Row(
        "prefix caching",
        "SE",
        "time or count what another tenant's prompt left computed",
        "controller/sharing.py",
        "serving/test_sharing.py",
        tenants.prefix_caching,
    ),
    Row(
        "multi-query and grouped-query attention",
        "",
        "none: a property of the model",
        "models/decoder.py",
        "models/test_families.py",
        Absent("A property of the model: nothing in it depends on users."),
    ),
    Row(
        "snippets of prompts computed ahead",
        "SE",
        "time which snippets a prompt has",
        "prefix/radix.py",
        "prefix/test_radix.py",
        Absent("Only whole beginnings are used again: keys and values depend on all that came before."),
    ),
    Row(
        "duplication of weights",
        "T",
        "serve one user other weights",
        "models/weights.py",
        "controller/test_evidence.py",
        proof.settings_frozen,
    ),
    Row(
        "pulling of weights",
        "SET",
        "send a node weights from elsewhere while it runs",
        "sealed_weights/file.py",
        "serving/test_sealed_weights.py",
        proof.settings_frozen,
    ),
    Row(
        "request migration",
        "T",
        "move a request to a node of one's choice",
        "gateway/schema.py",
        "audit/test_attempts.py",
        surface.placement,
    ),
    Row(
        "layer-wise transmission",
        "SE",
        "read a layer's keys and values on their way",
        "placement.py",
        "test_placement.py",
        _ONE_NODE,
    ),
    Row(
        "disaggregated prefill",
        "SE",
        "read keys and values on their way to another machine",
        "controller/vault_host.py",
        "vault_host/test_host.py",
        proof.vault_hosts,
    ),
    Row(
        "priority scheduling",
        "T",
        "see or set how important a request is",
        "fairness.py",
        "audit/test_attempts.py",
        surface.priority,
    ),
    Row(
        "scheduling by prediction",
        "T",
        "learn by its turn what an answer is expected to be",
        "fairness.py",
        "engine/test_scheduler.py",
        Absent("Turns go to the tenant with the least service so far; nothing is predicted."),
    ),
    Row(
        "machine-level scheduling",
        "ET",
        "steer a chosen user to a bad node",
        "access/node_choice.py",
        "access/test_node_choice.py",
        proof.node_choice,
    ),
    Row(
        "instance flip",
        "T",
        "make a bad node the one that is chosen",
        "access/node_choice.py",
        "access/test_node_choice.py",
        _ONE_NODE,
    ),
    Row(
        "profiling",
        "P",
        "read totals, traces or dumps of other users",
        "gateway/routes.py",
        "gateway/test_operations.py",
        surface.profiling,
    ),
    *(
        Row(name, "V", attack, "models/weights.py", "controller/test_evidence.py", proof.weights)
        for name, attack in _SMALLER.items()
    ),
    # What published audits of private clouds found, tried here.
    Row(
        "audit: evidence without the client's nonce",
        "V",
        "show old evidence",
        "client/verification.py",
        "client/test_verification.py",
        proof.nonce,
    ),
    Row(
        "audit: environment read after measurement",
        "EV",
        "change what runs by a variable",
        "process/entry.py",
        "audit/test_machine.py",
        machine.environment,
    ),
    Row(
        "audit: firmware tables that are not measured",
        "EV",
        "boot other firmware or ACPI tables",
        "image/firmware.py",
        "attest/test_node.py",
        proof.firmware,
    ),
    Row(
        "audit: patch level by the node's own word",
        "V",
        "run an old firmware and say it is new",
        "attest/node.py",
        "attest/test_node.py",
        proof.patch_level,
    ),
    # The five requirements.
    Row(
        "nothing is kept",
        "S",
        "find a prompt after its answer",
        "vault/process.py",
        "redteam/test_canary.py",
        machine.retention,
    ),
    Row(
        "nothing is kept on shares",
        "S",
        "find a prompt after its answer at mpc",
        "controller/external_level.py",
        "audit/test_machine.py",
        machine.retention_on_shares,
    ),
    Row(
        "errors without content",
        "S",
        "find a prompt's words in an error",
        "gateway/errors.py",
        "gateway/test_forgetting.py",
        surface.errors_without_content,
    ),
    Row(
        "views for their own tenant",
        "S",
        "read another tenant's view",
        "gateway/routes.py",
        "gateway/test_views.py",
        tenants.views,
    ),
    Row(
        "TLS may end anywhere",
        "E",
        "read or keep what passes a load balancer",
        "channel/sealing.py",
        "client/test_middle.py",
        line.tls_ended,
    ),
    Row(
        "no way back to the clear",
        "E",
        "change a request until the client sends it unsealed",
        "client/sealed_transport.py",
        "client/test_middle.py",
        line.altered,
    ),
    Row(
        "nothing misspelt is served",
        "E",
        "be served at another level than was meant",
        "gateway/schema.py",
        "gateway/test_protection.py",
        surface.misspelt,
    ),
    Row(
        "sealed from the network",
        "E",
        "send words out of a sealed process",
        "process/sandbox/namespaces.py",
        "redteam/test_from_inside.py",
        machine.network,
    ),
    Row(
        "no code is made",
        "E",
        "write code in a sealed process",
        "process/sandbox/seccomp.py",
        "redteam/test_from_inside.py",
        machine.writable_code,
    ),
    Row(
        "keys alone open the API",
        "P",
        "ask without a key",
        "keys.py",
        "test_keys.py",
        surface.wrong_key,
    ),
    Row(
        "no interface that widens access",
        "P",
        "profile, dump, reload or reconfigure a node that runs",
        "gateway/app.py",
        "gateway/test_operations.py",
        surface.privileged,
    ),
    Row(
        "one door",
        "P",
        "connect to a socket that is not the API's",
        "port.py",
        "audit/test_machine.py",
        doors.sockets,
    ),
    Row(
        "no signal that widens access",
        "P",
        "send a signal that profiles, dumps or reopens",
        "process/entry.py",
        "audit/test_machine.py",
        doors.signals,
    ),
    Row(
        "no core dumps",
        "SP",
        "crash a process and read what it held",
        "process/hardening.py",
        "process/test_hardening.py",
        doors.dumps,
    ),
    Row(
        "no memory for other users of the machine",
        "P",
        "read a process's memory",
        "process/hardening.py",
        "process/test_hardening.py",
        machine.other_users,
    ),
    Row(
        "from the log to the node",
        "V",
        "run software that no one could inspect",
        "client/verification.py",
        "client/test_verification.py",
        proof.verifies,
    ),
)


@dataclass(frozen=True, slots=True)
class Audited:
    row: Row
    finding: Finding

    def as_json(self) -> dict[str, str]:
        shown = {name: getattr(self.row, name) for name in ("name", "endangers", "attack", "mitigation", "test")}
        return {**shown, "outcome": str(self.finding.outcome), "found": self.finding.reason}


def audit(target: Target) -> Iterator[Audited]:
    """An attempt that several rows share is made once. One that cannot be made to its end is no pass."""
    made: dict[Attempt, Finding] = {}
    for row in LEDGER:
        if row.attempt not in made:
            try:
                made[row.attempt] = row.attempt(target)
            except CloisterError as wrong:
                made[row.attempt] = not_tried(wrong.message)
        yield Audited(row, made[row.attempt])
