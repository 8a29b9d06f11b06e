import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from transformers import BertConfig, BertModel

from howlinear.core.intervals import Estimate
from howlinear.ideas.corpora import tables
from howlinear.ideas.corpora.agreement import agreement
from howlinear.ideas.corpora.transfer import Scores, Transfer, transfers
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import change, losses
from howlinear.instrument.swap_costs import swap_losses
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


def test_the_pair_table_holds_every_pair_of_every_block_once():
    planted = found()
    pairs = tables.pair_table(planted)
    assert len(pairs) == (5 + 3) * 9
    assert not pairs.duplicated(["model", "block", "fitted", "scored"]).any()
    (row,) = pairs.query("model == 'two' and block == 4 and fitted == 'cpp' and scored == 'code'").to_dict("records")
    here = planted["two"][4]
    pair = ("cpp", "code")
    assert (row["r2"], row["r2_low"], row["r2_high"]) == (here.r2[pair].value, here.r2[pair].low, here.r2[pair].high)
    assert (row["drop_high"], row["likeness_low"]) == (here.drop[pair].high, here.likeness[pair].low)
    assert row["expected"] == here.expected[pair]


def test_pairs_are_told_apart_by_whether_they_stay_at_home():
    pairs = tables.pair_table(found())
    assert len(tables.at_home(pairs)) == 8 * 3
    assert len(tables.abroad(pairs)) == 8 * 6
    once = tables.unordered(pairs)
    assert len(once) == 8 * 3
    assert set(zip(once["fitted"], once["scored"], strict=True)) == {("docs", "code"), ("docs", "cpp"), ("code", "cpp")}


def test_the_agreement_table_is_that_of_whole_and_inner_profiles():
    planted = found()
    profile = {block: each.r2["code", "code"].value for block, each in planted["one"].items()}
    row = tables.agreement_table(planted).loc["one", "docs ~ cpp"]
    whole = agreement(planted["one"], "docs", "cpp")
    inner = agreement({block: planted["one"][block] for block in (2, 4, 6)}, "docs", "cpp")
    assert (row["r"], row["r_low"]) == (whole.correlation.value, whole.correlation.low)
    assert (row["inner"], row["inner_high"]) == (inner.correlation.value, inner.correlation.high)
    assert row["gap"] == pytest.approx(-0.04)  # docs less cpp, two steps of 0.02
    assert row["at"] in profile
    assert row["differ"] == len(whole.differ)
    assert row["rho"] == pytest.approx(spearmanr(list(profile.values()), list(profile.values()))[0])
    short = tables.agreement_table(planted).loc["two", "docs ~ code"]
    assert short["inner"] == short["r"]  # three blocks: none are left out


def test_the_share_by_block_is_that_of_the_mean_profile():
    planted = found()
    shares = tables.shares_by_block(tables.pair_table(planted))
    table = np.array([[each.r2[name, name].value for name in CORPORA] for each in planted["one"].values()])
    assert shares["one"] == pytest.approx(np.var(table.mean(1)) / np.var(table))
    assert 0.9 < shares["one"] < 1


def test_the_mean_matrix_is_fitted_down_and_scored_across():
    matrix = tables.mean_matrix(tables.pair_table(found()), "two")
    assert list(matrix.index) == list(matrix.columns) == list(CORPORA)
    assert matrix.loc["docs", "cpp"] == pytest.approx(0.8 + 0.04 - 0.3)
    assert matrix.loc["cpp", "docs"] == pytest.approx(0.8 - 0.3)


