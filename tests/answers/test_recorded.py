"""The sentences on what is recorded: every number is in the results or follows from them, and moves when they do."""

import importlib
import json
import re
from copy import deepcopy

import jupytext
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from howlinear.files import paths

RECORDED = [path for kept in ("minis", "public") for path in sorted((paths.ROOT / "results" / kept).glob("*_*.json"))]
STEMS = sorted({path.stem for path in RECORDED})
MINUS = "−"


def named(path):
    return f"{path.parent.name}-{path.stem}"


def module(stem):
    return importlib.import_module(f"howlinear.answers.{stem[3:]}")


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def said(stem, results):
    """All that is said of results, as one text."""
    answers = module(stem)
    return "\n".join([*answers.sentences(results), *answers.replies(results)])


def leaves(tree):
    """Every number that results hold, as a key or as a value."""
    if isinstance(tree, dict):
        for key, item in tree.items():
            if re.fullmatch(r"[0-9.]+", key):
                yield float(key)
            yield from leaves(item)
    elif isinstance(tree, list):
        for item in tree:
            yield from leaves(item)
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield tree
    elif isinstance(tree, str):  # sentences of their own, names of models
        yield from (float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", tree))


def numbers(text, results):
    """(value, decimal places) of every number in a text that is no part of a name."""
    names = [*results.get("models", {}), *results.get("own", {})]
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "")
    text = re.sub(r"mini-gpt2|notebook \d\d|R²", "", text)
    for number in re.findall(rf"{MINUS}?\d[\d,]*(?:\.\d+)?(?: %)?", text):
        bare = number.removesuffix(" %").replace(MINUS, "-").rstrip(",").replace(",", "")
        places = len(bare.partition(".")[2])
        yield (float(bare) / 100, places + 2) if number.endswith("%") else (float(bare), places)


def profile(model, key="r2"):
    return np.array([block[key] for block in model["blocks"]])


def computed(stem, results):
    """What follows from the results, computed here anew and in another way; counts up to 60 follow from too much."""
    yield from range(61)
    models = results.get("models", {})
    if stem == "00_by_hand":
        r2 = profile(results)
        yield np.mean(r2)
        yield np.mean(profile(results, "r2_in_sample") - r2)
    if stem == "02_ceilings":
        for model in models.values():
            yield from (100 * block["massive_rows"] / model["rows"] for block in model["blocks"])
    if stem == "03_bilinear":
        for model in models.values():
            yield np.median(profile(model, "recovered"))
            yield from (np.mean(model["recipe"][key]) for key in ("gain", "ours"))
    if stem == "04_rank":
        for model in models.values():
            for key in ("features", "directions", "bands"):
                yield from np.array([block[key] for block in model["blocks"]]).mean(0)
            bands = profile(model, "bands")
            yield from (bands[[0, -1]] - bands[1:-1].mean(0)).ravel()
    if stem == "05_corpora":
        for model in models.values():
            yield sum(len(found["low"]) for found in model["drop"].values())
    if stem == "06_compression":
        for model in models.values():
            r2 = {(row["block"], row["rank"]): row["r2"] for row in model.get("reduced_rank", [])}
            yield from (r2[block, 2 * rank] - r2[block, rank] for block, rank in r2 if (block, 2 * rank) in r2)
            if "blocks" in model:
                worth = profile(model), profile(model, "ablation")
                rho = stats.spearmanr(*worth).statistic
                yield from (rho, stats.spearmanr(*(values[1:-1] for values in worth)).statistic)
                half = 1.96 * np.sqrt((1 + rho**2 / 2) / (len(worth[0]) - 3))
                yield from np.tanh(np.arctanh(rho) + half * np.array([-1, 1]))
    if stem == "07_optimisers":
        for model in models.values():
            yield from (np.subtract(model["exact"], model[way]).max() for way in ("GD", "momentum", "Adam"))
    if stem == "08_controls":
        for control in ("own", "permuted", "normal"):
            yield from (np.mean(values) for values in results[control].values())
        yield from (
            100 * found[key] for found in results.get("two_way", {}).values() for key in ("share", "low", "high")
        )
    if stem == "09_dynamics":
        yield from np.mean(results["live"]["r2"], axis=1)
    if stem == "10_degrees":
        for model in models.values():
            r2 = profile(model)
            yield from (1 - (1 - r2[:, 1:]) / (1 - r2[:, :1])).ravel()
            yield np.mean(r2[:, 0] - profile(model, "hermite")[:, 0])
    if stem == "12_sinks":
        yield 0.999
    if stem == "15_gate":
        yield from (100 * number for number in leaves([results["models"], results["planted"]]))
        for model in models.values():
            if "costs" in model:
                alone = sum(row["rise"] for row in model["costs"] if row["kind"] == "gate")
                yield from (alone, 100 * alone)
    if stem == "13_claims":
        yield len(results["claims"])
        yield sum(len(factors["1.0"]) for factors in results["thresholds_moved"].values())


