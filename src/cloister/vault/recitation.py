"""Whether an answer recites its system prompt, as a prompt-leakage injection asks for (Petridish §2.4.4, §7.1). The
vault has both texts, so it compares their letters; and it computes the answer again, so it sees how much attention the
system prompt gets (vault.looks): a translation has other letters. It knows no link and no service."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean

from cloister.prompts.tokenizer import Tokenizer

CHUNK = 16  # tokens after which an answer is judged
WINDOW = 256  # its last tokens, which are compared
RUN = 20  # letters in a row that the system prompt has too count
MOST_COMMON = 90  # letters of a window in such runs: more is a recitation (chosen by `cloister bench privacy`)


def letters_of(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


class SystemPrompt:
    """A prompt's system messages. Case, punctuation and spaces, which an injection can ask for, do not matter."""

    def __init__(self, text: str, span: tuple[int, int] = (0, 0)) -> None:
        self.span = span  # in the prompt's tokens
        letters = letters_of(text)
        self._runs = {letters[at : at + RUN] for at in range(len(letters) - RUN + 1)}
        self._most = min(MOST_COMMON, len(letters) * 3 // 4)

    def is_recited(self, text: str) -> bool:
        return self.common(text) > self._most

    def common(self, text: str) -> int:
        """How many of the text's letters stand in runs that the system prompt has, too."""
        letters, count, end = letters_of(text), 0, 0
        for at in range(len(letters) - RUN + 1):
            if letters[at : at + RUN] in self._runs:
                count += at + RUN - max(at, end)
                end = at + RUN
        return count


@dataclass(slots=True, repr=False)
class Recitation:
    """One answer beside its system prompt. `stopped`: it recites; `judged`: its tokens that may leave, of which the
    first does so before there is anything to judge."""

    system: SystemPrompt
    tokenizer: Tokenizer
    calm: float = inf  # attention of vault.looks from which on it recites
    judged: int = field(default=1, init=False)
    stopped: bool = field(default=False, init=False)
    looks: list[float] = field(default_factory=list, init=False)  # while each token but the first was chosen

    def judge(self, tokens: Sequence[int], *, ended: bool) -> int:
        """How many of an answer's tokens may leave: whole chunks, and the rest once it has ended. A chunk in which it
        recites may not."""
        while not self.stopped and (end := min(self.judged + CHUNK, len(tokens))) > self.judged:
            if end < self.judged + CHUNK and not ended:
                break
            text = self.tokenizer.decode(tokens[max(0, end - WINDOW) : end])
            looks = self.looks[max(0, end - 1 - CHUNK) : end - 1]
            looked = len(looks) == CHUNK and fmean(looks) > self.calm
            self.stopped = looked or self.system.is_recited(text)
            if not self.stopped:
                self.judged = end
        return self.judged
