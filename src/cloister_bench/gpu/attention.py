"""Attention processes for the bench and a service that asks them, forked before it opens the GPU; no node around it."""

import gc
import json
import os
import socket
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import NoReturn

import torch

from cloister.compute.base import AttentionShape, CacheShape, KVCache, LinkAnswerer
from cloister.compute.gpu.arena import ArenaAnswerer, ArenaCache, GpuAttentionHost
from cloister.compute.gpu.device import GpuDevice
from cloister.compute.gpu.link import GpuAsker
from cloister.compute.gpu.mailbox import EXPOSED, MailboxSlots, percentage_of
from cloister.compute.gpu.memory import whole
from cloister.errors import ServiceUnavailable
from cloister.models.decoder import Decoder
from cloister.placement import Placement
from cloister_bench.gpu.mps import pipe_folder
from cloister_bench.gpu.requests import Partition

READY_S = 90.0
PATIENCE_MS = 200
MOST_MESSAGE, MOST_PLACES = 8192, 64
OPENED = b"open"


class AttentionProcesses:
    """Settings with the same share of the GPU use the same processes; each opens the GPU before its first case."""

    def __init__(self, settings: Iterable[int]) -> None:
        self._lines: dict[int, list[socket.socket]] = {}  # by their share of the GPU
        self._opened: Counter[int] = Counter()
        for count in sorted(set(settings)):
            lines = self._lines.setdefault(percentage_of(count), [])
            while len(lines) < count:
                ours, theirs = socket.socketpair()
                if not os.fork():
                    for line in (*chain(*self._lines.values()), ours):
                        line.close()
                    _attend(theirs, count)
                theirs.close()
                ours.settimeout(READY_S)
                lines.append(ours)

    def open(self, count: int) -> bool:
        share = percentage_of(count)
        lines, opened = self._lines.get(share, []), self._opened[share]
        if count > len(lines):
            raise ServiceUnavailable(f"There is no setting of {count} attention processes.")
        for line in lines[opened:count]:
            line.send(b"{}")
        for line in lines[opened:count]:
            if line.recv(16) != OPENED:
                raise ServiceUnavailable("An attention process did not open the GPU.")
        self._opened[share] = max(opened, count)
        return not opened

    def _of(self, count: int) -> list[socket.socket]:
        return self._lines[percentage_of(count)][:count]

    def lend(
        self, model: AttentionShape, mailboxes: Sequence[int], places: Sequence[int], blocks: int, slots: int
    ) -> list[list[int]]:
        """The processes answer from now on. Descriptors of their arenas; the caller closes them."""
        shape = model.cache_shape
        about = {"shape": [shape.layers, shape.kv_heads, shape.dim], "queries": model.queries_per_kv_head}
        about |= {"scales": model.scales, "blocks": blocks, "slots": [len(mailboxes), sum(places), slots]}
        lines = self._of(len(mailboxes))
        for line, mailbox, count in zip(lines, mailboxes, places, strict=True):
            socket.send_fds(line, [json.dumps({**about, "places": count}).encode()], [mailbox])
        lent = [socket.recv_fds(line, 16, MOST_PLACES)[1] for line in lines]
        if [len(arenas) for arenas in lent] != list(places):
            raise ServiceUnavailable("An attention process ended before it had made its memory.")
        return lent

    def take_back(self, count: int) -> None:
        for line in self._of(count):
            line.send(b"done")
            line.recv(16)

    def close(self) -> None:
        for line in chain(*self._lines.values()):
            line.close()


def _attend(link: socket.socket, processes: int) -> NoReturn:
    try:
        gc.disable()  # a recorded graph that is freed while another is recorded spoils that: each case collects
        device = GpuDevice()
        device.share(pipe_folder(), processes)
        if link.recv(16):
            device.open("attention")
            torch.cuda.synchronize()
            link.send(OPENED)
            while _answer_one_case(device, link):
                pass
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _answer_one_case(device: GpuDevice, link: socket.socket) -> bool:
    message, fds, _, _ = socket.recv_fds(link, MOST_MESSAGE, 1)
    if not message:
        return False
    gc.collect()
    case, model = json.loads(message), AttentionShape()
    model.cache_shape, model.queries_per_kv_head = CacheShape(*case["shape"]), case["queries"]
    model.scales = case["scales"]
    count, users, each = case["slots"]
    slots = MailboxSlots(Placement(count, users), each)
    host = GpuAttentionHost(device.kernels, model, case["blocks"], case["places"], fds[0], PATIENCE_MS, slots)
    os.close(fds[0])
    arenas = host.export()
    host.start()
    socket.send_fds(link, [b"ready"], arenas)
    for arena in arenas:
        os.close(arena)
    if not link.recv(16):
        os._exit(1)
    host.leave()
    host.close()
    link.send(b"over")
    return True


@contextmanager
def partitioned(
    processes: AttentionProcesses, decoder: Decoder, count: int, users: int, blocks: int, slots: int = EXPOSED
) -> Iterator[Partition]:
    """`count` attention processes for these users, each with room for `blocks` blocks; nothing is exposed yet."""
    placement = Placement(count, users)
    asker = GpuAsker(decoder, PATIENCE_MS, MailboxSlots(placement, slots))
    mailboxes = asker.export()
    places = [len(placement.slots_of(number)) for number in range(count)]
    free, _ = torch.cuda.mem_get_info()
    first = processes.open(count)
    lent = processes.lend(decoder, mailboxes, places, blocks, slots)
    taken = free - torch.cuda.mem_get_info()[0]
    vaults: list[tuple[KVCache, LinkAnswerer]] = []
    arenas: list[ArenaCache] = []
    for user in range(users):
        process, index = placement.process_of(user)
        cache = ArenaCache(decoder.cache_shape, blocks, lent[process][index], slots)
        arenas.append(cache)
        taken -= whole(cache.arena.size)
        vaults.append((cache, ArenaAnswerer(decoder, cache)))
        asker.attach_slot(user, user)
    for fd in (*mailboxes, *(arena for arenas in lent for arena in arenas)):
        os.close(fd)
    try:
        yield Partition(asker, vaults, taken / count if first else None)
    finally:
        torch.cuda.current_stream().synchronize()
        processes.take_back(count)
        for _, answerer in vaults:
            os.close(answerer.fileno())
        for cache in arenas:
            cache._memory.close()
        for mailbox in asker._mailboxes:
            mailbox.close()
