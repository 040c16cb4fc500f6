"""Azure's instance metadata service, which has what the vTPM lacks: AMD's certificates (THIM), and a quote of a TD
report. It answers over plain HTTP; its answers are not trusted: clients verify them."""

from __future__ import annotations

import base64
import binascii
import http.client
import json
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from cloister.errors import SetupError

HOST: Final = "169.254.169.254"
PATIENCE_S: Final = 10.0
MAX_ANSWER_BYTES: Final = 1 << 17

_Answer = TypeVar("_Answer")


class _Certificates(Struct, frozen=True, rename="camel"):
    vcek_cert: Annotated[str, Meta(min_length=1, max_length=16384)]
    certificate_chain: Annotated[str, Meta(min_length=1, max_length=32768)]


class _Quoted(Struct, frozen=True):
    quote: Annotated[str, Meta(min_length=1, max_length=65536)]


class Metadata:
    """SetupError where it does not answer, or not in this form."""

    def __init__(self, host: str = HOST, port: int = 80, patience_s: float = PATIENCE_S) -> None:
        self._place = host, port
        self._patience_s = patience_s

    def amd_certificates(self) -> tuple[bytes, bytes]:
        answer = self._ask("GET", "/metadata/THIM/amd/certification", None, _Certificates)
        return answer.vcek_cert.encode(), answer.certificate_chain.encode()

    def td_quote(self, report: bytes) -> bytes:
        """Intel's quote of a TD report, which only its own processor can have made."""
        body = json.dumps({"report": base64.urlsafe_b64encode(report).decode()})
        answer = self._ask("POST", "/acc/tdquote", body, _Quoted)
        try:
            return base64.urlsafe_b64decode(answer.quote + "=" * (-len(answer.quote) % 4))
        except (binascii.Error, ValueError):
            raise SetupError("Azure's metadata service gave a quote that is not base64.") from None

    def _ask(self, method: str, path: str, body: str | None, kind: type[_Answer]) -> _Answer:
        host, port = self._place
        connection = http.client.HTTPConnection(host, port, timeout=self._patience_s)
        try:
            connection.request(method, path, body, {"Metadata": "true", "Content-Type": "application/json"})
            response = connection.getresponse()
            status, data = response.status, response.read(MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as wrong:
            name = type(wrong).__name__
            raise SetupError(f"Azure's metadata service does not answer ({name}).", hint=f"{host} is where.") from None
        finally:
            connection.close()
        if status != 200 or len(data) > MAX_ANSWER_BYTES:
            raise SetupError(f"Azure's metadata service answers {path} with status {status}, {len(data)} bytes.")
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
            name = type(wrong).__name__
            raise SetupError(f"Azure's metadata service answers {path} in another form ({name}).") from None