def test_there_are_results_of_every_notebook():
    assert len(STEMS) >= 13


@pytest.mark.parametrize("path", RECORDED, ids=named)
def test_what_is_said_are_whole_sentences(path):
    answers, results = module(path.stem), load(path)
    for sentence in [*answers.sentences(results), *answers.replies(results)]:
        assert sentence.endswith("."), sentence
        assert not re.search(r"\b(nan|inf|None)\b|  |\.\.|\[\]|\(\)| ,| -\d", sentence), sentence
        assert sentence[0] == sentence[0].upper() or sentence.startswith(tuple(results["models"])), sentence
    assert re.search(r"\d", " ".join(answers.sentences(results)))


@pytest.mark.parametrize("path", RECORDED, ids=named)
def test_every_number_is_in_the_results_or_follows_from_them(path):
    results = load(path)
    there = np.array([*leaves(results), *computed(path.stem, results)], dtype=float)
    there = np.abs(there)  # a sentence may say "lower by 0.16"
    text = said(path.stem, results)
    found = list(numbers(text, results))
    assert found
    for value, places in found:
        nearest = there[np.abs(there - abs(value)).argmin()]
        # half a step of the last digit; one before the decimal point may be rounded as well, as in 156,000
        zeros = 0 if places else len(re.search("0*$", f"{abs(value):.0f}")[0])
        step = 10.0 ** (zeros - places)
        assert abs(nearest - abs(value)) <= 0.5 * step * (1 + 1e-6) + 1e-9, (value, nearest, text)


@pytest.mark.parametrize("path", RECORDED, ids=named)
def test_each_prediction_has_its_reply(path):
    notebook = jupytext.read(paths.NOTEBOOKS / f"{path.stem}.py")
    (cell,) = [cell.source for cell in notebook.cells if "## Predict first" in cell.source]
    questions = re.findall(r"^\d\. ", cell, re.MULTILINE)
    assert len(module(path.stem).replies(load(path))) == (len(questions) or 1)


# --- what is said, against the results by another way


def minis(stem):
    return load(paths.ROOT / "results" / "minis" / f"{stem}.json")


def text(value, digits=2):
    return f"{value:.{digits}f}".replace("-", MINUS)


