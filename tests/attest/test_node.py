"""A node's evidence against a policy, with reports of chips of our own: dispatch, binding, what may not be missing."""

import io
import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from cloister.attest import node as node_module
from cloister.attest.attester import SoftwareAttester, Tee
from cloister.attest.evidence import (
    DOMAIN,
    HOST_DOMAIN,
    VERSION,
    GpuEvidence,
    NodeEvidence,
    Parties,
    SettingsPolicy,
    VaultHostPin,
    bind,
    gpu_nonce,
    read_evidence,
    write_evidence,
)
from cloister.attest.node import verify_node
from cloister.attest.nvidia.reports import GpuPolicy, References, verify_gpu_reports
from cloister.attest.policy import Policy
from cloister.attest.snp import SnpPolicy, verify_snp
from cloister.attest.tdx import TdxPolicy
from cloister.checks import Check, Outcome, Verdict
from cloister.cli.options import checks_table
from cloister.errors import EvidenceInvalid
from tests.attest.snp_maker import AT, Chip
from tests.attest.statements import SETTINGS, statement
from tests.fuzz.nvidia_made import NOW, MadeGpu

NONCE, OTHER_NONCE = b"n" * 32, b"o" * 32
CHANNEL_KEY, MEASUREMENT = b"k" * 32, b"m" * 32
CERTIFICATE = b"c" * 32
HOST = "10.0.0.2:7000"
HOST_STATEMENT = statement()
ELSEWHERE = replace(SETTINGS, vault_hosts=(HOST,))
WITH_HOST = statement(ELSEWHERE, vault_hosts=(VaultHostPin(HOST, CERTIFICATE),))
LAUNCH = "aa" * 48
SNP = Policy(snp=SnpPolicy(measurements=(LAUNCH,)))


@dataclass
class Node:
    """Evidence for a nonce, by a chip of our own or by software."""

    tee: Tee = "sev-snp"
    gpu: GpuEvidence | None = None
    statement: bytes = field(default_factory=statement)
    chip: Chip = field(default_factory=Chip)
    software: SoftwareAttester = field(default_factory=lambda: SoftwareAttester(clock=AT.timestamp))

    def evidence(self, nonce: bytes = NONCE) -> NodeEvidence:
        bound = bind(nonce, CHANNEL_KEY, MEASUREMENT, self.gpu.data if self.gpu else b"", self.statement)
        if self.tee == "sev-snp":
            report, certificates = self.chip.report(report_data=bound), tuple(self.chip.pieces)
        else:
            report, certificates = self.software.attest(bound).report, ()
        return NodeEvidence(
            VERSION, self.tee, report, CHANNEL_KEY, MEASUREMENT, self.statement, certificates=certificates, gpu=self.gpu
        )

    def vault_host(
        self, nonce: bytes = NONCE, said: bytes = HOST_STATEMENT, measurement: bytes = MEASUREMENT, **more: Any
    ) -> NodeEvidence:
        """Another machine of the same maker, which keeps vaults."""
        bound = bind(nonce, CERTIFICATE, measurement, b"", said, more.get("domain", HOST_DOMAIN))
        report = self.chip.report(report_data=bound)
        return NodeEvidence(
            VERSION, "sev-snp", report, CERTIFICATE, measurement, said, certificates=tuple(self.chip.pieces)
        )


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node()
    monkeypatch.setattr(node_module, "verify_snp", partial(verify_snp, roots=made.chip.roots))
    return made


def outcome(verdict: Verdict, name: str) -> Outcome:
    (found,) = [check.outcome for check in verdict.checks if check.name == name]
    return found


def broken(verdict: Verdict) -> set[str]:
    return {check.name for check in verdict.broken}


def check(evidence: NodeEvidence, policy: Policy = SNP, nonce: bytes = NONCE) -> Verdict:
    return verify_node(evidence, nonce, at=AT, policy=policy)


def test_a_real_tee_that_answers_the_nonce_passes_and_says_what_it_is(node: Node) -> None:
    verdict = check(node.evidence())
    assert verdict.passed, verdict.broken
    assert verdict.claims["tee"] == "sev-snp" and verdict.claims["model"] == "m"
    assert verdict.claims["measurement"] == MEASUREMENT.hex()
    assert verdict.claims["report"]["measurement"] == LAUNCH
    json.dumps(verdict.as_json())


