from pathlib import Path

import pytest

from cloister.attest.policy import Policy, load_policy, read_policy
from cloister.attest.snp import SnpPolicy
from cloister.errors import CloisterError, SetupError
from cloister.transparency.note import Algorithm, SigningKey

LOG = str(SigningKey.generate("log.example/releases").verifier)
WITNESS = str(SigningKey.generate("witness.example", Algorithm.COSIGNATURE).verifier)
RELEASE = "ab" * 32

WHOLE = f"""
tees = ["sev-snp"]
measurements = ["{RELEASE}"]
max_age_s = 60
minimum_version = "1.2"
require_gpu = true
accept_missing_layers = ["landlock"]
snp_revocation_lists = ["milan.crl"]
gpu_manifests = ["driver.xml"]
gpu_ocsp = ["gpu.der"]
tdx_collateral = "intel.json"

[log]
logs = ["{LOG}"]
witnesses = ["{WITNESS}"]
quorum = 1
max_checkpoint_age_s = 1e6

[sigstore]
trusted_root = "root.json"
identity = "release@log.example"
issuer = "https://issuer.example"
repository = "https://git.example/cloister"
predicates = ["https://slsa.dev/provenance/v1"]

[snp]
measurements = ["{"cd" * 48}"]
minimum_tcb = {{ snp = 24 }}

[tdx]
allow_sept_ve = true

[[tdx.launches]]
mrtd = "{"ef" * 48}"
rtmr0 = "any"
rtmr1 = "{"01" * 48}"
rtmr2 = "{"02" * 48}"

[gpu]
min_gpus = 8
allow_unmeasured = true
"""


def written(folder: Path, text: str) -> Path:
    (folder / "root.json").write_text("{}")
    (folder / "milan.crl").write_text("a list")
    (folder / "driver.xml").write_text("<a/>")
    (folder / "intel.json").write_text("collateral")
    (folder / "gpu.der").write_bytes(b"\x30\x00")
    path = folder / "policy.toml"
    path.write_text(text)
    return path


def test_a_whole_file_becomes_a_policy(tmp_path: Path) -> None:
    policy = read_policy(written(tmp_path, WHOLE))
    assert policy.tees == ("sev-snp",) and policy.measurements == (RELEASE,)
    assert (policy.max_age_s, policy.require_gpu, policy.accept_missing_layers) == (60, True, ("landlock",))
    assert policy.release.logs == (LOG,) and policy.release.witnesses == (WITNESS,) and policy.release.needed == 1
    assert policy.release.sigstore is not None
    assert policy.release.sigstore.trusted_root == b"{}" and policy.release.sigstore.identity == "release@log.example"
    assert policy.release.sigstore.pins == {"repository": "https://git.example/cloister", "ref": "", "workflow": ""}
    assert policy.gpu.min_gpus == 8
    assert (policy.gpu_manifests, policy.gpu_ocsp) == ((b"<a/>",), (b"\x30\x00",))
    assert policy.snp.measurements == ("cd" * 48,) and policy.snp.minimum_tcb.snp == 24
    assert [launch.mrtd for launch in policy.tdx.launches] == ["ef" * 48]
    assert policy.snp_revocation_lists == (b"a list",) and policy.tdx_collateral == b"collateral"
    assert policy.release.sigstore.predicates == ("https://slsa.dev/provenance/v1",)
    assert policy.release.minimum_version == "1.2" and policy.release.max_checkpoint_age_s == 1e6
    assert policy.relaxations() == (
        *("accept_missing_layers landlock", "tdx.launches rtmr0 any", "tdx.allow_sept_ve"),
        *("gpu.allow_unmeasured", "log.max_checkpoint_age_s 1000000"),
    )
    assert policy.names_releases and not policy.allow_software_tee


def test_what_is_not_said_keeps_the_strict_default(tmp_path: Path) -> None:
    for policy in (read_policy(written(tmp_path, "")), load_policy(None)):
        assert policy == Policy() and policy.relaxations() == ()
        assert policy.tees == ("sev-snp", "tdx") and not policy.names_releases and not policy.allow_software_tee
        assert policy.snp == SnpPolicy() and not policy.snp.allow_debug and policy.accept_missing_layers is None


