"""The page of tokens: all of them as text, with their numbers, and nothing that is loaded."""

import json
import re

import numpy as np
import pytest
import torch

import howlinear as hl
from howlinear.app.measurement import Measurement
from howlinear.app.token_page import MOST, render_tokens
from howlinear.errors import InputError
from howlinear.text.rows import TokenRows
from tests.app.test_page import NASTY, Reader


@pytest.fixture
def measured(gpt2):
    """A profile, and errors whose tokens have texts."""
    ids = torch.randint(80, (64, 32), generator=torch.Generator().manual_seed(3))
    profile = hl.measure(gpt2, TokenRows.from_ids(ids, folds=4))
    errors = hl.token_errors(gpt2, profile)
    return profile, errors.assign(text=[["a", " b", "\n", "", NASTY][token % 5] for token in errors["token"]])


def content(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL).group(1))


def has_the_numbers_of(data, *texts):
    """What the page's script reads is what `token_errors` found, text by text."""
    assert len(data["texts"]) == len(texts)
    for shown, errors in zip(data["texts"], texts, strict=True):
        assert data["blocks"] == errors["block"].unique().tolist()
        for place, block in enumerate(data["blocks"]):
            table = errors[errors["block"] == block]
            assert shown["token"] == table["token"].tolist()
            np.testing.assert_allclose(shown["residual"][place], table["residual"], rtol=5e-3)
            np.testing.assert_allclose(shown["output"][place], table["output"], rtol=5e-3)
            np.testing.assert_allclose(shown["r2"][place], table["r2"], atol=5e-4)


def test_the_page_has_every_token_with_its_numbers_and_loads_nothing(measured):
    profile, errors = measured
    page = render_tokens([(errors, Measurement("tiny", profile))])
    read = Reader(page)
    assert read.open == []
    assert read.loaded == []
    assert {"link", "iframe", "img", "object"}.isdisjoint(read.tags)
    tokens = errors[errors["block"] == 0]
    assert read.tags.count("span") == len(tokens)
    assert read.tags.count("section") == len(profile)
    has_the_numbers_of(content(page), errors)
    assert page.count("<i>↵</i>\n") == (tokens["text"] == "\n").sum()


def test_what_is_given_is_text(measured):
    profile, errors = measured
    plain = render_tokens([(errors.assign(text="a"), Measurement("tiny", profile))])
    page = render_tokens([(errors, Measurement(NASTY, profile, dtype=NASTY))])
    assert page.count("<script") == plain.count("<script") == 2
    assert NASTY not in page


def test_without_a_tokenizer_ids_stand_for_texts(measured):
    profile, errors = measured
    page = render_tokens([(errors.assign(text=None), Measurement("tiny", profile))])
    assert f"⟨{errors['token'].iloc[0]}⟩" in page


def test_several_texts_stand_on_one_page_and_only_with_few_tokens(measured):
    profile, errors = measured
    other = errors[errors["sequence"] == errors["sequence"].iloc[0]].assign(
        residual=lambda table: 2 * table["residual"]
    )
    measurement = Measurement("tiny", profile)
    page = render_tokens([(errors, measurement), (other, measurement)])
    has_the_numbers_of(content(page), errors, other)
    assert Reader(page).tags.count("option") == Reader(page).tags.count("article") == 2
    assert "option" not in Reader(render_tokens([(errors, measurement)])).tags
    half = errors.loc[errors["block"] == 0].sample(MOST // 2 + 1, replace=True, random_state=0)
    with pytest.raises(InputError, match="at most 8,192"):
        render_tokens([(half, measurement), (half, measurement)])
