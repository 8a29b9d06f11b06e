"""Task accuracy by EleutherAI's harness: `python -m howlinear.app.lm_eval` is its command, with `--model howlinear`.

The harness (0.4.13) only knows the models in its own registry, which no entry point can extend. So its command is
started from here, after registering one more.
"""

from __future__ import annotations

from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM

import howlinear as hl
from howlinear.errors import InputError
from howlinear.models.load import tokenizer_of


@register_model("howlinear")
class HowlinearLM(HFLM):
    """A model as `hl.load_model` loads it, such as a compressed folder, optionally with blocks replaced by maps.

    `profile` is a file from `Profile.save` with maps; `blocks` says which to use, as in `3` or `3+5`, by default all.
    The other options are those of the harness's own `hf`.
    """

    def __init__(
        self,
        pretrained: str,
        profile: str | None = None,
        blocks: str | int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        **options: Any,
    ):
        model = hl.load_model(pretrained, dtype=dtype)
        options.setdefault("tokenizer", tokenizer_of(model))
        if profile is not None:
            maps = hl.load_profile(profile)
            chosen = list(maps) if blocks is None else [int(block) for block in str(blocks).split("+")]
            if any(block not in maps or maps[block].map is None for block in chosen):
                raise InputError(f"{profile} has no maps of blocks {chosen}: measure them, and save as .safetensors")
            model = hl.replace(model, {block: maps[block].map for block in chosen})
        super().__init__(pretrained=model.to(device or "cpu"), **options)


if __name__ == "__main__":
    cli_evaluate()