def test_witnesses_without_a_quorum_must_all_have_signed(tmp_path: Path) -> None:
    path = written(tmp_path, f'[log]\nlogs = ["{LOG}"]\nwitnesses = ["{WITNESS}"]\n')
    assert read_policy(path).release.needed == 1


def test_a_log_that_nobody_witnesses_is_a_relaxation(tmp_path: Path) -> None:
    assert read_policy(written(tmp_path, f'[log]\nlogs = ["{LOG}"]\n')).relaxations() == ("log without witnesses",)


def test_only_a_flag_accepts_the_software_attester(tmp_path: Path) -> None:
    assert load_policy(None, allow_software_tee=True).allow_software_tee
    path = written(tmp_path, WHOLE)
    allowed = load_policy(path, allow_software_tee=True)
    assert allowed.allow_software_tee and allowed.measurements == (RELEASE,)
    assert load_policy(str(path)) == read_policy(path) == load_policy(read_policy(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not toml", "TOML"),
        ('tees = ["none"]', "tees"),
        ("tees = []", "tees"),
        ("allow_software_tee = true", "allow_software_tee"),
        ("max_age = 60", "max_age"),
        ("max_age_s = 0", "max_age_s"),
        ("max_age_s = nan", "max_age_s"),
        ("max_age_s = inf", "max_age_s"),
        ('measurements = ["abc"]', "measurements"),
        (f'measurements = "{RELEASE}"', "measurements"),
        ("require_gpu = 1", "require_gpu"),
        ("[snp]\nallow_debugging = true", "snp"),
        ('[snp]\nmeasurements = ["abc"]', "snp"),
        ('[tdx]\nmrtd = ["abc"]', "mrtd"),
        (f'[[tdx.launches]]\nmrtd = "{"ef" * 48}"', "rtmr0"),
        ('snp_revocation_lists = ["missing.crl"]', "missing.crl"),
        ("[gpu]\nmin_gpus = 0", "gpu"),
        ("[log]\nquorum = 1", "logs"),
        ("[log]\nlogs = []", "logs"),
        ('[log]\nlogs = ["log.example+abc"]', "key"),
        (f'[log]\nlogs = ["{WITNESS}"]', "log's"),
        (f'[log]\nlogs = ["{LOG}"]\nwitnesses = ["{LOG}"]', "witness"),
        (f'[log]\nlogs = ["{LOG}"]\nwitnesses = ["{WITNESS}"]\nquorum = 2', "quorum"),
        ('[sigstore]\ntrusted_root = "root.json"\nidentity = ""\nissuer = "x"', "identity"),
        ('[sigstore]\ntrusted_root = "missing.json"\nidentity = "x"\nissuer = "x"', "missing.json"),
        ('[sigstore]\ntrusted_root = "root.json"\nidentity = "x"\nissuer = "x"\nref = ""', "ref"),
        ('[sigstore]\ntrusted_root = "root.json"\nidentity = "x"\nissuer = "x"\npredicates = ["scan"]', "predicates"),
        ('minimum_version = "1.2"', "minimum_version"),
        (f'minimum_version = "1.2rc1"\n[log]\nlogs = ["{LOG}"]', "minimum_version"),
        (f'[log]\nlogs = ["{LOG}"]\nmax_checkpoint_age_s = 0', "max_checkpoint_age_s"),
        ('gpu_keys = "jwks.json"', "no longer by NVIDIA's tokens"),
        ("[gpu]\nleeway_seconds = 5", "no longer by NVIDIA's tokens"),
        ('gpu_manifests = ["missing.xml"]', "missing.xml"),
        ('gpu_ocsp = ["missing.der"]', "missing.der"),
    ],
)
def test_a_policy_with_a_mistake_in_it_is_not_used(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(CloisterError) as refused:
        read_policy(written(tmp_path, text))
    assert says in str(refused.value) and str(tmp_path) in str(refused.value)


def test_a_file_that_is_not_there_or_too_large_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"absent\.toml"):
        load_policy(tmp_path / "absent.toml")
    huge = tmp_path / "huge.toml"
    huge.write_bytes(b"#" * (5 << 20))
    with pytest.raises(SetupError, match="larger"):
        load_policy(huge)
