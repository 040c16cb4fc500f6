"""Tier 3 of detection: doubtful blocks are put to the serving model, one at a time, in the background (SafeKV §V-B.3).
Every case that is taken is settled once; a late one, or one whose service died, with what was known before. A case
holds its prompt's tokens, CASE_S at most."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from cloister.config import Settings
from cloister.controller.detector import BlockLabel
from cloister.controller.requests import wide
from cloister.detection.classifier_folder import combined
from cloister.detection.judge import Judge
from cloister.errors import SetupError
from cloister.files import needed, read_bounded, sha256_of
from cloister.messages.controller_detector import Category, Share
from cloister.messages.controller_detector import Label as Verdict
from cloister.messages.controller_frontend import JudgeForm
from cloister.messages.controller_service import GeneratePrompt
from cloister.messages.generation import Accepted, Cancel, Failed, Tokens
from cloister.models.convert import read_manifest
from cloister.models.source import ModelFolder, models_folder

MAX_CASES = 64
MAX_DOUBTS = 8  # blocks of one prompt that are asked about
CASE_S = 30.0  # after this time a case is settled with what is known
FRONTEND = 0  # no frontend gets this number
LEAST_AREA = 0.80  # where private and clean answers are normal, half of the clean blocks pass with 12% of the private
LEAST_BLOCKS = 100  # of each kind: the area is then known to about ±0.06
TENANT = "(judge)"  # apart, so that questions delay no tenant's turn


class JudgeReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `cloister bench detection --judge` measured of one model: `area` under the curve, with its 95% interval."""

    model: str
    digest: str
    area: Share
    low: Share
    high: Share
    private: Annotated[int, Meta(ge=0)]
    clean: Annotated[int, Meta(ge=0)]
    private_passed: Share  # called public, with `MARGIN`
    clean_passed: Share

    def why_not(self, digest: str) -> str | None:
        """Why a model of this digest may not judge."""
        if self.digest != digest:
            return f"{self.model} was measured, which is another model"
        if min(self.private, self.clean) < LEAST_BLOCKS:
            return f"it was measured on fewer than {LEAST_BLOCKS} private and as many clean blocks"
        if self.area < LEAST_AREA:
            return f"its area under the curve is {self.area:.2f}, and {LEAST_AREA:.2f} is needed (0.5 is guessing)"
        return None


def read_report(path: Path) -> JudgeReport:
    try:
        return msgspec.json.decode(read_bounded(path, 1 << 16), type=JudgeReport)
    except msgspec.MsgspecError:
        hint = "Write it with `cloister bench detection --judge --judge-report FILE`."
        raise SetupError(f"{path} is no report on a judge.", hint=hint) from None


def digest_of_model(folder: Path) -> str:
    """Over the hashes of its files: of a converted model those that it was opened with."""
    with needed(f"{folder} cannot be read"):
        if (manifest := read_manifest(folder)) is not None:
            hashes = {name: record.sha256 for name, record in manifest.files.items()}
        else:
            found = (each for each in folder.iterdir() if each.suffix in (".json", ".safetensors"))
            hashes = {each.name: sha256_of(each) for each in found}
    return combined(hashes).hex()


def place_of_report(digest: str) -> Path:
    return models_folder() / f"judge-{digest[:24]}.json"


def measured(settings: Settings, folder: ModelFolder) -> tuple[Settings, tuple[str, ...]]:
    """With `judge` off, in evidence too, unless this very model was measured and is good enough; then also why."""
    if not settings.controller.judge:
        return settings, ()
    digest = digest_of_model(folder.path)
    place = settings.controller.judge_report or place_of_report(digest)
    why = "it was not measured for this model"
    if place.exists() or settings.controller.judge_report:
        why = read_report(place).why_not(digest) or ""
    if not why:
        return settings, ()
    off = settings.model_copy(update={"controller": settings.controller.model_copy(update={"judge": False})})
    return off, (f"Tier 3 (--judge) is off: {why}. `cloister bench detection --judge --data DIR` measures it.",)


