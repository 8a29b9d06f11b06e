"""Interventions: the planted cause is found, and where there is none, in a block or in a model, none is."""

import numpy as np
import pytest
import torch

import conftest
from conftest import tiny
from helpers.captures import seen_at_sites
from helpers.families import VOCABULARY, small
from helpers.planted_sinks import sunk_model
from helpers.reference import held_out_r2
from howlinear.core.ceilings import ceiling
from howlinear.ideas.sinks import interventions
from howlinear.ideas.sinks.interventions import BOS, NOISE, NONE, ZERO, Layout, at_first, changes, even_folds, intervene
from howlinear.ideas.sinks.planted import answer, first_apart, planted, sink, sunk
from howlinear.instrument.capture import capture
from howlinear.instrument.perplexity import losses
from howlinear.text.rows import TokenRows

TOKEN = 7  # put in front


def rows_of(sequences=96, seq_len=16, folds=4, vocabulary=80):
    ids = torch.randint(8, vocabulary, (sequences, seq_len), generator=torch.Generator().manual_seed(0))
    return TokenRows.from_ids(ids, folds=folds)


@pytest.fixture(scope="module")
def chain():
    """Of four blocks 1 writes a sink, 2 answers to it, 3 writes one of its own; and block 2 where nothing answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conftest, "BLOCKS", 4)
        model = conftest.tiny("mini-gpt2").eval()
    rows = rows_of(192)
    median = {block: seen.heavy_rows().median for block, seen in capture(model, rows).items()}
    written = torch.zeros(32)
    written[[5, 11, 25]] = torch.tensor([0.8, -0.5, 0.33])
    with sunk(model, 1, 5 * median[0] * torch.eye(32)[3], 300 * median[1] * written):
        loud = capture(model, rows, 2, sample=3_072)[2].rows()
        with interventions.changed(model, 1, changes(at_first, torch.zeros(32))[ZERO], 16):
            silent = capture(model, even_folds(rows, [32]), 2, sample=3_072)[2]
        direction, _ = first_apart(loud)
        least, most = (loud.x @ direction)[loud.position == 0].min(), (silent.rows().x @ direction).max()
        assert least > most  # so that block 2 can tell whether 1 has written
        threshold = float(least + most) / 2
        large = {block: -300 * median[block] * written for block in (2, 3)}
        answers = planted(model, 2, answer(direction, threshold, large[2]))
        with answers, planted(model, 3, sink(large[3])), torch.no_grad():
            as_it_is = model(input_ids=rows.ids[:4]).logits
            effects, summary = intervene("chain", model, rows, 1, lengths=[8, 16, 32], bos=TOKEN)
            assert torch.equal(model(input_ids=rows.ids[:4]).logits, as_it_is)
    return effects.set_index(["intervention", "block"]), summary.set_index("intervention"), silent


def test_the_answer_falls_silent_with_its_cause_and_a_block_that_writes_by_itself_goes_on(chain):
    effects, _, silent = chain
    assert effects.loc[(NONE, 2), "massive_rows"] == 192
    for silenced in (ZERO, "set to the mean"):
        assert effects.loc[(silenced, 2), "massive_rows"] == 0
        assert effects.loc[(silenced, 2), "change_high"] < 0
    assert effects.loc[(ZERO, 2), "r2"] == pytest.approx(ceiling(silent.train, silent.test).r2, abs=1e-5)
    assert effects.loc[(NONE, 3), "massive_rows"] == effects.loc[(ZERO, 3), "massive_rows"] == 192


def test_shorter_sequences_have_more_sinks_and_longer_ones_fewer(chain):
    effects, _, _ = chain
    massive = effects["massive_rows"]
    assert massive["length 8", 1] == 2 * massive[NONE, 1] == 4 * massive["length 32", 1]
    assert effects.loc[("length 8", 1), "change"] > 0 > effects.loc[("length 32", 1), "change"]


def test_tables_are_of_all_interventions_and_pair_what_they_compare(chain):
    effects, summary, _ = chain
    assert set(summary.index) >= {NONE, ZERO, "set to the mean", "halved", "doubled", "moved", BOS, "length 8"}
    assert (effects.loc[NONE, ["change", "change_low", "change_ordinary_high"]] == 0).all(axis=None)
    row = effects.loc[(ZERO, 2)]
    assert row["change"] == pytest.approx(row["r2"] - effects.loc[(NONE, 2), "r2"])
    assert row["change_ordinary"] == pytest.approx(row["r2_ordinary"] - effects.loc[(NONE, 2), "r2_ordinary"])
    later = effects.loc[ZERO].loc[[2, 3]]
    assert summary.loc[ZERO, "change_ordinary"] == pytest.approx(later["change_ordinary"].mean())
    assert summary.loc[ZERO, "straighter"] == (later["change_ordinary_low"] > 0).sum()
    assert summary.loc[ZERO, "more_bent"] == (later["change_ordinary_high"] < 0).sum()
    assert summary.loc[NONE, "rise"] == 0
    assert (summary["later_blocks"] == 2).all()


def test_noise_costs_as_much_as_silence_and_does_not_silence():
    with sunk_model(0) as (model, rows):
        effects, summary = intervene("m", model, rows, 0, blocks=[1])
    summary = summary.set_index("intervention")
    assert summary.loc[ZERO, "rise_low"] > 0  # the text is the sunk model's own
    assert summary.loc[NOISE, "rise"] == pytest.approx(summary.loc[ZERO, "rise"], rel=interventions.NEAR)
    assert summary.loc[NOISE, "noise"] > 0
    massive = effects.set_index(["intervention", "block"])["massive_rows"]
    assert massive[NOISE, 0] > 0 == massive[ZERO, 0]


@pytest.mark.parametrize(
    ("only", "tried"), [({ZERO, NOISE}, {NONE, ZERO, NOISE}), ({ZERO}, {NONE, ZERO}), ({NOISE}, {NONE})]
)
def test_the_control_is_tried_beside_the_zeros_that_it_costs_as_much_as(only, tried):
    with sunk_model(0) as (model, rows):
        _, summary = intervene("m", model, rows, 0, blocks=[1], only=only)
    assert set(summary["intervention"]) == tried


def test_a_model_without_a_sink_shows_no_effect():
    model = tiny("mini-gpt2").eval()
    effects, summary = intervene("m", model, rows_of(), 0)
    assert (effects[["change", "change_ordinary"]] == 0).all(axis=None)  # no row to change
    assert (summary["rise"] == 0).all()
    assert NOISE not in set(summary["intervention"])  # nothing to match


def test_an_encoder_whose_ffn_is_two_modules_has_effects_and_no_losses():
    effects, summary = intervene("m", small("bert"), rows_of(vocabulary=VOCABULARY), 0, which=at_first)
    assert (effects.query("intervention == 'set to zero'")["change"] != 0).all()
    assert summary[["loss", "rise", "noise"]].isna().all(axis=None)
    assert NOISE not in set(summary["intervention"])


def test_r2_is_that_of_stored_rows():
    model, rows = tiny("mini-gpt2").eval(), even_folds(rows_of(), [])
    layout = Layout.of(rows)
    ordinary = torch.rand(layout.place.numel(), generator=torch.Generator().manual_seed(2)) < 0.9
    x, y = seen_at_sites(model, {"input_ids": rows.ids})[2]
    test = rows.test.repeat_interleave(16)
    found = interventions.observe(model, layout, [2], ordinary).seen[2]
    for kept, scores in ((torch.ones_like(ordinary), found.every), (ordinary, found.ordinary)):
        expected = held_out_r2((x[kept & ~test], y[kept & ~test]), (x[kept & test], y[kept & test]))
        assert scores.whole == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(found.mean.float(), y[ordinary & ~test].mean(0), rtol=1e-4, atol=1e-5)


def test_losses_lie_where_their_tokens_are():
    model, rows = tiny("mini-gpt2").eval(), even_folds(rows_of(), [])
    layout = Layout.of(rows)
    found = interventions.place_losses(model, layout).view(rows.ids.shape)
    assert found[~rows.test].isnan().all()
    assert found[:, 0].isnan().all()
    torch.testing.assert_close(found[rows.test][:, 1:].mean(1), losses(model, rows.ids[rows.test]))
    behind = interventions.place_losses(model, layout.behind(TOKEN)).view(rows.ids.shape)[rows.test]
    assert behind[:, :-1].isfinite().all()  # the first token is predicted too
    assert behind[:, -1].isnan().all()  # and the last one made room
    shorter = interventions.place_losses(model, layout.cut_anew(8, 0)).view(rows.ids.shape)[rows.test]
    assert torch.equal(shorter.isnan()[0].nonzero()[:, 0], torch.tensor([0, 8]))
    torch.testing.assert_close(shorter[:, 1:8], found[rows.test][:, 1:8], rtol=1e-5, atol=1e-5)


def test_layouts_keep_every_token_and_its_place():
    rows = even_folds(rows_of(32, seq_len=4, folds=2), [8])
    layout = Layout.of(rows)
    tokens = rows.ids.flatten()
    for other in (layout.behind(TOKEN), layout.cut_anew(8, 0), layout.cut_anew(2, 0)):
        own = other.place >= 0
        assert torch.equal(other.rows.ids[own], tokens[other.place[own]])
        sequence = other.place[:, -1] // 4
        assert torch.equal(other.rows.test, rows.test[sequence])
        assert torch.equal(other.rows.fold, rows.fold[sequence])
    assert layout.behind(TOKEN).rows.ids[0].tolist() == [TOKEN, *rows.ids[0, :3].tolist()]
    assert layout.cut_anew(8, 0).place[1].tolist() == list(range(8, 16))
    assert layout.cut_anew(2, 0).rows.ids.shape == (2 * len(rows.ids), 2)


def test_a_bos_that_rows_begin_with_stands_once_in_a_longer_and_in_a_shorter_sequence():
    rows = even_folds(rows_of(32, seq_len=8, folds=2), [16])
    rows.ids[:, 0] = TOKEN
    assert interventions.opening_of(rows, TOKEN) == 1
    assert interventions.opening_of(rows, TOKEN + 1) == interventions.opening_of(rows, None) == 0
    longer = Layout.of(rows).cut_anew(16, 1)
    assert longer.rows.ids[0].tolist() == [TOKEN, *rows.ids[:2, 1:].flatten().tolist()]
    assert longer.place[0].tolist() == [-1, *range(1, 8), *range(9, 16)]
    shorter = Layout.of(rows).cut_anew(4, 1)
    assert shorter.place[:2].tolist() == [[-1, 1, 2, 3], [-1, 4, 5, 6]]  # of seven tokens the last is in neither
    assert (shorter.rows.ids[:, 0] == TOKEN).all()
    assert torch.equal(shorter.rows.fold, rows.fold.repeat_interleave(2))
    # and so its row is not ordinary in any pass: where rows are the same, an intervention that does nothing moves none
    model = tiny("mini-gpt2")
    effects, _ = intervene("tiny", model, rows, 0, lengths=[4], bos=TOKEN, only=())
    assert set(effects["intervention"]) == {NONE, "length 4"}
    assert effects["change_ordinary"].notna().all()


def test_lengths_are_those_that_model_and_text_allow():
    model, rows = tiny("mini-gpt2"), rows_of(64, folds=4)  # 12 sequences of 16 to fit on in a fold, 4 held out
    assert interventions.possible_lengths(model, rows, [4, 10, 16, 24, 32, 64, 128]) == [4, 32, 64]
    assert interventions.possible_lengths(small("bloom"), rows, []) == []  # a model that reads any number
    even = even_folds(rows, [4, 64])
    for test, count in ((False, 12), (True, 4)):
        assert [len(members) for members in even.folds(test)] == [count] * 4
    odd = even_folds(rows_of(72, folds=4), [64])
    assert {len(members) % 4 for test in (False, True) for members in odd.folds(test)} == {0}
    assert (odd.fold.diff() != 0).sum() == 7  # folds side by side


def test_a_row_that_is_massive_in_sequences_of_another_length_alone_is_ordinary_in_none():
    """Block 1 writes a sink where a token has more than eight before it: in sequences of 16, and not as read."""
    model, rows = tiny("mini-gpt2").eval(), even_folds(rows_of(192, seq_len=8), [16])
    deep = torch.zeros(16, dtype=torch.bool)
    deep[9::3] = True

    def write(x, y):
        outputs = y.reshape(-1, y.shape[-2], y.shape[-1]).clone()
        if outputs.shape[1] == 16:
            outputs[:, deep] = 300 * outputs.norm(dim=-1).median() * torch.eye(32)[3]
        return outputs.reshape(y.shape)

    with planted(model, 1, write):
        effects, _ = intervene("m", model, rows, 0, [1], lengths=[16], only=())
    effects = effects.set_index(["intervention", "block"])
    assert effects.loc[("length 16", 1), "massive_rows"] > 0 == effects.loc[(NONE, 1), "massive_rows"]
    # none of those is among the ordinary rows, so their line stays as good as it is
    assert abs(effects.loc[("length 16", 1), "change_ordinary"]) < 0.05


def test_changes_are_those_of_the_massive_rows_alone():
    y = torch.tensor([[[9.0, 0.0], [1.0, 1.0], [2.0, 0.0], [0.0, 3.0], [1.0, 0.0]]])
    done = {name: change(y) for name, change in changes(interventions.beyond(5.0), torch.tensor([0.5, 0.5])).items()}
    expected = {
        ZERO: [0.0, 0.0],
        "set to the mean": [0.5, 0.5],
        "halved": [4.5, 0.0],
        "doubled": [18.0, 0.0],
        "moved": [2.0, 0.0],
    }
    assert {name: outputs[0, 0].tolist() for name, outputs in done.items()} == expected
    for name, outputs in done.items():
        if name != "moved":
            assert torch.equal(outputs[:, 1:], y[:, 1:])
    assert done["moved"][0].tolist() == [[2.0, 0.0], [1.0, 1.0], [9.0, 0.0], [0.0, 3.0], [1.0, 0.0]]
    assert torch.equal(interventions.partners(interventions.partners(y)), y)


def test_ordinary_places_are_massive_nowhere_and_get_nothing_massive():
    norms = {0: torch.ones(16), 3: torch.ones(16)}
    norms[0][12] = torch.nan  # for which a layout has no room
    norms[3][13] = 100.0
    massive = interventions.massive_places(norms).view(2, 8)
    assert massive.nonzero().tolist() == [[1, 5]]
    found = interventions.ordinary_places(massive, [4]).view(2, 8)
    assert found[0].nonzero()[:, 0].tolist() == [1, 2, 3, 5, 6]  # sequences of 4 begin at 0 and 4, and 7 is the last
    assert found[1].nonzero()[:, 0].tolist() == [2, 3, 6]  # 5 is massive and moves to 1


def test_noise_is_the_same_twice_and_leaves_the_chosen_alone():
    y = torch.randn(3, 50, 32, generator=torch.Generator().manual_seed(0))
    once, again = (interventions.add_noise(at_first, 4.0, seed=1)(y) for _ in range(2))
    assert torch.equal(once, again)
    assert torch.equal(once[:, 0], y[:, 0])
    assert float((once - y)[:, 1:].norm(dim=-1).mean()) == pytest.approx(4, rel=0.05)
    assert not torch.equal(interventions.add_noise(at_first, 4.0, seed=2)(y), once)


def test_the_size_of_noise_is_found_where_there_is_one():
    assert interventions.match(lambda size: size**2, 2.0) ** 2 == pytest.approx(2, rel=interventions.NEAR)
    assert interventions.match(lambda size: size**2, 0.0004) ** 2 == pytest.approx(0.0004, rel=interventions.NEAR)
    assert interventions.match(lambda size: np.tanh(size), 2.0) is None  # no noise is that dear
    assert interventions.match(lambda size: float(size > 3), 0.5) == pytest.approx(3, rel=1e-5)  # a step ends too


def test_nothing_tried_is_two_tables_without_rows():
    effects, summary = interventions.tables([])
    assert (list(effects), list(summary)) == (interventions.EFFECTS, interventions.SUMMARY)
    found = intervene("m", tiny("mini-gpt2").eval(), rows_of(), 1, only=())
    effects, summary = interventions.tables([found, found])
    assert set(effects) == set(interventions.EFFECTS)
    assert set(summary) == set(interventions.SUMMARY)
    assert len(summary) == 2 * len(found[1])
