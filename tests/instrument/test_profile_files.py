"""What is saved of a profile comes back: every number, and its maps to the bit."""

import json
import math
from dataclasses import replace

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import howlinear as hl
from conftest import tiny
from howlinear.errors import InputError, SourceError
from howlinear.instrument.profile_files import profile_from_dict


@pytest.fixture(scope="module")
def profile():
    ids = torch.randint(0, 80, (48, 32), generator=torch.Generator().manual_seed(0))
    return hl.measure(tiny("mini-gpt2"), ids, swap=True)


def test_numbers_and_maps_come_back_from_safetensors(profile, tmp_path):
    profile.save(tmp_path / "p.safetensors")
    read = hl.load_profile(tmp_path / "p.safetensors")
    assert hl.Profile.load(tmp_path / "p.safetensors").to_dict() == read.to_dict()
    pd.testing.assert_frame_equal(read.to_frame(), profile.to_frame())
    assert read.to_dict() == profile.to_dict()
    assert read.moments is None
    for block, found in profile.items():
        torch.testing.assert_close(read[block].map.weight, found.map.weight, rtol=0, atol=0)
        torch.testing.assert_close(read[block].map.bias, found.map.bias, rtol=0, atol=0)
        torch.testing.assert_close(read[block].r2_per_feature, found.r2_per_feature, rtol=0, atol=0)
        others = [replace(found, r2=0.5), *(replace(found, map=each.map) for each in profile.values() if each != found)]
        assert read[block] == found not in others
    assert read.solved == profile.solved
    assert read.rows == profile.rows


def test_moments_come_back_and_give_the_same_ceilings(tmp_path, monkeypatch):
    ids = torch.randint(0, 80, (48, 32), generator=torch.Generator().manual_seed(0))
    profile = hl.measure(tiny("mini-gpt2"), ids, moments=True)
    profile.save(tmp_path / "p.safetensors")
    read = hl.load_profile(tmp_path / "p.safetensors")
    assert list(read.moments) == list(profile)
    for block, found in read.moments.items():
        train, test = hl.Moments.total(found.train), hl.Moments.total(found.test)
        torch.testing.assert_close(hl.ceiling(train, test).r2, profile[block].r2)
        assert len(found.heavy_rows().norm) == len(profile.moments[block].heavy_rows().norm) > 0
    pd.testing.assert_frame_equal(hl.measure(tiny("mini-gpt2"), profile).to_frame(), profile.to_frame())
    monkeypatch.chdir(tmp_path)
    here = hl.load_profile("p.safetensors")
    monkeypatch.chdir("/")
    assert here.moments[0].outputs.n == profile[0].rows_test
    read.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "p.safetensors").read_bytes()

    tensors = load_file(tmp_path / "p.safetensors")
    del tensors["0.moments.outputs.0.sxx"]
    with safe_open(tmp_path / "p.safetensors", framework="pt") as file:
        save_file(tensors, tmp_path / "less.safetensors", metadata=file.metadata())
    less = hl.load_profile(tmp_path / "less.safetensors")
    with pytest.raises(SourceError, match="cannot read a profile from"):
        less.moments[0]
    hl.measure(tiny("mini-gpt2"), ids[:40], moments=True).save(tmp_path / "p.safetensors", force=True)
    with pytest.raises(SourceError, match="another profile was written to it since"):
        read.moments[0]


def test_numbers_alone_come_back_from_json(profile, tmp_path):
    profile.save(tmp_path / "p.json")
    read = hl.load_profile(str(tmp_path / "p.json"))
    pd.testing.assert_frame_equal(read.to_frame(), profile.to_frame())
    assert read[0].map is None
    assert read.outlook == profile.outlook
    with pytest.raises(InputError, match="no maps"):
        read.save(tmp_path / "p.safetensors")
    assert not (tmp_path / "p.safetensors").exists()


def test_a_dictionary_comes_back(profile):
    read = hl.Profile.from_dict(json.loads(json.dumps(profile.to_dict())))
    pd.testing.assert_frame_equal(read.to_frame(), profile.to_frame())
    old = profile.to_dict()
    del old["site"]
    assert hl.Profile.from_dict(old).site == "ffn"


def test_a_dictionary_of_something_else_is_refused(profile):
    content = profile.to_dict()
    first, *others = content["blocks"]
    number, two = [{**first, "block": 0.5}, *others], {"first": content, "second": content}  # of `howlinear compare`
    words, flag = ([{**first, "r2": wrong}, *others] for wrong in ("high", True))
    for blocks in (3, [], [{}], words, flag, number, [first, *others, first]):
        with pytest.raises(InputError):
            hl.Profile.from_dict(content | {"blocks": blocks})
    edited = [{name: None} for name in ("model", "corpus", "sha256", "rows")]
    edited += [{"site": "mlp"}, {"perplexity": "low"}, {"perplexity": math.inf}, {"seq_len": "long"}, {"model": ["m"]}]
    edited += [{"blocks": [{**first, name: None}, *others]} for name in ("inputs", "rows_train", "massive_rows")]
    for wrong in ({}, [], None, *(content | change for change in edited)):
        with pytest.raises(InputError):
            hl.Profile.from_dict(wrong)
    for several in ({"measurements": [content, content]}, two):
        with pytest.raises(InputError, match="profiles"):
            hl.Profile.from_dict(several)


