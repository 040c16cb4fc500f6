import json
from pathlib import Path

from cloister.levels import LEVELS
from cloister_bench.levels import Plan, Results, readme_table
from cloister_bench.peers import figures, tables
from cloister_bench.suite.documents import draw_figures, find
from tests.cloister_bench.fakes import run

PLAN = Plan(users=(1, 8), rounds=3)
SPEED = {"open": 100.0, "shared": 90.0, "partitioned": 80.0, "obfuscated": 20.0, "isolated": 50.0}


def results() -> Results:
    """Other load halves the speed of all sides in the second round."""
    made = Results(PLAN, "small")
    for side in PLAN.sides():
        for round, share in enumerate((1.0, 0.5, 0.9)):
            level, session = side.load.protection, side.load.sessions
            made.add(side, round, run(SPEED[level or ""] * share * (1.1 if session else 1.0)))
    return made


def row(table: str, level: str) -> list[str]:
    [found] = [line for line in table.splitlines() if line.startswith(f"| `{level}`")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_a_ratio_compares_within_its_round_and_a_speed_is_the_median() -> None:
    runs = json.loads(json.dumps(results().document()))["runs"]
    entry = find(runs, level="partitioned", session=False, users=8)
    assert entry is not None and (entry["ratio"], entry["tokens_per_s"]) == (0.8, 72.0)
    kept = find(runs, level="partitioned", session=True, users=8)
    assert kept is not None and kept["ratio"] == 0.88


def test_a_side_without_open_in_its_round_has_no_ratio() -> None:
    made = Results(PLAN, "small")
    sides = {side.side: side for side in PLAN.sides() if side.users == 1}
    made.add(sides["open"], 0, run(10.0))
    made.add(sides["isolated"], 1, run(10.0))
    [_, isolated] = made.document()["runs"]
    assert isolated["ratio"] is None
    assert "1 users: - of `open`" in row(readme_table(made.document()), "isolated")[3]


def test_the_readme_s_table_has_every_level_with_its_words() -> None:
    document = results().document() | {"mpc": {"seconds_per_token": 11.2, "first_token_s": 60.0}}
    table = readme_table(document)
    for level in LEVELS.values():
        cells = row(table, level.name)
        assert cells[1].startswith(level.service_sees) and cells[2].startswith(level.others_learn) and len(cells) == 5
    assert row(table, "open")[3].startswith("1 / 8 users: 90 / 90 tokens/s; first token ")
    assert row(table, "partitioned")[0].endswith("(default)")
    assert "0.80 / 0.80 of `open`" in row(table, "partitioned")[3]
    assert "0.88 / 0.88 of `open`" in row(table, "partitioned")[4]
    assert row(table, "shared")[4] == "the same"
    assert row(table, "mpc")[3].startswith("1 user: 11.2 s for each token, 60 s for the first")


def test_what_was_not_measured_says_that_it_was_not() -> None:
    document = Results(PLAN, "small").document()
    assert row(readme_table(document), "open")[3] == row(readme_table(document), "mpc")[3] == "not measured"


def test_the_figure_is_drawn_and_the_table_has_all_runs(tmp_path: Path) -> None:
    document = results().document()
    assert len(tables(document)[0].rows) == len(PLAN.sides())
    assert [path.name for path in draw_figures(document, tmp_path, figures("levels"))] == ["levels.png"]
