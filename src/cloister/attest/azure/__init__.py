"""Azure's confidential VMs: a paravisor (HCL) stands between hardware and guest and keeps a virtual TPM.

The hardware's report covers the paravisor and its runtime data. The runtime data names the vTPM's attestation key. A
quote by this key covers the client's nonce and the guest's PCRs.
"""

from cloister.attest.azure.verify import AzurePolicy, verify_azure

__all__ = ["AzurePolicy", "verify_azure"]
