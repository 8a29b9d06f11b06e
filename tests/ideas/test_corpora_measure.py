import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from transformers import BertConfig, BertModel

from howlinear.core.fold_maps import Scores
from howlinear.core.intervals import Estimate
from howlinear.ideas.corpora import measure
from howlinear.ideas.corpora.agreement import agreement
from howlinear.ideas.corpora.transfer import Transfer, transfer, transfers
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import change, losses
from howlinear.models.swap import swap
from howlinear.text.rows import TokenRows

CORPORA = ("docs", "code", "cpp")


def around(value, reach=0.01):
    return Estimate(value, value - reach, value + reach)


def carried(level, seed):
    """A block whose R²_lin is about `level` on every corpus, and drops with its bend; likeness 0.7 against 0.9."""
    generator = np.random.default_rng(seed)
    scores, r2, drop, likeness, expected = {}, {}, {}, {}, {}
    for i, fitted in enumerate(CORPORA):
        for j, scored in enumerate(CORPORA):
            pair = fitted, scored
            value = level + 0.02 * j - 0.3 * (i != j)
            scores[pair] = Scores(value, *(value + 0.003 * generator.standard_normal((2, 4))))
            r2[pair] = around(value)
            drop[pair] = around(0.2 + 0.25 * (1 - level)) if i != j else Estimate(0.0, 0.0, 0.0)
            likeness[pair] = around(0.7) if i != j else Estimate(1.0, 1.0, 1.0)
            expected[pair] = 0.9 - 0.01 * (i + j)
    return Transfer(CORPORA, {}, scores, r2, drop, likeness, expected)


def found():
    levels = {"one": [0.9, 0.6, 0.5, 0.65, 0.8], "two": [0.9, 0.7, 0.8]}
    return {model: {2 * i: carried(level, i) for i, level in enumerate(of)} for model, of in levels.items()}


def row_of(table, **keys):
    (row,) = (table.loc[np.logical_and.reduce([table[key] == value for key, value in keys.items()])]).to_dict("records")
    return row


def test_every_pair_of_every_block_stands_once():
    planted = found()
    profiles, losses, alike = measure.profiles(planted), measure.transfer(planted), measure.likeness(planted)
    assert [len(table) for table in (profiles, losses, alike)] == [8 * 3, 8 * 6, 8 * 3]
    here = planted["two"][4]
    own = row_of(profiles, model="two", corpus="code", block=4)
    assert [own["r2"], own["r2_low"], own["r2_high"]] == list(vars(here.r2["code", "code"]).values())
    lost = row_of(losses, model="two", fitted="cpp", scored="code", block=4)
    assert [lost["drop"], lost["drop_low"], lost["drop_high"]] == list(vars(here.drop["cpp", "code"]).values())
    cosine = row_of(alike, model="two", corpus="code", other="cpp", block=4)
    assert cosine["likeness_low"] == here.likeness["code", "cpp"].low
    assert cosine["noise"] == here.expected["code", "cpp"]


def test_agreements_are_those_of_whole_and_inner_profiles():
    planted = found()
    agreements = measure.agreements(planted)
    row = row_of(agreements, model="one", corpus="docs", other="cpp")
    whole = agreement(planted["one"], "docs", "cpp")
    inner = agreement({block: planted["one"][block] for block in (2, 4, 6)}, "docs", "cpp")
    assert (row["r"], row["r_low"]) == (whole.correlation.value, whole.correlation.low)
    assert (row["inner"], row["inner_high"]) == (inner.correlation.value, inner.correlation.high)
    assert row["gap"] == pytest.approx(-0.04)  # docs less cpp, two steps of 0.02
    assert row["gap_block"] in planted["one"]
    assert row["differ"] == len(whole.differ)
    on_docs, on_cpp = ([each.r2[text, text].value for each in planted["one"].values()] for text in ("docs", "cpp"))
    assert row["rho"] == pytest.approx(spearmanr(on_docs, on_cpp)[0])
    short = row_of(agreements, model="two", corpus="docs", other="code")
    assert short["inner"] == short["r"]  # three blocks: none are left out


def test_a_row_a_model_says_what_goes_by_block_and_what_noise_leaves():
    planted = found()
    profiles, losses, alike = measure.profiles(planted), measure.transfer(planted), measure.likeness(planted)
    one = (losses.model == "one") & (losses.fitted == "docs") & (losses.scored == "code") & (losses.block == 0)
    losses.loc[one, "drop"] = 0.05
    row = row_of(measure.by_model(profiles, losses, alike), model="one")
    table = np.array([[each.r2[name, name].value for name in CORPORA] for each in planted["one"].values()])
    assert row["by_block"] == pytest.approx(np.var(table.mean(1)) / np.var(table))
    lost = [(0.225 * 5 + 0.05) / 6, 0.3, 0.325, 0.2875, 0.25]
    assert row["bend"] == pytest.approx(np.corrcoef(lost, 1 - table.mean(1))[0, 1])
    assert row["noise"] == pytest.approx(np.mean([0.89, 0.88, 0.87]))


