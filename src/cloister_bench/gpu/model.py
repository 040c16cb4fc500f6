"""The model that is measured: the shape of Llama-3-8B with random weights, which take as long as others; its bytes."""

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from cloister.models.source import PlainConfig
from cloister_bench.gpu.mps import pipe_folder

if TYPE_CHECKING:
    import torch

    from cloister.compute.gpu.device import GpuDevice
    from cloister.models.fused import FusedDecoder

MAX_CONTEXT = 4096
DEFAULT_PROCESSES = 8
SHAPE = PlainConfig(
    model_type="llama",
    hidden_act="silu",
    hidden_size=4096,
    intermediate_size=14336,
    vocab_size=128256,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    max_position_embeddings=8192,
    tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
)


def step_bytes(users: int, context: int, config: PlainConfig = SHAPE) -> int:
    """The fewest bytes that a step reads. The embedding is not read whole, the output layer is."""
    hidden, dim = config.hidden_size, config.head_dim
    attention = 2 * (config.num_attention_heads + config.num_key_value_heads) * dim
    layer = (attention + 3 * config.intermediate_size) * hidden
    token = 4 * config.num_key_value_heads * dim * config.num_hidden_layers
    return 2 * (config.num_hidden_layers * layer + config.vocab_size * hidden) + users * context * token


class RandomWeights(dict[str, Any]):
    """The size of each tensor by its name; looked up, it is made on the GPU."""

    def __init__(self, config: PlainConfig = SHAPE) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        known = {name: value for name, value in asdict(config).items() if name not in ("model_type", "sliding_window")}
        with torch.device("meta"):
            named = LlamaForCausalLM(LlamaConfig(**known)).named_parameters()
        super().__init__((name, tuple(each.shape)) for name, each in named)

    def __getitem__(self, name: str) -> "torch.Tensor":
        import torch

        size: tuple[int, ...] = super().__getitem__(name)
        if len(size) == 1:
            return torch.rand(size, device="cuda") + 0.5
        drawn: torch.Tensor = torch.randn(size, device="cuda") * float(size[1]) ** -0.5
        return drawn.bfloat16()


def opened_device() -> "GpuDevice":
    import torch

    from cloister.compute.gpu.device import GpuDevice

    device = GpuDevice()
    if folder := pipe_folder():
        device.share(folder, DEFAULT_PROCESSES)
    device.open()
    torch.manual_seed(5)
    return device


def random_decoder() -> "FusedDecoder":
    """Opens the GPU; the same weights in every process."""
    from cloister.models.decoder import RawParts
    from cloister.models.fused import FusedDecoder

    device = opened_device()
    return FusedDecoder(SHAPE, RawParts(RandomWeights(), device.kernels), device, MAX_CONTEXT)
