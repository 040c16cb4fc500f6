"""Attempts of a proxy that ends TLS before the node: this process stands between a sealed client and the node, keeps
every byte, and may change one."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from openai import APIError

from cloister.addresses import HttpAddress
from cloister.audit.finding import Finding, broken, held, not_tried
from cloister.audit.target import Target, random_words
from cloister.errors import CloisterError

SEALED_PATH = b"POST /v1/sealed"
WORDS = 24
PIECE = 12  # characters of an answer that do not come by chance
END_S = 5.0
ANSWER_S = 120.0


class Line:
    """`flip`: change a byte of each piece of a sealed request's body."""

    def __init__(self, address: HttpAddress, *, flip: bool) -> None:
        self._address, self._flip = address, flip
        self.seen = bytearray()
        self.sealed = 0  # requests that passed
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                user, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(user,), daemon=True).start()

    def _serve(self, user: socket.socket) -> None:
        with suppress(OSError), user, self._connect() as node:
            back = threading.Thread(target=self._pass, args=(node, user, False), daemon=True)
            back.start()
            self._pass(user, node, self._flip)
            back.join(END_S)

    def _connect(self) -> socket.socket:
        plain = socket.create_connection((self._address.host, self._address.port))
        if self._address.scheme != "https":
            return plain
        return ssl.create_default_context().wrap_socket(plain, server_hostname=self._address.host)

    def _pass(self, source: socket.socket, to: socket.socket, flip: bool) -> None:
        in_body = False
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                if piece.startswith(SEALED_PATH):
                    self.sealed += 1
                    in_body = not piece.endswith(b"\r\n\r\n")
                elif piece.startswith((b"POST ", b"GET ")):
                    in_body = False
                self.seen += piece
                to.sendall(piece[:-1] + bytes((piece[-1] ^ 1,)) if flip and in_body else piece)
                in_body = in_body or piece.startswith(SEALED_PATH)
        with suppress(OSError):
            to.shutdown(socket.SHUT_WR)


@contextmanager
def line_to(target: Target, *, flip: bool = False) -> Iterator[Line]:
    line = Line(target.address, flip=flip)
    try:
        yield line
    finally:
        line.close()


def _ask_through(line: Line, target: Target, prompt: str) -> str:
    from cloister.client.openai import Client

    url = f"http://127.0.0.1:{line.port}{target.address.endpoint('/v1')}"
    with Client(url, policy=target.policy, api_key=target.key, max_retries=0, timeout=ANSWER_S) as client:
        level = target.plain_levels[-1]
        asked = {"model": target.model["id"], "messages": [{"role": "user", "content": prompt}], "max_tokens": 24}
        answer = client.chat.completions.create(**asked, temperature=0, extra_body={"protection": level})
        return answer.choices[0].message.content or ""


def tls_ended(target: Target) -> Finding:
    """All that passes, in both directions, must show no word of prompt, key or answer."""
    canary = random_words(WORDS)
    with line_to(target) as line:
        try:
            answer = _ask_through(line, target, canary)
        except (APIError, CloisterError) as wrong:
            return not_tried(f"No sealed answer came ({type(wrong).__name__}).")
        seen, sealed = bytes(line.seen), line.sealed
    if any(word.encode() in seen for word in canary.split()):
        return broken("Words of the prompt pass readable.")
    if not sealed:
        return not_tried("No sealed request passed.")
    if any(answer[at : at + PIECE].encode() in seen for at in range(len(answer) - PIECE + 1)):
        return broken("Words of the answer pass readable.")
    if target.key.encode() in seen:
        return broken("The API key passes readable.")
    return held(f"Of {len(seen):,} bytes that passed none shows prompt, answer or key.")


def altered(target: Target) -> Finding:
    """A request that was changed on its way must fail, and not be sent in the clear."""
    canary = random_words(WORDS)
    with line_to(target, flip=True) as line:
        try:
            _ask_through(line, target, canary)
        except (APIError, CloisterError):
            if any(word.encode() in line.seen for word in canary.split()):
                return broken("After an altered request the prompt passed readable.")
            return held("An altered request fails, and nothing is sent in the clear.")
    return broken("An altered request was answered.") if line.sealed else not_tried("No sealed request passed.")
