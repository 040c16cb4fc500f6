"""AWS Nitro Enclaves: attestation documents of the hypervisor, checked up to AWS's root key."""

from cloister.attest.nitro.document import Enclave, NitroPolicy
from cloister.attest.nitro.verify import verify_nitro

__all__ = ["Enclave", "NitroPolicy", "verify_nitro"]
