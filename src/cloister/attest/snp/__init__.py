"""AMD SEV-SNP: reports of a guest's firmware, checked up to AMD's root keys.

Knows the report (ABI specification 56860), the keys that sign it (VCEK per chip, VLEK per provider; KDS specification
57230) and the policy a reader may have.
"""

from cloister.attest.snp.policy import SnpPolicy
from cloister.attest.snp.report import Tcb
from cloister.attest.snp.verify import verify_snp

__all__ = ["SnpPolicy", "Tcb", "verify_snp"]
