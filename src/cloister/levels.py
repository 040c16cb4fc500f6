"""The levels of protection, as data: which process reads the prompt and decodes, what is refused, what users read."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args

from cloister.errors import InvalidRequest

LevelName = Literal["open", "shared", "partitioned", "obfuscated", "isolated", "mpc"]
ReadLevel = Literal["open", "shared"]  # the process that speaks HTTP reads the prompt
PrivateLevel = Literal["partitioned", "obfuscated", "isolated", "mpc"]  # a separate process alone reads the prompt
VaultLevel = Literal["partitioned", "obfuscated", "isolated"]  # those of them at which that process is a vault

OPEN: ReadLevel = "open"
PARTITIONED: VaultLevel = "partitioned"
OBFUSCATED: VaultLevel = "obfuscated"
ISOLATED: VaultLevel = "isolated"
MPC: PrivateLevel = "mpc"

MOST_FAKES = 31  # λ at `obfuscated`: λ+1 sequences are exposed at once on a link, which has twice as many slots

# Whose computed prompts a tenant may reuse.
PolicyName = Literal["none", "partition", "registered", "counted", "global"]


class Reader(Enum):
    API = "the process that speaks HTTP"
    VAULT = "a vault of the session's own"
    MPC_CLIENT = "the client that deals shares to the parties"


class Decodes(Enum):
    SERVICE = "the service, for all users"
    VAULT = "the vault alone"
    PARTIES = "three parties, on shares"


class Needs(Enum):
    LINKS = "kernels that can answer a link"
    PARTIES = "the distribution cloister-mpc"


@dataclass(frozen=True, slots=True)
class Refusal:
    param: str
    why: str
    hint: str
    unless_logits: bool = False  # whether the field is served where the prompt's holder gets the logits (`mpc_reveal`)


@dataclass(frozen=True, slots=True)
class Level:
    """`provider_sees` is for the page and /v1/models; `service_sees` and `others_learn` are the README's cells."""

    name: LevelName
    provider_sees: str
    service_sees: str
    others_learn: str
    reader: Reader = Reader.API
    decodes: Decodes = Decodes.SERVICE
    needs: Needs | None = None
    refuses: tuple[Refusal, ...] = ()
    default_rank: int | None = None  # order of choice for a request that names no level; None: only on request
    default_tokens: int | None = None  # for a request that sets no limit
    examined: bool = False  # whether a detector reads the prompt to find the parts that may be shared
    obfuscates: bool = False  # whether the real answer is one of several (λ+1)
    slow: bool = False  # whether a token takes seconds, so that progress is reported
    alone: tuple[str, ...] = ()  # with one of these a vault decodes alone, as at `isolated`

    @property
    def uses_vault(self) -> bool:
        """Whether the prompt goes unread to a separate process."""
        return self.reader is not Reader.API

    def way(self, requested: Collection[str]) -> LevelName:
        """The level whose way a request takes that asks for these."""
        return ISOLATED if any(name in requested for name in self.alone) else self.name

    def refuse(self, requested: Collection[str], *, logits: bool = False) -> None:
        """InvalidRequest for a requested field this level cannot serve. `logits`: the prompt's holder gets them."""
        for refusal in self.refuses:
            if refusal.param in requested and not (logits and refusal.unless_logits):
                raise InvalidRequest(f"{refusal.param}: {refusal.why}", param=refusal.param, hint=refusal.hint)


def _kept_from_sampling(name: str, *, repetition_hint: str | None = None) -> tuple[Refusal, ...]:
    why = f"This needs the prompt where tokens are chosen, and at the level {name!r} it is not there."
    hints = {
        "echo": "The prompt is not given back from its vault; put it before the answer yourself.",
        "max_tokens": "To score a given text, ask for the level 'open'.",
        "prompt_logprobs": "To score a given text, ask for the level 'open'.",
    }
    if repetition_hint is not None:
        hints["repetition_penalty"] = repetition_hint
    return tuple(Refusal(param, why, hint) for param, hint in hints.items())


def _need_logits() -> tuple[Refusal, ...]:
    """On shares a token is the likeliest, or drawn by its probability. Everything else needs the logits."""
    why = "At the level 'mpc' tokens are chosen on shares, and this needs the logits."
    hint = 'Leave it out, or add "mpc_reveal": "logits": the process that holds the prompt gets them, no party does.'
    params = ("top_p", "top_k", "min_p", "repetition_penalty", "logprobs")
    return tuple(Refusal(param, why, hint, unless_logits=True) for param in params)


_ONLY_MPC = Refusal("mpc_reveal", "This is for the level 'mpc' alone.", "Leave it out.")
_ONLY_OBFUSCATED = Refusal("obfuscation", "This is for the level 'obfuscated' alone.", "Ask for it, or leave it out.")
_UNVERIFIED = Refusal("verify", "At the level 'mpc' no vault computes an answer again.", "Leave it out.")
_OTHER_PENALTIES = "Use presence_penalty or frequency_penalty, or the level 'isolated'."
_ONLY_PARTITIONED = Refusal("stop_recitation", "This is for the level 'partitioned'.", "Ask for it, or leave it out.")
_NOT_ELSEWHERE = (_ONLY_MPC, _ONLY_OBFUSCATED, _ONLY_PARTITIONED)
_NO_STATES = Refusal("input", "At the level 'mpc' no hidden state is opened.", "Ask for the level 'isolated'.")
_NO_MINIMUM = Refusal("min_tokens", "At the level 'mpc' the model's end tokens stay possible.", "Leave it out.")
_STOPS_SHOW = Refusal(
    "stop_token_ids", "A token of a secret among them would show which variant is real.", "Use `stop`, or leave it out."
)
_NO_FORM = "A form or a required call is asked for, and at this level no process that reads it chooses the tokens."
_NO_FORMS = (Refusal("response_format", _NO_FORM, "Leave it out, or ask for 'partitioned' or 'isolated'."),)
# A form and several answers would show which of λ+1 is real. So would an earlier answer: it is to the real prompt, and
# what the others were answered only a named session's vault knows. `alone`: a client says it of what it sealed.
_NOT_AMONG_OTHERS = ("response_format", "n", "prompt", "input", "history", "alone")
_ENDS_APART = "One of λ+1 answers would end before the others, and show which is real."


