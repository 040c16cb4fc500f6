"""`cloister attest check`: files in, a verdict and its exit code out."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from cloister.attest.snp import verify as snp_verify
from cloister.cli.attest import read_time, unpack
from cloister.errors import SetupError
from tests.attest import snp_maker as maker
from tests.attest.snp_maker import AT, Chip, table
from tests.cli.conftest import Run
from tests.fuzz.nvidia_made import MadeGpu, MadeManifests, ocsp_answer, swid_tag

NONCE = bytes(range(64)).hex()
WHEN = AT.isoformat()


@pytest.fixture(scope="module")
def chip() -> Chip:
    return Chip("Genoa")


@pytest.fixture
def files(chip: Chip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a report and its certificates; our own root stands in for AMD's."""
    monkeypatch.setitem(snp_verify.verify_snp.__kwdefaults__, "roots", chip.roots)
    (tmp_path / "report.bin").write_bytes(chip.report())
    (tmp_path / "crl").write_bytes(chip.revocation_list(99))
    (tmp_path / "named.toml").write_text(f'[snp]\nmeasurements = ["{"aa" * 48}"]\n')
    for name, der in zip(("vcek", "ask", "ark"), chip.certificates, strict=True):
        (tmp_path / f"{name}.der").write_bytes(der)
    return tmp_path


@pytest.fixture
def check(run: Run, files: Path) -> Run:
    def command(
        *arguments: str, evidence: str = "report.bin", certs: tuple[str, ...] = ("vcek", "ask", "ark")
    ) -> Result:
        given = [part for name in certs for part in ("--certs", str(files / f"{name}.der"))]
        base = ["attest", "check", "--kind", "snp", "--evidence", str(files / evidence), "--at", WHEN]
        for option, name in (("--policy", "named.toml"), ("--collateral", "crl")):
            if option not in arguments:
                base += [option, str(files / name)]
        return run(*base, *given, *arguments)

    return command


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def outcomes(result: Result) -> dict[str, str]:
    return {check["name"]: check["outcome"] for check in document(result)["checks"]}


def test_a_good_report_passes(check: Run) -> None:
    result = check("--nonce", NONCE)
    assert result.exit_code == 0 and "Passed" in result.stdout
    assert "report signature" in result.stdout and "FAIL" not in result.stdout
    answer = document(check("--json"))
    assert answer["verdict"] == "pass" and answer["kind"] == "snp" and answer["claims"]["product"] == "Genoa"


def test_a_failed_check_is_named_and_exits_with_1(check: Run, chip: Chip, files: Path) -> None:
    (files / "debug.bin").write_bytes(chip.report(policy=0xB0000))
    result = check(evidence="debug.bin")
    assert result.exit_code == 1 and "Failed" in result.stdout and "debug" in result.stdout.splitlines()[-1]
    assert outcomes(check("--json", evidence="debug.bin"))["debug"] == "FAIL"


def test_what_a_relaxation_lets_go_is_shown_with_its_name(check: Run, chip: Chip, files: Path) -> None:
    (files / "debug.bin").write_bytes(chip.report(policy=0xB0000))
    (files / "lax.toml").write_text((files / "named.toml").read_text() + "allow_debug = true\n")
    arguments = ("--policy", str(files / "lax.toml"))
    result = check(*arguments, evidence="debug.bin")
    assert result.exit_code == 0 and "allowed by the policy: allow_debug" in " ".join(result.stdout.split())
    shown = {
        one["name"]: one["allowed_by"] for one in document(check(*arguments, "--json", evidence="debug.bin"))["checks"]
    }
    assert shown["debug"] == "allow_debug" and shown["vmpl"] == ""


def test_missing_certificates_exit_with_3(check: Run) -> None:
    result = check("--json", certs=("vcek",))
    assert result.exit_code == 3 and document(result)["verdict"] == "incomplete"
    assert outcomes(result)["report signature"] == "PASS" and outcomes(result)["root key"] == "SKIP"
    assert "Incomplete" in check(certs=()).stdout


@pytest.mark.parametrize(
    ("nonce", "code"),
    [(NONCE, 0), ("0x" + NONCE.upper(), 0), (NONCE[:-2], 1), (NONCE[:64], 1), ("", 1)],
)
def test_a_nonce_is_compared_whole(check: Run, nonce: str, code: int) -> None:
    assert check("--nonce", nonce).exit_code == code