def test_evidence_for_another_nonce_is_stale(node: Node) -> None:
    verdict = check(node.evidence(OTHER_NONCE))
    assert broken(verdict) == {"report data"}


@pytest.mark.parametrize(
    "change",
    [
        {"channel_key": b"x" * 32},
        {"measurement": b"x" * 32},
        {"statement": statement(model="another")},
        {"gpu": GpuEvidence("report", b"[]")},
    ],
)
def test_nothing_the_report_speaks_for_can_be_exchanged(
    node: Node, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    passing = Verdict(checks=check(node.evidence()).checks)
    monkeypatch.setattr(node_module, "verify_gpu_reports", lambda *given, **more: passing)
    verdict = check(replace(node.evidence(), **change))
    assert "report data" in broken(verdict)


def test_a_tee_the_policy_does_not_list_fails(node: Node) -> None:
    assert broken(check(node.evidence(), replace(SNP, tees=("tdx",)))) == {"tee"}


def test_without_known_launch_measurements_nothing_says_what_runs(node: Node) -> None:
    verdict = check(node.evidence(), Policy())
    assert verdict.incomplete and broken(verdict) == {"launch"}
    other = Policy(snp=SnpPolicy(measurements=("bb" * 48,)))
    assert broken(check(node.evidence(), other)) == {"launch"}


def test_a_td_is_asked_for_what_the_policy_says(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def verify_tdx(quote: bytes, collateral: bytes | None, **more: Any) -> Verdict:
        asked.update(more, quote=quote, collateral=collateral)
        return check(node.evidence())

    monkeypatch.setattr(node_module, "verify_tdx", verify_tdx)
    evidence = replace(node.evidence(), tee="tdx", collateral=b"{}")
    policy = Policy(tdx=TdxPolicy(min_tcb_evaluation=3))
    assert check(evidence, policy).passed
    assert asked["report_data"] == evidence.report_data(NONCE) and asked["collateral"] == b"{}"
    assert asked["policy"] is policy.tdx and asked["at"] == AT
    ours = replace(policy, tdx_collateral=b"ours")
    assert check(evidence, ours).passed and asked["collateral"] == b"{}"
    assert check(replace(evidence, collateral=b""), ours).passed and asked["collateral"] == b"ours"
    assert check(replace(evidence, collateral=b""), policy).passed and asked["collateral"] is None


def test_a_node_without_a_revocation_list_is_held_against_the_policys_own(node: Node) -> None:
    evidence = replace(node.evidence(), certificates=tuple(node.chip.certificates))
    assert broken(check(evidence)) == {"revocation"}
    assert check(evidence, replace(SNP, snp_revocation_lists=(node.chip.revocation_list(),))).passed
    revoked = replace(SNP, snp_revocation_lists=(node.chip.revocation_list(2),))
    assert broken(check(evidence, revoked)) == broken(check(node.evidence(), revoked)) == {"revocation"}


def test_what_the_policy_lets_go_is_shown_by_name(node: Node) -> None:
    assert outcome(check(node.evidence()), "relaxations") is Outcome.PASS
    assert check(node.evidence()).claims["relaxations"] == []
    lax = replace(
        SNP,
        snp=SnpPolicy(measurements=(LAUNCH,), allow_debug=True, vmpl=(0, 2)),
        tdx=TdxPolicy(accepted_statuses=("UpToDate", "OutOfDate")),
        accept_missing_layers=("landlock",),
    )
    verdict = check(node.evidence(), lax)
    names = ["accept_missing_layers landlock", "snp.allow_debug", "snp.vmpl 2", "tdx.accepted_statuses OutOfDate"]
    (shown,) = [each for each in verdict.checks if each.name == "relaxations"]
    assert verdict.passed and verdict.claims["relaxations"] == names and shown.allowed_by == ", ".join(names)


def test_the_software_attester_fails_unless_it_is_allowed() -> None:
    evidence = Node("none").evidence()
    assert broken(check(evidence, Policy())) == {"tee", "software tee"}
    allowed = Policy(allow_software_tee=True)
    assert check(evidence, allowed).passed
    assert broken(check(evidence, allowed, OTHER_NONCE)) == {"report data"}


def test_a_software_report_cannot_pose_as_hardware() -> None:
    with pytest.raises(EvidenceInvalid):
        check(replace(Node("none").evidence(), tee="sev-snp"))


def test_certificates_are_needed(node: Node) -> None:
    verdict = check(replace(node.evidence(), certificates=()))
    assert verdict.incomplete and "certificate chain" in broken(verdict)


def test_a_missing_layer_of_the_sandbox_fails_the_node_unless_accepted(node: Node) -> None:
    node.statement = statement(missing_layers=["landlock", "seccomp"])
    assert broken(check(node.evidence())) == {"sandbox"}
    assert broken(check(node.evidence(), replace(SNP, accept_missing_layers=("seccomp",)))) == {"sandbox"}
    accepted = check(node.evidence(), replace(SNP, accept_missing_layers=("landlock", "seccomp")))
    assert accepted.passed and accepted.claims["missing_layers"] == ["landlock", "seccomp"]
    gone = ("landlock", "seccomp", "vaults_outside_mps")
    assert check(node.evidence(), replace(SNP, accept_missing_layers=gone)).passed, "a layer that no node has any more"


def test_only_a_development_node_may_lack_the_right_to_lock_memory(node: Node) -> None:
    node.statement = statement(missing_layers=["memory_lock", "no_swap"])
    assert broken(check(node.evidence())) == {"sandbox"}
    node.tee = "none"
    assert check(node.evidence(), Policy(allow_software_tee=True)).passed
    strict = Policy(allow_software_tee=True, accept_missing_layers=())
    assert broken(check(node.evidence(), strict)) == {"sandbox"}, "who says that none may be missing means it"


def check_of(verdict: Verdict, name: str) -> Check:
    (found,) = [check for check in verdict.checks if check.name == name]
    return found


CHANGED = {
    "vaults": (ELSEWHERE, ("here",)),
    "sandbox": (replace(SETTINGS, sandbox="degraded"), ("whole",)),
    "keys": (replace(SETTINGS, keys="development"), ("own",)),
    "mpc": (replace(SETTINGS, mpc="auto"), ("off", "local")),
}


def test_the_settings_are_shown_in_words_with_their_hash_and_the_weights(node: Node) -> None:
    verdict = check(node.evidence())
    assert check_of(verdict, "settings hash").reason == verdict.claims["settings_hash"] == SETTINGS.hash.hex()
    words = check_of(verdict, "settings").reason
    assert "vaults live on the node itself" in words and "mpc is off" in words and "600 s" in words
    assert verdict.claims["settings"]["sandbox"] == "whole" and verdict.claims["levels"] == ["open", "partitioned"]
    assert verdict.claims["weights"] in check_of(verdict, "weights digest").reason


def test_a_hash_that_is_not_of_the_settings_shown_fails(node: Node) -> None:
    node.statement = statement(SETTINGS, settings_hash=ELSEWHERE.hash)
    assert broken(check(node.evidence())) == {"settings"}


@pytest.mark.parametrize("name", CHANGED)
def test_a_policy_refuses_changed_settings_with_the_reason(node: Node, name: str) -> None:
    changed, accepted = CHANGED[name]
    pinned = replace(SNP, settings=SettingsPolicy(hashes=(SETTINGS.hash.hex().upper(),)))
    named = replace(SNP, settings=SettingsPolicy(**{name: accepted}))
    assert check(node.evidence(), pinned).passed and check(node.evidence(), named).passed
    node.statement = statement(changed)
    refused = check(node.evidence(), pinned)
    assert "settings hash" in broken(refused)
    assert changed.hash.hex() in check_of(refused, "settings hash").reason
    assert repr(getattr(changed, name)) in check_of(check(node.evidence(), named), f"setting {name}").reason


@pytest.mark.parametrize("mode", ["off", "sample", "late", "all"])
def test_a_policy_that_demands_verified_answers_takes_no_less(node: Node, mode: Any) -> None:
    node.statement = statement(replace(SETTINGS, verified=mode, verified_ppm=100_000))
    verdict = check(node.evidence(), replace(SNP, settings=SettingsPolicy(verified=("all",))))
    assert broken(verdict) == (set() if mode == "all" else {"setting verified"})
    assert ("own vault" in check_of(verdict, "settings").reason) == (mode != "off")


@pytest.mark.parametrize(("beat", "passes"), [(0, False), (100, False), (150, True)])
def test_a_beat_can_be_demanded(node: Node, beat: int, passes: bool) -> None:
    node.statement = statement(replace(SETTINGS, beat_ms=beat))
    assert check(node.evidence(), replace(SNP, settings=SettingsPolicy(min_beat_ms=150))).passed is passes


BROKEN_PROFILES = (
    (replace(SETTINGS, profile="tenants"), {"profile"}),
    (replace(SETTINGS, profile="pcc", verified="all"), {"profile"}),
)


@pytest.mark.parametrize(("layers", "passes"), [(0, False), (1, False), (2, True)])
def test_private_layers_can_be_demanded(node: Node, layers: int, passes: bool) -> None:
    node.statement = statement(replace(SETTINGS, private_layers=layers))
    verdict = check(node.evidence(), replace(SNP, settings=SettingsPolicy(min_private_layers=2)))
    assert broken(verdict) == (set() if passes else {"setting private layers"})
    assert (f"first {layers} layers" in check_of(verdict, "settings").reason) == (layers > 0)


@pytest.mark.parametrize("form", ["bf16", "int8"])
def test_a_form_of_the_weights_can_be_demanded(node: Node, form: Any) -> None:
    node.statement = statement(replace(SETTINGS, weights=form))
    verdict = check(node.evidence(), replace(SNP, settings=SettingsPolicy(weights=("bf16", "fp32"))))
    assert broken(verdict) == (set() if form == "bf16" else {"setting weights"})
    assert f"the weights are {form}" in check_of(verdict, "settings").reason


def test_a_node_that_breaks_its_profile_is_not_verified(node: Node) -> None:
    """Its software did not start it so: the settings in the evidence are compared again."""
    for settings, wrong in ((replace(SETTINGS, profile="tenants", verified="all"), set()), *BROKEN_PROFILES):
        node.statement = statement(settings)
        assert broken(check(node.evidence(), SNP)) == wrong
    node.statement = statement(SETTINGS)
    strict = replace(SNP, settings=SettingsPolicy(profile=("pcc",)))
    assert broken(check(node.evidence(), strict)) == {"setting profile"}


def test_parties_and_how_long_sessions_stay_can_be_demanded(node: Node) -> None:
    parties = Parties("aby3", "multi_party", ("a:1", "b:1", "c:1"), b"p" * 32)
    node.statement = statement(replace(SETTINGS, mpc="elsewhere", parties=parties))
    fine = replace(SNP, settings=SettingsPolicy(parties=((b"p" * 32).hex(),), max_session_idle_s=600))
    verdict = check(node.evidence(), fine)
    assert verdict.passed and "a:1, b:1, c:1" in check_of(verdict, "settings").reason
    json.dumps(verdict.as_json())
    strict = replace(SNP, settings=SettingsPolicy(parties=("00" * 32,), max_session_idle_s=599))
    assert broken(check(node.evidence(), strict)) == {"setting parties", "setting session idle"}


def test_weights_can_be_pinned(node: Node) -> None:
    pinned = replace(SNP, weights=(bytes(32).hex(),))
    assert check(node.evidence(), pinned).passed
    node.statement = statement(weights=b"w" * 32)
    assert broken(check(node.evidence(), pinned)) == {"weights digest"}


def test_vaults_on_a_machine_that_showed_nothing_are_refused_by_default(node: Node) -> None:
    node.statement = statement(ELSEWHERE)
    refused = check(node.evidence())
    assert broken(refused) == {"vault hosts"} and HOST in check_of(refused, "vault hosts").reason
    relaxed = check(node.evidence(), replace(SNP, settings=SettingsPolicy(allow_unseen_vault_hosts=True)))
    assert relaxed.passed and relaxed.claims["relaxations"] == ["settings.allow_unseen_vault_hosts"]
    node.tee = "none"
    development = Policy(allow_software_tee=True)
    assert broken(check(node.evidence(), development)) == {"vault hosts"}


def test_a_vault_host_that_shows_its_evidence_is_checked_like_the_node(node: Node) -> None:
    node.statement = WITH_HOST
    verdict = check(replace(node.evidence(), vault_hosts=(node.vault_host(),)))
    assert verdict.passed, verdict.broken
    assert check_of(verdict, f"vault host {HOST}: launch").outcome is Outcome.PASS
    (told,) = verdict.claims["vault_hosts"]
    assert (told["address"], told["state"], told["certificate"]) == (HOST, "verified", CERTIFICATE.hex())
    assert told["report"]["measurement"] == LAUNCH
    json.dumps(verdict.as_json())


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"nonce": OTHER_NONCE}, "report data"),
        ({"domain": DOMAIN}, "report data"),
        ({"measurement": b"x" * 32}, "release"),
        ({"said": statement(weights=b"w" * 32)}, "weights"),
        ({"said": statement(missing_layers=("landlock",))}, "sandbox"),
        ({"said": statement(replace(SETTINGS, sandbox="degraded"))}, "sandbox"),
        ({"said": statement(ELSEWHERE)}, "settings"),
        ({"said": statement(settings_hash=bytes(32))}, "settings"),
    ],
)
def test_a_vault_host_must_be_new_run_the_nodes_release_and_be_whole(
    node: Node, changes: dict[str, Any], fails: str
) -> None:
    node.statement = WITH_HOST
    verdict = check(replace(node.evidence(), vault_hosts=(node.vault_host(**changes),)))
    assert broken(verdict) == {f"vault host {HOST}: {fails}"}
    assert [one["state"] for one in verdict.claims["vault_hosts"]] == ["refused"]


