"""Answers turn with the numbers that they are of: every notebook's template on results unlike those on record."""

import re
from functools import cache

import numpy as np
import pandas as pd
import pytest

from howlinear.files import paths, tables
from howlinear.notebook import prose

RECORDED = [(profile, path.name) for profile in ("minis", "public", "prose") for path in
            sorted(paths.results(profile).glob("[0-9]*")) if path.is_dir()]  # fmt: skip
GPT2, LLAMA = "model == 'mini-gpt2'", "model == 'mini-llama'"
NO_LOSS = {"dppl": None, "dppl_low": None, "dppl_high": None}


recorded = cache(tables.results)


def changed(stem, *changes, profile="minis", **settings):
    """Recorded results of a notebook after some changes, each a function of its tables."""
    kept = recorded(profile, stem)
    found = {name: table.copy() for name, table in kept.items()}
    for change in changes:
        change(found)
    return tables.Results(stem, found, {"settings": {**kept.settings, **settings}})


def put(table, rows=None, **values):
    """A change that sets columns to values in the rows that a query finds, or in all rows; None empties a cell."""

    def change(found):
        where = found[table].index if rows is None else found[table].query(rows).index
        assert len(where), f"no {rows} in {table}"
        for column, value in values.items():
            if found[table][column].dtype.kind in "iu" and (value is None or isinstance(value, float)):
                found[table][column] = found[table][column].astype(float)
            found[table].loc[where, column] = np.nan if value is None else value

    return change


def keep(table, rows):
    """A change that keeps only the rows that a query finds; none if `rows` is False."""
    return lambda found: found.update({table: found[table].query(rows) if rows else found[table].iloc[:0]})


def gone(*names):
    """A change that removes some tables."""
    return lambda found: [found.pop(name) for name in names]


def of_an_encoder(found):
    """A change that leaves the public results of one encoder, in two of its blocks."""
    for column, values in (("model", ["minilm-l6"]), ("block", [0, 3])):
        found.update({name: table[table[column].isin(values)] for name, table in found.items() if column in table})


def answers(found):
    """Place → text: A for the sentences of the answer, R for replies to predictions, Q for answers to questions."""
    said = prose.describe(found)
    lists = {"A": said.answer, "R": said.replies, "Q": [answer for _, answer in said.questions]}
    return {f"{part}{number}": text for part, texts in lists.items() for number, text in enumerate(texts)}


@cache
def recorded_answers(stem, profile="minis"):
    return answers(recorded(profile, stem))


def words(text):
    """A text without its numbers; if it differs, another branch of the template was taken."""
    return re.sub(r"[−+±]?\d[\d,.]*", "#", text)


def moved(before, after, read=words):
    """The places whose text differs, in order, including those that appear or disappear."""
    places = sorted(before.keys() | after.keys(), key=lambda place: ("ARQ".index(place[0]), int(place[1:])))
    return " ".join(place for place in places if read(before.get(place, "")) != read(after.get(place, "")))


SLIP = re.compile(r"\bnan\b|(?<=[a-z,=] )None\b| [,.](?!\d)|\(\)|\[\]|\{\{|  ")


def broken(said):
    """The texts that are not whole sentences, or in which something is missing."""
    return [text for text in said.values() if SLIP.search(text) or not text.endswith((".", ".*", "`"))]


@pytest.mark.parametrize(("profile", "stem"), RECORDED)
def test_answers_on_record_are_whole_sentences(profile, stem):
    assert broken(recorded_answers(stem, profile)) == []


def other_text(ratio):
    """Own units on a second text, where they multiply perplexity by so much."""

    def change(found):
        elsewhere = found["race"].query("method == 'own units'").assign(corpus="code", ratio=ratio)
        found["race"] = pd.concat([found["race"], elsewhere], ignore_index=True)

    return change


