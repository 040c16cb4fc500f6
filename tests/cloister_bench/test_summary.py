from pathlib import Path

import pytest

from cloister.errors import SetupError
from cloister_bench.load import Answer, summarise
from cloister_bench.suite.documents import write_json


def test_throughput_runs_from_the_first_request_sent_to_the_last_token() -> None:
    answers = [Answer(10.0, 10.1, 12.0, 20), Answer(11.0, 11.3, 14.0, 30)]
    run = summarise(answers, ["timeout"])
    assert run.output_tokens_per_s == pytest.approx(50 / 4.0)
    assert run.ttft_ms == pytest.approx(200)
    assert run.token_ms == pytest.approx(500 * (1.9 / 19 + 2.7 / 29), abs=1e-3)
    assert (run.output_tokens, run.errors, run.errors_by_kind) == (50, 1, {"timeout": 1})


def test_a_run_without_answers_is_zero_and_nothing() -> None:
    run = summarise([], ["connection"] * 4)
    assert (run.output_tokens_per_s, run.ttft_ms, run.errors) == (0.0, None, 4)


def test_a_file_that_cannot_be_written_is_an_error_to_act_on(tmp_path: Path) -> None:
    with pytest.raises(SetupError):
        write_json({}, tmp_path)
