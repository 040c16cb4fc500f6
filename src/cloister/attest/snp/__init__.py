"""AMD SEV-SNP: reports of a guest's firmware (ABI specification 56860), checked up to AMD's root keys (KDS 57230)."""

from cloister.attest.snp.report import SnpPolicy, Tcb
from cloister.attest.snp.verify import verify_snp

__all__ = ["SnpPolicy", "Tcb", "verify_snp"]