TURNS = [
    ("00_by_hand", [put("hasty", r2=0.95)], "Q0"),
    ("00_by_hand", [put("checks", nonsense=0.4)], "Q1"),
    ("01_capture", [put("inputs", first_position_out=1.05)], "R1 Q4"),
    ("01_capture", [put("inputs", first_position_out=1.05), put("inputs", GPT2, first_position_out=9.0)], "R1"),
    ("01_capture", [put("inputs", effective_rank=np.arange(36) * 2.0 + 1)], "Q0"),
    ("02_ceilings", [put("blocks", "block == 1", dppl_high=1e3)], "A1"),
    ("02_ceilings", [put("models", spearman=0.1)], "A2"),
    ("02_ceilings", [put("models", spearman=-0.9)], "A2"),
    ("02_ceilings", [put("blocks", LLAMA, **NO_LOSS),
     put("models", LLAMA, perplexity=None, spearman=None)], "A1 A2 A3 R2 Q2"),
    ("02_ceilings", [put("blocks", **NO_LOSS), put("models", perplexity=None, spearman=None)], "A1 A2 R2 Q2"),
    ("02_ceilings", [put("blocks", f"{GPT2} and block < 2", r2_ordinary=0.1, massive_rows=9)], "A1 A2 A3"),
    ("02_ceilings", [put("models", GPT2, rises_and_falls=False)], "R1"),
    ("02_ceilings", [put("blocks", r2_untrained=0.99, r2_untrained_in_sample=0.99)], "R0 Q3"),
    ("02_ceilings", [put("blocks", r2_untrained=0.01, r2_untrained_in_sample=0.01)], "R0 Q3"),
    ("02_ceilings", [put("solver", agrees=False)], "Q4"),
    ("04_rank", [put("blocks", f"{GPT2} and block == 0", r2=0.97, regime="mixed")], "A0"),
    ("04_rank", [put("blocks", r2=0.5, regime="below")], "A0 Q0"),
    ("04_rank", [put("verdicts", GPT2, band_shape="rises")], "A2"),
    ("04_rank", [put("verdicts", GPT2, band_shape="falls, then rises")], "A2"),
    ("04_rank", [put("verdicts", GPT2, band_shape="rises, then falls")], "A2"),
    ("04_rank", [put("verdicts", GPT2, band_shape="goes up and down")], "A2"),
    ("04_rank", [put("blocks", rank_90=None)], "Q1"),
    ("04_rank", [put("blocks", predicted_rank=99.0)], "Q3"),
    ("04_rank", [put("blocks", heavy_error=0.001)], "Q4"),
    ("05_corpora", [put("agreement", inner=0.999)], "A0 Q1"),
    ("05_corpora", [keep("agreement", "model != 'mini-gpt2'")], "A0 A1 R0 Q4"),
    ("05_corpora", [keep("agreement", False), put("by_model", bend=None)], "A0 A1 A2 R0 Q1 Q2 Q4"),
    ("05_corpora", [put("drops_by_training", "scored == 'unseen'", drop=0.9)], "R2"),
    ("05_corpora", [put("drops_by_training", drop=0.2)], "R2"),
    ("05_corpora", [put("drops_by_training", drop=0.2),
     put("drops_by_training", f"{GPT2} and scored == 'unseen'", drop=0.9)], "R2"),
    ("05_corpora", [keep("drops_by_training", "scored == 'seen'")], "R2"),
    ("05_corpora", [put("likeness", likeness=0.999)], "Q0"),
    ("05_corpora", [put("by_model", bend=0.9)], "Q2"),
    ("05_corpora", [put("by_model", bend=0.0)], "Q2"),
    ("05_corpora", [put("by_model", bend=0.9), put("by_model", GPT2, bend=0.0)], "Q2"),
    ("06_compression", [put("reduced_rank", "rank == 64", r2=0.0)], "R1"),
    ("06_compression", [put("reduced_rank", f"{GPT2} and rank == 64", r2=0.0)], "R1"),
    ("06_compression", [keep("reduced_rank", "rank == 128")], "R1"),
    ("06_compression", [put("agreements", "costs == 'several'", rho=-0.9)], "Q4"),
    ("06_compression", [put("agreements", "costs == 'several' and signal != 'price'", rho=-0.9)], "Q4"),
    ("07_optimisers", [put("by_way", rho_condition=None)], "A2"),
    ("07_optimisers", [put("race", "scaling == 'whitened'", reached=-1.0)], "Q1"),
    ("07_optimisers", [put("verdicts", flipped=0)], "Q2"),
    ("07_optimisers", [put("ways", reached=-5.0), put("blocks", condition=1.0),
     put("blocks", f"{GPT2} and block == 3", condition=1e9, r2=0.99)], "Q3"),
    ("07_optimisers", [put("planted", reached=0.949)], "Q4"),
    ("08_controls", [put("controls", "control == 'redrawn'", r2=0.2)], "Q3"),
    ("08_controls", [put("beside_seeds", ratio_low=0.5)], "A2"),
    ("08_controls", [gone("beside_seeds"), keep("effects", False)], "A1 A2 R2"),
    ("09_dynamics", [put("runs", peak=0.0)], "A0"),
    ("09_dynamics", [put("votes", lag_low=0.1, lag_high=0.3)], "A3 Q4"),
    ("09_dynamics", [put("votes", lag_low=-0.3, lag_high=-0.1)], "A3 Q4"),
    ("09_dynamics", [put("votes", lag_low=-0.1, lag_high=0.3)], "A3"),
    ("11_protocol", [lambda found: found.update(orders=found["orders"].iloc[:1].assign(order="mini-gpt2"))], "A1"),
    ("11_protocol", [put("flips", flips=False)], "A0 R2"),
    ("11_protocol", [put("flips", f"{GPT2} and statement == 'lowest'",
     flips=True, share=0.4, alone="rows, null")], "A0 R2"),
    ("11_protocol", [put("curves", r2_limit=None), keep("agreement", False)], "Q1 Q4"),
    ("11_protocol", [keep("effects", "choice == 'split'")], "A2 R0 R1 Q0"),
    ("12_sinks", [keep("planted_costs", False)], "R2 Q3"),
    ("12_sinks", [put("planted_costs", "kind == 'e'", nats=9.0)], "Q3"),
    ("12_sinks", [put("planted", effective_rank_ordinary=1.1)], "Q1"),
    ("12_sinks", [put("predictions", "falls", fell=True)], "A10 Q4"),
    ("12_sinks", [put("blocks", f"{GPT2} and block == 3",
     massive_rows=9000, r2_ordinary=0.1, fall=0.5, carried_by="tokens")], "A0"),
    ("12_sinks", [put("blocks", f"{GPT2} and block == 3", cuts_deciding=8)], "A5"),
    ("12_sinks", [put("blocks", f"{GPT2} and block == 3", cuts_deciding=3)], "A5"),
    ("12_sinks", [put("planted_effects", "intervention == 'set to zero'", change_high=0.1)], "R3"),
    ("14_compress", [put("race", "method == 'ShortGPT' and share == 0.9", ratio=0.5)], "A1 R0 Q2"),
    ("14_compress", [put("race", f"{GPT2} and method == 'ShortGPT' and share == 0.9", ratio=0.5)], "A1 R0 Q2"),
    ("14_compress", [put("race", f"{GPT2} and method == 'magnitude' and share == 0.8", ratio=1.1)], "R1 Q2"),
    ("14_compress", [put("exchanges", "method == 'by scores of single units'", over_first=9.0)], "R2"),
    ("14_compress", [put("exchanges", f"{GPT2} and method == 'by scores of single units'", over_first=9.0)], "R2"),
    ("14_compress", [other_text(1.0)], "A0 Q4"),
    ("14_compress", [other_text(2.0)], "A0 Q4"),
    ("15_gate", [put("costs", "kind == 'gate'", rise_low=0.5)], "Q0"),
    ("15_gate", [put("curves", "kind == 'gate'", rise=9.0)], "Q1"),
    ("15_gate", [put("together", rise_low=0.0)], "Q2"),
    ("15_gate", [keep("means", "blocks == 'all'")], "A1"),
    ("16_tokens", [put("tables", r2_table=-1.0)], "A2 R2"),
    ("16_tokens", [put("blocks", effective_rows=None)], "Q2"),
    ("16_tokens", [put("kinds", "kind == 'rare'", r2=0.99), put("kinds", "kind == 'frequent'", r2=0.1)], "Q5"),
    ("16_tokens", [put("vocabulary", r2_vocabulary=2.0)], "Q4"),
    ("16_tokens", [put("transfer", loss_between=0.0)], "Q3"),
]  # fmt: skip


