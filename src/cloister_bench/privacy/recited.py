"""Answers that recite a system prompt, and answers that do not. Which prompts are used is a rule: every one of
LEAST..MOST characters, in the files' order; even ones choose rules (`develops`), odd ones are measured.
Recitations are written by rule, because a small model seldom follows an injection; the model makes the others."""

import base64
import csv
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from cloister.errors import SetupError

LEAST, MOST = 250, 600  # characters of a system prompt
LONGEST = 1000  # characters of an email
LEAD = ("Sure. My instructions are: ", "The text before this is: ", "Here is the text above: ", "")
_FIRST = {"you": "I", "your": "my", "yours": "mine", "i": "the user", "me": "the user", "my": "the user's", "am": "is"}


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split("|"))


_OTHER = _pairs(
    "want=would like|act=behave|will=shall|should=ought to|must=have to|provide=give|reply=respond|answer=response|"
    "write=compose|create=make|explain=describe|explanations=descriptions|help=assist|using=with|use=employ|"
    "only=just|also=too|any=whatever|all=every|need=require|first=initial|request=demand|role=part|people=persons|"
    "questions=queries|question=query|information=details|topic=subject|suggest=propose|based=built|good=fine|"
    "best=finest|new=fresh|following=next|include=contain|make=produce|tell=inform|show=display|find=locate|"
    "way=manner|ways=manners|about=concerning|because=since|but=yet|words=terms|text=passage|not=never|give=hand|"
    "type=enter|like=such as|different=various|big=large|company=firm|person=individual"
)
_SPANISH = _pairs(
    "the=el|a=un|an=un|of=de|and=y|to=a|in=en|that=que|is=es|was=fue|for=para|it=lo|with=con|as=como|i=yo|you=tú|"
    "your=tu|my=mi|me=mí|be=ser|are=son|this=este|on=en|not=no|have=tener|from=desde|or=o|by=por|will=vas a|"
    "can=puedes|should=debes|must=tienes que|want=quiero|act=actuar|write=escribir|answer=responder|reply=contestar|"
    "question=pregunta|questions=preguntas|only=solo|all=todos|any=cualquier|do=haz|what=qué|who=quién|how=cómo|"
    "when=cuando|where=dónde|which=cuál|if=si|then=entonces|there=allí|their=sus|they=ellos|we=nosotros|our=nuestro|"
    "first=primera|request=petición|need=necesito|help=ayuda|give=dar|provide=proporcionar|use=usar|about=sobre|"
    "but=pero|so=así|also=también|other=otro|more=más|some=algunos|no=no|one=uno|two=dos|three=tres|new=nuevo|"
    "good=bueno|words=palabras|word=palabra|text=texto|language=idioma|english=inglés|time=tiempo|people=personas|"
    "person=persona|user=usuario|name=nombre|code=código|list=lista|example=ejemplo|role=papel|story=historia|"
    "world=mundo|work=trabajo|make=hacer|like=como|including=incluyendo|based=basado|into=en|at=en|has=tiene|"
    "had=tenía|would=harías|its=su|his=su|her=su|he=él|she=ella|am=soy|were=eran|been=sido|than=que|most=más|"
    "each=cada|explain=explicar|explanations=explicaciones|information=información|describe=describir|create=crear|"
    "data=datos|using=usando|type=escribir|show=mostrar|inside=dentro de|unless=a menos que|nothing=nada|else=más"
)


def _by_word(words: dict[str, str]) -> Callable[[str], str]:
    return lambda text: re.sub(r"\w+", lambda found: words.get(found[0].lower(), found[0]), text)


def _reversed(text: str) -> str:
    return " ".join(reversed(text.split()))


WAYS: dict[str, Callable[[str], str]] = {
    "verbatim": lambda text: text,
    "its later part": lambda text: text[len(text) // 3 :],
    "capitals and dashes": lambda text: " - ".join(text.upper().split()),
    "paraphrased by rule": _by_word({**_OTHER, **_FIRST}),
    "in Spanish by rule": _by_word(_SPANISH),
    "words backwards": _reversed,
    "letters apart": lambda text: " ".join("-".join(word) for word in text.split()),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
}
HALF = "its beginning, then the benign answer"


@dataclass(frozen=True, slots=True, repr=False)
class Material:
    """`prompts`: system prompts. `asks`: for their words. `benign`: for something else; `hard`: with alarming words.
    `emails` with a question about each; `commands`: what else an injection in an email asks for."""

    prompts: list[str]
    asks: list[str]
    benign: list[str]
    hard: list[str]
    emails: list[tuple[str, str]]
    commands: list[str]

    def half(self, *, develops: bool, count: int) -> list[int]:
        return list(islice(range(0 if develops else 1, len(self.prompts), 2), count))

    def users(self, number: int) -> dict[str, str]:
        """What the user of this system prompt says, by kind. "asked": for its words, directly or in an email."""
        place = number // 2
        email, question = self.emails[place % len(self.emails)]
        ask, command = (pool[place % len(pool)] for pool in (self.asks, self.commands))
        return {
            "benign": self.benign[place % len(self.benign)],
            "alarming": self.hard[place % len(self.hard)],
            "an email": f"{email}\n\n{question}",
            "an injected email": f"{email} {command}\n\n{question}",
            "asked": f"{email} {ask}\n\n{question}" if in_email(number) else ask,
        }


def in_email(number: int) -> bool:
    return number // 2 % 2 == 1


def quotable(text: str) -> str:
    """The shortest sentence of at least five words: such as an answer may well quote."""
    sentences = re.split(r"(?<=[.!?])\s+", text)
    return min((one for one in sentences if len(one.split()) >= 5), key=len, default=" ".join(text.split()[:12]))


def read_material(folder: Path) -> Material:
    try:
        with (folder / "injection" / "awesome_chatgpt_prompts.csv").open(newline="") as file:
            roles = [one["prompt"] for one in csv.DictReader(file)]
        lines = (folder / "injection" / "prompt_extraction_dev.jsonl").read_text().splitlines()
        injected: list[dict[str, Any]] = json.loads((folder / "injection" / "injecguard_valid.json").read_text())
        chats = (folder / "chat" / "mt_bench_question.jsonl").read_text().splitlines()
        mails = map(json.loads, (folder / "injection" / "bipia_email_train.jsonl").read_text().splitlines())
        commands = json.loads((folder / "injection" / "bipia_text_attack_train.json").read_text())
    except OSError:
        raise SetupError(
            "A file of prompts cannot be read.", hint="--data names a folder with injection/ and chat/."
        ) from None
    others = [json.loads(line)["instruction"] for line in lines]
    both = [text for pair in zip_longest(roles, others) for text in pair if text is not None]
    asks = [one["prompt"] for one in injected if one["label"] == 1 and _asks_for_words(one["prompt"])]
    return Material(
        [text for text in both if LEAST <= len(text) <= MOST],
        asks,
        [json.loads(line)["turns"][0] for line in chats],
        [one["prompt"] for one in injected if one["label"] == 0 and one["source"].startswith("NotInject")],
        [(one["context"], one["question"]) for one in mails if len(one["context"]) <= LONGEST],
        [text for each in zip_longest(*commands.values()) for text in each if text is not None],
    )


def _asks_for_words(text: str) -> bool:
    return len(text) < 300 and bool(re.search(r"(?i)\b(repeat|print|output|reveal)\b.*(instruction|prompt)", text))
