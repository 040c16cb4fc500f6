from cloister_bench.spd.plan import FULL, LEVELS, QUICK
from cloister_bench.suite.measurement import Point


def test_all_levels_meet_under_every_load_but_those_left_out_with_a_reason() -> None:
    for plan in (FULL, QUICK):
        points = [*plan.points("users"), *plan.points("lengths"), *plan.points("model")]
        missing = {
            (*point.load, level)
            for point in points
            for level in LEVELS
            if not any(other.level == level and other.load == point.load for other in points)
        }
        assert missing <= {(*point.load, point.level) for _, point, _ in plan.left_out()}


def test_the_paper_is_covered() -> None:
    assert [point.users for point in FULL.points("users") if point.level == "isolated"] == [1, 2, 4, 8, 16, 32]
    assert set(FULL.lengths) >= {(n, n) for n in (64, 128, 256, 512)} | {(512, 64), (64, 512)}
    assert {point.users for point in FULL.breakdown_points()} == {8, 32}
    left_out = {(point.level, point.output_tokens) for _, point, _ in FULL.left_out()}
    assert left_out == {("isolated", 256), ("isolated", 512)}


def test_what_decodes_alone_is_asked_less_of() -> None:
    isolated = [point for point in FULL.points("users") if point.level == "isolated"]
    assert all(point.requests == 1 for point in isolated)
    assert all(point.optional and point.rounds == 1 for point in isolated if point.users > 8)
    assert not any(point.optional for point in isolated if point.users <= 8)


def test_a_point_says_what_it_is() -> None:
    assert str(Point("open", 1, 64, 32)) == "open, 1 user, 64 in, 32 out"