def expected(stem, results):
    """Pieces of text that must stand in what is said."""
    models = results.get("models", {})
    name, model = next(iter(models.items()), (None, None))
    if stem == "00_by_hand":
        r2 = profile(results)
        yield f"Block {r2.argmax()} of {results['model']} is the straightest"
        yield f"the least straight is block {r2.argmin()}, with {text(r2.min())}"
    if stem == "15_gate":
        gates = pd.DataFrame(model["costs"]).query("kind == 'gate'").set_index("block")
        mean = gates.loc[gates["chosen"] < 1, "share"].mean()
        dear = model["dear"]["gate"]
        assert dear["share"] == pytest.approx(mean, abs=1e-3)
        yield f"{100 * dear['share']:.1f} [{100 * dear['share_low']:.1f}, {100 * dear['share_high']:.1f}] %, "
        yield f"({(gates['chosen'] < 1).sum()} of {len(gates)} blocks) in {name}"
        least = gates["share"].idxmin()
        yield f"(least in block {least}, {100 * gates.loc[least, 'share']:.1f} %) in {name}"
        risen = [text(100 * model["together"][key], 1) for key in ("rise", "rise_low", "rise_high")]
        yield f"perplexity rises by {risen[0]} [{risen[1]}, {risen[2]}] % in {name}"
    if stem == "01_capture":
        stretched = max(results["inputs"], key=lambda row: row["condition"])
        yield f"those of block {stretched['block']} of {stretched['model']}"
    if stem == "02_ceilings":
        r2 = profile(model)
        yield f"{text(r2.min())} (block {r2.argmin()}) to {text(r2.max())} (block {r2.argmax()}) in {name}"
        deltas = [swap["delta"] for swap in model["swap"]]
        yield f"block {np.argmax(deltas)} (+{text(max(deltas))} ["
        above = (np.array(model["untrained"]) > profile(model, "r2_high")).sum()
        yield f"surely in {above} of {len(r2)} blocks) and mini-pythia"
    if stem == "03_bilinear":
        gain = profile(model, "gain")
        yield f"{text(gain.min())} to {text(gain.max())} of R²"
        r = results["correlation"]["gain"][name]
        yield f"{name} (r = +{text(r['r'])} [{text(r['low'])}, {text(r['high'])}]; "
        yield f"{'−' if r['inner'] < 0 else '+'}{text(abs(r['inner']))} without the first and the last block)"
    if stem == "04_rank":
        above = sum(block["bands"][0] > block["bands"][-1] for block in model["blocks"])
        yield f"{above} of {len(model['blocks'])} blocks"
        bands = profile(model, "bands")
        falling = (np.diff(bands, axis=1) < 0).all(1).sum()
        alike = f"(from band to band the same way in {falling} of {len(bands)}"
        yield f"falls from {text(bands.mean(0)[0])} to {text(bands.mean(0)[-1])} {alike}"
        rises = bands[[0, -1]].min(0) - bands[1:-1].mean(0)
        yield f"{(rises > 0).sum()} of {len(rises)} bands (by {text(rises.min())} or more) of {name}"
    if stem == "05_corpora":
        inner = [found["inner"] for found in model["agreement"].values()]
        yield f"{text(min(inner))} to {text(max(inner))} in {name}"
        drop = max(value for found in model["drop"].values() for value in found["value"])
        yield f"({text(drop)} ["
    if stem == "06_compression":
        rho = {signal: found["rho"] for signal, found in results["agreements"]["one block"].items()}
        del rho["replace one"]
        assert max(rho, key=rho.get) == "residual"  # so much is known of these results
        yield f"the size of the line's error: Spearman's ρ with the cost is {text(rho['residual'])} ["
        yield f"1 − R²_lin ranks the costs at ρ = {text(rho['1 − R²'])} ["
        worth = profile(model, "ablation")
        ranked = stats.spearmanr(profile(model), worth).statistic
        inner = stats.spearmanr(profile(model)[1:-1], worth[1:-1]).statistic
        yield f"ρ = +{text(ranked)} ["
        yield f"(+{text(inner)} without the first and the last block) in {name}"
        others = f"{text(worth[1:].min(), 3)} to {text(worth[1:].max(), 3)}"
        yield f"{text(worth[0])} for block 0 and {others} for the others"
    if stem == "07_optimisers":
        shortfall = max((exact - r2) for m in models.values() for exact, r2 in zip(m["exact"], m["GD"], strict=True))
        yield f"{text(shortfall, 3)} by plain gradient descent"
        yield f"{sum(int(of['GD']['outside']) for of in results['verdicts'].values())} by plain gradient descent"
    if stem == "08_controls":
        yield f"{results['outside_fresh']['mini-gpt2']} of 12 blocks of mini-gpt2"
        ratio = results["beside_seeds"]["family"]["ratio"]
        yield f"two architectures {text(ratio['value'], 1)} [{text(ratio['low'], 1)}, {text(ratio['high'], 1)}] times"
        for control in ("permuted", "normal"):
            before, after = (np.mean(results[key]["mini-gpt2"]) for key in ("own", control))
            yield f"{text(before)} to {text(after)} in mini-gpt2"
    if stem == "09_dynamics":
        runs = results["summary"].values()
        detours = sum(run["peak"] - max(run["start"], run["end"]) > 0.01 for run in runs)
        yield f"In {detours} of {len(runs)} trainings the blocks first get straighter"
        leaves_last_first = sum(steps[-1] < steps[0] for steps in results["leaves"].values())
        yield f"before the one next to the text in {leaves_last_first} of {len(results['leaves'])} trainings"
    if stem == "10_degrees":
        r2 = profile(model)
        rest = (r2[:, 1] - r2[:, 0]) / (1 - r2[:, 0])
        yield f"{100 * rest.min():.0f} % to {100 * rest.max():.0f} % in {name}"
        enough = int((rest >= 0.9).sum())
        yield f"By degree 2 in {enough} of {len(r2)} blocks"
    if stem == "11_protocol":
        yield f"The same under all {results['universes']} protocols: highest − lowest block above 0.25"
        scalar = next(effect for effect in results["effects"] if effect["level"] == "scalar")
        yield f"it raises R²_lin by {text(scalar['mean'])} on the mean and by {text(scalar['largest'])} at most"
    if stem == "12_sinks":
        yield model["answer"]
        yield f"in {sum(row['falls'] for row in results['predictions'])}; none of them has been run yet"
    if stem == "13_claims":
        verdicts = [claim["verdict"] for claim in results["claims"].values()]
        yield f"Of {len(verdicts)} claims"
        yield f" {verdicts.count('holds here')} hold here, {verdicts.count('does not hold here')} do not hold here, "
        kinds = [int(kind.split()[0]) for kind in results.get("kinds", [])]
        assert not kinds or sum(kinds) == len(verdicts)
        yield from results.get("remarks", [])


