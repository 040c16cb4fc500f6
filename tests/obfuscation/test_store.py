"""A secret keeps its substitutes: in memory, in a file, from process to process. Drawn anew, they give it away."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloister.errors import ObfuscationRefused
from cloister.obfuscation.entities import Entity
from cloister.obfuscation.goal import SamplingGoal
from cloister.obfuscation.index import Prf, new_secret
from cloister.obfuscation.language_model import TokenShapes
from cloister.obfuscation.requests import Obfuscation
from cloister.obfuscation.sampler import Group, Sampler
from cloister.obfuscation.store import Kept, MemoryStore, Store
from cloister.obfuscation.store_file import FileStore, SubstitutesFile
from cloister.obfuscation.tags import parse_redacted
from cloister.obfuscation.variants import GivenSubstitutes, Substitutes, make_variants
from tests.obfuscation.asking import RandomNames, sent
from tests.obfuscation.fake_model import NAMES, RuleModel, WordTokenizer

ROOT = Path(__file__).parents[2]
PROMPTS = (
    'I am <redacted category="name">Ann Lee</redacted>, and tired.',
    "What does <redacted>Ann Lee</redacted> need?",
    "Write to ANN LEE: <redacted>Ann Lee</redacted> must rest.",
)
NAME = re.compile(r"\b(?:Ann Lee|Name\d+ Name\d+)\b")


def in_new_process(store: Path | str, *texts: str) -> list[list[str]]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.obfuscation.asking", str(store), *texts],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found: list[list[str]] = json.loads(ran.stdout)
    return found


def names_in(prompts: list[str]) -> set[str]:
    return {name for prompt in prompts for name in NAME.findall(prompt)}


def together(count: int, store: Path | str) -> list[list[list[str]]]:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda _: in_new_process(store, *PROMPTS), range(count)))


def test_ten_processes_at_once_send_three_prompts_among_the_same_eight_values(tmp_path: Path) -> None:
    found = [names_in(prompts) for process in together(10, tmp_path / "kept.json") for prompts in process]
    assert len(found) == 30 and all(names == found[0] for names in found)
    assert len(found[0]) == 8 and "Ann Lee" in found[0]


def test_without_a_file_the_values_that_come_again_are_the_real_one() -> None:
    seen = Counter(name for process in together(3, "none") for name in names_in(process[0]))
    assert [name for name, count in seen.items() if count == 3] == ["Ann Lee"]


@pytest.fixture(params=["memory", "file"])
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """The same store, as a later process would have it where it is a file."""
    memory = MemoryStore()
    kept = tmp_path / "kept.json"
    return lambda: memory if request.param == "memory" else FileStore(SubstitutesFile(kept))


def kept(*values: str, method: str = "gqs") -> Kept:
    return Kept(values=values, method=method)


def test_a_secret_is_the_same_in_any_capitals_and_the_first_set_stays(again: Callable[[], Store]) -> None:
    again().keep({"Ann Lee": kept("Bo Cy", "Di Ek")})
    again().keep({"ann lee": kept("Flo Gus", method="exchangeable")})
    found = again().find("ANN LEE")
    assert found and (found.values, found.method) == (("Bo Cy", "Di Ek"), "gqs")
    assert again().find("Ann") is None


def test_users_do_not_find_each_other_s(again: Callable[[], Store]) -> None:
    mine = again().of(b"mine")
    mine.keep({"Ann": kept("Bo")})
    assert mine.find("Ann") and again().of(b"other").find("Ann") is None and again().find("Ann") is None


@pytest.mark.parametrize(
    ("first", "then", "says"),
    [
        ("Ask <redacted>Ann Lee</redacted>.", "Ask <redacted>Dr Lee</redacted>.", r"Ask Dr {1}\."),
        ("Ask <redacted>Dr Ann Lee</redacted>.", "Dear <redacted>Ann</redacted>!", r"Dear {0}!"),
        ("Ask <redacted>ANN LEE</redacted>.", "Ask <redacted>Ann Lee</redacted>.", r"Ask {0} {1}\."),
        ("Ask <redacted>Lee</redacted>.", "Ask <redacted>Ann Lee</redacted>.", r"Ask \w+ {0}\."),
        (
            "Ask <redacted>Ann Lee</redacted>.",
            "To <redacted>Lee</redacted>, <redacted>Ann Lee</redacted>",
            "To {1}, {0} {1}",
        ),
    ],
)
def test_a_part_of_a_secret_keeps_its_part(again: Callable[[], Store], first: str, then: str, says: str) -> None:
    before = sent(Obfuscation(RandomNames(), store=again()), first)
    after = sent(Obfuscation(RandomNames(), store=again()), then)
    assert len(before) == len(after) == 8
    fakes = [re.findall(r"Name\d+", prompt, re.IGNORECASE) for prompt in before if "Name" in prompt.title()]
    for fake in fakes:
        pattern = re.compile(says.format(*(word.title() for word in fake)))
        assert sum(pattern.fullmatch(prompt) is not None for prompt in after) == 1, (fake, after)


def test_more_fakes_than_before_are_refused_or_fewer_are_taken(again: Callable[[], Store]) -> None:
    text = "Ask <redacted>Ann Lee</redacted>."
    before = sent(Obfuscation(RandomNames(), store=again(), goal=SamplingGoal(7)), text)
    with pytest.raises(ObfuscationRefused, match="among 7 others before"):
        sent(Obfuscation(RandomNames(), store=again(), goal=SamplingGoal(15)), text)
    assert sent(Obfuscation(RandomNames(), store=again(), goal=SamplingGoal(15, 7)), text) == before
    fewer = sent(Obfuscation(RandomNames(), store=again(), goal=SamplingGoal(3)), text)
    assert len(fewer) == 4 and set(fewer) < set(before), "the real one is among both: no more than of the smaller"


def test_new_substitutes_are_none_that_another_secret_of_the_prompt_has(again: Callable[[], Store]) -> None:
    """Of one pool of twenty names seven are the first secret's."""
    tokenizer, goal = WordTokenizer(), SamplingGoal(7, 1, method="dictionary")
    model, shapes = RuleModel(tokenizer.vocabulary), TokenShapes(tokenizer, tokenizer.vocabulary)

    def grouped(texts: object, entities: Sequence[Entity], prf: Prf, wanted: int) -> list[Group]:
        return [Group((at,), tuple((name,) for name in NAMES)) for at in range(len(entities))]

    def draw(*names: str) -> Substitutes:
        marked = " and ".join(f'<redacted category="name">{name}</redacted>' for name in names)
        sampler = Sampler(model, tokenizer, goal, Prf(new_secret()), shapes, grouped)
        return make_variants([parse_redacted(f"Dear {marked}")], sampler, again(), goal).substitutes

    stood_in = {value for (value,) in draw(NAMES[0]).values}
    for name in [name for name in NAMES[1:] if name not in stood_in][:8]:
        found = draw(NAMES[0], name)
        first, second = (set(column) for column in zip(*found.values, strict=True))
        assert found.kept == 1 and not second & {*first, NAMES[0]}


def test_the_report_names_the_method_of_substitutes_that_were_kept(again: Callable[[], Store]) -> None:
    body = json.dumps({"prompt": "<redacted>Ann</redacted> and <redacted>Ben</redacted>"}).encode()
    again().keep({"Ann": kept("Bo", "Cy", method="dictionary")})
    made = Obfuscation(GivenSubstitutes([["Di"], ["Ed"]]), store=again()).obfuscate("/completions", body)
    assert made is not None and made.report["lambda"] == 2
    assert (made.report["kept"], made.report["methods"]) == (1, ["dictionary", "given"])


def test_a_store_in_memory_forgets_none_and_takes_no_more_than_it_may() -> None:
    store = MemoryStore(1)
    store.keep({"Ann": kept("Bo")})
    with pytest.raises(ObfuscationRefused, match="new session"):
        store.keep({"Ben": kept("Cy")})
    store.keep({"ANN": kept("Di")})
    assert store.known() == ["Ann"] == store.recall([parse_redacted("nothing")])
