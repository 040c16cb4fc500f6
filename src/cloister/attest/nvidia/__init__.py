"""NVIDIA GPUs: their own signed reports (Hopper, Blackwell), and the tokens of NVIDIA's remote attestation service."""

from cloister.attest.nvidia.policy import GpuPolicy
from cloister.attest.nvidia.reports import References, verify_gpu_reports
from cloister.attest.nvidia.token import verify_gpu_token

__all__ = ["GpuPolicy", "References", "verify_gpu_reports", "verify_gpu_token"]
