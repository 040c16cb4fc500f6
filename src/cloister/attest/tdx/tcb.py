"""How a platform stands by Intel's collateral (PCS API v4: the first level it reaches counts, the worst of the three).
Only for a TD without SEPT_VE_DISABLE: dcap-qvl verifies its signatures, but does not tell its status."""

from __future__ import annotations

import json
from typing import Any, Final

import dcap_qvl  # type: ignore[import-untyped]

from cloister.attest.tdx.quote import Quote

_WORSE: Final = (
    *("UpToDate", "SWHardeningNeeded", "ConfigurationNeeded", "ConfigurationAndSWHardeningNeeded"),
    *("OutOfDate", "OutOfDateConfigurationNeeded", "Revoked"),
)


def read_levels(data: bytes, quote: Quote, collateral: bytes) -> tuple[str, tuple[str, ...], int]:
    """Status, advisories and evaluation number. ValueError, LookupError or TypeError where collateral does not say."""
    document = json.loads(collateral)
    tcb_info, enclave = json.loads(document["tcb_info"]), json.loads(document["qe_identity"])
    levels = [
        _platform_level(tcb_info, data, quote.report.tee_tcb_svn),
        _module_level(tcb_info, quote.report.tee_tcb_svn),
        _reached(enclave["tcbLevels"], int.from_bytes(quote.qe.signed[258:260], "little")),
    ]
    found = [level for level in levels if level is not None]
    status = max((str(level["tcbStatus"]) for level in found), key=_WORSE.index)
    advisories = dict.fromkeys(str(each) for level in found for each in level.get("advisoryIDs", ()))
    numbers = (int(one["tcbEvaluationDataNumber"]) for one in (tcb_info, enclave))
    return status, tuple(advisories), min(numbers)


def _platform_level(tcb_info: dict[str, Any], data: bytes, tee_tcb_svn: bytes) -> dict[str, Any]:
    platform = dcap_qvl.Quote.parse(data).pck_extension()
    if platform is None:
        raise ValueError("the quote does not carry its PCK certificate")
    have = (*platform.cpu_svn, platform.pce_svn, *tee_tcb_svn)
    for level in sorted(tcb_info["tcbLevels"], key=_numbers, reverse=True):
        if all(ours >= theirs for ours, theirs in zip(have, _numbers(level), strict=True)):
            return dict(level)
    raise ValueError("no level is reached")


def _numbers(level: dict[str, Any]) -> tuple[int, ...]:
    tcb = level["tcb"]
    sgx, tdx = ([int(one["svn"]) for one in tcb[f"{kind}tcbcomponents"]] for kind in ("sgx", "tdx"))
    return (*sgx, int(tcb["pcesvn"]), *tdx)


def _module_level(tcb_info: dict[str, Any], tee_tcb_svn: bytes) -> dict[str, Any] | None:
    """Modules of version 0 have no identity."""
    identities = tcb_info.get("tdxModuleIdentities") or ()
    if not tee_tcb_svn[1] or not identities:
        return None
    name = f"TDX_{tee_tcb_svn[1]:02X}"
    (identity,) = (one for one in identities if str(one["id"]).upper() == name)
    return _reached(identity["tcbLevels"], tee_tcb_svn[0])


def _reached(levels: list[dict[str, Any]], svn: int) -> dict[str, Any]:
    return max((one for one in levels if one["tcb"]["isvsvn"] <= svn), key=lambda one: int(one["tcb"]["isvsvn"]))
