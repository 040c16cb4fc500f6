"""NVIDIA's management library (NVML; docs/adr/0012), unverified. It may hang: call it where a process may be killed."""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_uint, c_uint8, c_void_p
from typing import Any, Final

from cloister.errors import GpuNotConfidential, NoGpu, SetupError

LIBRARY: Final = "libnvidia-ml.so.1"
NONCE_BYTES: Final = 32
REPORT_BYTES: Final = 0x2000
CHAIN_BYTES: Final = 0x1400
_SUCCESS, _NOT_SUPPORTED, _NO_PERMISSION, _DRIVER_NOT_LOADED, _FUNCTION_NOT_FOUND = 0, 3, 4, 9, 13
_PRODUCTION = 2


class _SystemState(Structure):
    _fields_ = (("environment", c_uint), ("feature", c_uint), ("developer_tools", c_uint))


class _Certificate(Structure):
    _sizes = (("identity_size", c_uint), ("attestation_size", c_uint))
    _fields_ = (*_sizes, ("identity_chain", c_uint8 * 0x1000), ("attestation_chain", c_uint8 * CHAIN_BYTES))


class _AttestationReport(Structure):
    """nvmlConfComputeGpuAttestationReport_t. The nonce is the caller's; all else is the answer."""

    _sizes = (("has_cec_report", c_uint), ("size", c_uint), ("cec_size", c_uint), ("nonce", c_uint8 * NONCE_BYTES))
    _fields_ = (*_sizes, ("report", c_uint8 * REPORT_BYTES), ("cec_report", c_uint8 * 0x1000))


_ARGUMENTS: Final[dict[str, tuple[Any, ...]]] = {
    "nvmlInit_v2": (),
    "nvmlDeviceGetCount_v2": (POINTER(c_uint),),
    "nvmlDeviceGetHandleByIndex_v2": (c_uint, POINTER(c_void_p)),
    "nvmlSystemGetConfComputeState": (POINTER(_SystemState),),
    "nvmlDeviceGetConfComputeGpuCertificate": (c_void_p, POINTER(_Certificate)),
    "nvmlDeviceGetConfComputeGpuAttestationReport": (c_void_p, POINTER(_AttestationReport)),
}


class Nvml:
    """The driver of a machine's GPUs. Each method raises SetupError where there is no answer."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError:
            raise NoGpu(f"This machine has no {LIBRARY}.", hint="Install NVIDIA's driver, or show no GPU.") from None
        self._call("nvmlInit_v2")

    def count(self) -> int:
        count = c_uint()
        self._call("nvmlDeviceGetCount_v2", byref(count))
        return count.value

    def check_confidential(self) -> None:
        """GpuNotConfidential unless every GPU here works in confidential mode, without debugging."""
        state = _SystemState()
        self._call("nvmlSystemGetConfComputeState", byref(state))
        if not state.feature:
            turn_on = "Turn it on from the host (NVIDIA's gpu-admin-tools: --set-cc-mode=on)"
            hint = f"{turn_on}, or serve without evidence of the GPU: --gpu-evidence none."
            raise GpuNotConfidential("This machine's GPUs are not in confidential mode.", hint=hint)
        if state.developer_tools:
            message = "This machine's GPUs are in the mode for developers, which protects nothing."
            raise GpuNotConfidential(message, hint="Set the confidential mode to `on`, not to `devtools`.")
        if state.environment != _PRODUCTION:
            raise GpuNotConfidential("This machine's GPUs are not in NVIDIA's environment for production.")

    def report(self, index: int, nonce: bytes) -> bytes:
        """The GPU's SPDM measurements, signed over these 32 bytes."""
        if len(nonce) != NONCE_BYTES:
            raise SetupError(f"A GPU's report covers {NONCE_BYTES} bytes, not {len(nonce)}.")
        answer = _AttestationReport(nonce=(c_uint8 * NONCE_BYTES)(*nonce))
        self._call("nvmlDeviceGetConfComputeGpuAttestationReport", self._handle(index), byref(answer))
        return _taken(answer.report, answer.size, f"GPU {index}'s report")

    def chain(self, index: int) -> bytes:
        """The certificates of the key that signs its reports, as PEM."""
        answer = _Certificate()
        self._call("nvmlDeviceGetConfComputeGpuCertificate", self._handle(index), byref(answer))
        return _taken(answer.attestation_chain, answer.attestation_size, f"GPU {index}'s certificate chain")

    def _handle(self, index: int) -> c_void_p:
        handle = c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
        return handle

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function: Callable[..., int] = getattr(self._library, name)
        except AttributeError:
            raise _refusal(name, _FUNCTION_NOT_FOUND, "") from None
        function.argtypes, function.restype = _ARGUMENTS[name], c_int  # type: ignore[attr-defined]
        if (code := function(*arguments)) != _SUCCESS:
            raise _refusal(name, code, self._words(code))

    def _words(self, code: int) -> str:
        describe = getattr(self._library, "nvmlErrorString", None)
        if describe is None:
            return ""
        describe.argtypes, describe.restype = (c_int,), c_char_p
        return ascii((describe(code) or b"").decode("ascii", "replace"))[1:-1][:80]


def _taken(buffer: Any, size: int, what: str) -> bytes:
    if not 0 < size <= len(buffer):
        raise SetupError(f"The driver says that {what} has {size} bytes; there is room for {len(buffer)}.")
    return bytes(buffer[:size])


def _refusal(name: str, code: int, words: str) -> SetupError:
    if code == _DRIVER_NOT_LOADED:
        return NoGpu("NVIDIA's driver is not loaded.")
    if code in (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND):
        message = f"This machine's GPU or driver has no confidential mode ({name}: {words or 'no such function'})."
        advice = "It takes a Hopper or later with driver 535 or later, in a confidential VM."
        return GpuNotConfidential(message, hint=advice)
    hint = "Run as a user with access to /dev/nvidia*." if code == _NO_PERMISSION else None
    return SetupError(f"NVIDIA's driver refuses {name} with code {code} ({words}).", hint=hint)