LEVELS: dict[str, Level] = {
    level.name: level
    for level in (
        Level(
            "open",
            provider_sees="Everything: your prompt, the answer, and when you asked.",
            service_sees="everything",
            others_learn="nothing from the output: neighbours leave no trace",
            refuses=_NOT_ELSEWHERE,
        ),
        Level(
            "shared",
            examined=True,
            provider_sees=(
                "Everything. Other tenants find how your prompt begins if it is a registered template, or if about a "
                "dozen accounts sent the same and no detector sees personal data in it. Of a text that you alone sent, "
                "seven accounts that collude can tell in at most 1% of their guesses whether you sent it."
            ),
            service_sees="everything",
            others_learn=(
                "which beginnings about a dozen accounts sent (counted with noise); of a text that you alone sent, "
                "seven accounts that collude learn it from at most 1% of their guesses, one from 0.002%"
            ),
            refuses=_NOT_ELSEWHERE,
        ),
        Level(
            "partitioned",
            provider_sees=(
                "The answer's tokens and, layer by layer, what your prompt adds to the attention, in a process sealed "
                "off from network and disk. These numbers determine your prompt: the seal keeps them in, and a process "
                "that carried them out could compute your words from them. An answer that must be JSON or follow "
                "another form is decoded by your vault alone, as at `isolated`."
            ),
            service_sees=(
                "the answer's tokens and attention contributions, inside a sealed process; a process that "
                "carried the contributions out could compute the prompt from them"
            ),
            others_learn="nothing",
            reader=Reader.VAULT,
            needs=Needs.LINKS,
            refuses=(
                _ONLY_MPC,
                _ONLY_OBFUSCATED,
                *_kept_from_sampling("partitioned", repetition_hint=_OTHER_PENALTIES),
            ),
            default_rank=0,
            alone=("response_format", "alone"),
        ),
        Level(
            "obfuscated",
            provider_sees=(
                "Several answers at once and, layer by layer, what several prompts add to the attention: yours among λ "
                "made-up ones that differ from it in what you marked as secret. The order does not show which is "
                "yours; the words may: with λ = 7 a careful reader found it in 20 of 60 prompts, a larger model in "
                "10 of 56 (docs/obfuscation.md). Name a session: without one each prompt has new made-up words, and "
                "those that come again are yours. What cannot go among others is computed by your vault alone, as at "
                "`isolated`: an answer with a form, several answers or prompts, embeddings, and a conversation with "
                "earlier answers where no session is named. In a browser, which speaks plain HTTP, the gateway picks "
                "your answer out, so it knows; with `cloister.Client` or `cloister proxy` your machine does."
            ),
            service_sees=(
                "λ+1 answers and attention contributions, as at `partitioned`; a careful reader found the real one in "
                "20 of 60, a larger model in 10 of 56 (λ = 7); a secret sent again without a named session is found"
            ),
            others_learn="nothing",
            reader=Reader.VAULT,
            needs=Needs.LINKS,
            refuses=(
                _ONLY_MPC,
                Refusal("stop_recitation", _ENDS_APART, "Leave it out, or ask for the level 'partitioned'."),
                *_kept_from_sampling("obfuscated", repetition_hint=_OTHER_PENALTIES),
                _STOPS_SHOW,
            ),
            alone=_NOT_AMONG_OTHERS,
            obfuscates=True,
        ),
        Level(
            "isolated",
            provider_sees="When you ask and for how long; your own vault decodes alone on the shared weights.",
            service_sees="nothing: a vault of your own decodes alone",
            others_learn="nothing",
            reader=Reader.VAULT,
            decodes=Decodes.VAULT,
            refuses=(*_NOT_ELSEWHERE, *_kept_from_sampling("isolated")),
            default_rank=1,
        ),
        Level(
            "mpc",
            provider_sees=(
                "About how long your prompt and the answer are, and when you asked, if three independent operators run "
                "the parties: two that collude can read everything. A node that runs all three itself, as after `make "
                "mpc`, hides nothing from its operator. The process that makes the shares reads the prompt; run it "
                "yourself with `cloister mpc proxy`. Slow: seconds for each token."
            ),
            service_sees=(
                "nothing, if three independent operators run the parties: two that collude read everything, and so "
                "does a node that runs all three (the default after `make mpc`)"
            ),
            others_learn="nothing",
            reader=Reader.MPC_CLIENT,
            decodes=Decodes.PARTIES,
            needs=Needs.PARTIES,
            refuses=(
                _ONLY_OBFUSCATED,
                _ONLY_PARTITIONED,
                _UNVERIFIED,
                _NO_MINIMUM,
                _NO_STATES,
                *_NO_FORMS,
                *_kept_from_sampling("mpc"),
                *_need_logits(),
            ),
            default_rank=2,
            default_tokens=16,
            slow=True,
        ),
    )
}


def served(*needs: Needs) -> tuple[LevelName, ...]:
    return tuple(name for name in get_args(LevelName) if LEVELS[name].needs is None or LEVELS[name].needs in needs)


def default_of(offered: Collection[str]) -> LevelName | None:
    ranked = [level for level in LEVELS.values() if level.default_rank is not None and level.name in offered]
    return min(ranked, key=lambda level: level.default_rank or 0).name if ranked else None
