"""Intel's word on a platform (TCB info, QE identity, revocation lists), judged by dcap-qvl at a time that is passed in.

The collateral is the JSON that dcap-qvl reads and writes. Nothing is fetched here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import dcap_qvl  # type: ignore[import-untyped]

from cloister.attest.tdx.quote import TdReport
from cloister.errors import EvidenceInvalid

MAX_COLLATERAL_BYTES = 262144
MAX_REASON = 200
NO_LEVEL = "No matching TCB level"


class CollateralRefused(Exception):
    """dcap-qvl's reason why quote and collateral do not stand together at that time."""

    @property
    def reason(self) -> str:
        # The reason may quote the collateral: it is shown on one line of plain letters, and not at any length.
        text = str(self).removeprefix("Verification failed: ")
        return "".join(letter if " " <= letter <= "~" else " " for letter in text)[:MAX_REASON]

    @property
    def below_all_levels(self) -> bool:
        return NO_LEVEL in str(self)


@dataclass(frozen=True)
class Standing:
    """What Intel says of the platform a quote is from."""

    status: str
    advisories: tuple[str, ...]
    evaluation: int
    report: dict[str, Any]

    def agrees_with(self, report: TdReport) -> bool:
        """Whether dcap-qvl read the same report out of the quote as we did."""
        return all(
            self.report.get(name) == value.hex()
            for name, value in (
                ("mr_td", report.mrtd),
                *((f"rt_mr{index}", value) for index, value in enumerate(report.rtmrs)),
                ("td_attributes", report.td_attributes.to_bytes(8, "little")),
                ("report_data", report.report_data),
            )
        )


def read_collateral(data: bytes) -> dcap_qvl.QuoteCollateralV3:
    """The collateral, or EvidenceInvalid."""
    if len(data) > MAX_COLLATERAL_BYTES:
        raise EvidenceInvalid(f"Collateral may have at most {MAX_COLLATERAL_BYTES} bytes.")
    try:
        return dcap_qvl.QuoteCollateralV3.from_json(data.decode())
    except ValueError as wrong:
        raise EvidenceInvalid(
            f"The collateral is not the JSON dcap-qvl writes ({type(wrong).__name__}).",
            hint="Fetch it with dcap_qvl.get_collateral and store its to_json().",
        ) from None


def pck_chain(data: bytes) -> bytes:
    """The PCK certificate chain (PEM) that collateral may carry for a quote without one."""
    chain = json.loads(read_collateral(data).to_json()).get("pck_certificate_chain")
    return chain.encode() if isinstance(chain, str) else b""


def judge(quote: bytes, collateral: dcap_qvl.QuoteCollateralV3, root: bytes, seconds: int) -> Standing:
    """How the quote's platform stands by this collateral under this root (DER), or CollateralRefused."""
    try:
        verifier = dcap_qvl.QuoteVerifier(root)
        policy = dcap_qvl.QuotePolicy.claims_only(seconds)
        claims = json.loads(verifier.verify_with_policy(quote, collateral, seconds, policy).to_json())
        ((_, report),) = claims["report"].items()
        tcb = claims["tcb"]
        while "base" in report:  # a newer report holds the older one
            report |= report.pop("base")
        return Standing(tcb["status"], tuple(tcb["advisory_ids"]), tcb["eval_data_number"], report)
    except Exception as wrong:
        raise CollateralRefused(str(wrong)) from None
    except BaseException as wrong:
        # A panic of the Rust library is no Exception; it must not pass, and must not end the program either.
        if type(wrong).__name__ != "PanicException":
            raise
        raise CollateralRefused("dcap-qvl could not cope with this collateral") from None
