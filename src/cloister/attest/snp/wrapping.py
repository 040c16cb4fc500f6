"""The shapes in which a report is handed about: bare, with the host's certificate table, in a firmware's answer.

Only unwraps. What is in the wrapping besides the report is not signed by anybody.
"""

from __future__ import annotations

from cloister.attest.snp.report import REPORT_BYTES

_ANSWER_HEAD = 32  # MSG_REPORT_RSP: status, size of the report, 24 reserved bytes
_AZURE_HEAD = 32  # what Azure's paravisor keeps in its vTPM: `HCLA`, version, sizes; then the report, then JSON
_AZURE = b"HCLA"


def unwrap_report(data: bytes) -> tuple[bytes, bytes]:
    """A report and the certificate table that came with it (empty if none did)."""
    if data.startswith(_AZURE):
        return data[_AZURE_HEAD : _AZURE_HEAD + REPORT_BYTES], b""
    if data[:4] == bytes(4) and data[4:8] == REPORT_BYTES.to_bytes(4, "little"):
        data = data[_ANSWER_HEAD:]
    table = data[REPORT_BYTES:]
    return data[:REPORT_BYTES], table if any(table) else b""
