"""A transformers model from parts. Refused: matrices whose products are not batch-invariant, and unused tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.initialization import no_init_weights

from cloister.compute.base import Kernels
from cloister.compute.layer import Packed
from cloister.models import torch_metas
from cloister.models.decoder import Parts, check_leftover, misshapen, refused

torch_metas.load()


class Rows:
    """Rows that every linear layer must see. Fewer: the model routes rows, and its batch changes the last bits."""

    def __init__(self, architecture: str) -> None:
        self._architecture = architecture
        self._expected = 0

    @contextmanager
    def expecting(self, rows: int) -> Iterator[None]:
        self._expected = rows
        yield

    def check(self, x: torch.Tensor) -> None:
        if self._expected not in x.shape[:2] or (x.dim() > 2 and x.shape[0] != 1):
            raise refused(self._architecture, "a linear layer sees other rows than the batch has")


class PackedLinear(nn.Module):
    def __init__(self, packed: Packed, kernels: Kernels, rows: Rows) -> None:
        super().__init__()
        self._kernels = kernels
        self._packed = packed
        self._rows = rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._rows.check(x)
        rows = x.reshape(-1, x.shape[-1])
        return self._kernels.linear(rows, self._packed).view(*x.shape[:-1], -1)


def assembled(config: PretrainedConfig, parts: Parts, kernels: Kernels, rows: Rows) -> Any:
    with no_init_weights(), _parameters_without_memory():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.eval().requires_grad_(False)
    model.tie_weights()
    _check_matrices(model, config.model_type)
    stored = _stored_names(model, parts)
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            biases = [] if module.bias is None else [stored[f"{path}.bias"]]
            packed = parts.product([stored[f"{path}.weight"]], biases)
            if (packed.columns, packed.k) != module.weight.shape:
                raise misshapen(f"{path}.weight")
            model.set_submodule(path, PackedLinear(packed, kernels, rows))
            continue
        for name, parameter in list(module.named_parameters(path, recurse=False)):
            found = parts.tensor(stored[name])
            if found.shape != parameter.shape:
                raise misshapen(name)
            setattr(module, name.rpartition(".")[2], nn.Parameter(found, requires_grad=False))
    kept = set(model.state_dict()) - {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name in kept:
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, parts.tensor(stored[name]))
    check_leftover(parts, config.model_type, model._keys_to_ignore_on_load_unexpected or ())
    return model.float()


@contextmanager
def _parameters_without_memory() -> Iterator[None]:
    """Modules made here have real buffers but only shapes of parameters, whose values come as parts."""
    register = nn.Module.register_parameter

    def register_shape(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = register_shape  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _stored_names(model: Any, parts: Parts) -> dict[str, str]:
    """Each tensor's stored name: files have older names for some; of tied ones the first that exists is read."""
    known = model.state_dict()
    found: dict[str, str] = {}
    transforms = get_model_conversion_mapping(model)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    for name in sorted(parts.names()):
        renamed, converted = rename_source_key(name, renamings, converters, model.base_model_prefix, known)
        if converted is not None and renamed in known:
            raise refused(model.config.model_type, f"'{name}' is stored in a layout that only transformers converts")
        if renamed in known:
            found.setdefault(renamed, name)
    shared: dict[int, list[str]] = {}
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
        shared.setdefault(id(tensor), []).append(name)
    stored = dict(found)
    for names in shared.values():
        first = next((found[name] for name in names if name in found), None)
        stored.update({name: first or name for name in names})
    return stored


def _check_matrices(model: nn.Module, architecture: str) -> None:
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and type(module).forward is not nn.Linear.forward:
            raise refused(architecture, f"'{path}' is no ordinary linear layer")
    known = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.Linear)}
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and id(parameter) not in known:
            raise refused(architecture, f"'{name}' is a matrix outside a linear layer")
