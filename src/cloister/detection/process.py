"""The detector. After its seal it has no network and no file; it answers in codes alone and drops each text."""

import socket
from itertools import pairwise

from cloister.detection.known_prefixes import SYSTEM_PROMPTS
from cloister.detection.pipeline import Pipeline, inherit, shipped_pipeline, with_shipped_rules
from cloister.detection.rules import RuleBroken
from cloister.errors import ProtocolError
from cloister.messages.controller_detector import (
    Classify,
    DetectorReady,
    KnowOpenings,
    Labels,
    LoadRules,
    RulesLoaded,
    StartDetector,
    ToDetector,
)
from cloister.messages.frames import FrameReader, encode_frames
from cloister.messages.lifecycle import Ping, Pong, start_failed
from cloister.process.blocking import RECEIVE_BYTES, BlockingEndpoint
from cloister.process.numpy_memory import use_pythons_memory
from cloister.process.sandbox.credentials import give_up_powers
from cloister.process.sandbox.layers import Profile
from cloister.process.sandbox.namespaces import empty_root, leave_host
from cloister.process.sandbox.seal import seal
from cloister.process.sandbox.seccomp import filter_program

MEMORY_BYTES = 512 << 20  # after the seal: texts are bounded, and are tagged piece by piece

_REHEARSAL = "Rehearsal: naïve Ünïcode, 4111 1111 1111 1111, rehearsal@example.org, Миша, 王伟. " * 4


def serve(control: socket.socket) -> None:
    endpoint: BlockingEndpoint[ToDetector] = BlockingEndpoint(control, ToDetector)
    try:
        order = endpoint.next()
        if order is None:
            return
        if not isinstance(order, StartDetector):
            raise ProtocolError("The controller sent a message out of turn.")
        use_pythons_memory()
        pipeline = shipped_pipeline(order.rules)
        pipeline.examine(_REHEARSAL, [len(_REHEARSAL)])  # a sealed process can load no more tables or codecs
        labeller = Labeller(pipeline)
        filter_program(receives_descriptors=False, own_pid=1, futexes=None)
        leave_host()
        empty_root()
        give_up_powers(())
        kept = {control.fileno()}
        seal(Profile("detector", kept, MEMORY_BYTES, allow_degraded=order.allow_degraded))
        endpoint.send(DetectorReady())
    except Exception as wrong:
        endpoint.send(start_failed(wrong, "The detector cannot start"))
        return
    labeller.run(control)


class Labeller:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def run(self, control: socket.socket) -> None:
        """With recv: the seccomp filter kills a process that calls recvmsg, as BlockingEndpoint does."""
        frames: FrameReader[ToDetector] = FrameReader(ToDetector)
        while self._answer(control, frames):
            pass

    def _answer(self, control: socket.socket, frames: FrameReader[ToDetector]) -> bool:
        """A separate function, so that no local keeps a text while recv waits."""
        data = control.recv(RECEIVE_BYTES)
        if not data:
            return False
        for message in frames.feed(data):  # each answer leaves at once: silence counts while one is awaited
            if (answer := self.handle(message)) is not None:
                control.sendall(encode_frames((answer,)))
        return True

    def handle(self, message: ToDetector) -> Labels | RulesLoaded | Pong | None:
        if isinstance(message, Classify):
            return self.classify(message)
        if isinstance(message, LoadRules):
            return self.load(message)
        if isinstance(message, KnowOpenings):
            self._pipeline.known_prefixes = (*SYSTEM_PROMPTS, *message.openings)
            return None
        if isinstance(message, Ping):
            return Pong()
        raise ProtocolError("The detector runs already.")

    def classify(self, message: Classify) -> Labels:
        ends = message.ends
        if any(one > other for one, other in pairwise(ends)):
            raise ProtocolError("Blocks do not follow one another.")
        if ends and ends[-1] != len(message.text):
            raise ProtocolError("Blocks do not cover their text.")
        examined = self._pipeline.examine(message.text, ends)
        verdicts = inherit(examined.verdicts)
        return Labels(
            message.request_id,
            bytes(verdict.label for verdict in verdicts),
            bytes(verdict.tier for verdict in verdicts),
            bytes(verdict.category for verdict in verdicts),
        )

    def load(self, message: LoadRules) -> RulesLoaded:
        """Keeps the old rules and reports the error if the new ones are broken."""
        before = len(self._pipeline.rules.rules)
        try:
            self._pipeline.rules = with_shipped_rules(message.rules)
        except RuleBroken as broken:
            return RulesLoaded(False, before, "pattern" if broken.wrong == "pattern" else "form", broken.rule)
        return RulesLoaded(True, len(self._pipeline.rules.rules))