@pytest.mark.parametrize(("stem", "changes", "places"), TURNS)
def test_other_numbers_turn_these_answers_and_leave_the_others(stem, changes, places):
    said = answers(changed(stem, *changes))
    assert moved(recorded_answers(stem), said) == places
    assert broken(said) == []


OF_RACE = "method == '{}' and share == {}"
NUMBERS = [
    ("race", OF_RACE.format("own units", 0.8), {"ratio_low": 0.5}, "A0 Q1"),
    ("race", OF_RACE.format("LLM Surgeon", 0.8), {"over_first": 7.0}, "A1 Q4"),
    ("race", OF_RACE.format("ShortGPT", 0.9), {"ratio": 7.0}, "R0 Q2"),
    ("race", OF_RACE.format("lines by price", 0.8), {"ratio": 0.9}, "A1 Q2 Q3 Q4"),
    ("limit", "what == 'held out'", {"ratio": 7.0}, "A3"),
    ("healing", OF_RACE.format("own units", 0.8), {"behind": 7.0}, "A4"),
    ("exchanges", OF_RACE.format("by plain squares", 0.8), {"over_first": 1.5, "over_first_low": 1.4}, "A2 Q0"),
    ("race", OF_RACE.format("LLM Surgeon", 0.9), {"over_first": 1.03, "over_first_low": 1.01}, "A1"),
    ("exchanges", OF_RACE.format("without a ridge", 0.8), {"over_first": 9.0, "over_first_low": 8.0}, "Q0"),
    (
        "exchanges",
        OF_RACE.format("by scores of single units", 0.8),
        {"over_first": 9.0, "over_first_low": 8.0},
        "R2 Q0",
    ),
]


