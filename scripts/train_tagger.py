"""Train tier 2 of detection: `python scripts/train_tagger.py --shared DIR --out TAGGER.npz`.

It trains on what it generates (scripts/tagger, seeded) and on the quarters 0 and 1 of the shared sets whose licences
permit it: presidio (MIT), PUPA (MIT, ODC-BY), WNUT-17 (CC BY 4.0), nannigalaxy (MIT), self-instruct and Arena-Hard
(Apache-2.0), awesome-chatgpt-prompts (CC0), prompt-extraction and InjecGuard (MIT), and a novel in the public domain.
Quarter 2 is for `calibrate_tagger.py`, which comes next, quarter 3 for tests. Never seen: all of pii_anon, all of
MT-Bench.

Minutes on two cores. Needs torch; what it writes needs numpy alone.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

from tagger import corpora, names, sentences, values  # noqa: E402
from tagger.corpora import Text  # noqa: E402

from cloister.prefix.detection.folding import fold  # noqa: E402
from cloister.prefix.detection.words import BUCKETS, FEATURES, split  # noqa: E402

CLASSES = 9
DIMENSION, HIDDEN = 24, 32
DILATIONS = (1, 2)
WIDTH = 5
PAD_WORDS = 4
SLOT = re.compile(r"\{(\w+)\}|\[\[|\]\]|\{\{|\}\}")
OF_PRESIDIO = {
    "PERSON": "name", "STREET_ADDRESS": "street", "GPE": "place", "ORGANIZATION": "org", "CREDIT_CARD": "card",
    "DATE_TIME": "date", "PHONE_NUMBER": "phone", "AGE": "age", "NRP": "nation", "EMAIL_ADDRESS": "email",
    "ZIP_CODE": "zip", "DOMAIN_NAME": "url", "IBAN_CODE": "iban", "US_SSN": "id", "IP_ADDRESS": "ip",
    "US_DRIVER_LICENSE": "id",
}  # fmt: skip
PRONOUNS = re.compile(
    r"\b(he|she|him|they|someone|somebody|the user|the customer|the author|the teacher)\b", re.IGNORECASE
)


def filled(template: str, draw: random.Random, language: str | None) -> Text:
    """A template with its slots filled."""
    text, spans, place, opened = "", [], 0, None
    template = template.replace("\\n", "\n")
    for found in SLOT.finditer(template):
        text += template[place : found.start()]
        place = found.end()
        if found.group() == "[[":
            opened = len(text)
        elif found.group() == "]]":
            spans.append((opened, len(text), values.TRAIT))
        elif found.group(1):
            value = values.fill(found.group(1), draw, language)
            spans.append((len(text), len(text) + len(value), values.CLASS_OF[found.group(1)]))
            text += value
        else:
            text += found.group()[0]
    return text + template[place:], spans


def joined(texts: list[Text], between: str) -> Text:
    whole, spans = "", []
    for text, own in texts:
        whole += between if whole else ""
        spans += [(start + len(whole), end + len(whole), kind) for start, end, kind in own]
        whole += text
    return whole, spans


def recast(text: Text, draw: random.Random) -> Text:
    """The same text with other people and places in it."""
    whole, spans, place = "", [], 0
    for start, end, kind in sorted(text[1]):
        if start < place:
            continue
        whole += text[0][place:start]
        value = text[0][start:end]
        if kind == values.NAME and draw.random() < 0.8:
            value = names.given(draw) if draw.random() < 0.5 else names.family(draw)
        elif kind == values.PLACE and draw.random() < 0.8:
            value = names.place(draw)
        spans.append((len(whole), len(whole) + len(value), kind))
        whole += value
        place = end
    return whole + text[0][place:], spans


def peopled(text: Text, draw: random.Random) -> Text:
    """Some pronouns become names."""
    found = list(PRONOUNS.finditer(text[0]))
    if not found:
        return text
    spans = list(text[1])
    whole = text[0]
    for each in reversed(draw.sample(found, min(len(found), draw.randint(1, 3)))):
        value = values.full(draw, None) if draw.random() < 0.6 else names.given(draw)
        shift = len(value) - len(each.group())
        spans = [(s + shift, e + shift, k) if s >= each.end() else (s, e, k) for s, e, k in spans]
        spans.append((each.start(), each.start() + len(value), values.NAME))
        whole = whole[: each.start()] + value + whole[each.end() :]
    found.sort(key=lambda each: each.start())
    return whole, spans


def pieces(text: str, draw: random.Random) -> str:
    """A part of a long text, as a block is."""
    if len(text) < 500:
        return text
    start = draw.randrange(0, len(text) - 400)
    start = text.find(" ", start) + 1
    return text[start : start + draw.randint(200, 800)]


class Material:
    """Everything that may be trained on."""

    def __init__(self, folder: Path) -> None:
        sets = corpora.labelled(folder)
        self.presidio, self.pupa, self.wnut = sets["presidio"], sets["pupa"], sets["wnut17"]
        self.nannigalaxy = sets["nannigalaxy"]
        self.prompts = corpora.unlabelled(folder)
        self.novel = list(corpora.novel(folder))
        counted = Counter(
            word
            for text in (*self.prompts, *(one for one, _ in self.novel))
            for word in re.findall(r"\b[a-z]+\b", text)
        )
        nobody = {word.lower() for word in sentences.CAPITALS_THAT_NAME_NOBODY}
        self.common = {word for word, count in counted.items() if count >= 2} | nobody
        self.templates = [
            re.sub(r"\{\{(\w+)\}\}", lambda found: "{" + OF_PRESIDIO.get(found.group(1), "name") + "}", each)
            for each in corpora.presidio_templates(folder)
        ]
        self.english = sentences.EN.splitlines()
        self.local = [(language, line) for language, lines in sentences.LOCAL.items() for line in lines.splitlines()]
        self.clean = sentences.CLEAN.splitlines()

    def draw(self, draw: random.Random) -> Text:
        chance = draw.random()
        if chance < 0.26:
            text = filled(draw.choice(self.english), draw, None)
        elif chance < 0.38:
            language, line = draw.choice(self.local)
            text = filled(line, draw, language if draw.random() < 0.85 else None)
        elif chance < 0.46:
            text = filled(draw.choice(self.templates), draw, None)
        elif chance < 0.54:
            text = (draw.choice(self.clean), [])
        elif chance < 0.60:
            text = (
                re.sub(
                    r"\b(the|a)\b",
                    lambda _: draw.choice(sentences.CAPITALS_THAT_NAME_NOBODY),
                    draw.choice(self.clean),
                    count=1,
                ),
                [],
            )
        elif chance < 0.66:
            text = joined([self.draw(draw) for _ in range(draw.randint(2, 5))], draw.choice((" ", "\n", "\n\n", " ")))
        elif chance < 0.84:
            piece = pieces(draw.choice(self.prompts), draw)
            text = (piece, corpora.doubtful(piece, self.common))
            if draw.random() < 0.5:
                text = peopled(text, draw)
        elif chance < 0.91:
            text = recast(draw.choice(self.novel), draw)
            text = (
                text[0],
                text[1] + [each for each in corpora.doubtful(text[0], self.common) if not _covered(each, text[1])],
            )
        elif chance < 0.94:
            text = draw.choice(self.presidio)
        elif chance < 0.96:
            text = recast(draw.choice(self.nannigalaxy), draw)
        elif chance < 0.98:
            text = draw.choice(self.wnut)
        else:
            text = draw.choice(self.pupa)
            text = (text[0][:1500], [each for each in text[1] if each[1] <= 1500])
        chance = draw.random()
        if chance < 0.10:
            text = (text[0].lower(), text[1]) if len(text[0].lower()) == len(text[0]) else text
        elif chance < 0.12:
            text = (text[0].upper(), text[1]) if len(text[0].upper()) == len(text[0]) else text
        return text


def _covered(one: corpora.Span, spans: list[corpora.Span]) -> bool:
    return any(start < one[1] and one[0] < end for start, end, _ in spans)


BETWEEN = "\n\n"
TEXTS_AT_ONCE = 400


def gathered(material: Material, seed: int, words: int) -> dict[str, np.ndarray]:
    """So many words with their features, labels and pads between texts, as flat arrays."""
    draw = random.Random(seed)
    parts: list[dict[str, np.ndarray]] = []
    while sum(len(part["labels"]) for part in parts) < words:
        parts.append(labelled([material.draw(draw) for _ in range(TEXTS_AT_ONCE)]))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def labelled(texts: list[Text]) -> dict[str, np.ndarray]:
    """The words of all texts, with pads between one and the next; cut as one text, which is much faster."""
    whole, spans = joined(texts, BETWEEN)
    marks = np.zeros(len(whole) + 1, dtype=np.int8)
    for start, end, kind in spans:
        marks[start:end] = kind
    folded = fold(whole)
    if folded.origin is not None:
        marks = marks[folded.origin]
    cut = split(folded.text)
    ends = np.cumsum([len(text) + len(BETWEEN) for text, _ in texts])
    origins = cut.starts if folded.origin is None else folded.origin[cut.starts]
    place = np.arange(len(cut.starts)) + PAD_WORDS * np.searchsorted(ends, origins, side="right")
    total = int(place[-1]) + 1 + PAD_WORDS
    features = np.full((total, FEATURES), BUCKETS, dtype=np.int32)
    features[place] = cut.features
    labels = np.full(total, -1, dtype=np.int8)
    # The class of a word is that of any of its characters, a known one before an unknown.
    labels[place] = np.maximum.reduceat(marks[:-1], cut.starts)
    unknown = np.minimum.reduceat(marks[:-1], cut.starts) < 0
    labels[place[unknown & (labels[place] == 0)]] = -1
    counts = np.ones(total, dtype=np.int32)
    counts[place] = np.diff(cut.first)
    trigrams = np.full(int(counts.sum()), BUCKETS, dtype=np.int32)
    of_word = np.zeros(total, dtype=bool)
    of_word[place] = True
    trigrams[np.repeat(of_word, counts)] = cut.trigrams
    return {"features": features, "trigrams": trigrams, "counts": counts, "labels": labels}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(BUCKETS + 1, DIMENSION, padding_idx=BUCKETS)
        nn.init.normal_(self.table.weight, std=0.1)
        sizes = (DIMENSION, *[HIDDEN] * len(DILATIONS))
        self.layers = nn.ModuleList(
            nn.Conv1d(sizes[i], sizes[i + 1], WIDTH, dilation=d, padding=d * (WIDTH // 2))
            for i, d in enumerate(DILATIONS)
        )
        self.out = nn.Linear(HIDDEN, CLASSES)

    def forward(
        self, features: torch.Tensor, trigrams: torch.Tensor, offsets: torch.Tensor, train: bool
    ) -> torch.Tensor:
        """Of one long row of words: (n, CLASSES). Pads are zeros in every layer, as what lies beyond a text is."""
        beyond = (features[:, 0] == BUCKETS).float().unsqueeze(0)
        inside = 1 - beyond
        if train:  # so that what was never seen is known by its neighbours and its letters
            features = features.clone()
            features[torch.rand(len(features), device=features.device) < 0.3, 0] = BUCKETS
            features[torch.rand(features.shape, device=features.device) < 0.06] = BUCKETS
        row = self.table(features).sum(1)
        row = row + nn.functional.embedding_bag(trigrams, self.table.weight, offsets, mode="mean", padding_idx=BUCKETS)
        hidden = row.t() * inside
        for number, layer in enumerate(self.layers):
            following = torch.relu(layer(hidden.unsqueeze(0)).squeeze(0))
            if train:
                following = nn.functional.dropout(following, 0.15)
            hidden = (following if number == 0 else hidden + following) * inside
        return self.out(hidden.t())


def train(material: Material, arguments: argparse.Namespace) -> Net:
    device = torch.device(arguments.device)
    torch.manual_seed(arguments.seed)
    net = Net().to(device)
    step_words = 8192
    weight = torch.ones(CLASSES, device=device)
    weight[1:] = 1.5
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    made = gathered(material, 1 + arguments.seed, arguments.words)
    print(f"{len(made['labels'])} words", flush=True)
    tensors = {name: torch.from_numpy(array).to(device) for name, array in made.items()}
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64, device=device), tensors["counts"].long().cumsum(0)))
    starts = list(range(0, len(made["labels"]), step_words))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1.2e-2, total_steps=arguments.rounds * len(starts), pct_start=0.15
    )
    for number in range(arguments.rounds):
        begun, losses = time.monotonic(), []
        random.Random(number).shuffle(starts)
        for start in starts:
            end = min(start + step_words, len(made["labels"]))
            first, last = int(offsets[start]), int(offsets[end])
            scores = net(
                tensors["features"][start:end].long(),
                tensors["trigrams"][first:last].long(),
                offsets[start:end] - first,
                True,
            )
            loss = nn.functional.cross_entropy(scores, tensors["labels"][start:end].long(), weight, ignore_index=-1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        np.savez_compressed(arguments.out, **packed(net))
        print(f"round {number + 1}: loss {np.mean(losses):.4f}, {time.monotonic() - begun:.0f} s", flush=True)
    return net


def packed(net: Net) -> dict[str, np.ndarray]:
    """What the tagger loads: the table in int8 with a scale for each column, the rest in half precision."""
    table = net.table.weight.detach().cpu().numpy()[:BUCKETS]
    scale = np.abs(table).max(0) / 127
    arrays = {"table": np.round(table / scale).astype(np.int8), "scale": scale.astype(np.float32)}
    for number, layer in enumerate(net.layers):
        kernel = layer.weight.detach().cpu().numpy()  # (out, in, width)
        arrays[f"kernel{number}"] = kernel.transpose(2, 1, 0).reshape(-1, kernel.shape[0]).astype(np.float16)
        arrays[f"bias{number}"] = layer.bias.detach().cpu().numpy().astype(np.float16)
    arrays["out"] = net.out.weight.detach().cpu().numpy().T.astype(np.float16)
    arrays["out_bias"] = net.out.bias.detach().cpu().numpy().astype(np.float16)
    arrays["dilations"] = np.array(DILATIONS, dtype=np.int64)
    return arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, required=True, help="the folder that has data/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--words", type=int, default=500_000, help="words generated, pads included")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    net = train(Material(arguments.shared), arguments)
    np.savez_compressed(arguments.out, **packed(net))
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