def test_the_transfer_table_counts_and_averages():
    pairs = tables.pair_table(found())
    drops = (pairs["model"] == "one") & (pairs["fitted"] == "docs") & (pairs["scored"] == "code")
    pairs.loc[drops & (pairs["block"] == 0), ["drop", "drop_low"]] = [0.05, -0.1]  # a loss, but not surely
    pairs.loc[drops & (pairs["block"] == 4), "likeness_high"] = 0.99
    row = tables.transfer_table(pairs).loc["one"]
    by_block = np.array([(0.225 * 5 + 0.05) / 6, 0.3, 0.325, 0.2875, 0.25])
    assert row["drop"] == pytest.approx(by_block.mean())
    assert row["largest"] == pytest.approx(0.325)
    assert (row["surely"], row["drops"]) == (29, 30)
    assert (row["below"], row["likenesses"]) == (14, 15)
    assert (row["likeness"], row["lowest"]) == pytest.approx((0.7, 0.7))
    assert row["noise alone"] == pytest.approx(np.mean([0.89, 0.88, 0.87]))
    bend = [1 - (level + 0.02) for level in (0.9, 0.6, 0.5, 0.65, 0.8)]
    assert row["with bend"] == pytest.approx(np.corrcoef(by_block, bend)[0, 1])


def test_seen_and_unseen_corpora_are_averaged_by_kind():
    pairs = tables.pair_table(found())
    pairs.loc[(pairs["fitted"] == "docs") & (pairs["scored"] == "cpp"), "drop"] = 0.5
    seen = tables.seen_table(pairs, {"docs", "code"})
    assert list(seen.columns) == ["seen → seen", "seen → unseen", "unseen → seen"]
    assert seen.loc["one"].to_list() == pytest.approx([0.2775, (0.5 + 0.2775) / 2, 0.2775])


def test_of_models_whose_training_text_is_unknown_no_corpus_is_called_unseen():
    pairs = tables.pair_table(found())
    seen = tables.seen_table(pairs, {"docs", "code"}, known=["one"])
    assert set(seen.columns) == {"seen → seen", "seen → unseen", "unseen → seen", "unknown → unknown"}
    of_all = pairs[(pairs["model"] == "two") & (pairs["fitted"] != pairs["scored"])]
    assert seen.loc["two"].dropna().to_dict() == {"unknown → unknown": pytest.approx(of_all["drop"].mean())}
    assert np.isnan(seen.loc["one", "unknown → unknown"])
    pd.testing.assert_frame_equal(
        tables.seen_table(pairs, {"docs", "code"}, ["one", "two"]), tables.seen_table(pairs, {"docs", "code"})
    )