def test_evidence_of_a_host_that_the_node_does_not_pin_is_none(node: Node) -> None:
    node.statement = statement(ELSEWHERE, vault_hosts=(VaultHostPin(HOST, b"d" * 32),))
    verdict = check(replace(node.evidence(), vault_hosts=(node.vault_host(),)))
    assert broken(verdict) == {"vault hosts"} and verdict.claims["vault_hosts"][0]["state"] == "unseen"
    node.statement = statement(ELSEWHERE, vault_hosts=(VaultHostPin("elsewhere:1", CERTIFICATE),))
    assert broken(check(replace(node.evidence(), vault_hosts=(node.vault_host(),)))) == {"vault hosts"}


def test_a_software_host_does_not_pass_behind_real_hardware(node: Node) -> None:
    node.statement = WITH_HOST
    bound = bind(NONCE, CERTIFICATE, MEASUREMENT, b"", HOST_STATEMENT, HOST_DOMAIN)
    host = NodeEvidence(VERSION, "none", node.software.attest(bound).report, CERTIFICATE, MEASUREMENT, HOST_STATEMENT)
    evidence = replace(node.evidence(), vault_hosts=(host,))
    assert broken(check(evidence)) == {f"vault host {HOST}: {name}" for name in ("tee", "software tee")}
    assert check(evidence, replace(SNP, allow_software_tee=True)).passed


