"""The service's end of its links on the CPU: which vaults a step asks, and what became of them.

The waiting and copying is in link.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, pointer

import torch

from cloister.compute.base import LinkAsker
from cloister.compute.cpu.structs import AskedStruct, AskingStruct
from cloister.compute.layout import RemoteRows
from cloister.errors import ProtocolError, VaultLost
from cloister.link.mapping import Mapping
from cloister.link.shape import NUMBER_AT, LinkShape

VERDICTS = {1: "vault_lost", 2: "vault_timeout", 3: "link_malformed"}
LOST = 1
_Pointer = POINTER(AskedStruct)


class _Link:
    """One attached vault."""

    def __init__(self, shape: LinkShape, question: int, answer: int) -> None:
        self._question = Mapping(question, shape.question_bytes, writable=True)
        self._answer = Mapping(answer, shape.answer_bytes, writable=False)
        try:
            for half in (self._question, self._answer):
                shape.check(half.read(0, NUMBER_AT))
        except ProtocolError:
            self.close()
            raise
        self.struct = AskedStruct(
            question=self._question.address,
            reply=self._answer.address,
            number=self._question.word(NUMBER_AT).value,
            capacity=shape.capacity,
        )

    def close(self) -> None:
        self._question.close()
        self._answer.close()


class CpuAsker(LinkAsker):
    """Holds the links of one service."""

    def __init__(self, shape: LinkShape, patience_ms: int) -> None:
        self._shape = shape
        self.capacity = shape.capacity
        self._patience_ns = patience_ms * 1_000_000
        self._links: dict[int, _Link] = {}
        self._asked: dict[int, AskedStruct] = {}
        self._keep: list[torch.Tensor] = []

    def attach(self, link: int, question: int, answer: int) -> None:
        if link in self._links:
            raise ValueError("this link is attached already")
        self._links[link] = _Link(self._shape, question, answer)

    def detach(self, link: int) -> None:
        self._asked.pop(link, None)
        if (known := self._links.pop(link, None)) is not None:
            known.close()

    def __contains__(self, link: int) -> bool:
        return link in self._links

    def begin(self, remotes: Sequence[RemoteRows]) -> AskingStruct:
        """What the kernels need to ask these rows' vaults, layer by layer, through one step."""
        self._asked, self._keep = {}, []
        for remote in remotes:
            if len(remote.rows) > self.capacity:
                raise VaultLost("A step has more rows for one vault than its link carries.")
            known = self._links.get(remote.link)
            struct = AskedStruct(verdict=LOST) if known is None else known.struct
            if known is not None:
                struct.verdict = 0
                struct.patience_ns = self._patience_ns
            struct.row, struct.ask, struct.rows = remote.rows.data_ptr(), remote.asks.data_ptr(), len(remote.rows)
            self._keep += [remote.rows, remote.asks]
            self._asked[remote.link] = struct
        array = (_Pointer * len(remotes))(*(pointer(struct) for struct in self._asked.values()))
        return AskingStruct(links=array, count=len(remotes))

    def broken(self) -> dict[int, str]:
        return {link: VERDICTS[struct.verdict] for link, struct in self._asked.items() if struct.verdict}
