"""Profiles on disk: numbers as JSON, or numbers, maps and moments as safetensors, and back."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from howlinear.core.ceilings import AffineMap, Ceiling
from howlinear.core.intervals import Estimate
from howlinear.core.token_split import TokenSplit
from howlinear.errors import InputError, SourceError, readable
from howlinear.files import atomic
from howlinear.files.paths import check_path
from howlinear.instrument.capture import BlockCapture, LazyBlocks
from howlinear.instrument.perplexity import Change
from howlinear.instrument.profile import Profile, Solved, Stop
from howlinear.instrument.store import block_from, block_tensors, tensors_below
from howlinear.models.checks import check_flags
from howlinear.models.ffn_sites import check_kind
from howlinear.models.shards import disjoint
from howlinear.text.rows import RowsOnRecord

SUFFIXES = (".safetensors", ".json")
TYPES = {"model": str, "corpus": str, "sha256": str, "rows": int, "seq_len": int | None}
COUNTS = ("block", "inputs", "rank", "rows_train", "rows_test", "massive_rows")
MOMENTS = ".moments."  # between a block and the names of its moments, which are those of a capture


def save_profile(profile: Profile, path: Path, force: bool = False) -> None:
    """Write a profile, in float64; arguments and errors as in `Profile.save`."""
    check_flags(force=force)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: give a file that ends in {' or '.join(SUFFIXES)}")
    if os.path.lexists(path) and not force:
        raise SourceError(f"cannot write {path}: it is there already; name another, or give force=True to replace it")
    numbers = json.dumps(profile.to_dict(), allow_nan=False, ensure_ascii=False)
    if path.suffix.lower() == ".json":
        atomic.write_text(path, numbers + "\n")
        return
    tensors = _tensors(profile)
    for block, moments in (profile.moments or {}).items():
        tensors |= {f"{block}{MOMENTS}{name}": tensor for name, tensor in block_tensors(moments).items()}
    with atomic.written_aside(path) as aside:
        save_file(disjoint(tensors), aside, metadata={"profile": numbers})


def save_skips(profile: Profile, folder: Path, hookpoint: str) -> None:
    """Write each map as a transcoder of EleutherAI's sparsify: a skip connection y = W_skip x + b_dec, and one feature.

    Its loader requires at least one feature: this one never fires and writes nothing. Arguments and errors as in
    `Profile.save_skips`.
    """
    if profile.site != "ffn":
        raise InputError(f"a transcoder goes from a block's input to its output: these are maps of {profile.site}")
    if hookpoint.count("*") != 1 or Path(hookpoint).name != hookpoint:
        raise InputError(f"hookpoint={hookpoint!r}: give the module's name with a star for the block's number")
    if os.path.lexists(folder):
        raise SourceError(f"cannot write {folder}: it is there already; name another")
    tensors = _tensors(profile)
    with atomic.folder_aside(folder) as new:
        for block in profile:
            weight, bias = tensors[f"{block}.weight"].float(), tensors[f"{block}.bias"].float()
            feature = weight.new_zeros(1, len(bias))
            coder = {"W_skip": weight.T.contiguous(), "b_dec": bias, "W_dec": feature}
            coder |= {"encoder.weight": feature.clone(), "encoder.bias": weight.new_zeros(1)}
            config = {"d_in": len(bias), "num_latents": 1, "k": 1, "transcode": True, "skip_connection": True}
            place = new / hookpoint.replace("*", str(block))
            place.mkdir()
            save_file(coder, place / "sae.safetensors")
            (place / "cfg.json").write_text(json.dumps(config), encoding="utf-8")


def load_profile(path: Path | str) -> Profile:
    """Read a profile that `Profile.save` or `howlinear measure --json` wrote.

    Returns:
        The profile; from a `.json` file, its ceilings have no `map` and no `r2_per_feature`. A block's moments are read
        when they are asked for.

    Raises:
        SourceError: no such file, or no profile in it.
    """
    path = check_path("path", path)
    with _reading(path):
        if path.suffix.lower() != ".safetensors":
            return profile_from_dict(json.loads(path.read_text(encoding="utf-8-sig")))  # Windows may put a BOM first
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names if MOMENTS not in name}
            said = (file.metadata() or {})["profile"]
        profile = profile_from_dict(json.loads(said), tensors)
    if len(tensors) == len(names):
        return profile
    makers = {block: partial(_read_moments, path.absolute(), said, block) for block in profile}
    return replace(profile, moments=LazyBlocks(makers))


def _reading(path: Path) -> AbstractContextManager[None]:
    return readable(f"a profile from {path}", "give a file that Profile.save wrote")


def profile_from_dict(content: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> Profile:
    """Rebuild a profile from its `to_dict`, with the maps of `_tensors` if they are given.

    Raises:
        LookupError: a number or a tensor is missing.
        ValueError: several profiles, no block, a value that is no number, or a map whose parts do not fit.
        InputError: an unknown site.
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"it holds a {type(content).__name__}, and a profile is a dict")
    if "measurements" in content:
        several = len(content["measurements"])
        raise ValueError(f"it holds {several} profiles: give one, Profile.from_dict(content['measurements'][0])")
    if {"first", "second"} <= content.keys():
        raise ValueError("it compares two profiles: give one, Profile.from_dict(content['first'])")
    wrong = [name for name, kind in TYPES.items() if not isinstance(content[name], kind)]
    if wrong:
        raise ValueError(f"{wrong[0]} is {content[wrong[0]]!r}")
    rows = RowsOnRecord(
        content["corpus"], content["sha256"], content["rows"], content["seq_len"], content.get("text", "")
    )
    stop = Stop(**content["stop"]) if "stop" in content else None
    solved, costs, splits = {}, {}, {}
    if not content["blocks"]:
        raise ValueError("it holds no block")
    if not _is_number(content["perplexity"]):
        raise ValueError("perplexity is no number")
    for block in content["blocks"]:
        number = block["block"]
        wrong = [name for name, value in block.items() if not _is_number(value)]
        wrong += [name for name in COUNTS if not isinstance(block[name], int)]
        if wrong:
            raise ValueError(f"{wrong[0]} of block {number} is {block[wrong[0]]!r}")
        if number in solved:
            raise ValueError(f"block {number} is there twice")
        block = {name: math.nan if value is None else value for name, value in block.items()}
        solved[number] = _solved(block, tensors)
        if not math.isnan(block.get("dppl", math.nan)):
            costs[number] = Change(block["dppl"], block["dppl_low"], block["dppl_high"])
        if "token_share" in block:
            splits[number] = TokenSplit(*(_estimate(block, field.name) for field in fields(TokenSplit)))
    site = content.get("site", "ffn")
    check_kind(site)
    return Profile(content["model"], rows, solved, content["perplexity"], stop, costs or None, site, splits or None)


