"""Intel TDX: quotes of version 4 and 5, their certificates, and Intel's word on the platform (the collateral)."""

from cloister.attest.tdx.quote import Launch, TdxPolicy
from cloister.attest.tdx.verify import verify_tdx

__all__ = ["Launch", "TdxPolicy", "verify_tdx"]
