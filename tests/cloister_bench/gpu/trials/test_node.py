"""What trials with a node do that needs no GPU: how they compare answers."""

from cloister_bench.gpu.trials.serve import Answer, divergence


def test_the_first_step_that_differs_is_found_and_says_whether_the_logits_do() -> None:
    right: Answer = [("a", -1.0, [("a", -1.0)]), ("b", -2.0, [("c", -1.5)]), ("d", -1.0, [("d", -1.0)])]
    assert divergence(right, right) is None
    drawn = [right[0], ("c", -1.5, [("c", -1.5)]), ("e", -9.0, [("e", -9.0)])]
    assert divergence(drawn, right)["step"] == 1 and not divergence(drawn, right)["logits_differ"]
    computed = [right[0], ("b", -2.0, [("c", -1.4)]), right[2]]
    found = divergence(computed, right)
    assert found["step"] == 1 and found["logits_differ"]
    assert divergence(right[:2], right)["lengths_differ"]