def _is_number(value: object) -> bool:
    """Whether a value of a file is a finite number, or None, which stands for a missing one."""
    return isinstance(value, int | float | None) and not isinstance(value, bool) and value not in (math.inf, -math.inf)


def _solved(block: Mapping[str, Any], tensors: Mapping[str, Tensor] | None) -> Solved:
    """Rebuild a block's numbers, NaN for None, and its map; the ordinary rows' ceiling has only R² and interval."""
    affine, r2_per_feature = None, None
    if tensors is not None:
        number = block["block"]
        affine = AffineMap(tensors[f"{number}.weight"], tensors[f"{number}.bias"])
        r2_per_feature = tensors[f"{number}.r2_per_feature"]
    numbers = ("r2", "r2_train", "r2_median", "inputs", "rank", "condition", "rows_train", "rows_test")
    whole = Ceiling(
        **{name: block[name] for name in numbers},
        interval=_interval(block, "r2"),
        limit=_interval(block, "r2_limit"),
        r2_per_feature=r2_per_feature,
        map=affine,
    )
    ordinary = whole
    if block["massive_rows"]:
        r2, interval = block["r2_ordinary"], _interval(block, "r2_ordinary")
        untold = {"r2_train": math.nan, "limit": None, "r2_median": math.nan, "map": None, "r2_per_feature": None}
        ordinary = replace(whole, r2=r2, interval=interval, **untold)
    return Solved(whole, block["effective_rank"], block["massive_rows"], ordinary, block["effective_rank_ordinary"])


def _estimate(block: Mapping[str, Any], name: str) -> Estimate:
    return Estimate(block[name], block[f"{name}_low"], block[f"{name}_high"])


def _interval(block: Mapping[str, Any], name: str) -> Estimate | None:
    estimate = _estimate(block, name)
    return None if math.isnan(estimate.low) else estimate


def _read_moments(path: Path, said: str, block: int) -> BlockCapture:
    """Read one block's moments from a file, unless its profile has changed since it was read."""
    with _reading(path), safe_open(path, framework="pt") as file:
        if file.metadata()["profile"] != said:
            raise ValueError("another profile was written to it since, so that its moments are not those of this one")
        return block_from(tensors_below(file, f"{block}{MOMENTS}"))


def _tensors(profile: Profile) -> dict[str, Tensor]:
    """Maps and R² of every feature, by `<block>.weight`, `<block>.bias` and `<block>.r2_per_feature`."""
    tensors = {}
    for block, found in profile.items():
        if found.map is None:
            raise InputError("this profile has numbers alone, no maps: save it as .json, or measure again")
        tensors[f"{block}.weight"] = found.map.weight.contiguous()
        tensors[f"{block}.bias"] = found.map.bias.contiguous()
        tensors[f"{block}.r2_per_feature"] = found.r2_per_feature.contiguous()
    return tensors