def test_a_short_nonce_is_followed_by_zeros(check: Run, chip: Chip, files: Path) -> None:
    (files / "short.bin").write_bytes(chip.report(report_data=b"\x07" * 32 + bytes(32)))
    assert check("--nonce", "07" * 32, evidence="short.bin").exit_code == 0
    assert check("--nonce", "07" * 32 + "00" * 32, evidence="short.bin").exit_code == 0
    assert check("--nonce", "07" * 31, evidence="short.bin").exit_code == 1


@pytest.mark.parametrize("form", ["hex", "hex lines", "base64", "url", "with table", "answer"])
def test_evidence_comes_in_many_forms(check: Run, chip: Chip, files: Path, form: str) -> None:
    report = chip.report()
    hosts = table({maker.VCEK: chip.leaf(), maker.ASK: chip.ask, maker.ARK: chip.ark})
    written = {
        "hex": report.hex().encode(),
        "hex lines": b"\n".join(report.hex(" ").encode()[at : at + 48] for at in range(0, 3552, 48)),
        "base64": base64.encodebytes(report),
        "url": base64.urlsafe_b64encode(report).rstrip(b"="),
        "with table": report + hosts,
        "answer": bytes(4) + (1184).to_bytes(4, "little") + bytes(24) + report + bytes(100),
    }[form]
    (files / "other").write_bytes(written)
    certs = () if form == "with table" else ("vcek", "ask", "ark")
    result = check("--json", evidence="other", certs=certs)
    assert result.exit_code == 0, result.stdout


@pytest.mark.parametrize("content", [b'{\n  "hello": 1}', b'{"attestation_report": {"version": 2}}', b"eyJh.eyJp.c2ln"])
@pytest.mark.parametrize("kind", ["snp", "tdx"])
def test_json_and_tokens_are_named_as_no_report(run: Run, files: Path, kind: str, content: bytes) -> None:
    (files / "bad").write_bytes(content)
    error = document(run("attest", "check", "--kind", kind, "--evidence", str(files / "bad"), "--json"))["error"]
    assert error["code"] == "evidence_invalid" and error["hint"]
    assert "version" not in error["message"]


def test_several_files_may_follow_one_certs(run: Run, files: Path) -> None:
    names = [str(files / f"{name}.der") for name in ("ark", "vcek", "ask")]
    base = ["attest", "check", "--kind", "snp", "--evidence", str(files / "report.bin"), "--at", WHEN]
    base += ["--policy", str(files / "named.toml"), "--collateral", str(files / "crl")]
    assert run(*base, "--certs", *names).exit_code == 0
    assert run(*base, *names).exit_code == 2


def test_collateral_of_snp_is_a_revocation_list(check: Run, chip: Chip, files: Path) -> None:
    for name, revoked, code in (("clean", 99, 0), ("revoked", 2, 1)):
        (files / name).write_bytes(chip.revocation_list(revoked))
        result = check("--collateral", str(files / name), "--json")
        assert result.exit_code == code and outcomes(result)["revocation"] == ("PASS" if code == 0 else "FAIL")


def test_a_policy_is_heeded(check: Run, files: Path) -> None:
    policy = files / "policy.toml"
    named = f'measurements = ["{"aa" * 48}"]\n'
    for text, code in (
        (f"[snp]\n{named}", 0),
        (f'[snp]\nmeasurements = ["{"ab" * 48}"]\n', 1),
        (f'tees = ["sev-snp"]\n[snp]\n{named}[snp.minimum_tcb]\nsnp = 27\n[tdx]\n', 0),
        (f"[snp]\n{named}minimum_tcb = {{ snp = 28 }}\n", 1),
        (f"[snp]\n{named}require_smt_off = true\n", 1),
        ("[snp]\n", 3),
        ("[tdx]\n", 3),
        ("measurements = []\n", 3),
        ("", 3),
    ):
        policy.write_text(text)
        assert check("--policy", str(policy)).exit_code == code, text


