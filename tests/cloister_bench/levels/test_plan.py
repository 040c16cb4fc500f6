import json

from cloister.levels import LEVELS
from cloister_bench.levels import FAKES, OTHERS, SECRET, SERVED, WORDS, Plan, WordsLoad


def asked(load: WordsLoad, *names: object) -> dict[str, object]:
    return dict(json.loads(load.request("m", None, *names)))


def test_every_level_but_mpc_is_measured_plain_and_where_there_is_a_vault_with_a_session() -> None:
    assert {*SERVED, "mpc"} == set(LEVELS)
    for plan in (Plan(), Plan(users=(1, 8))):
        sides = {(side.load.protection, side.load.sessions) for side in plan.sides()}
        assert sides == {(level, session) for level in SERVED for session in (False, LEVELS[level].uses_vault)}
        assert len(set(plan.sides())) == len(plan.sides())


def test_what_is_compared_has_open_among_it_and_obfuscated_only_for_few_users() -> None:
    for users in Plan().users:
        sides = [side.side for side in Plan().sides() if side.users == users]
        assert sides[0] == "open" and sides.count("open") == 1 and ("obfuscated" in sides) == (users <= 8)


def test_all_levels_get_the_same_words_and_obfuscated_has_one_of_them_marked() -> None:
    plain = asked(WordsLoad(protection="open"), 8, "run", 3, 0)
    marked = asked(WordsLoad(protection="obfuscated"), 8, "run", 3, 0)
    assert str(marked["prompt"]).replace("<redacted>", "").replace("</redacted>", "") == plain["prompt"]
    assert str(marked["prompt"]).count("<redacted>") == 1 and marked["obfuscation"] == {
        "fakes": FAKES,
        "substitutes": OTHERS,
    }
    assert "obfuscation" not in plain
    words = str(plain["prompt"]).split()
    assert len(words) == 64 and words.count(SECRET) == 1 and set(words) - {SECRET} <= set(WORDS)
    assert asked(WordsLoad(protection="open"), 8, "run", 3, 1)["prompt"] != plain["prompt"]


def test_warm_up_answers_are_short() -> None:
    load = WordsLoad(output_tokens=64)
    assert (asked(load, 1, "warmup", 0, 0)["max_tokens"], asked(load, 1, "run", 0, 0)["max_tokens"]) == (2, 64)