@pytest.mark.parametrize("stem", STEMS)
def test_what_is_said_of_the_embedded_models_is_what_they_show(stem):
    results = minis(stem)
    pieces = list(expected(stem, results))
    assert pieces
    for piece in pieces:
        assert piece in said(stem, results)


# --- and it moves with them

BREAKS = {  # where a number is broken, by stem; what is said must not be the same
    "01_capture": [("inputs", 1, "condition"), ("inputs", 3, "effective_rank"), ("inputs", 2, "first_position_out")],
    "02_ceilings": [
        ("models", "mini-gpt2", "blocks", 7, "r2"),
        ("models", "mini-gpt2", "swap", 0, "delta"),
        ("models", "mini-gpt2", "swap", 11, "high"),
        ("models", "mini-gpt2", "spearman_r2_delta"),
        ("models", "mini-llama", "untrained", 3),
    ],
    "03_bilinear": [
        ("models", "mini-gpt2", "blocks", 0, "gain"),
        ("correlation", "gain", "mini-llama", "low"),
        ("power", "mini-gpt2", 0, "planted"),
        ("models", "mini-gpt2", "recipe", "gain", 3),
        ("gate_order", "0.01", "median gate"),
    ],
    "04_rank": [
        ("models", "mini-gpt2", "blocks", 0, "median", "value"),
        ("models", "mini-gpt2", "blocks", 4, "directions", -1),
        ("models", "mini-gpt2", "blocks", 4, "bands", 0),
        ("models", "mini-gpt2", "blocks", 4, "bands", 2),
    ],
    "05_corpora": [
        ("models", "mini-gpt2", "agreement", "code ~ cpp", "gap"),
        ("models", "mini-gpt2", "agreement", "code ~ cpp", "inner"),
        ("models", "mini-gpt2", "carried", "drop"),
        ("models", "mini-gpt2", "drop", "code → cpp", "value", 3),
        ("models", "mini-gpt2", "mean_drop", "seen → unseen"),
    ],
    "06_compression": [
        ("agreements", "one block", "1 − R²", "rho"),
        ("agreements", "one block", "CCA bound", "high"),
        ("models", "mini-gpt2", "blocks", 0, "delta"),
        ("models", "mini-gpt2", "blocks", 5, "ablation"),
        ("together", "sum of single costs", "mini-gpt2"),
    ],
    "07_optimisers": [
        ("models", "mini-gpt2", "GD", 2),
        ("verdicts", "mini-gpt2", "GD", "outside"),
        ("spearman_condition", "Adam"),
        ("race", "SGD, raw"),
    ],
    "08_controls": [
        ("outside_fresh", "mini-gpt2"),
        ("permuted", "mini-gpt2", 3),
        ("two_way", "weights", "share"),
        ("beside_seeds", "text", "ratio", "value"),
    ],
    "09_dynamics": [
        ("summary", "mini-gpt2", "peak"),
        ("votes", "from the peak", "0.9", "low"),
        ("live", "rank", 0),
        ("alike", "leaves, twins", 0),
    ],
    "10_degrees": [
        ("models", "mini-gpt2", "blocks", 3, "r2", 1),
        ("models", "mini-gpt2", "blocks", 3, "hermite", 0),
        ("models", "mini-gpt2", "checks", "6", "probe", "16"),
        ("models", "mini-gpt2", "checks", "6", "reach"),
    ],
    "11_protocol": [("universes",), ("effects", 0, "mean"), ("flips", 2, "share")],
    "12_sinks": [("planted", 1, "of_all"), ("planted_costs", 0, "nats")],
    "13_claims": [],
    "15_gate": [
        ("models", "mini-gpt2", "mean", "gate", "share_low"),
        ("models", "mini-gpt2", "costs", 0, "share"),
        ("models", "mini-gpt2", "dear", "gate − lots", "share"),
        ("models", "mini-gpt2", "dear", "oracle − gate", "share_low"),
        ("models", "mini-gpt2", "together", "saved"),
        ("models", "mini-gpt2", "together", "rise"),
        ("models", "mini-gpt2", "blocks", 3, "told"),
        ("settings", "published_high"),
    ],
}


