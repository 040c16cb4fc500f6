"""Azure's confidential VMs: a paravisor (HCL) stands between hardware and guest and keeps a virtual TPM.

The hardware's report speaks for the paravisor and its runtime data. That names the vTPM's attestation key, and this
key's quote answers the asker's nonce and names the guest's PCRs.
"""

from cloister.attest.azure.verify import AzurePolicy, verify_azure

__all__ = ["AzurePolicy", "verify_azure"]