@pytest.mark.parametrize(("table", "rows", "values", "places"), NUMBERS)
def test_a_number_of_the_race_moves_the_answers_that_it_is_of_and_no_others(table, rows, values, places):
    said = answers(changed("14_compress", put(table, rows, **values)))
    assert moved(recorded_answers("14_compress"), said, read=str) == places


FAR_OUT = {"gap": -0.7, "gap_low": -0.8, "gap_high": -0.6, "gap_block": 3, "differ": 9}
PICKED = [
    ("00_by_hand", "parabola", None, {"r2": -3.0}, "Q2", "−3.00"),
    ("00_by_hand", "drawn", None, {"r2": 0.25}, "Q4", "0.25"),
    ("01_capture", "inputs", f"{GPT2} and block == 3", {"first_position_out": 10.0}, "Q4", "100"),
    ("01_capture", "inputs", f"{GPT2} and block == 3", {"rank": 7, "null": 0.0}, "R2", "7 to"),
    ("02_ceilings", "blocks", f"{LLAMA} and block == 5",
     {"dppl": 99.0, "dppl_low": 98.0, "dppl_high": 100.0}, "A1", "+99 [98, 100]"),
    ("02_ceilings", "blocks", f"{GPT2} and block == 4", {"r2_ordinary": 0.11, "massive_rows": 9}, "A1", "0.11"),
    ("04_rank", "blocks", f"{GPT2} and block == 0",
     {"r2": 0.97, "median_r2": 0.21, "effective_rank": 1.1, "regime": "concentrated"}, "A0", "0.21"),
    ("05_corpora", "agreement", f"{LLAMA} and other == 'cpp'", FAR_OUT, "A1", "−0.70 [−0.80, −0.60]"),
    ("05_corpora", "transfer", f"{GPT2} and block == 4 and fitted == 'docs'",
     {"drop": 0.99, "drop_low": 0.98, "drop_high": 1.0}, "R1", "0.99 [0.98, 1.00]"),
    ("07_optimisers", "ways", f"{GPT2} and block == 3 and way == 'Adam'", {"reached": -99.0}, "A0", "99"),
    ("08_controls", "by_model", GPT2, {"outside": 7}, "A0", "7 of"),
    ("08_controls", "effects", "design == 'two-way' and effect == 'weights'", {"share": 0.77}, "A1", "77"),
    ("09_dynamics", "live", "step == 0", {"rank": 0.44}, "A1", "44 %"),
    ("09_dynamics", "live_tokens", "step == 0", {"token_share": 0.345}, "A2", "34 %"),
    ("11_protocol", "flips", f"{GPT2} and statement == 'lowest'", {"flips": True, "share": 0.41}, "A0", "41 %"),
    ("12_sinks", "blocks", f"{GPT2} and block == 3",
     {"massive_rows": 9, "r2": 0.97, "r2_ordinary": 0.6, "fall": 0.37, "carried_by": "tokens"}, "A0", "0.97 → 0.60"),
    ("12_sinks", "blocks", f"{GPT2} and block == 3", {"carrying_share": 0.012}, "A6", "1 % (block 3)"),
    ("15_gate", "means", f"{GPT2} and blocks == 'all' and kind == 'gate'", {"share": 0.777}, "A0", "77.7"),
]  # fmt: skip