@pytest.mark.parametrize(
    "text",
    [
        "[snp\n",
        "[snpp]\n",
        "[sev-snp]\n",
        "[snp]\nmeasurement = []\n",
        '[snp]\nmeasurements = ["aa"]\n',
        "snp = 3\n",
        "allow_software_tee = true\n",
    ],
)
def test_a_policy_that_cannot_be_used_is_refused(check: Run, files: Path, text: str) -> None:
    policy = files / "policy.toml"
    policy.write_text(text)
    result = check("--policy", str(policy), "--json")
    assert result.exit_code == 2 and document(result)["error"]["code"] == "setup_error"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--nonce", "0g"], "setup_error"),
        (["--nonce", "00" * 65], "setup_error"),
        (["--at", "tomorrow"], "setup_error"),
        (["--at", "9" * 40], "setup_error"),
        (["--kind", "sgx"], "setup_error"),
        (["--evidence", "nowhere"], "setup_error"),
        (["--certs", "nowhere"], "setup_error"),
        (["--collateral", "nowhere"], "setup_error"),
        (["--policy", "nowhere"], "setup_error"),
        (["--evidence", "."], "setup_error"),
    ],
)
def test_wrong_use_is_told_and_exits_with_2(check: Run, arguments: list[str], code: str) -> None:
    result = check(*arguments, "--json")
    assert result.exit_code == 2
    assert document(result)["error"]["code"] == code and document(result)["error"]["message"]
    plain = check(*arguments)
    assert plain.exit_code == 2 and plain.stdout == "" and plain.stderr.startswith("Error: ")


@pytest.mark.parametrize("content", [b"hello", b"\x07" * 5000, b"[[[", bytes(1184), b"00" * 600])
@pytest.mark.parametrize("kind", ["snp", "tdx", "nvidia"])
def test_evidence_that_is_none_is_an_error_and_not_a_verdict(run: Run, files: Path, kind: str, content: bytes) -> None:
    (files / "bad").write_bytes(content)
    result = run("attest", "check", "--kind", kind, "--evidence", str(files / "bad"), "--json")
    assert result.exit_code == 2 and document(result)["error"]["code"] == "evidence_invalid"


def test_too_much_and_nothing_are_refused(check: Run, files: Path) -> None:
    (files / "large").write_bytes(bytes((4 << 20) + 1))
    (files / "empty").write_bytes(b"\n")
    for name in ("large", "empty"):
        assert document(check("--json", evidence=name))["error"]["code"] == "setup_error"


def test_pem_is_not_taken_for_base64() -> None:
    """Without padding inside, a PEM file's letters are all of base64's URL alphabet."""
    pem = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    assert unpack(pem) == pem
    assert (
        unpack(b"\x00\x01") == b"\x00\x01" and unpack(b"0x0a 0B\n") == b"\n\x0b" and unpack(b"_-8=") == b"\xff\xef"[:2]
    )


def test_times() -> None:
    moment = AT.replace(hour=12)
    for text in ("2026-03-01T12:00:00Z", "2026-03-01T13:00:00+01:00", "2026-03-01T12:00", str(int(moment.timestamp()))):
        assert read_time(text) == moment
    assert read_time(None).tzinfo is not None
    with pytest.raises(SetupError):
        read_time("")


@pytest.fixture
def vectors(shared: Path) -> Path:
    return shared / "vectors"


def test_the_real_snp_report(run: Run, vectors: Path, tmp_path: Path) -> None:
    folder = vectors / "sev-snp"
    base = ["attest", "check", "--kind", "snp", "--evidence", str(folder / "go-sev-guest_attestation.bin")]
    base += [
        "--certs",
        str(folder / "go-sev-guest_vcek.testcer"),
        "--certs",
        str(folder / "go-sev-guest_milan.testcer"),
    ]
    base += ["--at", "2026-01-01", "--nonce", "0102030405", "--json"]
    strict = run(*base)
    assert strict.exit_code == 1
    assert [name for name, outcome in outcomes(strict).items() if outcome == "FAIL"] == ["debug", "shipped tcb floor"]
    launch = document(strict)["claims"]["measurement"]
    lax = "allow_debug = true\nallow_old_tcb = true\nallow_missing_revocation_list = true\n"
    (tmp_path / "policy.toml").write_text(f'[snp]\nmeasurements = ["{launch}"]\n{lax}')
    assert run(*base, "--policy", str(tmp_path / "policy.toml")).exit_code == 0
    assert run(*base, "--policy", str(tmp_path / "policy.toml"), "--at", "2031-01-01").exit_code == 1


