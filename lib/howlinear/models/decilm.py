"""A LLaMA of which every feed-forward block has a width of its own, in the form of DeciLM (Nemotron-NAS).

vLLM, SGLang, TensorRT-LLM and llama.cpp read this form by its name. This file lies in a model's folder, from which
`transformers` builds it: AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).
"""

import copy
from typing import no_type_check

from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP

MULTIPLE = 256
"""Readers round a block's width up to a multiple of it."""


def width(ffn_mult, hidden_size):
    """How many hidden units a block has: two thirds of ffn_mult × hidden_size, rounded up."""
    return -(-int(2 * ffn_mult * hidden_size / 3) // MULTIPLE) * MULTIPLE


class Entry(dict):
    """A part of a block's configuration: vLLM asks for attributes, llama.cpp for keys."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return Entry(self[name]) if isinstance(self[name], dict) else self[name]


@no_type_check  # transformers writes its __init__, and others call it with more
class DeciLMConfig(LlamaConfig):
    """LLaMA's configuration, and in `block_configs` what each block's attention and feed-forward part are like."""

    model_type = "nemotron-nas"

    def __setattr__(self, name, value):
        super().__setattr__(name, [Entry(block) for block in value] if name == "block_configs" else value)


class DeciLMForCausalLM(LlamaForCausalLM):
    """A LLaMA whose blocks have the widths that its configuration says."""

    config_class = DeciLMConfig

    def __init__(self, config):
        super().__init__(config)
        for layer, block in zip(self.model.layers, config.block_configs, strict=True):
            of_block = copy.copy(config)
            of_block.intermediate_size = width(block.ffn.ffn_mult, config.hidden_size)
            layer.mlp = LlamaMLP(of_block)
        self.post_init()


# a saved model takes this file with it
DeciLMConfig.register_for_auto_class()
DeciLMForCausalLM.register_for_auto_class("AutoModelForCausalLM")
