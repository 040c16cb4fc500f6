"""The shapes of models that are measured, and the fewest bytes a step of one must read. Nothing computes here."""

from cloister.models.source import PlainConfig


def _llama(
    hidden: int, inner: int, layers: int, heads: int, kv_heads: int, dim: int, vocabulary: int, *, tied: bool = False
) -> PlainConfig:
    return PlainConfig(
        model_type="llama",
        hidden_act="silu",
        hidden_size=hidden,
        intermediate_size=inner,
        vocab_size=vocabulary,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=dim,
        rms_norm_eps=1e-5,
        max_position_embeddings=8192,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )


LLAMA_3_8B = "Llama-3-8B"
SHAPES: dict[str, PlainConfig] = {
    LLAMA_3_8B: _llama(4096, 14336, 32, 32, 8, 128, 128256),
    "Llama-3.2-1B": _llama(2048, 8192, 16, 32, 8, 64, 128256, tied=True),
    "Llama-3.2-3B": _llama(3072, 8192, 28, 24, 8, 128, 128256, tied=True),
    "Code-Llama-13B": _llama(5120, 13824, 40, 40, 40, 128, 32016),
    "Code-Llama-34B": _llama(8192, 22016, 48, 64, 8, 128, 32000),
}


def token_bytes(config: PlainConfig) -> int:
    return 4 * config.num_key_value_heads * config.head_dim * config.num_hidden_layers


def weight_bytes(config: PlainConfig) -> int:
    """Of what a step reads whole: the embedding is not, unless it is the output layer, too."""
    hidden, dim = config.hidden_size, config.head_dim
    attention = 2 * (config.num_attention_heads + config.num_key_value_heads) * dim
    layer = (attention + 3 * config.intermediate_size) * hidden
    return 2 * (config.num_hidden_layers * layer + config.vocab_size * hidden)


def step_bytes(config: PlainConfig, users: int, context: int) -> int:
    return weight_bytes(config) + users * context * token_bytes(config)