@pytest.mark.parametrize(("stem", "keys"), [(stem, keys) for stem, places in BREAKS.items() for keys in places])
def test_a_broken_number_changes_what_is_said(stem, keys):
    results = minis(stem)
    broken = deepcopy(results)
    *way, last = keys
    place = broken
    for key in way:
        place = place[key]
    place[last] = type(place[last])(place[last] * 3 + 1)
    assert said(stem, broken) != said(stem, results)


def test_a_verdict_that_turns_changes_what_is_said():
    results = minis("13_claims")
    broken = deepcopy(results)
    claim = next(iter(broken["claims"].values()))
    claim["verdict"] = "mixed" if claim["verdict"] != "mixed" else "holds here"
    assert said("13_claims", broken) != said("13_claims", results)


@pytest.mark.parametrize("stem", [stem for stem in STEMS if "models" in minis(stem)])
def test_one_model_alone_is_said_of_as_well(stem):
    """As on run profile smoke: what is said names no other model."""
    results = minis(stem)
    one, *others = results["models"]
    alone = only(results, set(others))
    text = said(stem, alone)
    assert text
    assert not any(other in text for other in others)
    assert one in text


def only(tree, left_out):
    """The same without what is filed under some models."""
    if isinstance(tree, dict):
        return {key: only(item, left_out) for key, item in tree.items() if not any(name in key for name in left_out)}
    if isinstance(tree, list):
        kept = [item for item in tree if not (isinstance(item, dict) and item.get("model") in left_out)]
        return [only(item, left_out) for item in kept]
    return tree