def test_a_vault_hosts_evidence_is_no_nodes(node: Node) -> None:
    assert "report data" in broken(check(node.vault_host()))


def test_who_may_lose_layers_without_a_word_is_refused(node: Node) -> None:
    node.statement = statement(replace(SETTINGS, sandbox="degraded"))
    assert broken(check(node.evidence())) == {"sandbox"}
    assert check(node.evidence(), replace(SNP, accept_missing_layers=("landlock",))).passed


@pytest.mark.parametrize(("version", "who"), [(1, "operator"), (99, "Update the client")])
def test_evidence_of_another_version_is_told_as_such(node: Node, version: int, who: str) -> None:
    document = json.loads(write_evidence(node.evidence())) | {"version": version, "unheard_of": 1}
    with pytest.raises(EvidenceInvalid, match=f"version {version}, not {VERSION}") as raised:
        read_evidence(json.dumps(document).encode())
    assert who in (raised.value.hint or "")


def test_a_statement_that_does_not_decode_is_no_evidence(node: Node) -> None:
    node.statement = b"{}"
    with pytest.raises(EvidenceInvalid, match="statement"):
        check(node.evidence())


def test_a_gpu_that_is_asked_for_must_be_shown(node: Node) -> None:
    assert outcome(check(node.evidence()), "gpu evidence") is Outcome.SKIP
    assert broken(check(node.evidence(), replace(SNP, require_gpu=True))) == {"gpu evidence"}