def test_swaps_cost_what_they_cost_one_by_one(gpt2, ids):
    texts = {"docs": ids, "code": ids.flip(0, 1) // 2}
    rows = {name: TokenRows.from_ids(each, folds=3) for name, each in texts.items()}
    by_block = transfers({name: capture(gpt2, each) for name, each in rows.items()})
    held_out = {name: each.ids[each.test] for name, each in rows.items()}
    costs = tables.swap_table(gpt2, by_block, held_out, [0, 2], "docs")
    assert len(costs) == 2 * 2 * 2
    assert (costs.query("kind == 'extra' and corpus == 'docs'")["delta"] == 0).all()

    def loss(corpus, block, text):
        with swap(gpt2, {block: by_block[block].maps[corpus]}):
            return losses(gpt2, held_out[text])

    own = change(losses(gpt2, held_out["code"]), loss("code", 2, "code"))
    extra = change(loss("code", 2, "code"), loss("docs", 2, "code"))
    for kind, expected in (("own", own), ("extra", extra)):
        (row,) = costs[costs["kind"] == kind].query("corpus == 'code' and block == 2").to_dict("records")
        numbers = (row["delta"], row["low"], row["high"])
        assert numbers == pytest.approx((expected.delta, expected.low, expected.high), rel=1e-5, abs=1e-6)
    assert swap_losses(gpt2, {}, held_out["docs"])[0].shape == (len(held_out["docs"]),)


def test_an_encoder_has_no_costs_and_is_named(gpt2, ids):
    encoder = BertModel(BertConfig(vocab_size=80, hidden_size=16, num_hidden_layers=2, num_attention_heads=2))
    rows = TokenRows.from_ids(ids, folds=3)
    none = tables.swap_table(encoder, {}, {"docs": rows}, [0, 1], "docs")
    assert none.empty
    by_block = transfers({name: capture(gpt2, rows) for name in ("docs", "code")})
    some = tables.swap_table(gpt2, by_block, {"docs": rows}, [0], "docs")
    assert list(some) == list(none)
    joined = tables.joined([some.assign(model="gpt2"), none.assign(model="bert")])
    assert joined["model"].tolist() == ["gpt2"] * 2
    assert joined["delta"].dtype == float
    sentence = tables.without_loss(["gpt2", "bert"], joined)
    assert "do not apply to bert:" in sentence
    assert tables.without_loss(["gpt2"], joined) == ""


def some_costs():
    rows = []
    for model in ("two", "one"):
        for kind in ("own", "extra", "bilinear"):
            for place, corpus in enumerate(reversed(CORPORA)):
                for block in (0, 4):
                    delta = {"own": 1.0, "extra": 0.5, "bilinear": 0.1 + 0.02 * place * (block == 4)}[kind]
                    low = delta - 0.1 if corpus == "code" else delta - 1
                    row = {"model": model, "corpus": corpus, "block": block, "kind": kind, "delta": delta}
                    rows.append(row | {"low": low, "high": delta + 0.1})
    return pd.DataFrame(rows)


def test_a_record_keeps_what_readers_of_the_results_ask_for():
    planted = found()
    pairs = tables.pair_table(planted)
    carried_on, seen = tables.transfer_table(pairs), tables.seen_table(pairs, {"docs", "code"})
    record = tables.record(pairs, tables.agreement_table(planted), carried_on, seen, some_costs(), "one")
    assert record["blocks"] == [0, 2, 4, 6, 8]
    profile = record["profile"]["cpp"]
    assert profile["value"] == [each.r2["cpp", "cpp"].value for each in planted["one"].values()]
    assert profile["low"] == [each.r2["cpp", "cpp"].low for each in planted["one"].values()]
    assert record["drop"].keys() == {f"{a} → {b}" for a in CORPORA for b in CORPORA if a != b}
    assert list(record["likeness"]) == ["code ~ cpp", "docs ~ code", "docs ~ cpp"]
    assert record["agreement"]["docs ~ code"]["differ"] == len(agreement(planted["one"], "docs", "code").differ)
    assert record["carried"].keys() == {"drop", "largest", "likeness", "lowest", "noise alone", "with bend"}
    assert record["mean_r2"].shape == (3, 3)
    order = [(row["corpus"], row["block"], row["kind"]) for row in record["costs"]]
    assert order == [(c, b, k) for c in CORPORA for b in (0, 4) for k in ("own", "extra", "bilinear")]


def test_a_model_without_loss_has_a_verdict_on_all_else():
    planted = found()
    pairs, agreements = tables.pair_table(planted), tables.agreement_table(planted)
    costs = some_costs().query("model == 'one' or kind == 'bilinear'")
    verdicts = tables.verdict_table(pairs, agreements, tables.transfer_table(pairs), costs, "docs")
    assert verdicts.loc["map of docs surely dearer"].to_dict() == {"one": "2 of 4", "two": "no loss"}
    assert verdicts.loc["bilinear gains differ by up to", "two"] == "0.04"
    seen = tables.seen_table(pairs, {"docs"}, ["one"])
    record = tables.record(pairs, agreements, tables.transfer_table(pairs), seen, costs, "two")
    assert {row["kind"] for row in record["costs"]} == {"bilinear"}
    assert list(record["mean_drop"]) == ["unknown → unknown"]


def test_the_verdicts_say_the_worst_of_each_model():
    planted = found()
    pairs, agreements = tables.pair_table(planted), tables.agreement_table(planted)
    verdicts = tables.verdict_table(pairs, agreements, tables.transfer_table(pairs), some_costs(), "docs")
    assert list(verdicts.columns) == ["one", "two"]
    assert verdicts.loc["largest gap", "one"] == "0.04 in a range of 0.44"
    assert verdicts.loc["map of docs surely dearer", "one"] == "2 of 4"
    assert verdicts.loc["bilinear gains differ by up to", "two"] == "0.04"
    assert verdicts.loc["one line on all texts", "two"] == "drop 0.25, likeness 0.70 (noise alone: 0.88)"
    assert verdicts.loc["blocks that surely differ", "one"].endswith(" of 15")