@dataclass(slots=True, repr=False)
class Case:
    """Tokens before `public` are public; if all `doubts` (start, end) pass, everything before `cleared` is."""

    request_id: int
    tenant: str
    prompt: tuple[int, ...]
    public: int
    doubts: deque[tuple[int, int]]
    cleared: int
    expiry: asyncio.TimerHandle | None = field(default=None)


def case_of(
    request_id: int, tenant: str, prompt: tuple[int, ...], blocks: Sequence[BlockLabel], size: int
) -> Case | None:
    """None without doubts. A block that is uncertain by inheritance alone is public if those before it are."""
    end = next((at for at, block in enumerate(blocks) if block.label is Verdict.PRIVATE), len(blocks))
    doubtful = [
        at
        for at, block in enumerate(blocks[:end])
        if block.label is Verdict.UNCERTAIN and block.category is not Category.INHERITED
    ]
    if not doubtful:
        return None
    if len(doubtful) > MAX_DOUBTS:
        end = doubtful[MAX_DOUBTS]
    doubts = deque((at * size, min((at + 1) * size, len(prompt))) for at in doubtful[:MAX_DOUBTS])
    return Case(request_id, tenant, prompt[: end * size], doubtful[0] * size, doubts, end * size)


class JudgeKeeper:
    """`send` reaches the service, if there is one; `settle` gets a request's number of public tokens."""

    def __init__(
        self, send: Callable[[msgspec.Struct], None], settle: Callable[[int, int], None], *, case_s: float = CASE_S
    ) -> None:
        self._send, self._settle, self._case_s = send, settle, case_s
        self._judge: Judge | None = None
        self._numbers = count(1)
        self._cases: deque[Case] = deque()
        self._asked: int | None = None  # the question under way is about the first case
        self.passed = self.refused = 0  # blocks that the model called public, and those that it did not

    def learn(self, form: JudgeForm) -> None:
        self._judge = self._judge or Judge(form)

    def ask(self, case: Case) -> bool:
        if self._judge is None or len(self._cases) >= MAX_CASES:
            return False
        case.expiry = asyncio.get_running_loop().call_later(self._case_s, self._close, case)
        self._cases.append(case)
        self._next()
        return True

    def handle(self, message: Accepted | Tokens | Failed) -> None:
        if message.request_id != self._asked or isinstance(message, Accepted):
            return
        self._asked = None
        case = self._cases[0]
        answer = message.tokens if isinstance(message, Tokens) else ()
        assert self._judge is not None
        if self._judge.label(answer) is not Verdict.PUBLIC:
            self.refused += 1
            self._close(case)
            return
        self.passed += 1
        case.doubts.popleft()
        case.public = case.doubts[0][0] if case.doubts else case.cleared
        if not case.doubts:
            self._close(case)
        else:
            self._next()

    def forget(self, tenant: str) -> None:
        for case in [each for each in self._cases if each.tenant == tenant]:
            self._close(case)

    def service_gone(self) -> None:
        self._asked = None
        while self._cases:
            self._close(self._cases[-1])

    def _next(self) -> None:
        if self._asked is None and self._cases:
            assert self._judge is not None
            case = self._cases[0]
            start, end = case.doubts[0]
            question = self._judge.question(case.prompt[:start], case.prompt[start:end])
            self._asked = wide(FRONTEND, next(self._numbers))
            self._send(GeneratePrompt(self._asked, TENANT, question.tokens, question.params, background=True))

    def _close(self, case: Case) -> None:
        first = self._cases[0] is case
        self._cases.remove(case)
        if case.expiry is not None:
            case.expiry.cancel()
        if first and self._asked is not None:
            self._send(Cancel(self._asked))
            self._asked = None
        self._settle(case.request_id, case.public)
        if first:
            self._next()
