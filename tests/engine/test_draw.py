from collections import Counter

from cloister.engine.draw import uniform


def test_a_draw_is_a_function_of_seed_and_index():
    assert uniform(7, 3) == uniform(7, 3)
    assert len({uniform(seed, index) for seed in range(50) for index in range(50)}) == 2500


def test_draws_are_uniform_along_indices_and_along_seeds():
    for draws in ([uniform(1, i) for i in range(20_000)], [uniform(s, 0) for s in range(20_000)]):
        assert all(0 <= u < 1 for u in draws)
        cells = Counter(int(u * 20) for u in draws)
        chi_square = sum((cells[c] - 1000) ** 2 / 1000 for c in range(20))
        assert chi_square < 43.8  # 19 degrees of freedom, p = 0.001


def test_neighbouring_seeds_and_indices_are_uncorrelated():
    pairs = [(uniform(s, 0), uniform(s + 1, 0)) for s in range(5000)]
    pairs += [(uniform(s, 1), uniform(s + 1, 0)) for s in range(5000)]
    correlation = sum((a - 0.5) * (b - 0.5) for a, b in pairs) / len(pairs) * 12
    assert abs(correlation) < 0.05
