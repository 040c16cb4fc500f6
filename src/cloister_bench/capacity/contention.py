"""How long processes waited for a core, by the kernel's own count (/proc/PID/task/TID/schedstat). Other work on the
machine makes everything slower by that factor, and it changes from minute to minute: numbers of two moments can be
compared once both factors are known."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from msgspec import structs

from cloister_bench.capacity.machine import LevelProfile, Step

EVERY_S = 0.1  # a vault may live for less than a second
_TIMES = ("first_s", "piece_s", "token_s", "context_s", "request_s", "vault_s")


@dataclass
class Waiting:
    """Nanoseconds by thread, of those that are gone, too."""

    ran: dict[str, int] = field(default_factory=dict)
    waited: dict[str, int] = field(default_factory=dict)
    before: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def factor(self) -> float:
        """Time with other work over time without."""
        ran, waited = sum(self.ran.values()), sum(self.waited.values())
        return (ran + waited) / ran if ran else 1.0

    def look(self, pids: Iterable[int], *, first: bool = False) -> None:
        for pid in pids:
            with suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    with suppress(OSError):
                        ran, waited, _ = map(int, (task / "schedstat").read_text().split())
                        name = str(task)
                        if first:
                            self.before[name] = ran, waited
                        begun = self.before.get(name, (0, 0))
                        self.ran[name], self.waited[name] = ran - begun[0], waited - begun[1]


@contextmanager
def watched(family: Callable[[], Iterable[int]]) -> Iterator[Waiting]:
    """Of these processes, while this runs."""
    waiting, over = Waiting(), Event()
    waiting.look(family(), first=True)

    def look() -> None:
        while not over.wait(EVERY_S):
            waiting.look(family())

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield waiting
    finally:
        over.set()
        thread.join()
        waiting.look(family())


def slowed(profile: LevelProfile, factor: float) -> LevelProfile:
    steps = tuple(Step(step.rows, step.seconds * factor) for step in profile.steps)
    return structs.replace(profile, steps=steps, **{name: getattr(profile, name) * factor for name in _TIMES})