@pytest.mark.parametrize("said", [{"missing_layers": ("no_devices",)}, {"gpus": 1}])
def test_a_tee_that_computes_on_a_gpu_nobody_sees_is_refused(node: Node, said: dict[str, Any]) -> None:
    node.statement = statement(**said)
    rules = replace(SNP, accept_missing_layers=("no_devices",))
    assert broken(check(node.evidence(), rules)) == {"gpu evidence"}
    relaxed = check(node.evidence(), replace(rules, gpu=GpuPolicy(allow_unseen=True)))
    assert relaxed.passed and "gpu.allow_unseen" in relaxed.claims["relaxations"]
    required = replace(rules, require_gpu=True, gpu=GpuPolicy(allow_unseen=True))
    assert broken(check(node.evidence(), required)) == {"gpu evidence"}
    node.tee = "none"
    development = Policy(allow_software_tee=True, accept_missing_layers=("no_devices",))
    assert outcome(check(node.evidence(), development), "gpu evidence") is Outcome.SKIP


def test_a_vault_host_that_computes_on_a_gpu_shows_it_too(node: Node) -> None:
    node.statement = WITH_HOST
    rules = replace(SNP, accept_missing_layers=("no_devices",))
    host = node.vault_host(said=statement(missing_layers=("no_devices",)))
    verdict = check(replace(node.evidence(), vault_hosts=(host,)), rules)
    assert broken(verdict) == {f"vault host {HOST}: gpu evidence"}


