"""All notebooks on a model and a text that the project has never seen: four blocks of width 64, a document a line."""

import gzip
import json
import re
from pathlib import Path

import pytest
import torch
from markupsafe import escape
from transformers import AutoTokenizer, BertConfig, BertModel

import howlinear as hl
from helpers.unit_rows import hush
from howlinear.app import figures
from howlinear.app.figures import PARTS, not_run
from howlinear.errors import InputError, SourceError
from howlinear.files import paths
from howlinear.notebook import execute, prose, settings
from howlinear.text.documents import offline_documents
from howlinear.training.minis import new_model


def make_something(profile, stem="02_ceilings"):
    """What is there once the pipeline has run a notebook."""
    made = paths.scratch(profile.name)
    for folder in ("figures", "notebooks"):
        (made / folder).mkdir(parents=True, exist_ok=True)
    (made / "results" / stem).mkdir(parents=True, exist_ok=True)
    (made / "figures" / f"{stem}_profile.svg").touch()
    (made / "notebooks" / f"{stem}.ipynb").touch()
    captures = paths.build(profile.name) / "captures" / "model"
    captures.mkdir(parents=True, exist_ok=True)
    (captures / "text.safetensors").touch()


@pytest.fixture
def pipeline(monkeypatch, tmp_path):
    """Run profiles that would have been run; no notebook is, and a page has the names of its models."""
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    ran = []

    def run(profile, cores, progress):
        ran.append(profile)
        assert not list((paths.scratch(profile.name) / "results").glob("*/old.csv"))
        make_something(profile)

    monkeypatch.setattr(figures, "_run_pipeline", run)
    monkeypatch.setattr(figures, "_render", lambda profile, *_: " ".join(profile.models_by_name))
    return ran


def test_figures_of_another_model_are_replaced_if_that_is_asked_for(pipeline, tmp_path):
    """Without running any notebook: what would be run, and what an earlier call has made."""
    out = tmp_path / "mine"
    assert figures.figures("mini-gpt2", folder=out).read_text() == "mini-gpt2"
    stem = next(out.glob("*.yaml")).stem
    old = paths.scratch(stem) / "results" / "02_ceilings" / "old.csv"
    old.write_text("old")
    with pytest.raises(InputError, match="--force"):
        figures.figures("mini-llama", folder=out)
    assert figures.figures("mini-llama", folder=out, force=True).read_text() == "mini-llama"
    assert [[*profile.models_by_name] for profile in pipeline] == [["mini-gpt2"], ["mini-llama"]]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="something else"):
        figures.figures("mini-gpt2", folder=tmp_path / "other", force=True)


