"""Which parser reads a model's answers: by the words of its chat template, or as the operator says."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cloister.tools.base import Parsed, Parser, Plain
from cloister.tools.coder import Coder
from cloister.tools.gemma import Gemma
from cloister.tools.harmony import Harmony
from cloister.tools.hermes import Hermes
from cloister.tools.llama import Llama
from cloister.tools.mistral import Mistral
from cloister.tools.thinking import PAIRS, Thinking

FamilyName = Literal["hermes", "qwen3_coder", "llama3", "mistral", "gemma", "harmony"]
ToolParser = FamilyName | Literal["auto"]
FAMILIES: dict[FamilyName, type[Parser]] = {
    "hermes": Hermes,
    "qwen3_coder": Coder,
    "llama3": Llama,
    "mistral": Mistral,
    "gemma": Gemma,
    "harmony": Harmony,
}
_NEAREST = {"none": "low", "minimal": "low", "xhigh": "high"}  # GPT-OSS was trained with three efforts
_TOOLS = re.compile(r"\btools\b")
_SIGNS: tuple[tuple[str, FamilyName], ...] = (
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
    ("<|channel|>", "harmony"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|tool_call>", "gemma"),
    ("<start_function_call>", "gemma"),
    ("<|python_tag|>", "llama3"),
    ("<|eot_id|>", "llama3"),
)


def has_tools(template: str) -> bool:
    return bool(_TOOLS.search(template))


def family_of(template: str) -> FamilyName:
    if not has_tools(template):
        return "hermes"
    return next((family for sign, family in _SIGNS if sign in template), "hermes")


@dataclass(frozen=True)
class Parsing:
    """How a model's answers are read. `tails`: what its template writes before one, with thinking, without, or by
    itself."""

    template: str = ""
    special: Mapping[int, str] = field(default_factory=dict)
    tails: Mapping[bool | None, str] = field(default_factory=dict)
    named: ToolParser = "auto"

    @property
    def family(self) -> FamilyName:
        return family_of(self.template) if self.named == "auto" else self.named

    @property
    def pair(self) -> tuple[str, str] | None:
        """The markers around this model's reasoning, where it has any."""
        return next((pair for pair in PAIRS if pair[1] in self.template), None)

    def words(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A request's words, with an effort of reasoning only where this template knows one."""
        words = dict(given)
        if (effort := words.get("reasoning_effort")) is not None and self.family == "harmony":
            words["reasoning_effort"] = _NEAREST.get(effort, effort)
        if "reasoning_effort" not in self.template:
            words.pop("reasoning_effort", None)
        return words

    def parser(self, *, tools: bool, thinks: bool | None = None, early: bool = False) -> Parser:
        """For one answer. Harmony's channels are read whatever is asked."""
        inner: Parser = FAMILIES[self.family]() if tools or self.family == "harmony" else Plain()
        inner.early = early
        if (pair := self.pair) is None or self.family == "harmony":
            return inner
        return Thinking(inner, pair, opens=self.opens(thinks))

    def opens(self, thinks: bool | None) -> bool:
        """Whether the prompt ends within reasoning."""
        return self.pair is not None and self.tails.get(thinks, "").rstrip().endswith(self.pair[0])

    def markers(self, *, tools: bool) -> dict[int, str]:
        """The special tokens whose names are text here."""
        names = FAMILIES[self.family].markers if tools or self.family == "harmony" else ()
        wanted = {*names, *(self.pair or ())}
        return {token: name for token, name in self.special.items() if name in wanted}

    def read(self, text: str, *, tools: bool, thinks: bool | None = None) -> Parsed:
        parser = self.parser(tools=tools, thinks=thinks)
        return parser.push(text).add(parser.finish())
