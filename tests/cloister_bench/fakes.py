"""Runs of known numbers, and the shape of a tiny model."""

from cloister_bench.load import RunReport

TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 49152,
}


def run(tokens_per_s: float) -> RunReport:
    return RunReport(tokens_per_s, 100.0, 100.0, 100.0, output_tokens=64)
