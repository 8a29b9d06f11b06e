"""The book's page of tokens: its numbers are those of `hl.token_errors`; a reader chooses the text and the block."""

import re
from dataclasses import replace

import pytest
import torch

import howlinear as hl
from conftest import tiny
from howlinear.files import paths
from howlinear.notebook import run as notebooks
from tests.app.test_page import Reader
from tests.app.test_token_page import content, has_the_numbers_of
from tools.book import tokens

TEXTS = ("docs", "code", "cpp")
ROWS = {"rows": 1024, "seq_len": 32, "seed": 0}


class Corpus:
    """A text of made-up tokens."""

    def __init__(self, name):
        self.name = name

    def rows(self, rows, seq_len, seed):
        generator = torch.Generator().manual_seed(seed + TEXTS.index(self.name))
        ids = torch.randint(80, (rows // seq_len, seq_len), generator=generator)
        return replace(hl.TokenRows.from_ids(ids, folds=4), corpus=self.name)


@pytest.fixture(scope="module")
def model():
    return tiny("mini-gpt2")


@pytest.fixture(scope="module")
def run(model):
    """A run profile of one made-up model and three made-up texts."""

    class Run(notebooks.Run):
        def model(self, name):
            return model

        def corpus(self, name, model):
            return Corpus(name)

    return Run("tokens", "tiny", {"one": "nowhere", "other": "nowhere"}, list(TEXTS), **ROWS, sample=16)


@pytest.fixture(scope="module")
def page(run):
    return tokens.page(run)


def test_the_page_has_what_is_missed_on_each_text(page, model):
    rows = [Corpus(name).rows(**ROWS) for name in TEXTS]
    has_the_numbers_of(content(page), *(hl.token_errors(model, each, tokens=tokens.TOKENS) for each in rows))
    assert [*re.findall(r"<option[^>]*>(\w+)<", page)] == list(TEXTS)
    read = Reader(page)
    assert read.loaded == []
    assert not re.search(r"(?:src|href|url)\s*[=(]\s*[\"']?(?:https?:)?//", page)


def test_main_writes_the_page(run, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    monkeypatch.setattr(notebooks, "start", lambda *_: run)
    monkeypatch.setattr(tokens, "page", lambda run: f"of {run.stem}")
    tokens.main("tiny")
    assert (paths.build("tiny") / "tokens.html").read_text(encoding="utf-8") == "of tokens"


@pytest.mark.long
def test_a_reader_chooses_text_and_block(page, browser):
    browser.show(page)
    data = content(page)
    for text, block in ((0, 0), (2, 1)):
        for name, value, event in (("choice", text, "change"), ("slider", block, "input")):
            set_and_say = f"control.value = '{value}'; control.dispatchEvent(new Event('{event}'))"
            browser.value(f"(control => {{ {set_and_say} }})(document.getElementById('{name}'))")
        visible = "[...document.querySelectorAll('section, .tokens span')].filter(e => e.checkVisibility())"
        heading = browser.value(f"{visible}[0].querySelector('h2').textContent")
        assert heading == f"Block {data['blocks'][block]} on {TEXTS[text]}"
        colours = browser.value(f"{visible}.slice(1).map(e => Number(e.className[1]))")
        assert len(colours) == len(data["texts"][text]["token"])
        # a darker step wherever the residual is larger, and never a lighter one
        ordered = sorted(zip(data["texts"][text]["residual"][block], colours, strict=True))
        assert [colour for _, colour in ordered] == sorted(colours)
        assert len(set(colours)) > 1
        browser.value(f"{visible}[3].dispatchEvent(new MouseEvent('mouseover', {{ bubbles: true }}))")
        said = browser.value("document.getElementById('numbers').textContent")
        assert f"residual {data['texts'][text]['residual'][block][2]:g} × mean" in said
    assert browser.complaints() == []
