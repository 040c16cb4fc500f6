"""NVIDIA GPUs by their own signed reports (Hopper, Blackwell)."""

from cloister.attest.nvidia.reports import GpuPolicy, References, verify_gpu_reports

__all__ = ["GpuPolicy", "References", "verify_gpu_reports"]
