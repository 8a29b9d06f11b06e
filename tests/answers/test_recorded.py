"""The sentences on what is recorded: every number is in the results or follows from them, and moves when they do."""

import importlib
import json
import re

import jupytext
import numpy as np
import pandas as pd
import pytest

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
    if stem == "05_corpora":
        for model in models.values():
            yield sum(len(found["low"]) for found in model["drop"].values())
    if stem == "06_compression":
        for model in models.values():
            r2 = {(row["block"], row["rank"]): row["r2"] for row in model.get("reduced_rank", [])}
            yield from (r2[block, 2 * rank] - r2[block, rank] for block, rank in r2 if (block, 2 * rank) in r2)
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
    if stem == "14_compress":
        yield from (100 * share for share in results["settings"]["shares"])
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
    if stem == "14_compress":
        rows = {(row["method"], row["share"]): row for row in model["race"] if row["text"] == "docs"}
        least = min(results["settings"]["shares"])
        ours = rows["own units", least]
        yield f"{text(ours['ratio'])} [{text(ours['low'])}, {text(ours['high'])}] in {name}"
        rivals = {method: row["ratio"] for (method, share), row in rows.items() if share == least}
        del rivals["own units"]
        best = rows[min(rivals, key=rivals.get), least]
        over = [text(best[key]) for key in ("over_first", "over_first_low", "over_first_high")]
        yield f"{over[0]} [{over[1]}, {over[2]}] ({best['method']}) in {name}"
        held_out = [row["ratio"] for row in model["limit"] if (row["share"], row["what"]) == (least, "held out")]
        yield f"{text(held_out[0])} held out"
        (ours,) = [row for row in model["healing"] if row["name"] == "own units"]
        yield f"{text(ours['behind'])} [{text(ours['behind_low'])}, {text(ours['behind_high'])}] in {name}"
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
