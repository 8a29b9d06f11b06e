import json
import os
import re
from dataclasses import replace
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from transformers import AutoTokenizer

from helpers.unit_rows import hush
from howlinear.errors import ConstantError, InputError
from howlinear.files import paths, tables
from howlinear.ideas.bilinear.recipe import ROWS_PER_INPUT
from howlinear.models.load import load_model
from howlinear.notebook import execute, prose, settings
from howlinear.notebook import run as notebooks
from howlinear.text.paper_rows import HELD_OUT, SURVEY
from howlinear.text.rows import TRAIN_SHARE, TokenRows
from howlinear.training.minis import new_model
from tools.book import solutions

ONE = pd.DataFrame({"model": ["m"], "block": [0], "r2": [1.0]})
FILES = ("blocks.csv", "run.json")
NOTEBOOK = """# %% tags=["parameters"]
profile = "minis"
size = 1  # a number

# %%
print(profile, size)
if size == 13:
    raise ValueError("unlucky")
"""
RECORDS = """# %% tags=["parameters"]
profile = "smoke"

# %%
import os
print(os.environ["HOWLINEAR_RECORD"])
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project folder of its own with one tiny notebook and the smoke profile."""
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    paths.NOTEBOOKS.mkdir()
    (paths.NOTEBOOKS / "00_tiny.py").write_text(NOTEBOOK)
    return tmp_path


def test_the_pipelines_step_ends_in_one_line_where_there_is_no_notebook(project, capsys):
    with pytest.raises(SystemExit) as stop:
        execute.main("99_nope", "smoke")
    assert stop.value.code == 2
    assert capsys.readouterr().err == "howlinear: no notebook '99_nope': 00_tiny\n"


@pytest.mark.long
@pytest.mark.parametrize("before", [None, "0", "1"])
def test_the_pipeline_records_and_whoever_tries_a_notebook_does_not(project, monkeypatch, before):
    """Whatever the environment says; a kernel is told, and the environment is afterwards as it was."""
    if before is None:
        monkeypatch.delenv("HOWLINEAR_RECORD", raising=False)
    else:
        monkeypatch.setenv("HOWLINEAR_RECORD", before)
    (paths.NOTEBOOKS / "00_tiny.py").write_text(RECORDS)
    recorded = paths.BUILD / "smoke"

    tried = execute.execute("00_tiny")
    assert '"0\\n"' in tried.read_text()
    assert not recorded.exists()
    execute.main("00_tiny", "smoke")
    assert '"1\\n"' in (recorded / "notebooks" / "00_tiny.ipynb").read_text()
    assert (recorded / "runs" / "00_tiny.json").is_file()
    assert os.environ.get("HOWLINEAR_RECORD") == before


def test_a_failing_cell_is_named_and_leaves_no_executed_notebook(project):
    with pytest.raises(InputError, match=r"00_tiny failed in cell 2: ValueError: unlucky; see .*failed\.ipynb"):
        execute.execute("00_tiny", {"size": 13})
    folder = paths.scratch("minis") / "notebooks"
    assert sorted(path.name for path in folder.glob("*.ipynb")) == ["00_tiny.failed.ipynb"]


def test_a_profile_that_lacks_a_key_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "PROFILES", tmp_path)
    (tmp_path / "odd.yaml").write_text("models: [models/mini-gpt2]\ncorpora: [docs]\nrows: 4096\n")
    with pytest.raises(InputError, match="profile odd lacks sample, seed, seq_len"):
        notebooks.start("x", "odd")


def test_the_paper_profile_states_the_papers_settings_and_ours_and_rehearsal_has_only_stand_ins():
    """The paper's rows to fit on are 15.6 for each input of a block, ours 100; both on its three texts."""
    paper, rehearsal = (notebooks.start("02_ceilings", profile) for profile in ("paper", "rehearsal"))
    named, commits = zip(*(source.split("@") for source in paper.models.values()), strict=True)
    assert named == ("openai-community/gpt2", "EleutherAI/pythia-160m", "JackFram/llama-160m")
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in commits)
    assert list(paper.models) == list(rehearsal.models) == ["gpt2", "pythia-160m", "llama-160m"]
    assert all(source.startswith(str(paths.ROOT)) for source in rehearsal.models.values())
    assert paper.seq_len == rehearsal.seq_len == 128
    assert paper.corpora == ["wikitext", "moby_dick", "puzzles"]
    assert SURVEY * (1 - HELD_OUT) / 768 == ROWS_PER_INPUT == 15.625
    assert TRAIN_SHARE * paper.rows / 768 == 100