def test_swap_costs_are_a_panel_where_they_were_measured(profile):
    assert len(profile.plot().axes) == len(profile.plot(swap=True).axes) == 2
    assert len(profile.plot(swap=False).axes) == 1
    with pytest.raises(InputError, match="measure with swap=True"):
        replace(profile, costs=None).plot(swap=True)
    axis = profile.plot(swap=False).axes[0]
    with pytest.raises(InputError, match="a panel of their own"):
        profile.plot(axis, swap=True)
    with pytest.raises(InputError, match="swap='yes'"):
        profile.plot(swap="yes")
    with pytest.raises(InputError, match="one pair"):
        profile.plot(plt.subplots(1, 2)[1])
    plt.close("all")


def test_what_was_said_of_massive_rows_and_of_the_end_comes_back(profile, tmp_path):
    massive = replace(profile.solved[1], massive_rows=3, ordinary=replace(profile.solved[1].ceiling, r2=0.125))
    noted = replace(profile, solved=profile.solved | {1: massive}, costs=None, perplexity=None)
    read = profile_from_dict(json.loads(json.dumps(noted.to_dict())))
    assert read.warning == noted.warning
    assert (read.costs, read.perplexity) == (None, None)
    pd.testing.assert_frame_equal(read.to_frame(), noted.to_frame())


def test_a_measurement_with_swaps_has_their_costs_of_every_block(profile):
    frame = profile.to_frame()
    assert [*frame.columns[:4]] == ["model", "corpus", "site", "block"]
    assert (frame["dppl_low"] <= frame["dppl"]).all()
    assert profile.costs.keys() == profile.keys()
    lines = profile.to_markdown().splitlines()
    assert len(lines) == 2 + len(profile)
    assert "dppl" in lines[0]


def test_no_file_is_replaced_unasked_or_written_of_another_kind(profile, tmp_path):
    (tmp_path / "p.json").write_text("mine")
    with pytest.raises(SourceError, match="there already"):
        profile.save(tmp_path / "p.json")
    assert (tmp_path / "p.json").read_text() == "mine"
    profile.save(tmp_path / "p.json", force=True)
    assert len(hl.load_profile(tmp_path / "p.json")) == len(profile)
    for name in ("P.JSON", "P.SafeTensors"):
        profile.save(tmp_path / name)
        assert hl.load_profile(tmp_path / name).to_dict() == profile.to_dict()
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "p.json").read_bytes())
    assert hl.load_profile(tmp_path / "bom.json").to_dict() == profile.to_dict()
    with pytest.raises(InputError, match="safetensors"):
        profile.save(tmp_path / "p.pickle")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("content", ["", "[]", "null", "{}", '{"model": "m"}', "[" * 100_000])
@pytest.mark.parametrize("name", ["p.json", "p.safetensors"])
def test_a_file_of_something_else_is_one_line(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(SourceError, match="cannot read a profile from"):
        hl.load_profile(tmp_path / name)
    with pytest.raises(SourceError, match="cannot read a profile from"):
        hl.load_profile(tmp_path / "absent.json")


@pytest.mark.usefixtures("unchecked")
def test_a_file_whose_parts_do_not_fit_is_one_line(profile, tmp_path):
    profile.save(tmp_path / "p.safetensors")
    tensors = load_file(tmp_path / "p.safetensors")
    tensors["0.bias"] = tensors["0.bias"][:-1]
    save_file(tensors, tmp_path / "p.safetensors", metadata={"profile": json.dumps(profile.to_dict())})
    with pytest.raises(SourceError, match="shapes"):
        hl.load_profile(tmp_path / "p.safetensors")
    save_file(tensors, tmp_path / "p.safetensors")
    with pytest.raises(SourceError, match="no 'profile'"):
        hl.load_profile(tmp_path / "p.safetensors")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(SourceError, match="it is a folder"):
        profile.save(tmp_path / "folder.json", force=True)


def test_maps_lie_as_skip_connections_that_sparsify_loads(profile, tmp_path):
    """The layout by its class: tensors by name and shape, `W_skip` as (out, in), no other field needed."""
    profile.save_skips(tmp_path / "skips", "h.*.mlp")
    assert sorted(path.name for path in (tmp_path / "skips").iterdir()) == [f"h.{block}.mlp" for block in profile]
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    for block, found in profile.items():
        coder = load_file(tmp_path / f"skips/h.{block}.mlp/sae.safetensors")
        assert {name: tuple(tensor.shape) for name, tensor in coder.items()} == {
            "W_skip": (32, 32),
            "b_dec": (32,),
            "W_dec": (1, 32),
            "encoder.weight": (1, 32),
            "encoder.bias": (1,),
        }
        fired = torch.relu(x @ coder["encoder.weight"].T + coder["encoder.bias"])
        y = fired @ coder["W_dec"] + coder["b_dec"] + x @ coder["W_skip"].T
        torch.testing.assert_close(y, (x.double() @ found.map.weight + found.map.bias).float(), rtol=1e-5, atol=1e-5)
        config = json.loads((tmp_path / f"skips/h.{block}.mlp/cfg.json").read_text())
        assert config == {"d_in": 32, "num_latents": 1, "k": 1, "transcode": True, "skip_connection": True}


def test_what_is_no_transcoder_is_refused(profile, tmp_path):
    for name in ("h.mlp", "h.*.*", "../*", "*/mlp"):
        with pytest.raises(InputError, match="a star for the block's number"):
            profile.save_skips(tmp_path / "skips", name)
    with pytest.raises(InputError, match="these are maps of attention"):
        replace(profile, site="attention").save_skips(tmp_path / "skips")
    with pytest.raises(InputError, match="no maps"):
        hl.Profile.from_dict(profile.to_dict()).save_skips(tmp_path / "skips")
    with pytest.raises(SourceError, match="there already"):
        profile.save_skips(tmp_path)
    assert not list(tmp_path.iterdir())
