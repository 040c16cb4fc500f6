"""A GGUF file seen as a Hugging Face model: transformers maps names and layouts, `gguf` reads the quantised formats."""

import json
import logging
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers.modeling_gguf_pytorch_utils as maps
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from cloister.errors import ModelCorrupt, ModelUnsupported
from cloister.models import torch_metas
from cloister.models.gguf_tokenizer import GgufTokenizer
from cloister.models.weights import ShardWriter

torch_metas.load()

_CARRIED = {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "logit_scale": "logit_scale",
}  # fields that transformers' map drops for some architectures
_FACTORS = ("attention.scale", "attention.clamp_kqv", "attention.max_alibi_bias", "embedding_scale", "residual_scale")
_GEMMA3_27B_LAYERS = 62

_HINT = "Give the model as a Hugging Face folder with safetensors instead."


class GgufFile:
    """Opening it reads the header only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except (ValueError, IndexError, KeyError, UnicodeDecodeError, struct.error, OSError) as wrong:
            raise ModelCorrupt(f"{path} is not a readable GGUF file.", hint="Fetch it again.") from wrong
        self.architecture = str(self._field("general.architecture") or "unknown")
        self._refuse_what_transformers_would_misread()

    @cached_property
    def config(self) -> PreTrainedConfig:
        with self._unsupported_if_it_fails("its configuration cannot be read"):
            config: PreTrainedConfig = AutoConfig.from_pretrained(str(self.path.parent), gguf_file=self.path.name)
        config.dtype = torch.bfloat16
        if (head := self._field(f"{self.architecture}.attention.key_length")) and hasattr(config, "head_dim"):
            config.head_dim = int(head)  # transformers' map knows it for some architectures only
        self._carry_over(config)
        config.__dict__.pop("_model_name_or_path", None)
        return config

    @cached_property
    def _model(self) -> PreTrainedModel:
        """The architecture without weights: it says which tensors there must be."""
        with self._unsupported_if_it_fails("it is not a decoder-only model transformers knows"), torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(self.config)
        return model

    def write_description(self, folder: Path) -> None:
        self.config.architectures = [type(self._model).__name__]
        self.config.save_pretrained(folder)
        with self._unsupported_if_it_fails("its tokenizer cannot be read"):
            tokenizer = GgufTokenizer(self.path, self.architecture, self._field)
            tokenizer.write(folder, getattr(self.config, "max_position_embeddings", None))
            ends, configured = tokenizer.ends, self.config.eos_token_id
            if isinstance(configured, list):
                ends = list(dict.fromkeys([*configured, *ends]))
        generation = {"bos_token_id": self.config.bos_token_id, "pad_token_id": self.config.pad_token_id}
        generation["eos_token_id"] = ends[0] if len(ends) == 1 else ends or None
        present = {key: value for key, value in generation.items() if value is not None}
        (folder / "generation_config.json").write_text(json.dumps(present, indent=2) + "\n")

    def write_weights(self, path: Path, progress: Callable[[float], None]) -> None:
        """Dequantise tensor by tensor into one bf16 safetensors file; `progress` gets the part done."""
        wanted = {name: tuple(tensor.shape) for name, tensor in self._model.state_dict().items()}
        if self.config.tie_word_embeddings:
            wanted.pop("lm_head.weight", None)
        with closing(ShardWriter(path, wanted, torch.bfloat16)) as writer:
            for name, tensor in self._tensors(progress):
                if name not in wanted:
                    raise self._unsupported(f"it holds {name}, which the model does not use")
                if tuple(tensor.shape) != wanted[name]:
                    shapes = f"{tuple(tensor.shape)}, the model needs {wanted[name]}"
                    raise self._unsupported(f"its tensor {name} is {shapes}")
                writer.write(name, tensor)
            if writer.missing:
                raise self._unsupported(f"it lacks {len(writer.missing)} tensors, {min(writer.missing)} among them")

    def _tensors(self, progress: Callable[[float], None]) -> Iterator[tuple[str, torch.Tensor]]:
        """The file's tensors by transformers' names and in its layout (the file's q and k of Llama are permuted, …)."""
        kind: Any = maps.TENSOR_PROCESSORS.get(self.architecture, maps.TensorProcessor)
        processor = kind(config=self.config.to_dict())
        with self._unsupported_if_it_fails("its tensors' names are not known"):
            names: dict[str, str] = maps.get_gguf_hf_weights_map(self._model, processor)
        # A tensor made of several of the file's (experts) is whole only after the last was read.
        merged: dict[str, torch.Tensor] = {}
        done, total = 0, sum(tensor.n_bytes for tensor in self._reader.tensors)
        for stored in self._reader.tensors:
            with self._unsupported_if_it_fails(f"its tensor {stored.name} cannot be converted"):
                values = gguf.dequantize(stored.data, stored.tensor_type)
                result = processor.process(
                    weights=values, name=stored.name, tensor_key_mapping=names, parsed_parameters={"tensors": merged}
                )
            if result.name is not None and result.name not in names:
                raise self._unsupported(f"it holds {stored.name}, which the model does not use")
            if result.name is not None:
                yield names[result.name], torch.from_numpy(np.array(result.weights, order="C"))
            done += stored.n_bytes
            progress(done / total)
        yield from merged.items()

    def _carry_over(self, config: PreTrainedConfig) -> None:
        """Take over what transformers' map drops; refuse a field that the architecture does not have."""
        for key, name in _CARRIED.items():
            if value := self._own_field(key):
                if not hasattr(config, name):
                    raise self._unsupported(f"its field {key} is not known for this architecture")
                setattr(config, name, value)
        parameters = getattr(config, "rope_parameters", None) or {}
        if (base := self._own_field("rope.freq_base")) and "rope_theta" in parameters:
            parameters["rope_theta"] = float(base)
        rotated = self._own_field("rope.dimension_count")
        whole = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        if rotated and parameters and rotated != int(whole * parameters.get("partial_rotary_factor", 1.0)):
            raise self._unsupported(f"it rotates {rotated} of a head's {whole} dimensions")
        if self.architecture == "gemma3":  # as llama.cpp, whose files do not say it
            large = config.num_hidden_layers == _GEMMA3_27B_LAYERS
            config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads if large else whole

    def _own_field(self, key: str) -> Any:
        return self._field(f"{self.architecture}.{key}")

    def _refuse_what_transformers_would_misread(self) -> None:
        """transformers' map drops the file's scaled RoPE and some factors: the model would run, and answer wrongly."""
        for key in _FACTORS:
            if self._own_field(key):
                raise self._unsupported(f"its field {key} is not carried over")
        scaling = self._field(f"{self.architecture}.rope.scaling.type")
        tensors = {tensor.name for tensor in self._reader.tensors}
        if scaling not in (None, "none") or any(name.startswith("rope_f") for name in tensors):
            raise self._unsupported("it scales its rotary positions, which this road does not carry over")

    def _field(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def _unsupported(self, why: str) -> ModelUnsupported:
        named = f"{self.path.name} (architecture {self.architecture})"
        return ModelUnsupported(f"{named} cannot be served: {why}.", hint=_HINT)

    @contextmanager
    def _unsupported_if_it_fails(self, why: str) -> Iterator[None]:
        logger = logging.getLogger("transformers")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            yield
        except ModelUnsupported:
            raise
        except Exception as failure:  # transformers raises whatever its maps stumble over
            raise self._unsupported(why) from failure
        finally:
            logger.setLevel(level)