KINDS = ("svg", "png")  # of files of a figure
PROFILE = "models: [models/mini-gpt2]\ncorpora: [moby_dick]\nrows: 4096\nseq_len: 128\nseed: 0\nsample: 0\n"


@pytest.mark.long
def test_a_run_profile_gives_a_notebook_parameters_of_its_own(project, monkeypatch):
    """They are checked as any, and what is given by hand goes before them."""
    monkeypatch.setattr(paths, "PROFILES", project)
    text = PROFILE + "parameters: {00_tiny: {size: SIZE}}\n"

    def printed(parameters):
        path = execute.execute("00_tiny", {"profile": "odd"} | parameters)
        cells = json.loads(path.read_text())["cells"]
        return [output["text"] for cell in cells for output in cell.get("outputs", [])]

    (project / "odd.yaml").write_text(text.replace("SIZE", "7"))
    assert printed({}) == [["odd 7\n"]]
    assert printed({"size": 8}) == [["odd 8\n"]]
    (project / "odd.yaml").write_text(text.replace("SIZE", "many"))
    with pytest.raises(InputError, match="many"):
        printed({})


@pytest.mark.long
def test_profiles_of_ones_own_run_in_scratch_and_are_never_recorded(project, monkeypatch):
    own = project / "build" / "profiles"
    monkeypatch.setattr(paths, "OWN_PROFILES", own)
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("extends: smoke\nseed: 3\n")
    (own / "smoke.yaml").write_text("seed: 4\n")
    assert settings.read("mine").seed == 3
    assert settings.read("mine").models == settings.read("smoke").models
    assert settings.read("smoke").seed == 0  # the project's goes before one's own of the same name
    assert [settings.read(name).own for name in ("mine", "smoke")] == [True, False]
    path = execute.execute("00_tiny", {"profile": "mine"})
    assert path.parent.parent == paths.scratch("mine")
    with pytest.raises(InputError, match="mine is one of your own"):
        execute.execute("00_tiny", {"profile": "mine"}, record=True)


@pytest.mark.parametrize("relative", [True, False])
def test_a_profile_may_name_the_folder_of_the_papers_texts(tmp_path, monkeypatch, relative):
    monkeypatch.setattr(paths, "PROFILES", tmp_path)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.delenv("HOWLINEAR_TEXTS", raising=False)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "moby_dick.txt").write_text("CHAPTER 1.\n\nText.\n\n\nCHAPTER 2.\n\nText.\n")
    folder = "texts" if relative else tmp_path / "texts"
    (tmp_path / "odd.yaml").write_text(f"{PROFILE}texts: {folder}\n")
    corpus = notebooks.start("x", "odd").corpus("moby_dick", load_model("mini-gpt2"))
    assert len(corpus.documents) == 2


@pytest.mark.long
def test_a_capture_is_made_once_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    run = notebooks.start("02_ceilings", "smoke")
    made = run.capture("mini-gpt2")
    assert len(made.blocks) == 12
    monkeypatch.setattr(notebooks, "capture", None)
    again = run.capture("mini-gpt2")
    assert torch.equal(made.blocks[3].train[0].sxx, again.blocks[3].train[0].sxx)
    assert again.about["perplexity"] == made.about["perplexity"]
    assert again.about["model"] == "mini-gpt2"  # not its path: the same bytes in every folder
    by_rule = replace(run, blocks="ends")
    assert list(by_rule.capture("mini-gpt2").blocks) == [0, 11]
    assert len(by_rule.capture("mini-gpt2", every=True).blocks) == 12


