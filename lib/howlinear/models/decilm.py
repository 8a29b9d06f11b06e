"""A LLaMA whose feed-forward blocks each have their own width, in the format of DeciLM (Nemotron-NAS).

vLLM, SGLang, TensorRT-LLM and llama.cpp recognise this format by its name. This file is saved in the model's folder, so
that `transformers` can build the model: AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).
"""

import copy
from typing import no_type_check

from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP

MULTIPLE = 256
"""Programs that read this format round a block's width up to a multiple of this."""


def width(ffn_mult, hidden_size):
    """Compute a block's width: two thirds of ffn_mult × hidden_size, rounded up to a multiple of `MULTIPLE`."""
    return -(-int(2 * ffn_mult * hidden_size / 3) // MULTIPLE) * MULTIPLE


class Entry(dict):
    """A part of a block's configuration, which vLLM reads by attribute and llama.cpp by key."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return Entry(self[name]) if isinstance(self[name], dict) else self[name]


@no_type_check  # transformers generates its __init__, which others call with more
class DeciLMConfig(LlamaConfig):
    """LLaMA's configuration plus `block_configs`, which describes each block's attention and feed-forward part."""

    model_type = "nemotron-nas"

    def __setattr__(self, name, value):
        super().__setattr__(name, [Entry(block) for block in value] if name == "block_configs" else value)


class DeciLMForCausalLM(LlamaForCausalLM):
    """A LLaMA whose blocks have the widths given in its configuration."""

    config_class = DeciLMConfig

    def __init__(self, config):
        super().__init__(config)
        for layer, block in zip(self.model.layers, config.block_configs, strict=True):
            of_block = copy.copy(config)
            of_block.intermediate_size = width(block.ffn.ffn_mult, config.hidden_size)
            layer.mlp = LlamaMLP(of_block)
        self.post_init()


# save this file with the model
DeciLMConfig.register_for_auto_class()
DeciLMForCausalLM.register_for_auto_class("AutoModelForCausalLM")
