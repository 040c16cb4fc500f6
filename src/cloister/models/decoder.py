"""The contract of a loaded model, in named parts, packed or sealed (`sealed.py`). Knows no sequence, no sampling."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from cloister.compute.base import AttentionShape, Device, Kernels, KVCache, LinkAsker
from cloister.compute.layer import Gate, Packed, interleave_gate
from cloister.compute.layout import Batch
from cloister.errors import CloisterError, ModelCorrupt, ModelUnsupported, SetupError, where_raised

UNUSED = (r"rotary_emb\.inv_freq$",)  # old files hold these angles; models compute them
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
COUNTS = (torch.int64, torch.bool)  # positions and masks; never the type of quantised weights


class Decoder(AttentionShape, ABC):
    architecture: str
    device: Device
    vocabulary: int
    max_context: int
    width: int = 0  # of a hidden state; 0: it is not shown
    relative: bool = False  # generated tokens are rotated from 0 on (compute.layout.Layout)

    @property
    def kernels(self) -> Kernels:
        return self.device.kernels

    @abstractmethod
    def hidden(self, batch: Batch, cache: KVCache, asker: LinkAsker | None = None) -> torch.Tensor:
        """Run all layers, writing keys and values into the cache; the rows' last hidden states, fp32."""

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """The final norm's output for the given hidden states, fp32."""
        return hidden

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary] of the given hidden states, fp32."""

    def keep_private(self, layers: int) -> None:
        """From now on only vaults compute the first `layers` layers of answers to their prompts."""
        raise SetupError(
            f"Models of the architecture {self.architecture!r} are served without private layers.",
            hint="Leave out --private-layers.",
        )

    def check(self) -> None:
        """Compute a little and raise ModelUnsupported if the results are not the model's own."""


class Parts(ABC):
    """Named parts. Layers are named without the `.weight` and `.bias` of their tensors."""

    @abstractmethod
    def names(self) -> set[str]:
        """Names of all tensors, alone or as a weight of a product."""

    def has(self, name: str) -> bool:
        return name in self.names()

    @abstractmethod
    def tensor(self, name: str) -> torch.Tensor:
        """The tensor, contiguous; floating point as fp32. Not to be written to."""

    @abstractmethod
    def product(self, weights: Sequence[str], biases: Sequence[str], gate: Gate | None = None) -> Packed:
        """One product of exactly these tensors; with a gate, the two weights' columns alternate."""

    @abstractmethod
    def leftover(self) -> set[str]:
        """Names of tensors that the decoder has not used yet, except those that equal a used one."""

    def joined(self, *layers: str, gate: Gate | None = None) -> Packed:
        """One product of linear layers over the same input, columns in this order; with a gate: act(x·G) × (x·U)."""
        biases = [f"{layer}.bias" for layer in layers]
        return self.product([f"{layer}.weight" for layer in layers], biases if any(map(self.has, biases)) else (), gate)


class RawParts(Parts):
    """Packs what is asked for from the model's own tensors. Keeps nothing."""

    def __init__(self, weights: Mapping[str, torch.Tensor], kernels: Kernels) -> None:
        self._weights = weights
        self._kernels = kernels
        self._asked: set[str] = set()

    def names(self) -> set[str]:
        return set(self._weights)

    def tensor(self, name: str) -> torch.Tensor:
        found = self._raw(name)
        if found.dtype not in COUNTS:
            _check_floats(name, found)
        return (found.float() if found.is_floating_point() else found).contiguous()

    def product(self, weights: Sequence[str], biases: Sequence[str], gate: Gate | None = None) -> Packed:
        join: Callable[..., torch.Tensor] = _joined if gate is None else interleave_gate
        for name in (*weights, *biases):
            _check_floats(name, self._raw(name))
        weight = join(*(self._raw(name) for name in weights))
        bias = join(*(self._raw(name)[:, None] for name in biases))[:, 0] if biases else None
        return self._kernels.pack(weight, bias, gate)

    def leftover(self) -> set[str]:
        used = [self._weights[other] for other in self._asked]

        def is_a_copy(one: torch.Tensor) -> bool:  # files may hold tied weights twice
            others = (other for other in used if (other.dtype, other.shape) == (one.dtype, one.shape))
            return one.dim() > 1 and any(torch.equal(other, one) for other in others)

        return {name for name in set(self._weights) - self._asked if not is_a_copy(self._weights[name])}

    def _raw(self, name: str) -> torch.Tensor:
        try:
            found = self._weights[name]
        except KeyError:
            raise lacking(name) from None
        self._asked.add(name)
        return found


def _joined(*rows: torch.Tensor) -> torch.Tensor:
    return torch.cat(rows) if len(rows) > 1 else rows[0]


def _check_floats(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype not in FLOATS:
        kind = str(tensor.dtype).removeprefix("torch.")
        hint = "Serve the unquantised model (bf16, fp16 or fp32), or a GGUF file of it."
        raise ModelUnsupported(f"'{name}' is stored as {kind}: quantised weights are not served.", hint=hint)


def check_leftover(parts: Parts, architecture: str, unused: Iterable[str] = ()) -> None:
    """ModelUnsupported if a stored tensor is unused: it would be another model. `unused`: patterns of known ones."""
    known = [re.compile(pattern) for pattern in (*UNUSED, *unused)]
    if left := {name for name in parts.leftover() if not any(pattern.search(name) for pattern in known)}:
        raise ModelUnsupported(
            f"The model's weights hold '{min(left)}', which the architecture '{architecture}' does not use"
            f"{f', and {len(left) - 1} more' if len(left) > 1 else ''}.",
            hint="The weights belong to another configuration, or to a form of the model that is not served.",
        )


def refused(architecture: str, why: str) -> ModelUnsupported:
    hint = "docs/architecture.md lists the architectures that are served."
    return ModelUnsupported(f"Models of the architecture '{architecture}' are not served: {why}.", hint=hint)


@contextmanager
def refusing(architecture: str, why: str = "transformers' code for it fails here") -> Iterator[None]:
    try:
        yield
    except CloisterError:
        raise
    except Exception as failure:
        raise refused(architecture, f"{why} ({where_raised(failure)})") from failure


def lacking(name: str) -> ModelCorrupt:
    return ModelCorrupt(f"The model's weights lack '{name}'.", hint="Fetch or convert the model again.")


def misshapen(name: str) -> ModelCorrupt:
    hint = "Fetch or convert the model again."
    return ModelCorrupt(f"'{name}' has another shape than the model's configuration says.", hint=hint)