@pytest.fixture
def captures(tmp_path, monkeypatch):
    """Captures that are made at once, with what they are about and nothing else; the models of every call."""
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    made = []

    def write(path, blocks, rows, about):
        made.append(about["model"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(about))

    monkeypatch.setattr(notebooks.Run, "model", lambda *_: None)
    monkeypatch.setattr(notebooks.Run, "corpus", lambda *_: SimpleNamespace(rows=lambda *_: None))
    monkeypatch.setattr(notebooks, "capture", lambda *_, **__: {0: SimpleNamespace(varies=True)})
    monkeypatch.setattr(notebooks, "HeldOutLosses", lambda *_: SimpleNamespace(perplexity=lambda: 2.0))
    monkeypatch.setattr(notebooks, "save_capture", write)
    monkeypatch.setattr(notebooks, "about_capture", lambda path: json.loads(path.read_text()))
    monkeypatch.setattr(notebooks, "load_capture", lambda path: SimpleNamespace(about=json.loads(path.read_text())))
    return made


def with_newer_weights(run):
    later = run.capture_path("one", "docs").stat().st_mtime + 10
    os.utime(f"{run.models['one']}/model.safetensors", (later, later))
    return run


def with_a_capture_of_an_earlier_version(run):
    path = run.capture_path("one", "docs")
    about = json.loads(path.read_text())
    del about["constant"]
    path.write_text(json.dumps(about))
    return run


ANEW = {
    "rows": lambda run: replace(run, rows=8192),
    "seq_len": lambda run: replace(run, seq_len=64),
    "seed": lambda run: replace(run, seed=1),
    "sample": lambda run: replace(run, sample=64),
    "a text of that name": lambda run: replace(run, user_texts={"docs": str(paths.ROOT / "README.md")}),
    "weights": with_newer_weights,
    "version": with_a_capture_of_an_earlier_version,
}


@pytest.mark.parametrize("changed", ANEW)
def test_a_capture_of_something_else_is_made_anew(captures, tmp_path, changed):
    (tmp_path / "model.safetensors").touch()
    run = replace(notebooks.start("02_ceilings", "smoke"), models={"one": str(tmp_path)})
    assert run.capture("one") == run.capture("one")
    assert len(captures) == 1
    other = ANEW[changed](run)
    assert other.capture("one").about["sizes"] == other.sizes
    assert len(captures) == 2


def test_what_the_pipeline_asks_for_is_made_whatever_is_there(captures):
    run = notebooks.start("capture", "smoke")
    path = run.make_capture("mini-gpt2", "docs")
    assert run.make_capture("mini-gpt2", "docs") == path == run.capture_path("mini-gpt2", "docs")
    assert captures == ["mini-gpt2", "mini-gpt2"]


@pytest.fixture
def hushed(tmp_path, monkeypatch):
    """A run of three models, of which some blocks, all or none write the same on every row; no capture is made yet."""
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(paths.MODELS / "mini-gpt2")
    models = {}
    for name, blocks in (("some", [0, 2]), ("all", [0, 1, 2]), ("none", [])):
        model = new_model("mini-gpt2", 0, blocks=3, width=32, vocabulary=len(tokenizer))
        hush(*(model.transformer.h[block].mlp for block in blocks), bias=0.5)
        models[name] = str(tmp_path / name)
        model.save_pretrained(models[name])
        tokenizer.save_pretrained(models[name])
    return replace(notebooks.start("02_ceilings", "smoke"), models=models)


@pytest.mark.long
def test_blocks_that_write_the_same_on_every_row_are_left_out_and_kept_in_mind(hushed):
    assert list(hushed.capture("none").blocks) == [0, 1, 2]
    hushed.save()
    assert "constant" not in tables.read(hushed.results_path).settings
    for _ in ("made", "read"):
        assert list(hushed.capture("some").blocks) == [1]
    hushed.save()
    assert tables.read(hushed.results_path).settings["constant"] == {"some": {"docs": [0, 2]}}


@pytest.mark.long
def test_a_model_whose_every_block_writes_the_same_is_refused(hushed):
    for _ in range(2):  # nor does the second call find anything
        with pytest.raises(ConstantError, match="all"):
            hushed.capture("all")


def test_a_model_outside_the_profile_is_refused():
    with pytest.raises(InputError, match="profile smoke has no model 'gpt5': mini-gpt2"):
        notebooks.start("02_ceilings", "smoke").model("gpt5")


@pytest.mark.parametrize("told", ["1", "0", None])
def test_results_and_figures_go_to_scratch_unless_the_environment_says_record(tmp_path, monkeypatch, capsys, told):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    monkeypatch.delenv("HOWLINEAR_RECORD", raising=False)
    monkeypatch.chdir(tmp_path)
    if told is not None:
        monkeypatch.setenv("HOWLINEAR_RECORD", told)
    run = notebooks.start("02_ceilings", "smoke")
    run.record("blocks", ONE)
    run.save()
    run.figure(plt.figure(figsize=(1, 1)), "empty")
    plt.close("all")
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*") if path.is_file()}
    folder = "{}/smoke" if told == "1" else "build/scratch/smoke/{}"
    figures = {f"{folder.format('figures')}/02_ceilings_empty.{kind}" for kind in KINDS}
    assert written == {f"{folder.format('results')}/02_ceilings/{name}" for name in FILES} | figures
    said = capsys.readouterr().out
    assert (said == "") == (told == "1")
    assert told == "1" or said.endswith("are in build/scratch/smoke\n")


def test_what_costs_rest_on_is_kept_text_by_text(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    run = notebooks.start("02_ceilings", "smoke")
    rows = TokenRows.from_ids(torch.arange(8 * 5).view(8, 5), folds=2)  # sequences 3 and 7 are held out
    documents = replace(rows, spans=torch.tensor([[i, i + 1] for i in range(8)]))
    table = run.record_held_out({"a": {"one": documents, "other": rows}})
    assert table[["corpus", "cost_rows"]].values.tolist() == [["one", 10], ["other", 10]]
    assert table["documents"].tolist() == [4, pd.NA]
    assert "a: costs on 10 held-out tokens, 4 documents of one" in capsys.readouterr().out
    assert run.record_held_out({}).empty


def test_other_notebooks_are_read_from_the_record_or_where_there_is_none_from_scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    run = notebooks.start("13_claims", "smoke")
    assert run.results == tmp_path / "build/scratch/smoke/results"
    assert replace(run, recorded=True).results == paths.results("smoke")
    paths.results("smoke").mkdir(parents=True)
    assert run.results == paths.results("smoke")


@pytest.mark.parametrize("path", sorted(paths.PROFILES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_parameters_of_every_run_profile_are_some_that_its_notebooks_have(path):
    for stem, parameters in settings.read(path.stem).parameters.items():
        execute.checked(stem, parameters, solutions.notebook(stem))


# --- what a notebook says of its results


TEMPLATE = """# Answer
- The answer is {{ blocks.r2[0] | number(1) }} [0.5, 1.5].
# Replies
1. It is.
2. Not {{ blocks.r2[0] | number(1) }}.
# Questions
## Is x < 2?
It is {{ blocks.r2[0] | number(1) }} [0.5, 1.5].
## Why?
For a reason.
"""


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """A run whose results are kept elsewhere, and what it shows: (text, by which id, whether it replaces)."""
    monkeypatch.setenv("HOWLINEAR_RECORD", "1")
    monkeypatch.setattr(paths, "results", lambda profile: tmp_path / profile)
    monkeypatch.setattr(prose, "TEMPLATES", tmp_path)
    (tmp_path / "01_capture.md").write_text(TEMPLATE)
    outputs = []
    for name, replaces in (("display", False), ("update_display", True)):

        def keep(text, display_id=None, replaces=replaces):
            outputs.append((text.data, display_id, replaces))

        monkeypatch.setattr(notebooks, name, keep)
    return notebooks.start("01_capture", "smoke"), outputs


def found(run, blocks):
    """Record results of a run as they are at its end."""
    run.record("blocks", blocks)
    run.save()


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        (ONE, "- The answer is 1.0 [0.5, 1.5].\n\nSquare brackets hold 95 % intervals."),
        (None, "Of run profile `smoke` nothing is recorded yet."),
        (ONE.drop(columns="r2"), "cannot be read (SourceError: results of 01_capture do not hold"),
    ],
    ids=["recorded", "none", "of an earlier form"],
)
def test_the_answer_is_that_of_the_recorded_results_and_none_stops_no_notebook(shown, blocks, said):
    run, outputs = shown
    if blocks is not None:
        found(run, blocks)
    run.answer()
    ((text, identity, replaces),) = outputs
    assert said in text
    assert (identity, replaces) == ("01_capture-answer", False)


def test_the_conclusion_stands_at_both_ends(shown):
    run, outputs = shown
    found(run, ONE.assign(r2=2.0))
    run.conclusion()
    (above, identity, replaces), (below, _, added) = outputs
    assert (identity, replaces, added) == ("01_capture-answer", True, False)
    assert above.startswith("- The answer is 2.0")
    assert below == f"{above}\n\n**Your predictions.**\n\n1. It is.\n2. Not 2.0."


def test_questions_are_shown_with_their_answers_folded(shown):
    run, outputs = shown
    found(run, ONE)
    run.questions()
    ((text, identity, replaces),) = outputs
    assert (identity, replaces) == (None, False)
    assert text == (
        "<details><summary>1. Is x &lt; 2?</summary>\n\nIt is 1.0 [0.5, 1.5].\n\n</details>\n\n"
        "<details><summary>2. Why?</summary>\n\nFor a reason.\n\n</details>\n\nSquare brackets hold 95 % intervals."
    )


def test_a_long_table_is_folded_and_whole(shown):
    run, outputs = shown
    run.folded("all <100> blocks", pd.DataFrame({"r2": range(100)}))
    ((text, _, _),) = outputs
    assert text.startswith("<details><summary>all &lt;100&gt; blocks</summary><table")
    assert text.endswith("</table></details>")
    assert text.count("<tr") == 101


@pytest.mark.long
def test_an_executed_notebook_reads_ones_own_profile_and_shows_at_its_top_what_it_found_at_its_end(
    project, monkeypatch
):
    tiny = """# %% tags=["parameters"]
profile = "smoke"

# %%
from pathlib import Path

import pandas as pd

from howlinear.files import paths
from howlinear.notebook import prose
from howlinear.notebook.run import start

paths.results = lambda profile: Path(FOLDER)
prose.TEMPLATES = Path(FOLDER)
run = start("00_tiny", profile)
print(run.profile, run.corpora, run.recorded)
run.answer()

# %%
run.record("blocks", pd.DataFrame({"model": ["m"], "block": [7], "r2": [0.5]}))
run.save()
run.conclusion()
"""
    folder = str(project / "results")
    (project / "results").mkdir(exist_ok=True)
    filled = "{{ blocks.block[0] }}"
    template = f"# Answer\n- It is {filled}.\n# Replies\n1. It is {filled}.\n# Questions\n"
    (project / "results" / "00_tiny.md").write_text(template)
    (paths.NOTEBOOKS / "00_tiny.py").write_text(tiny.replace("FOLDER", repr(folder)))
    (project / "mine.txt").write_text("A text.")
    (project / "mine.yaml").write_text("extends: smoke\ncorpora: [mine.txt]\n")
    monkeypatch.chdir(project)
    execute.main("00_tiny", "mine.yaml")
    executed = json.loads((paths.scratch("mine") / "notebooks" / "00_tiny.ipynb").read_text())
    outputs = [output for cell in executed["cells"] for output in cell.get("outputs", [])]
    assert outputs[0]["text"] == ["mine ['mine'] False\n"]
    shown = [output["data"] for output in outputs if "data" in output]
    assert ["".join(data["text/markdown"]) for data in shown] == [
        "- It is 7.",
        "- It is 7.\n\n**Your predictions.**\n\n1. It is 7.",
    ]