@pytest.mark.parametrize(("stem", "table", "rows", "values", "place", "number"), PICKED)
def test_a_sentence_picks_the_number_that_it_is_about(stem, table, rows, values, place, number):
    assert number in answers(changed(stem, put(table, rows, **values)))[place]
    assert number not in recorded_answers(stem)[place]


def chain_is_a_model(found):
    """The planted chain of notebook 12 in the place of a model that writes massive outputs."""
    for table in ("effects", "interventions"):
        chain = found[f"planted_{table}"].query("case == 'sunk'")
        found[table] = chain.rename(columns={"case": "model"})


@pytest.mark.parametrize("controlled", [True, False])
def test_where_massive_rows_begin_earlier_every_block_behind_has_its_change(controlled):
    def silenced_earlier(found):
        arms = ["none", "set to zero"] + ["noise, equal loss"] * controlled
        effects = found["effects"].query("model == 'mini-sink' and block <= 6")
        effects = effects[effects["intervention"].isin(arms)]
        found["earlier_effects"] = effects.assign(writer=2)
        put("earlier_effects", "block == 6 and intervention == 'set to zero'", r2=0.123, change=-0.21)(found)

    said, recorded = answers(changed("12_sinks", silenced_earlier)), set(recorded_answers("12_sinks").values())
    assert broken(said) == []
    (added,) = set(said.values()) - recorded
    assert "from 0.33 to 0.12" in added
    assert "blocks 3, 4 and 5" in added  # where nothing changes
    assert ("with noise of equal loss to 0.33" in added) is controlled


def without_llama(found):
    found.update({name: table[table["model"] != "mini-llama"] for name, table in found.items() if "model" in table})


def of_two_blocks(found):
    """Costs, and no ranking."""
    for name, table in found.items():
        if name not in ("frontier", "together"):
            found[name] = table[table["block"] < 2] if "block" in table else table[:0]


NO_LOSS_ALONE = {"models": ["bert"], "without": {"bert": "it predicts no next token"}}
ENCODER = {"profile": "public", "models": ["minilm-l6"]}  # in two blocks, which have no correlation
LESS = [
    ("03_bilinear", [of_an_encoder, put("correlations", r=None)], ENCODER),
    ("05_corpora", [keep(name, False) for name in ("agreement", "transfer", "likeness", "drops_by_training")],
     {"corpora": ["docs"]}),
    ("06_compression", [lambda found: found.update({name: table[:0] for name, table in found.items()})], NO_LOSS_ALONE),
    ("06_compression", [without_llama], {}),
    ("06_compression", [of_two_blocks], {}),
    ("10_degrees", [of_an_encoder, keep("probes", False), put("predicted", blocks=2, correlation=None)], ENCODER),
    ("12_sinks", [gone("planted_effects")], {}),
    ("12_sinks", [gone("cuts"), gone("interventions")], {}),
    ("12_sinks", [chain_is_a_model], {}),
    ("12_sinks", [chain_is_a_model, put("effects", "intervention == 'doubled'", intervention="noise, equal loss"),
     put("interventions", "intervention == 'doubled'", intervention="noise, equal loss")], {}),
    ("14_compress", [gone("limit")], {}),
    ("14_compress", [gone("healing")], {}),
    ("14_compress", [gone("exchanges")], {}),
    ("14_compress", [lambda found: found.clear()], NO_LOSS_ALONE),
    ("14_compress", [keep("race", "method == 'own units' and share == 0.8")], {}),
    ("14_compress", [keep("race", "model != 'mini-gpt2' or share != 0.8")], {}),
    ("14_compress", [put("race", "method == 'ShortGPT'", ratio=None, kept=None, over_first=None, why="too small")], {}),
    ("15_gate", [keep(name, False) for name in ("means", "costs", "curves", "together", "blocks")], NO_LOSS_ALONE),
    ("15_gate", [], {"models": ["mini-gpt2", "mini-pythia", "mini-llama", "bert"]}),
    ("16_tokens", [keep("transfer", False)], {"corpora": ["docs"]}),
]  # fmt: skip


@pytest.mark.parametrize(("stem", "changes", "settings"), LESS)
def test_a_run_that_measured_less_has_an_answer_to_every_question(stem, changes, settings):
    said = answers(changed(stem, *changes, **settings))
    assert broken(said) == []
    recorded = recorded_answers(stem, settings.get("profile", "minis"))
    assert {place for place in said if place[0] != "A"} == {place for place in recorded if place[0] != "A"}
    assert said != recorded