def test_two_blocks_have_no_correlation():
    short = {"two": {block: carried(level, block) for block, level in enumerate((0.9, 0.7))}}
    profiles, losses, alike = measure.profiles(short), measure.transfer(short), measure.likeness(short)
    assert measure.agreements(short).empty
    assert np.isnan(measure.by_model(profiles, losses, alike)["bend"].astype(float)[0])
    assert len(losses) == 2 * 6


def test_one_text_has_its_profile_alone(gpt2, ids):
    captured = capture(gpt2, TokenRows.from_ids(ids, folds=3))
    alone = {"gpt2": {block: transfer({"docs": kept}) for block, kept in captured.items()}}
    both = transfers({"docs": captured, "code": captured})
    profiles, losses, alike = measure.profiles(alone), measure.transfer(alone), measure.likeness(alone)
    assert profiles["r2"].to_list() == [each.r2["docs", "docs"].value for each in both.values()]
    assert losses.empty
    assert alike.empty
    assert measure.agreements(alone).empty
    (row,) = measure.by_model(profiles, losses, alike).to_dict("records")
    assert row["by_block"] == 1
    assert np.isnan(row["noise"])
    assert measure.drops_by_training(losses, {"docs"}, ["gpt2"]).empty


def test_seen_and_unseen_corpora_are_averaged_by_kind():
    losses = measure.transfer(found())
    losses.loc[(losses["fitted"] == "docs") & (losses["scored"] == "cpp"), "drop"] = 0.5
    seen = measure.drops_by_training(losses, {"docs", "code"}, ["one", "two"])
    assert seen[seen["model"] == "one"].values.tolist() == [
        ["one", "seen", "seen", pytest.approx(0.2775)],
        ["one", "seen", "unseen", pytest.approx((0.5 + 0.2775) / 2)],
        ["one", "unseen", "seen", pytest.approx(0.2775)],
    ]


def test_of_models_whose_training_text_is_unknown_no_corpus_is_called_unseen():
    losses = measure.transfer(found())
    seen = measure.drops_by_training(losses, {"docs", "code"}, ["one"])
    row = row_of(seen, model="two")
    assert (row["fitted"], row["scored"]) == ("unknown", "unknown")
    assert row["drop"] == pytest.approx(losses[losses["model"] == "two"]["drop"].mean())
    assert "unknown" not in set(seen[seen["model"] == "one"]["fitted"])


def test_swaps_cost_what_they_cost_one_by_one(gpt2, ids):
    texts = {"docs": ids, "code": ids.flip(0, 1) // 2}
    rows = {name: TokenRows.from_ids(each, folds=3) for name, each in texts.items()}
    by_block = transfers({name: capture(gpt2, each) for name, each in rows.items()})
    held_out = {name: each.ids[each.test] for name, each in rows.items()}
    costs = measure.swap_costs(gpt2, by_block, held_out, [0, 2], "docs")
    assert len(costs) == 2 * 2
    assert (costs[costs["corpus"] == "docs"]["extra"] == 0).all()

    def loss(corpus, block, text):
        with swap(gpt2, {block: by_block[block].maps[corpus]}):
            return losses(gpt2, held_out[text])

    own = change(losses(gpt2, held_out["code"]), loss("code", 2, "code"))
    extra = change(loss("code", 2, "code"), loss("docs", 2, "code"))
    row = row_of(costs, corpus="code", block=2)
    for kind, expected in (("own", own), ("extra", extra)):
        numbers = (row[kind], row[f"{kind}_low"], row[f"{kind}_high"])
        assert numbers == pytest.approx((expected.delta, expected.low, expected.high), rel=1e-5, abs=1e-6)


def test_an_encoder_has_gains_and_no_costs(ids):
    encoder = BertModel(BertConfig(vocab_size=80, hidden_size=16, num_hidden_layers=2, num_attention_heads=2))
    none = measure.swap_costs(encoder, {}, {"docs": TokenRows.from_ids(ids, folds=3)}, [0, 1], "docs")
    assert none.empty
    gains = pd.DataFrame({"corpus": ["docs"] * 2, "block": [0, 1], "gain": [0.1, 0.2]})
    both = gains.merge(none, how="left", on=["corpus", "block"])  # as the notebook joins them
    assert both["gain"].to_list() == [0.1, 0.2]
    assert both["own"].isna().all()
