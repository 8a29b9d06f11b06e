"""Compare the paper's public code with ours, on the same model and the same rows: `paper_code.py CHECKOUT`.

CHECKOUT is your checkout of the paper's public repository (github.com/Notabot123/polyweave); nothing of it is included
here, and its functions run unchanged. Both codes get the same text and tokenizer, and each lays the text out by itself.
A row per model and quantity, with the largest difference over blocks and both numbers there, is printed and, with
`--keep`, written to `results/bench/paper_code.json`, where other models' rows stay. If the paper's convention differs
from ours, its number is compared with ours under both conventions, in a row each.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is downloaded here

import argparse
import sys
import tempfile
from pathlib import Path

import pandas as pd
import torch
from torch import nn

import howlinear as hl
from howlinear.core.ceilings import NULL, fit, r2_per_feature
from howlinear.core.moments import Moments
from howlinear.core.reduced_rank import reduced_rank
from howlinear.files import numbers, paths
from howlinear.files.git import git
from howlinear.ideas.bilinear.recipe import Products, papers_gain
from howlinear.instrument.paper_protocol import paper_blocks
from howlinear.instrument.perplexity import held_out
from howlinear.instrument.resample import rows_of_blocks
from howlinear.instrument.selection import spaced
from howlinear.instrument.swap_costs import each_alone, swap_losses
from howlinear.models.load import load_model, tokenizer_of
from howlinear.text.corpus import load_corpus
from howlinear.text.paper_rows import LONG_TOKEN, SURVEY, paper_rows

MODELS = ("mini-gpt2", "mini-pythia", "mini-llama")
SCORED = 3_072  # rows that perplexities are measured on: 24 windows show whether two agree
GAINS = 2  # blocks of a model in which the probe is trained
STEPS = 1_000  # of the paper's 4,000


def bring(checkout):
    """Import the paper's modules: its package, and two of its drivers, which are scripts next to it."""
    sys.path[:0] = [str(checkout), str(checkout / "research")]
    import run_residual_gain_clean
    import run_rrr_rank
    from polyweave.experiments import gpt2_mlp_distill

    return gpt2_mlp_distill, run_rrr_rank, run_residual_gain_clean


def laid_out(distill, corpus, rows, seed, folder):
    """Windows of the same text, laid out by the paper's code and by ours."""
    text = Path(folder) / f"{seed}.txt"
    text.write_text(corpus.beginning(LONG_TOKEN * rows, seed), encoding="utf-8")
    config = distill.Config(text_paths=(str(text),), max_tokens=rows, device="cpu")
    theirs = distill.token_batches(config, corpus.tokenizer)
    return config, theirs, paper_rows(corpus, rows, seed=seed)


def started_alike(seed, d, gains):
    """Products with the same initial weights as the paper's layer made after this seed."""
    torch.manual_seed(seed)
    layer = gains.PolyLinear(d, d, rank=16)
    start = Products(1, d, d, 16, torch.Generator())
    with torch.no_grad():
        for ours, its in ((start.left, layer.U), (start.right, layer.V), (start.readout, layer.mix)):
            ours.copy_(its.T)
    torch.manual_seed(seed)
    return start


def costs(model, ids, maps):
    """Rise in perplexity with each map in its block's place."""
    before, after = swap_losses(model, each_alone(maps), held_out(ids))
    return {block: float(losses.mean().exp() - before.mean().exp()) for block, losses in after.items()}


def plain_least_squares(x, y):
    """The affine map of a plain `lstsq` in float64, without leaving out null directions."""
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    solution = torch.linalg.lstsq(torch.cat([x.double(), ones], 1), y.double()).solution
    return hl.AffineMap(solution[:-1], solution[-1])


