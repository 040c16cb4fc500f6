"""Compact virtual prompts: a plain transformer with the same masks says the same, memory falls, nothing depends on
which prompt is real, and no exact answer ever meets an approximate key."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
import torch
from msgspec.structs import replace as replaced

from cloister.compute.layout import BLOCK_TOKENS, Chunk, Layout, Wanted
from cloister.errors import InvalidRequest, PromptTooLong
from cloister.gateway.schema import ObfuscationOptions
from cloister.messages.controller_vault import LeaseCores, Prefilled
from cloister.messages.generation import Failed
from cloister.messages.prompts import ChatPrompt, ObfuscationParams, ObfuscationSecrets, PromptMessage, TextPrompt
from cloister.models.decoder import Decoder
from cloister.obfuscation.index import REQUEST, Prf
from cloister.vault.compact import Compact
from cloister.vault.partitioned import _Prompts
from tests.caches import bytes_of
from tests.models.architectures import CONFIGS, random_model
from tests.vault.node import SETTINGS, FakeAnswerer, Room, engine_answer, small_decoder
from tests.vault.test_obfuscating import SECRET, prefilled

BEFORE, BETWEEN = "A letter with an ordinary beginning: I am ", " and I would like to know what one may do in "
AFTER = " on a Sunday in November, when it rains, and the shops are closed. Please answer in one sentence."
TEXT = f"{BEFORE}<redacted>Ann</redacted>{BETWEEN}<redacted>Ghent</redacted>{AFTER}"
REAL, GIVEN = ("Ann", "Ghent"), (("Robert", "Oslo"), ("Eve", "Liege"), ("Kim", "Rotterdam"))
COMPACT, EXACT = ObfuscationParams(fakes=3, compact=True), ObfuscationParams(fakes=3)
STEPS = 6


def hidden(text: str = TEXT, given: Any = GIVEN, secret: bytes = SECRET) -> TextPrompt:
    return TextPrompt(text, hidden=ObfuscationSecrets(secret, given))


def ask(room: Room, number: int, params: ObfuscationParams, prompt: Any = None, **more: Any) -> Prefilled:
    room.confide(number, prompt or hidden(), "obfuscated", params, **more)
    room.serve()
    return prefilled(room, number)


def in_use(room: Room) -> int:
    return room.pool.total - room.pool.free


def plain_answer(model: Any, values: tuple[str, str], widths: tuple[int, int], public: str = "") -> list[int]:
    """Greedy, by transformers' code: common tokens see common ones, a secret what precedes it, and what is left of the
    text behind whole blocks everything before it. Positions leave room for the longest secret."""
    pieces = [public + BEFORE, values[0], BETWEEN, values[1], AFTER]
    tokens = [list(piece.encode()) for piece in pieces]
    room = [len(tokens[0]), widths[0], len(tokens[2]), widths[1], len(tokens[4])]
    starts = [sum(room[:at]) for at in range(5)]
    common = len(tokens[0]) + len(tokens[2]) + len(tokens[4]) - 1
    common -= (common - len(public)) % BLOCK_TOKENS
    left = len(tokens[0]) + len(tokens[2]) + len(tokens[4]) - common
    flat = [(token, starts[at] + place, at) for at in range(5) for place, token in enumerate(tokens[at])]
    kinds = ["own" if at in (1, 3) or index >= len(flat) - left else "common" for index, (_, _, at) in enumerate(flat)]
    ids, positions = [one[0] for one in flat], [one[1] for one in flat]
    answer: list[int] = []
    for _ in range(STEPS):
        size = len(ids)
        seen = torch.ones(size, size, dtype=torch.bool).tril()
        for row, column in product(range(len(flat)), repeat=2):
            if kinds[row] == "common" and kinds[column] == "own":
                seen[row, column] = False
        mask = torch.zeros(1, 1, size, size).masked_fill(~seen, torch.finfo(torch.float32).min)
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([ids]), position_ids=torch.tensor([positions]), attention_mask=mask
            ).logits[0, -1]
        answer.append(int(logits.argmax()))
        ids.append(answer[-1])
        positions.append(starts[4] + len(tokens[4]) + len(answer) - 1)
    return answer


def vault_answers(room: Room, found: Prefilled) -> list[list[int]]:
    """As service and vault would compute them, with the exposed blocks."""
    public, pool = len(found.public), room.pool
    answers = []
    for first in found.sequences:
        exposed = room.answerer.exposed[first.slot]
        layout = Layout(prompt=exposed.end, public=public, rotation=exposed.rotation)
        head = list(
            room.vault._partitioned._exposed[1].sequences[0].blocks.all[: Layout(public, public).blocks(public)]
        )
        own = pool.allocate(1)
        assert own is not None
        said = [first.token]
        for step in range(STEPS - 1):
            blocks = [*head, *exposed.blocks, *own]
            logits = room.runner.forward([Chunk(said[-1:], layout.prompt + step, blocks, layout, Wanted.LAST)])
            said.append(int(logits[0].argmax()))
        pool.release(own)
        answers.append(said)
    return answers


@pytest.mark.parametrize("name", ["llama", "qwen2"])
@pytest.mark.parametrize("public", ["", "Be brief and kind."], ids=["private", "public"])
def test_answers_are_those_of_a_plain_transformer_with_the_same_masks(name: str, public: str) -> None:
    room = Room(small_decoder(name))
    prompt: Any = hidden()
    if public:
        turns = (PromptMessage("system", public, public=True), PromptMessage("user", TEXT))
        prompt = ChatPrompt(turns, ObfuscationSecrets(SECRET, GIVEN))
    found = ask(room, 1, COMPACT, prompt)
    model, columns = random_model(CONFIGS[name]), list(zip(REAL, *GIVEN, strict=True))
    widths = tuple(max(map(len, column)) for column in columns)
    order = Prf(SECRET).order(REQUEST, 4)
    expected = order.shuffled([plain_answer(model, values, widths, public) for values in (REAL, *GIVEN)])  # type: ignore[arg-type]
    assert vault_answers(room, found) == expected
    assert len({tuple(answer) for answer in expected}) > 1, "the secret matters"
    room.answerer.close()


def test_memory_and_work_fall_to_what_is_common_and_what_is_each_prompts_own(llama: Decoder) -> None:
    used, rows = {}, {}
    for params in (EXACT, COMPACT):
        room = Room(llama)
        ask(room, 1, params)
        used[params.compact], rows[params.compact] = in_use(room), room.decoder.rows
        room.answerer.close()
    rest = len(BEFORE + BETWEEN + AFTER)
    common = (rest - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    own = [rest - common + len("".join(values)) for values in (REAL, *GIVEN)]
    assert rows[True] == common + sum(own) and rows[False] > 3 * rows[True] // 2
    assert used[True] == common // BLOCK_TOKENS + sum(-(-length // BLOCK_TOKENS) for length in own)
    assert used[False] >= used[True] + 3 * len(BETWEEN + AFTER) // BLOCK_TOKENS - 3


def test_a_long_prompt_that_does_not_fit_exactly_fits_compactly(llama: Decoder, answerer: FakeAnswerer) -> None:
    room = Room(llama, SETTINGS.model_copy(update={"vault_kv_mib": 1}), answerer)
    text = TEXT + "".join(f" Line {number} of it." for number in range(12))
    exact = room.confide(1, hidden(text), "obfuscated", EXACT)
    assert isinstance(exact, Failed) and exact.code == PromptTooLong.code
    assert len(ask(room, 2, COMPACT, hidden(text)).sequences) == 4


def view(room: Room, found: Prefilled) -> list[Any]:
    """All that reaches the service or may: first tokens, and what questions would be answered from."""
    seen: list[Any] = [found.max_tokens, found.public]
    for first in found.sequences:
        exposed = room.answerer.exposed[first.slot]
        held = [bytes_of(room.runner.cache, block) for block in exposed.blocks]
        seen.append((first.token, first.logprob, first.rotation, exposed.end, exposed.rotation, exposed.blocks, held))
    return seen


def test_which_prompt_is_real_changes_no_bit_of_what_a_service_may_see(llama: Decoder) -> None:
    """Three vaults, each with another real prompt, and secrets by which the same prompts go out in the same order."""
    values = [REAL, *GIVEN]
    wanted = Prf(SECRET).order(REQUEST, 4).shuffled(values)
    views = []
    for real in (0, 1, 3):
        mine = [values[real], *(value for value in values if value is not values[real])]
        keys = (number.to_bytes(32, "big") for number in range(10_000))
        secret = next(key for key in keys if Prf(key).order(REQUEST, 4).shuffled(mine) == wanted)
        text = f"{BEFORE}<redacted>{mine[0][0]}</redacted>{BETWEEN}<redacted>{mine[0][1]}</redacted>{AFTER}"
        room = Room(llama)
        views.append(view(room, ask(room, 1, COMPACT, hidden(text, tuple(mine[1:]), secret), logprobs=2)))
        room.answerer.close()
    assert views[0] == views[1] == views[2]


def test_all_prompts_share_the_same_blocks_and_equally_long_ones_have_equal_shapes(room: Room) -> None:
    given = (("Bob", "Paris"), ("Eve", "Liege"), ("Kim", "Delft"))
    found = ask(room, 1, COMPACT, hidden(given=given))
    exposed = [room.answerer.exposed[first.slot] for first in found.sequences]
    assert len({(one.start, one.end, one.rotation, len(one.blocks)) for one in exposed}) == 1
    common = len(BEFORE + BETWEEN + AFTER) // BLOCK_TOKENS
    assert len({one.blocks[:common] for one in exposed}) == 1
    assert len({one.blocks[common:] for one in exposed}) == 4


def test_all_is_wiped_at_the_end(room: Room) -> None:
    ask(room, 1, COMPACT)
    assert in_use(room)
    room.release(1)
    room.forget()
    assert not room.answerer.exposed and not in_use(room)
    assert not any(any(bytes_of(room.runner.cache, block)) for block in range(room.runner.cache.blocks))


def test_one_that_is_cancelled_half_way_leaves_nothing(room: Room) -> None:
    room.confide(1, hidden(), "obfuscated", COMPACT)
    room.say(LeaseCores(1, 20))
    assert in_use(room)
    room.cancel(1)
    room.serve()
    room.forget()
    assert not in_use(room) and not room.answerer.exposed


def exact_answers(llama: Decoder, *, after_compact: bool) -> list[Any]:
    """Of the exact form, and of one prompt at `partitioned`; perhaps in a session that has served the compact form."""
    room = Room(llama)
    if after_compact:
        ask(room, 1, COMPACT)
        room.release(1)
    found: list[Any] = [replaced(first, slot=0) for first in ask(room, 2, EXACT, logprobs=3).sequences]
    room.confide(3, BEFORE + "Ann" + BETWEEN + "Ghent" + AFTER, logprobs=3)
    room.serve()
    found.append(room.first(3).logprob)
    room.answerer.close()
    return found


def test_no_exact_answer_depends_on_what_was_compact_before(llama: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = exact_answers(llama, after_compact=False)
    assert exact_answers(llama, after_compact=True) == fresh
    _, logprobs = engine_answer(llama, (BEFORE + "Ann" + BETWEEN + "Ghent" + AFTER).encode(), logprobs=3)
    assert fresh[-1] == logprobs[0]
    # A vault that remembered compact prompts would answer wrongly afterwards.
    make_compact = _Prompts.make_compact

    def remembered(self: _Prompts, *args: Any) -> None:
        make_compact(self, *args)
        for sequence in self.sequences:
            sequence.prefix.policy = "partition"

    monkeypatch.setattr(_Prompts, "make_compact", remembered)
    assert exact_answers(llama, after_compact=True) != fresh


@pytest.mark.parametrize("reason", ["window", "context", "nothing follows"])
def test_where_it_cannot_be_or_saves_nothing_prompts_are_exact(llama: Decoder, reason: str) -> None:
    text, room = TEXT, Room(llama)
    if reason == "window":
        room.vault._reader._windowed = True
    elif reason == "context":
        room.runner.max_context = len(BEFORE + "Rotterdam" + BETWEEN + "Rotterdam" + AFTER)
    else:
        text = f"{BETWEEN}{AFTER}{BEFORE}<redacted>Ann</redacted> of <redacted>Ghent</redacted>"
    found = ask(room, 1, COMPACT, hidden(text), max_tokens=1)
    order = Prf(SECRET).order(REQUEST, 4)
    real = text.replace("<redacted>", "").replace("</redacted>", "")
    [token], _ = engine_answer(llama, tuple(real.encode()), max_tokens=1)
    assert found.sequences[order.authentic].token == token
    assert not any(prompts.compact for prompts in room.vault._partitioned._exposed.values())
    room.answerer.close()


def test_a_node_may_refuse_it(llama: Decoder, answerer: FakeAnswerer) -> None:
    room = Room(llama, SETTINGS.model_copy(update={"compact_prompts": False}), answerer)
    refused = room.confide(1, hidden(), "obfuscated", COMPACT)
    assert isinstance(refused, Failed) and refused.code == InvalidRequest.code and not in_use(room)
    assert len(ask(room, 2, EXACT).sequences) == 4, "the exact form is served"


def test_it_is_off_unless_the_request_says_so() -> None:
    assert not ObfuscationParams().compact and not ObfuscationOptions().params.compact
    assert ObfuscationOptions(compact=True).params.compact


def test_every_token_is_computed_once_and_common_ones_at_one_position() -> None:
    for seed in range(500):
        draw = random.Random(seed)
        texts = [[draw.randrange(50) for _ in range(draw.choice([0, 3, 20, 40]))] for _ in range(draw.randrange(1, 5))]
        prompts = [
            [1, *texts[0], *(token for text in texts[1:] for token in (*_word(draw), *text))]
            for _ in range(draw.randrange(2, 5))
        ]
        public = draw.choice([0, 1 + len(texts[0]) // 2])
        compact = Compact(prompts, public)
        if not compact.saves:
            continue
        assert (compact.common - public) % BLOCK_TOKENS == 0
        for variant, prompt in enumerate(prompts):
            blocks = list(range(compact.layout(variant, relative=True).blocks(len(prompt))))
            done = compact.common if variant else 0
            said: list[int] = []
            while done + len(said) < len(prompt):
                chunk = compact.chunk(variant, done + len(said), draw.randrange(1, 40), blocks)
                assert len(chunk.blocks) >= chunk.layout.blocks(chunk.start + len(chunk.tokens))
                said += chunk.tokens
            assert compact.ends[variant] >= len(prompt)
            assert variant or sorted(said) == sorted(prompt)


def _word(draw: random.Random) -> list[int]:
    return [draw.randrange(50, 60) for _ in range(draw.randrange(5))]