def test_the_page_grows_with_every_notebook_that_has_finished(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    monkeypatch.setattr(figures, "_render", lambda profile, out, short, running: f"running: {running}")
    out, calls, seen = tmp_path / "mine", [], []

    def run(profile, cores, show):
        show(0, 15)
        seen.append((out / figures.PAGE).is_file())
        for finished, stem in enumerate(("02_ceilings", "04_rank"), 1):
            make_something(profile, stem)
            show(finished, 15)
            figures_there = sorted(path.name for path in (out / "figures").iterdir())
            seen.append(((out / figures.PAGE).read_text(), figures_there))

    monkeypatch.setattr(figures, "_run_pipeline", run)
    page = figures.figures("mini-gpt2", folder=out, progress=lambda *call: calls.append(call))
    assert calls == [(0, 15), (1, 15), (2, 15)]
    first, second = "02_ceilings_profile.svg", "04_rank_profile.svg"
    assert seen == [False, ("running: True", [first]), ("running: True", [first, second])]
    assert page.read_text() == "running: False"


def test_a_notebook_that_was_not_begun_names_those_that_failed_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    profile = settings.read("own-short")
    logs, done = paths.build(profile.name) / "logs", paths.scratch(profile.name) / "notebooks"
    logs.mkdir(parents=True)
    done.mkdir(parents=True)
    text = next(iter(profile.corpora_by_name))
    (logs / f"{text}.log").write_text("howlinear: too few rows\n")
    assert figures._reason(profile, "10_degrees") == "too few rows"  # no notebook was begun
    (logs / f"{text}.log").write_text("capture: 100%\n")
    (logs / "02_ceilings.log").write_text("done\n")
    (done / "02_ceilings.ipynb").touch()
    (logs / "03_bilinear.log").write_text("a warning\nhowlinear: a failed cell\n")
    assert figures._reason(profile, "03_bilinear") == "a failed cell"
    assert figures._reason(profile, "10_degrees").endswith("and 03_bilinear failed")


def test_texts_cut_as_asked_for_lie_in_the_folder_before_anything_reads_them(pipeline, tmp_path):
    mine = tmp_path / "mine.txt"
    lines = [f"line {number} of a text that is long enough to hold something out" for number in range(5_000)]
    mine.write_text("\n\n".join(lines[:-1]) + "\n" + lines[-1])
    for _ in range(2):  # the second call finds what the first has cut
        figures.figures("mini-gpt2", [mine, "docs"], tmp_path / "out", documents="line")
    for profile in pipeline:
        path, beside = profile.corpora_by_name.values()
        assert beside == "docs"
        assert [json.loads(line)["text"] for line in Path(path).read_text().splitlines()] == lines


@pytest.mark.parametrize(
    "given",
    [
        {"model": None}, {"model": object()}, {"corpus": None}, {"corpus": 3}, {"corpus": [3]}, {"corpus": {"a": 1}},
        {"cores": -1}, {"corpus": "empty.txt"}, {"corpus": "latin.txt"},
        {"corpus": "bytes.gz"}, {"corpus": "bad.jsonl"}, {"corpus": "no-text.csv"}, {"corpus": "nothing"},
        {"corpus": "short.txt"}, {"corpus": "docs", "documents": "line"},
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_before_anything_is_written(pipeline, tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    files = {"empty.txt": b"", "latin.txt": "caf\xe9".encode("latin-1"), "bytes.gz": gzip.compress(b"a" * 99)[:-1]}
    files |= {"bad.jsonl": b'{"text": ', "no-text.csv": b"a,b\n1,2\n", "short.txt": b"one\n\ntwo\n"}
    for name, content in files.items():
        Path(name).write_bytes(content)
    Path("nothing").mkdir()
    with pytest.raises((InputError, SourceError)):
        figures.figures(**{"model": "mini-gpt2", "folder": tmp_path / "out"} | given)
    assert not pipeline
    assert not list(tmp_path.glob("**/*.yaml"))


def saved(folder, hushed=(), blocks=4):
    """A LLaMA with fresh weights and its tokenizer; hushed blocks write the same on every row."""
    tokenizer = AutoTokenizer.from_pretrained(paths.MODELS / "mini-llama")
    model = new_model("mini-llama", 3, blocks=blocks, width=64, vocabulary=len(tokenizer))
    hush(*(model.model.layers[block].mlp for block in hushed))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Deeper than the number of blocks that a short run looks into."""
    return saved(tmp_path_factory.mktemp("models") / "seven-blocks", blocks=7)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """150 kB, a document a line."""
    path = tmp_path_factory.mktemp("texts") / "my notes.txt"
    lines, size = [], 0
    for document in offline_documents("docs", 1):
        line = " ".join(document.text.split())[:600]
        if len(line) > 80:
            lines.append(line)
            size += len(line)
        if size > 150_000:
            break
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def page(model, text, tmp_path_factory):
    return hl.figures(model, str(text), tmp_path_factory.mktemp("out") / "mine", short=True)


@pytest.mark.long
def test_every_notebook_that_applies_runs_and_the_page_tells_each(page):
    assert not_run(page) == []
    html = page.read_text(encoding="utf-8")
    for _, stem, _ in PARTS:
        assert f'id="{stem}"' in html
        assert (page.parent / "results" / stem / "run.json").is_file()
        assert (page.parent / "notebooks" / f"{stem}.ipynb").is_file()
    assert "could not be run" not in html
    captions = [str(escape(prose.captions()[f"{stem}_{name}"])) for _, stem, names in PARTS for name in names]
    assert all(f'alt="{caption}"' in html for caption in captions)
    assert html.count("<img") == html.count("data:image/svg+xml;base64,") == len(captions)
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', html)  # it loads nothing
    blocks = hl.results(page.parent / "results", "02_ceilings")["blocks"]
    assert blocks["block"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert blocks["dppl"].notna().sum() == 6
    assert set(blocks["model"]) == {"seven-blocks"}


@pytest.mark.long
@pytest.mark.parametrize(("constant", "others"), [([0, 2], {1, 3}), ([0, 2, 3], {1})])
def test_every_notebook_shows_the_other_blocks_where_some_write_the_same_on_every_row(text, tmp_path, constant, others):
    page = hl.figures(saved(tmp_path / "hushed", constant), str(text), tmp_path / "mine", short=True)
    assert not_run(page) == []
    results = page.parent / "results"
    for stem in ("02_ceilings", "04_rank", "10_degrees", "12_sinks", "16_tokens"):
        assert set(hl.results(results, stem)["blocks"]["block"]) == others
    (in_the_middle,) = hl.results(results, "15_gate")["blocks"]["block"]
    assert in_the_middle in others
    assert set(hl.results(results, "08_controls")["controls"]["block"]) == others
    assert set(hl.results(results, "11_protocol")["curves"]["block"]) == others
    left_out = {stem.name: hl.results(results, stem.name).settings.get("constant") for stem in results.iterdir()}
    for stem, found in left_out.items():
        reads_no_capture = stem in ("13_claims", "14_compress")
        assert found == (None if reads_no_capture else {"hushed": {"my-notes": constant}})


@pytest.mark.long
def test_a_model_whose_every_block_writes_the_same_is_refused(text, tmp_path):
    with pytest.raises(SourceError, match="hushed"):
        hl.figures(saved(tmp_path / "hushed", range(4)), str(text), tmp_path / "mine", short=True)
    assert not (tmp_path / "mine" / figures.PAGE).exists()


@pytest.fixture
def encoder(tmp_path):
    """A BERT with fresh weights: it predicts no next token, and its feed-forward blocks are pairs of layers."""
    tokenizer = AutoTokenizer.from_pretrained(paths.MODELS / "mini-llama")
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.mark.long
def test_every_notebook_that_applies_runs_on_an_encoder_alone(encoder, text, tmp_path):
    page = hl.figures(str(encoder), str(text), tmp_path / "mine", short=True)
    assert not_run(page) == []
    assert "could not be run" not in page.read_text(encoding="utf-8")
    profile = next(page.parent.glob("*.yaml"))
    assert execute.execute("01_capture", {"profile": str(profile)}).is_file()


@pytest.mark.long
@pytest.mark.parametrize("stem", ["00_by_hand", "09_dynamics"])
def test_the_notebooks_that_are_not_about_one_model_run_on_it_too(page, stem):
    profile = next(page.parent.glob("*.yaml"))
    assert execute.execute(stem, {"profile": str(profile)}).is_file()


@pytest.mark.long
def test_called_again_it_does_nothing_anew(page, model, text):
    before = page.stat().st_mtime_ns
    made = {path: path.stat().st_mtime_ns for path in (page.parent / "notebooks").glob("*.ipynb")}
    executed = paths.scratch(next(page.parent.glob("*.yaml")).stem) / "notebooks"
    times = {path: path.stat().st_mtime_ns for path in executed.glob("*.ipynb")}
    again = hl.figures(model, str(text), page.parent, short=True)
    assert again == page
    assert page.stat().st_mtime_ns > before
    assert times == {path: path.stat().st_mtime_ns for path in executed.glob("*.ipynb")}
    assert made.keys() <= set((page.parent / "notebooks").glob("*.ipynb"))  # and what was run beside it since