def compared(name, modules, folder):
    """The rows of one model, one per quantity."""
    distill, ranks, gains = modules
    model = load_model(name)
    corpus = load_corpus("docs", tokenizer_of(model))
    config, batches, rows = laid_out(distill, corpus, SURVEY, 0, folder)
    _, scored_batches, scored = laid_out(distill, corpus, SCORED, 1, folder)

    # Ours: the paper's protocol, and our own median and rank on the same rows
    ours = paper_blocks(model, rows, scored.ids).set_index("block").astype("float64")
    activations = rows_of_blocks(model, hl.TokenRows.from_ids(rows.ids))
    maps = {}
    for block, (x, y) in activations.items():
        sides = ((x[: rows.cut], y[: rows.cut]), (x[rows.cut :], y[rows.cut :]))  # train rows, then held-out ones
        train, test = (Moments(x.shape[1], y.shape[1]).update(*side) for side in sides)
        maps[block], _ = fit(train, NULL)
        curve = reduced_rank(train, test)
        ours.loc[block, "median"] = float(r2_per_feature(maps[block], test).nanquantile(0.5))
        ours.loc[block, "rank_90"] = float("nan") if (rank := curve.rank_reaching(0.9)) is None else rank
        ours.loc[block, "weight"] = float(maps[block].weight.abs().max())

    # Theirs, block by block
    captured = gains.capture_all_blocks(model, list(activations), batches, config)
    base = distill._perplexity(model, scored_batches, config)
    theirs = pd.DataFrame(index=ours.index)
    in_float64 = {}
    for block, (x, y) in captured.items():
        line = nn.Linear(x.shape[1], y.shape[1])
        cut = len(x) - max(1, round(0.2 * len(x)))
        theirs.loc[block, "r2"] = distill.fit_closed_form_linear(line, x, y).val_r2
        with torch.no_grad():
            theirs.loc[block, "median"], _ = ranks.per_feature_r2(y[cut:], line(x[cut:]))
        _, _, theirs.loc[block, "rank_90"], theirs.loc[block, "rank_95"] = ranks.rrr_effective_rank(x, y, "cpu")
        swapped = distill.block_swap_perplexity(model, line, block, scored_batches, config, ppl_base=base)
        theirs.loc[block, "dppl"] = swapped["ppl_swap"] - base
        theirs.loc[block, "weight"] = float(line.weight.detach().abs().max())
        exact = plain_least_squares(x[:cut], y[:cut])
        in_float64[block] = lambda x, exact=exact: exact(x.double()).to(x.dtype)
    ours["dppl, its map in float64"] = pd.Series(costs(model, scored.ids, in_float64))
    for block in spaced(activations, GAINS):
        x, y = activations[block]
        start = started_alike(block, x.shape[1], gains)
        of_line = theirs.loc[block, "r2"]
        theirs.loc[block, "gain"] = gains.quad_only_gain(*captured[block], of_line, "cpu", steps=STEPS) - of_line
        ours.loc[block, "gain"] = papers_gain(x, y, rows.cut, steps=STEPS, start=start)

    pairs = {
        "R² about one scalar mean": ("r2_scalar", "r2"),
        "R² about each feature's own mean": ("r2", "r2"),
        "lower median": ("median_r2_lower", "median"),
        "median": ("median", "median"),
        "rank for 90 %, about the train mean": ("rank_90_train_mean", "rank_90"),
        "rank for 95 %, about the train mean": ("rank_95_train_mean", "rank_95"),
        "rank for 90 %, about the held-out mean": ("rank_90", "rank_90"),
        "ΔPPL": ("dppl", "dppl"),
        "ΔPPL of its plain least squares in float64": ("dppl, its map in float64", "dppl"),
        "largest weight of the line": ("weight", "weight"),
        "gain of the probe, same start and batches": ("gain", "gain"),
    }
    ids = torch.cat(batches)
    differ = int((ids != rows.ids).sum()) if ids.shape == rows.ids.shape else ids.numel()
    of_ours = float(ours["perplexity"].iloc[0])
    table = [
        {"quantity": "token ids", "ours": rows.ids.numel(), "theirs": ids.numel(), "difference": differ},
        {"quantity": "perplexity", "ours": of_ours, "theirs": base, "difference": of_ours - base},
    ]
    for quantity, (own, its) in pairs.items():
        difference = (ours[own] - theirs[its]).dropna()
        worst = difference.abs().idxmax()
        about = {"quantity": quantity, "blocks": len(difference), "differ": int((difference.abs() > 1e-9).sum())}
        both = {"ours": float(ours[own][worst]), "theirs": float(theirs[its][worst])}
        at = {"block": int(worst), **both, "difference": float(difference[worst])}
        table.append(about | at)
    return [{"model": name} | row for row in table]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="checkout of the paper's public repository")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--keep", action="store_true", help="write results/bench/paper_code.json")
    options = parser.parse_args()
    kept = paths.results("bench") / "paper_code.json"
    about = {"commit": git(options.checkout, "rev-parse", "HEAD"), "steps": STEPS, "versions": numbers.versions()}
    modules = bring(options.checkout.resolve())
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            rows = compared(name, modules, folder)
            print(pd.DataFrame(rows).to_string(index=False, float_format="{:.6g}".format), flush=True)
            if options.keep:
                others = numbers.load(kept)["rows"] if kept.is_file() else []
                table = [row for row in others if row["model"] != name] + rows
                numbers.save(kept, about | {"rows": table}, digits={"difference": 2, "ours": 6, "theirs": 6})


if __name__ == "__main__":
    main()