def test_gpu_reports_are_over_a_nonce_of_client_and_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def verify_gpu_reports(data: bytes, nonce: bytes, **more: Any) -> Verdict:
        asked.append((data, nonce, more["policy"], more["at"], more["references"]))
        return Verdict(checks=())

    monkeypatch.setattr(node_module, "verify_gpu_reports", verify_gpu_reports)
    node.gpu = GpuEvidence("report", b"[1]", (b"theirs",))
    verdict = check(node.evidence(), replace(SNP, require_gpu=True, gpu_manifests=(b"<a/>",), gpu_ocsp=(b"ours",)))
    assert verdict.passed and outcome(verdict, "gpu evidence") is Outcome.PASS
    bound = gpu_nonce(NONCE, CHANNEL_KEY, MEASUREMENT)
    assert asked == [(b"[1]", bound, SNP.gpu, AT, References((b"<a/>",), (b"ours", b"theirs")))]


def test_unmeasured_gpus_pass_only_by_a_relaxation_that_is_shown(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = MadeGpu()

    def verify(data: bytes, nonce: bytes, **more: Any) -> Verdict:
        return verify_gpu_reports(data, nonce, **(more | {"at": NOW}), roots=gpu.roots)

    monkeypatch.setattr(node_module, "verify_gpu_reports", verify)
    node.statement = statement(gpus=1)
    node.gpu = GpuEvidence("report", gpu.evidence(gpu_nonce(NONCE, CHANNEL_KEY, MEASUREMENT)))
    assert broken(check(node.evidence())) == {"gpu 0: measurements"}
    relaxed = check(node.evidence(), replace(SNP, gpu=GpuPolicy(allow_unmeasured=True)))
    assert relaxed.passed
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(checks_table(relaxed))
    assert "allowed by the policy: allow_unmeasured" in console.export_text()
    assert relaxed.claims["relaxations"] == ["gpu.allow_unmeasured"]


def test_malformed_gpu_evidence_is_a_typed_error(node: Node) -> None:
    node.gpu = GpuEvidence("report", b"not json")
    with pytest.raises(EvidenceInvalid):
        check(node.evidence())


def test_code_that_was_not_compared_with_a_release_is_refused_of_a_real_tee(node: Node) -> None:
    node.statement = statement(code="unmeasured")
    assert broken(check(node.evidence())) == {"code"}
    node.tee = "none"
    verdict = check(node.evidence(), Policy(allow_software_tee=True))
    assert outcome(verdict, "code") is Outcome.SKIP and verdict.claims["code"] == "unmeasured"
