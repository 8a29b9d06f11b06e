"""All notebooks on models and texts of the paper's names, made small, so that what compares with its values is run."""

import itertools
import subprocess
import sys

import pytest
import yaml
from transformers import PreTrainedTokenizerFast

import howlinear as hl
from howlinear.files import paths
from howlinear.text.documents import offline_documents
from howlinear.training import stand_ins

pytestmark = pytest.mark.long

STEMS = sorted(path.stem for path in (paths.ROOT / "notebooks").glob("[0-9]*.py"))
HEADINGS = {"wikitext": " = Article {} = \n", "moby_dick": "CHAPTER {}. Of it", "puzzles": "{}.--A QUESTION."}
PUBLISHED = {  # notebook → what it lays beside the paper's numbers
    "02_ceilings": {"r2_lin", "dppl_linear"},
    "03_bilinear": {"bilinear_gain_r16"},
    "04_rank": {"r2_perfeature_median", "rrr_rank90"},
    "05_corpora": {"r2_lin", "r2_lin_moby_dick", "r2_lin_math_puzzles"},
}
SMALL = {  # the least that every notebook still runs on
    "03_bilinear": {"sample_rows": 1024, "steps": 10, "batches": 12, "recipe_steps": 200, "control_steps": 200},
    "06_compression": {"cost_rows": 512},
    "07_optimisers": {"sample_rows": 1024, "steps": 20, "baseline_steps": 20},
    "08_controls": {"sample_rows": 1024, "most_rows": 2048},
    "09_dynamics": {"steps": 4, "documents": 200},
    "10_degrees": {"kernel_rows": [100, 200, 400]},
    "12_sinks": {"planted_rows": 2048},
    "14_compress": {"fit_rows": 2048, "limit_rows": [1024]},
    "15_gate": {"fit_rows": 1024, "choose_rows": 512, "cost_rows": 512, "planted_rows": 2048},
}


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """A run profile as the paper's, its models four blocks of width 64 with random weights."""
    folder = tmp_path_factory.mktemp("paper")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(stand_ins.TOKENIZER)
    tokenizer.save_pretrained(folder / "tokenizer")
    models = [stand_ins.make(name, folder, stand_ins.resized(name, blocks=4, width=64)) for name in stand_ins.PUBLISHED]
    documents = [document.text for document in itertools.islice(offline_documents("docs"), 600)]
    for part, (name, heading) in enumerate(HEADINGS.items()):
        text = "\n\n\n".join(f"{heading.format(i)}\n\n{each}" for i, each in enumerate(documents[part::3], 1))
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    (folder / "wikitext_test.txt").write_text((folder / "wikitext.txt").read_text(encoding="utf-8"), encoding="utf-8")
    path = folder / "paper-like.yaml"
    content = {
        "extends": str(paths.PROFILES / "rehearsal.yaml"),
        "models": [str(model) for model in models],
        "texts": str(folder),
        "corpora": list(HEADINGS),
        "rows": 4096,
        "sample": 2048,
        "seq_len": 64,
        "parameters": SMALL,
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_every_notebook_runs_and_what_the_paper_publishes_stands_beside_it(profile):
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(paths.SNAKEFILE)]
    command += ["--nolock", "--keep-going", "--quiet", "all", "--cores", "2"]
    done = subprocess.run(
        [*command, "--config", f"profile={profile}"], cwd=paths.ROOT, capture_output=True, text=True, check=False
    )
    executed = paths.scratch(profile.stem) / "notebooks"
    assert [stem for stem in STEMS if not (executed / f"{stem}.ipynb").is_file()] == [], done.stderr[-3000:]
    results = executed.parent / "results"
    assert set(hl.results(results, "02_ceilings")["blocks"]["model"]) == set(stand_ins.PUBLISHED)
    for stem, quantities in PUBLISHED.items():
        cells = hl.results(results, stem)["paper"]
        assert set(cells["quantity"]) == quantities
        by_model = cells.groupby(["quantity", "model"]).size()
        assert by_model.tolist() == [4] * 3 * len(quantities)
        assert cells.loc[cells["quantity"] != "rrr_rank90", ["paper", "by_its_protocol"]].notna().all(axis=None)
    claims = hl.results(results, "13_claims")
    assert set(claims["verdicts"]["model"]) >= set(stand_ins.PUBLISHED) <= set(claims["paper"]["model"])
    assert len(claims["claims"])