@pytest.mark.parametrize(
    ("quote", "at", "code", "status"),
    [
        ("dcap-qvl_tdx_quote", "2025-06-25", 0, "PASS"),
        ("dcap-qvl_tdx_quote_outdated", "2026-02-25", 1, "FAIL"),
        ("dcap-qvl_tdx_quote", "2035-01-01", 1, "SKIP"),
    ],
)
def test_the_real_tdx_quotes(
    run: Run, vectors: Path, tmp_path: Path, quote: str, at: str, code: int, status: str
) -> None:
    evidence, collateral = vectors / "tdx" / quote, vectors / "tdx" / f"{quote}_collateral.json"
    base = ["attest", "check", "--kind", "tdx", "--evidence", str(evidence), "--at", at, "--json"]
    unnamed = run(*base, "--collateral", str(collateral))
    assert unnamed.exit_code == (code or 3) and outcomes(unnamed)["launch"] == "SKIP"
    registers = {name: document(unnamed)["claims"][name] for name in ("mrtd", "rtmr0", "rtmr1", "rtmr2")}
    lines = "".join(f'{name} = "{value}"\n' for name, value in registers.items())
    (tmp_path / "policy.toml").write_text(f"[[tdx.launches]]\n{lines}")
    result = run(*base, "--collateral", str(collateral), "--policy", str(tmp_path / "policy.toml"))
    assert result.exit_code == code, result.stdout
    assert outcomes(result)["tcb status"] == status


def test_a_tdx_quote_without_collateral_is_incomplete(run: Run, vectors: Path) -> None:
    quote = vectors / "tdx" / "dcap-qvl_tdx_quote"
    base = ["attest", "check", "--kind", "tdx", "--evidence", str(quote), "--at", "2025-06-25", "--json"]
    result = run(*base)
    assert result.exit_code == 3 and document(result)["verdict"] == "incomplete"
    asked = document(result)["claims"]["report_data"]
    assert run(*base, "--nonce", asked).exit_code == 3
    assert run(*base, "--nonce", "00").exit_code == 1


def test_the_real_gpu_reports(run: Run, vectors: Path, tmp_path: Path) -> None:
    folder = vectors / "nvidia"
    base = ["attest", "check", "--kind", "nvidia", "--at", "2026-01-01", "--json", "--evidence"]
    assert run(*base, str(folder / "hopper_evidence.json")).exit_code == 3
    (tmp_path / "policy.toml").write_text("[gpu]\nallow_unmeasured = true\n")
    base = [*base[:-1], "--policy", str(tmp_path / "policy.toml"), "--evidence"]
    bundle = run(*base, str(folder / "hopper_evidence.json"))
    assert bundle.exit_code == 0, bundle.stdout
    nonce = document(bundle)["claims"]["gpus"][0]["nonce"]
    assert run(*base, str(folder / "hopper_evidence.json"), "--nonce", nonce).exit_code == 0
    assert run(*base, str(folder / "hopper_evidence.json"), "--nonce", "00" * 32).exit_code == 1
    bare = str(folder / "hopperAttestationReport.txt")
    assert run(*base, bare, "--certs", str(folder / "hopperCertChain.txt")).exit_code == 0
    assert run(*base, bare).exit_code == 3
    altered = str(folder / "hopperAttestationReportInvalidSignature.txt")
    assert run(*base, altered, "--certs", str(folder / "hopperCertChain.txt")).exit_code == 1


def test_gpu_reports_take_manifests_and_ocsp_responses(run: Run, vectors: Path, tmp_path: Path) -> None:
    signer, gpu = MadeManifests(), MadeGpu()
    (tmp_path / "driver.xml").write_bytes(signer.sign(swid_tag("590.12", {1: (bytes(48),)})))
    (tmp_path / "good.der").write_bytes(ocsp_answer(gpu.certificates[1], gpu.certificates[2], gpu.root))
    base = ["attest", "check", "--kind", "nvidia", "--at", "2026-01-01", "--json"]
    base += ["--evidence", str(vectors / "nvidia" / "hopper_evidence.json")]
    result = run(*base, "--collateral", str(tmp_path / "driver.xml"), "--collateral", str(tmp_path / "good.der"))
    assert result.exit_code == 1
    assert outcomes(result)["manifest 0: certificate chain"] == "FAIL"  # not NVIDIA's root
    assert outcomes(result)["gpu 0: revocation"] == "SKIP"
    (tmp_path / "bad.der").write_bytes(b"\0not an answer")
    assert run(*base, "--collateral", str(tmp_path / "bad.der")).exit_code == 2


def test_a_gpu_token_is_no_evidence(run: Run, vectors: Path) -> None:
    token = str(vectors / "nvidia" / "hopperClaimsv3_detached_eat.json")
    result = run("attest", "check", "--kind", "nvidia", "--evidence", token, "--at", "1749602000", "--json")
    assert result.exit_code == 2 and document(result)["error"]["code"] == "evidence_invalid"
