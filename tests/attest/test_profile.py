"""Profiles: a node whose settings break what it calls itself does not start, and no client believes it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cloister.attest.evidence import AttestedSettings
from cloister.attest.profile import DEMANDS, broken_demands, check_profile
from cloister.errors import SetupError

PCC = AttestedSettings(
    sandbox="whole", keys="own", session_idle_ms=1, mpc="off", verified="all", cloud="c" * 64, profile="pcc"
)
TENANTS = replace(PCC, profile="tenants", verified="sample", cloud="")
WRONG = {
    "keys": "development",
    "sandbox": "degraded",
    "prefixes": "global",
    "shared": "global",
    "verified": "off",
    "mpc": "local",
}


def test_good_settings_keep_their_profile() -> None:
    check_profile(PCC, "sev-snp", released=True)
    check_profile(TENANTS, "none", released=False)
    check_profile(replace(TENANTS, profile="lab", **WRONG), "none", released=False)


@pytest.mark.parametrize("settings", [PCC, TENANTS], ids=lambda each: each.profile)
def test_each_demand_can_be_broken(settings: AttestedSettings) -> None:
    demands = DEMANDS[settings.profile]
    assert len(demands) >= 5
    for demand in demands:
        worse = replace(settings, **{demand.setting: WRONG[demand.setting]})
        with pytest.raises(SetupError, match=f"{demand.setting} is '{WRONG[demand.setting]}'"):
            check_profile(worse, "sev-snp", released=True)


def test_a_private_cloud_has_hardware_a_release_and_a_list() -> None:
    assert len(broken_demands(replace(PCC, cloud=""), "none", "unmeasured")) == 3
    for more in ("late", "sample"):
        assert broken_demands(replace(PCC, verified=more), "tdx", "release")
