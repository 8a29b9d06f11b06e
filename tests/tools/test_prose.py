"""Numbers in the prose of README, FINDINGS and the questions to the author are those of the recorded results."""

from itertools import combinations

import numpy as np
import pytest

from howlinear.core.ceilings import r2_intervals
from howlinear.core.correlation import correlation
from howlinear.files import numbers, paths, tables
from howlinear.ideas.claims.claim import load_claims
from howlinear.ideas.corpora.agreement import Agreement
from howlinear.ideas.degrees.nested import Nested
from howlinear.ideas.degrees.products import Learned
from howlinear.ideas.dynamics.timing import Vote
from howlinear.ideas.optimisers.training import Shortfall
from howlinear.ideas.rank.spread import rank_estimate
from howlinear.ideas.sinks import measure, predictions
from howlinear.instrument.perplexity import change

MINUS = str.maketrans("-", "−")


def words(name):
    """A text without its line ends."""
    return " ".join((paths.ROOT / name).read_text(encoding="utf-8").split())


def by_recipe(key):
    """Mean over blocks of a part of the comparison with the paper's recipe, in the order gpt2, pythia, llama."""
    means = tables.results("minis", "03_bilinear")["recipe"].groupby("model")[key].mean()
    return [means[f"mini-{name}"] for name in ("gpt2", "pythia", "llama")]


def effect(level, key="mean"):
    return tables.results("minis", "11_protocol")["effects"].set_index("level").loc[level, key]


def spanned(values, digits):
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def listed(values):
    first, second, third = (f"{value:.3f}" for value in values)
    return f"{first}, {second} and {third}"


def ratio(of):
    moving = tables.results("minis", "08_controls")["beside_seeds"]
    found = moving.query("measured_on == 'all'").set_index("effect")
    return [f"{number:.1f}" for number in found.loc[of, ["ratio", "ratio_low", "ratio_high"]]]


def fall_without_order():
    """R²_lin of the public model's blocks, less that with permuted weights."""
    controls = tables.results("public", "08_controls")["controls"].query("model == 'smollm2-135m'")
    by_control = controls.pivot(index="block", columns="control", values="r2")
    return (by_control["own"] - by_control["permuted"]).to_numpy()


@pytest.fixture(scope="module")
def readme():
    return words("README.md")


@pytest.fixture(scope="module")
def findings():
    return words("findings/README.md")


@pytest.fixture(scope="module")
def letter():
    return words("paper/correspondence.md")


def sinks_of(model):
    """Table of notebook 12 on the public models → its rows of one of them."""
    found = tables.results("public", "12_sinks").items()
    return {name: table[table["model"] == model].to_dict("records") for name, table in found if "model" in table}


def test_the_findings_tell_what_massive_rows_cost(findings):
    found = sinks_of("smollm2-135m")
    nats = {(row["block"], row["kind"]): f"{row['nats']:.2f}" for row in found["costs"]}
    assert f"in the place of block 11 it costs {nats[11, 'a']} nats per token, and {nats[28, 'a']} in the" in findings
    assert f"with a constant at the first position, {nats[11, 'e']} and {nats[28, 'e']}" in findings
    cost = {(row["block"], row["kind"]): row["nats"] for row in found["costs"]}
    swapped = {block for block, _ in cost}
    assert len(swapped) == 9
    assert "no block of the nine that were swapped costs more than by its plain map" in findings
    assert "block 2 writes, 9 and 10 take away; block 11 writes most, 28 and 29 take away" in findings
    kept_apart = {block: cost.get((block, "d"), cost[block, "a"]) for block in swapped}  # where no row is massive, (a)
    assert all(kept_apart[block] <= cost[block, "a"] for block in swapped)
    assert all(kept_apart[block] < cost[block, "a"] / 10 for block in (11, 28))
    roles = {row["block"]: (row["writer"], row["role"]) for row in found["flow"]}
    assert roles[2] == (1, "adds")
    assert roles[9] == roles[10] == (2, "takes away")
    assert roles[11] == (2, "writes most")
    assert roles[28] == roles[29] == (11, "takes away")
    at_first = {row["block"]: row["at_first"] for row in found["massive"]}
    assert min(at_first[11], at_first[28]) > 0.9  # "the first token of nearly every sequence"
    assert (tables.results("minis", "12_sinks")["blocks"]["massive_rows"] == 0).all()


def test_what_products_win_back_in_the_public_models_is_told(readme, findings):
    found = tables.results("public", "03_bilinear")
    recipe = found["recipe"].merge(found["blocks"][["model", "block", "r2"]], on=["model", "block"])
    by_recipe = recipe.groupby("model")["gain"].median()
    by_smol, by_mini = by_recipe["smollm2-135m"], by_recipe["minilm-l6"]
    assert f"by its own recipe {by_smol:.3f} of R² in the median block tried of SmolLM2, {by_mini:.3f} of M" in readme
    assert f"the median is {by_smol:.3f} over nine blocks, and {by_mini:.3f} over MiniLM's six" in findings
    assert recipe["model"].value_counts().to_dict() == {"smollm2-135m": 9, "minilm-l6": 6}
    smol = found["blocks"].query("model == 'smollm2-135m'").set_index("block")
    assert len(smol) == 30
    median, most = smol["gain"].median(), smol["gain"].idxmax()
    assert f"gains {median:.2f} of R² in the median and {smol['gain'][most]:.2f} at most (block {most})" in findings
    (r,) = found["correlations"].query("model == 'smollm2-135m' and of == 'gain'")["r"]
    tried = recipe.query("model == 'smollm2-135m'")
    r_of_recipe = np.corrcoef(1 - tried["r2"], tried["gain"])[0, 1]
    wanted = f"does not follow what is left (r {r:.2f} and, by the recipe, {r_of_recipe:.2f})"
    assert wanted.replace("r -", "r −") in findings
    first, middle, last = found["power"].query("model == 'smollm2-135m'")["planted"]
    assert f"it recovers {middle:.2f} in the middle block of SmolLM2, and nothing in the first and the" in findings
    assert (first, last) == (0, 0)
    ordinary = found["ordinary"].query("model == 'smollm2-135m'").set_index("block")["recovered"]
    assert f"in blocks 11 and 28, {smol['recovered'][11]:.2f} and {smol['recovered'][28]:.2f}, are" in findings
    assert f"without them they are {ordinary[11]:.2f} and {ordinary[28]:.2f} (" in findings


def test_notebook_01_tells_how_long_the_public_models_take():
    assert "the public models take up to 20 minutes a notebook, 14 an hour" in words("notebooks/01_capture.py")
    seconds = {}
    for path in (paths.results("public") / "runs").glob("*.json"):
        seconds[path.stem] = numbers.load(path)["seconds"]
    for path in paths.results("public").glob(f"*/{tables.RUN}"):
        seconds[path.parent.name] = tables.read_run(path.parent)["seconds"]
    hour = seconds.pop("14_compress")
    assert 50 * 60 < hour < 70 * 60
    assert 15 * 60 < max(seconds.values()) < 22 * 60


def test_notebook_12_tells_by_which_thresholds_it_judges():
    said = " ".join(words("notebooks/12_sinks.py").replace("# ", "").split())
    assert f"pooled $R^2$ is {predictions.HIGH} or more" in said
    assert f"the median feature is lower by {predictions.LOWER} or more" in said
    assert "a map of at most ten directions" in said
    assert predictions.FEW == 10
    assert f"lower than that of all rows by more than {predictions.FALL}" in said
    assert f"changes by {measure.FEW_ROWS_DECIDE} or more without the massive rows" in said
    assert (
        f"effective rank below {measure.RANK_ONE:g}, the median feature's $R^2$ at least {measure.FAR_BELOW} below"
        in said
    )


def test_which_signal_ranks_the_swaps_of_the_public_model_is_told(findings):
    found = tables.results("public", "06_compression")
    one = found["agreements"].query("costs == 'one block'").set_index("signal")
    told = {signal: f"{rho:.2f}".translate(MINUS) for signal, rho in one["rho"].items()}
    assert f"ρ is {told['ablation']} for the cost of switching the block off, {told['price']} for the price" in findings
    assert f"{told['block influence']} for ShortGPT's block influence, {told['sub-layer cosine']} for LLM-" in findings
    assert f"{told['CCA bound']} for NBL's bound and {told['1 − R²']} for 1 − R²_lin" in findings
    best = one.loc["ablation"]
    ends = f"{best['rho_low']:.2f} to {best['rho_high']:.2f}"
    assert f"the interval of the first is {ends}, the others' are wider" in findings
    assert (one["rho_high"] - one["rho_low"]).idxmin() == "ablation"
    frontier = found["frontier"].query("model == 'smollm2-135m' and count == 1").set_index("way")
    first = {way: f"{delta:+.0f}" for way, delta in frontier["delta"].items()}
    told = f"the block that goes first, block 11, costs {first['order of R²']} of perplexity"
    assert f"{told} on {found.settings['cost_rows']:,} held-out tokens" in findings
    swaps = tables.results("public", "02_ceilings")["blocks"].set_index(["model", "block"])["dppl"]
    on_all = swaps["smollm2-135m", 11]
    assert f"({on_all:+.0f} on all of them, in notebook 02)" in findings
    assert f"by the error's price in the loss costs {first['order of price']}." in findings
    healing = found["healing"].query("model == 'smollm2-135m'").set_index("layer")
    assert healing["delta_high"]["original, healed"] < 0
    assert f"the original block lowers perplexity by {-healing['delta']['original, healed']:.1f} (" in findings


def test_a_profile_belongs_to_the_model_and_a_line_to_the_text(findings):
    corpora = tables.results("public", "05_corpora")
    smol = {name: table[table.model == "smollm2-135m"] for name, table in corpora.items()}
    (r,) = {f"{r:.2f}" for r in smol["agreement"].r}
    curves = smol["profiles"].pivot(index="block", columns="corpus", values="r2")
    apart = max(np.abs(curves[one] - curves[other]).mean() for one, other in combinations(curves, 2))
    assert f"correlate at {r} and lie at most {apart:.2f} apart on the mean over blocks" in findings
    assert f"loses {smol['transfer']['drop'].mean():.2f} of R² on the mean on another" in findings


def test_the_findings_tell_what_shuffled_weights_and_low_degrees_explain(findings):
    fall = fall_without_order()
    inner = np.abs(fall[12:27])
    assert (
        f"it moves by {inner.mean():.2f} on the mean over blocks 12 to 26, and by {inner.max():.2f} at most" in findings
    )
    straighter = np.flatnonzero(fall > 0.25).tolist()
    assert straighter == [0, 1, 2, 9, 10, 11, 28]
    least, most = fall[straighter].min(), fall[straighter].max()
    assert f"straighter than shuffled ones by {least:.2f} to {most:.2f}" in findings
    assert f"{tables.results('public', '08_controls').settings['sampled']:,} rows" in findings
    found = tables.results("public", "10_degrees")
    smol = found["spectra"].query("model == 'smollm2-135m'").pivot(index="block", columns="degree", values="r2")
    squares, cubes = (100 * (smol[degree] - smol[1]) / (1 - smol[1]) for degree in (2, 3))
    assert len(smol) == 13
    assert f"explain {squares.min():.0f} to {squares.max():.0f} % of it in the thirteen blocks" in findings
    assert f"with their cubes at least {cubes.min():.0f} %" in findings
    loudest = found["neurons"].query("model == 'smollm2-135m' and block == 15").set_index("neurons")
    share = 100 * loudest["share"][16]
    assert f"sixteen loudest reach {share:.0f} % of what all {loudest.index.max():,} squares add" in findings


def test_the_findings_tell_where_gradient_descent_falls_short_in_the_public_model(findings):
    found = tables.results("public", "07_optimisers")
    both = found["ways"].query("way == 'GD'").merge(found["blocks"], on=["model", "block"])
    first, sunk = (both.query(f"model == 'smollm2-135m' and block == {block}").iloc[0] for block in (0, 11))
    steps = found.settings["steps"]
    assert f"falls short of the exact line by {first.r2 - first.reached:.2f} after {steps} steps in block 0" in findings
    short = f"by {sunk.r2 - sunk.reached:.2f} in block 11, where it is {sunk.condition:,.0f}:"
    assert f"condition number of {first.condition:,.0f}, and {short}" in findings


def test_the_findings_tell_what_the_protocol_decides_of_the_public_models(findings):
    found = tables.results("public", "11_protocol")
    assert (
        f"Four statements were put to {found.settings['universes']} protocols. For SmolLM2 none of them turns"
        in findings
    )
    assert len(found["statements"]) == 4
    (without,) = found["effects"].query("choice == 'position_0' and level == 'out'").largest
    assert f"moves by up to {-without:.2f} where position 0 is left out" in findings
    flips = found["flips"].set_index(["model", "statement"])
    assert not flips.loc["smollm2-135m"].flips.any()
    assert f"at most {max(found.settings['factors'])} rows for each input" in findings
    (ours,) = found["verdicts"].query("model == 'minilm-l6' and protocol == 'ours' and statement == 'spread'").value
    most = flips.largest["minilm-l6", "spread"]
    assert f"its blocks lie within {ours:.2f} of each other under ours, and up to {most:.2f} apart" in findings
    assert flips.alone["minilm-l6", "spread"] == "position_0, loud"


def smaller(profile, table):
    """A table of notebook 14; of the public models there is one with a perplexity."""
    return tables.results(profile, "14_compress")[table]


def times(row, name="ratio"):
    return f"{row[name]:.2f}"


def with_interval(row, name="over_first"):
    return f"{row[name]:.2f} [{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]"


def test_the_findings_tell_how_the_race_on_the_public_model_ended(findings):
    race = smaller("public", "race").set_index(["method", "share", "corpus"])
    settings = tables.results("public", "14_compress").settings

    def raced(method, share=0.9, text="wikitext"):
        return race.loc[method, share, text]

    def best_rival(share):
        at_share = race.xs((share, "wikitext"), level=("share", "corpus"))["ratio"].dropna()
        return at_share[~at_share.index.str.startswith("own units")].idxmin()

    ours = raced("own units")
    assert f"WikiText-2 is {times(ours)} times that of the whole model, interval {ours['ratio_low']:.2f} to" in findings
    assert f"to {ours['ratio_high']:.2f}; the best rival" in findings
    assert best_rival(0.9) == "GRAIL on FLAP"
    assert (
        f"comes to {times(raced('GRAIL on FLAP'))}, lines by their price to {times(raced('lines by price'))}, "
        f"ShortGPT to {times(raced('ShortGPT'))}."
    ) in findings
    rival = raced(best_rival(0.8), 0.8)
    assert f"it is {times(raced('own units', 0.8))} times, and {times(rival)} by the best rival" in findings
    beside = [
        f"{with_interval(raced(best_rival(share), share))} with {100 * share:.0f} %" for share in (0.95, 0.9, 0.8)
    ]
    assert f"paired over documents, is {beside[0]}, {beside[1]} and {beside[2]}, on" in findings
    assert f"with 80 %, on {settings['cost_rows']:,} held-out tokens" in findings
    limit = smaller("public", "limit")
    _, seen, held_out, of_fewer = (f"{ratio:.2f}" for ratio in limit["ratio"])
    assert (
        f"the model comes to {seen} on the very rows that it was fitted on, to {held_out} held out, and to {of_fewer} "
        "held out if half as many rows (15,360) are fitted on."
    ) in findings
    assert limit["what"].iloc[-1] == "held out, fitted on 15,360 rows"
    healed = smaller("public", "healing").set_index("method").loc["own units"]
    assert f"After {settings['heal_steps']} steps of training it comes to {times(healed, 'behind')} times" in findings
    whale, puzzles = (times(raced("own units", text=text)) for text in ("moby_dick", "puzzles"))
    assert f"it is {whale} times (Moby-Dick) and {puzzles} times (puzzles) at 90 %" in findings
    whale, puzzles = (times(raced("lines by price", text=text)) for text in ("moby_dick", "puzzles"))
    assert f"lines by their price come to {whale} and {puzzles} (" in findings


def test_the_findings_tell_that_mended_lines_are_the_plain_ones(findings):
    race = smaller("public", "race").set_index("method")["ratio"]
    assert "*Lines, mended* come to the same as *lines by price*" in findings
    assert list(race["lines, mended"]) == list(race["lines by price"])


def test_the_findings_tell_what_each_part_of_own_units_buys(findings):
    over = smaller("public", "exchanges").set_index("method")
    assert over["over_first"].idxmax() == "by plain squares"
    for said, method in (
        ("Plain squares come to", "by plain squares"),
        ("scores of single units in the same metric to", "by scores of single units"),
        ("forward selection to", "by forward selection"),
        ("readouts without a ridge to", "without a ridge"),
        ("as many units in every block to", "as many in every block"),
        ("towards its own output,", "anchored on own outputs"),
        ("Two additions lower perplexity: lines of any rank beside the units come to", "with lines beside units"),
        ("and the anchor to", "anchored on the stream"),
        ("They do not add up: lines and the anchor together come to", "with lines, anchored on the stream"),
    ):
        assert f"{said} {with_interval(over.loc[method])}" in findings


def test_the_findings_tell_how_many_tokens_take_the_line(findings):
    found = tables.results("public", "15_gate")
    mean = found["means"].query("blocks == 'all'").set_index("kind")
    share = {kind: f"{100 * mean.share[kind]:.0f}" for kind in ("gate", "oracle", "random")}
    low, high = (f"{100 * mean[name]['gate']:.0f}" for name in ("share_low", "share_high"))
    of_blocks = 100 * found["costs"].query("kind == 'gate'").share
    assert (
        f"sends {share['gate']} % of the held-out tokens to the line as a mean over {len(of_blocks)} blocks" in findings
    )
    assert f"interval {low} to {high} %, and {min(of_blocks):.0f} to {max(of_blocks):.0f} % from block" in findings
    assert f"that knows each token's error sends {share['oracle']} %, and a random choice," in findings
    assert f"of as many tokens as the limit allows, {share['random']} %." in findings
    (together,) = found["together"].itertuples()
    assert f"with all of these gates at once {100 * together.saved:.0f} % of those blocks" in findings
    assert f"and perplexity rises by {100 * together.rise:.1f} % ([15_gate]" in findings
    embedded = tables.results("minis", "15_gate")
    means = 100 * embedded["means"].query("blocks == 'all' and kind == 'gate'").share
    rises = 100 * embedded["together"].rise
    assert f"sends {min(means):.0f} to {max(means):.0f} % of the held-out tokens to the line where" in findings
    assert f"all gates at once perplexity rises by {min(rises):.0f} to {max(rises):.0f} % ([15_gate]" in findings


def test_readme_tells_how_the_race_ended(readme):
    race = smaller("public", "race").query("share == 0.9 and corpus == 'wikitext'").set_index("method")["ratio"]
    rival = race[~race.index.str.startswith("own units")].min()
    told = f"multiply perplexity by {race['own units']:.2f}; the best rival comes to {rival:.2f}"
    assert f"{told}, lines to {race['lines by price']:.2f} (14)" in readme


def test_the_findings_tell_which_signal_ranks_blocks(findings):
    agreements = tables.results("minis", "06_compression")["agreements"].query("costs == 'one block'")
    told = {signal: f"{rho:.2f}".translate(MINUS) for signal, rho in agreements.set_index("signal")["rho"].items()}
    assert f"ρ of 1 − R²_lin with the cost is {told['1 − R²']}" in findings
    assert f"loss's gradient ranks blocks at {told['price']}, its plain size at {told['residual']}" in findings
    assert told["ablation"] == told["sub-layer cosine"]
    assert f"switching the block off at {told['ablation']}, and so does the cosine that LLM-Drop goes by" in findings
    assert f"block influence comes to {told['block influence']} and NBL's bound to {told['CCA bound']}" in findings


def test_the_findings_tell_that_the_first_block_is_surely_the_dearest(findings):
    assert "and surely: the interval of its cost lies above those of all other blocks" in findings
    margins = {}
    for name, blocks in tables.results("minis", "02_ceilings")["blocks"].set_index("block").groupby("model"):
        margins[name] = blocks.dppl_low[0] - blocks.dppl_high.drop(0).max()
    assert min(margins.values()) > 0
    assert min(margins, key=margins.get) == "mini-gpt2"  # "only just"
    assert margins["mini-gpt2"] < 0.1


def test_it_is_told_why_the_most_linear_block_is_dear(readme, findings):
    blocks = tables.results("minis", "06_compression")["blocks"]
    worth = blocks.pivot(index="model", columns="block", values="ablation")
    assert (worth.idxmax(axis=1) == 0).all()
    first = worth[0].tolist()
    second = worth.drop(columns=0).to_numpy().max()
    assert f"Switched off, it costs {spanned(first, 1)} nats per token, any other at most {second:.2f}," in readme
    assert (
        f"switched off, it costs {spanned(first, 1)} nats per token and no other block more than {second:.2f},"
        in findings
    )


def test_the_findings_tell_of_what_rank_the_straight_blocks_are(findings):
    found = tables.results("minis", "09_dynamics")
    rank = found["live"].set_index("step")["rank"]
    straightest = found["live_blocks"].groupby("step").r2.mean().idxmax()
    start, there = (f"{100 * rank[step]:.0f}" for step in (0, straightest))
    assert f"outputs' effective rank has fallen from {start} to {there} % of the width by then" in findings


def test_the_findings_tell_that_profiles_are_higher_on_prose(findings):
    corpora = tables.results("prose", "05_corpora")
    from_docs, apart, largest, r, inner = {}, [], [], [], {}
    for name, rows in corpora["profiles"].groupby("model"):
        profile = {corpus: curve.to_numpy() for corpus, curve in rows.pivot(columns="corpus", index="block").r2.items()}
        docs = profile.pop("docs")
        assert all((curve > docs).all() for curve in profile.values())  # "every block of every model is straighter"
        largest.append(max((curve - docs).max() for curve in profile.values()))
        distances = {corpus: float(np.abs(curve - docs).mean()) for corpus, curve in profile.items()}
        assert max(distances, key=distances.get) == "moby_dick"
        from_docs[name] = f"{distances['moby_dick']:.2f}"
        apart += [np.abs(one - other).mean() for one, other in combinations(profile.values(), 2)]
        beside_docs = corpora["agreement"].query("model == @name and corpus == 'docs'")
        r += beside_docs.r.to_list()
        inner[name] = beside_docs.inner.min()
    assert f"every block of every model is straighter, by up to {max(largest):.2f}" in findings
    assert (
        f"{from_docs['mini-gpt2']} in mini-gpt2, {from_docs['mini-pythia']} in mini-pythia and "
        f"{from_docs['mini-llama']} in mini-llama"
    ) in findings
    (claim,) = [claim for claim in load_claims() if claim.id == "text-small-shift"]
    assert f"the ledger's threshold is {claim.threshold:.2f}" in findings
    assert f"keep r at {min(r):.2f} or above; between them it falls to {min(inner.values()):.2f}" in findings
    assert min(inner, key=inner.get) == "mini-llama"
    assert f"no two lie further apart than {max(apart):.2f}" in findings


def test_the_findings_tell_what_a_fifth_of_all_parameters_costs(findings):
    race = smaller("minis", "race")
    ratios = race[race["share"] == 0.8].set_index("method")["ratio"]

    def rises(method):
        return 100 * (ratios[method] - 1)

    def between(method):
        return f"{rises(method).min():.0f} to {rises(method).max():.0f} %"

    assert f"perplexity rises by {rises('own units').max():.0f} % at most" in findings
    assert f"(GRAIL) comes to {between('GRAIL on Wanda')}" in findings
    assert f"lines taken by their price to {between('lines by price')}" in findings
    assert f"block influence to {between('ShortGPT')} (" in findings
    assert f"{tables.results('minis', '14_compress').settings['cost_rows']:,} held-out tokens" in findings


def test_the_findings_tell_what_twins_say(findings):
    family, low, high = ratio("family")
    assert f"two architectures lie {family} times as far apart as twins of two seeds" in findings
    assert f"two seeds, interval {low} to {high}" in findings
    text, low, high = ratio("text")
    assert f"two training texts lie {text} times as far apart, {low} to {high}" in findings


def test_the_findings_tell_what_products_win_back(findings):
    assert f"wins back {spanned(by_recipe('ours'), 2)} of R² on the mean over a model's blocks" in findings
    assert f"By the paper's own recipe it is still {spanned(by_recipe('gain'), 2)}" in findings
    assert min(by_recipe("optimiser")) > max(by_recipe("rows"))  # "mostly the optimiser, then the number of rows"


def test_the_findings_tell_what_the_protocol_moves(findings):
    moved = {level: f"{effect(level):+.2f}".translate(MINUS) for level in ("scalar", "tail", "16")}
    assert f"in the denominator by {moved['scalar']} on average, a contiguous tail by {moved['tail']}" in findings
    assert f"16 rows for each input instead of 100 by {moved['16']}" in findings
    found = tables.results("minis", "11_protocol")
    assert f"Of {found.settings['universes']} protocols none turns round" in findings
    assert found["orders"].share.tolist() == [1.0]
    assert set(found["flips"].query("flips").statement) == {"neighbours"}


def test_readme_tells_of_the_public_models(readme):
    blocks = tables.results("public", "02_ceilings")["blocks"].query("model == 'smollm2-135m'").set_index("block")
    assert f"runs from {blocks.r2.min():.2f} to {blocks.r2.max():.2f} over its thirty blocks" in readme
    assert len(blocks) == 30
    assert f"block 11 of SmolLM2 falls from {blocks.r2[11]:.2f} to {blocks.r2_ordinary[11]:.2f}" in readme
    found = sinks_of("smollm2-135m")
    (massive,) = [row for row in found["massive"] if row["block"] == 11]
    assert f"Without {massive['share']:.1%} of its rows".replace("%", " %") in readme
    assert massive["at_first"] > 0.5  # "most of them the first token of a sequence"
    nats = {row["kind"]: f"{row['nats']:.2f}" for row in found["costs"] if row["block"] == 11}
    assert f"it costs {nats['a']} nats per token" in readme
    assert f"with a constant at the first position, {nats['e']}" in readme


def test_readme_tells_of_the_embedded_models(readme):
    measured = tables.results("minis", "02_ceilings")["blocks"]
    for _, blocks in measured.groupby("model"):
        assert blocks.r2.idxmax() == blocks.dppl.idxmax()
    gelu = measured[measured.model.isin(["mini-gpt2", "mini-pythia"])]
    assert f"lie at {gelu.r2_untrained.min():.2f} or above" in readme
    assert f"they spread from {gelu.r2.min():.2f} to {gelu.r2.max():.2f}" in readme
    assert f"moves the profile {ratio('family')[0]} times as far as the seed does" in readme
    assert f"training text {ratio('text')[0]} times" in readme
    by_median = tables.results("minis", "03_bilinear")["recipe"].groupby("model")["gain"].median()
    assert f"which are narrower, {spanned(by_median, 2)} in the median block" in readme
    moved = {level: f"{effect(level):+.2f}".translate(MINUS) for level in ("scalar", "16")}
    assert f"moves R²_lin of the embedded models by {moved['scalar']} on average" in readme
    assert f"instead of 100 move it by {moved['16']}" in readme
    public = tables.results("public", "11_protocol")
    mean = {row["level"]: f"{row['mean']:+.2f}".translate(MINUS) for _, row in public["effects"].iterrows()}
    assert f"the first moves it by {mean['scalar']}, and 16 rows instead of 32 by {mean['16']}" in readme
    assert public.settings["factors"] == [16, 32]


def test_readme_and_findings_tell_where_the_trained_weights_of_the_public_model_show(readme, findings):
    fall = fall_without_order()
    assert "In SmolLM2 the trained weights show in seven blocks" in readme
    shown = fall[fall > 0.25]
    assert len(shown) == 7
    assert f"R²_lin falls there by {spanned(shown, 2)}, and in the blocks 12 to 26" in readme
    assert f"it moves by {np.abs(fall[12:27]).max():.2f} at most (08)" in readme
    by_model = tables.results("public", "08_controls")["by_model"].set_index("model")
    assert f"only {by_model.outside['smollm2-135m']} of the thirty blocks surely differ" in findings


def test_the_findings_tell_how_far_profiles_keep_their_shape_on_other_programmers_text(findings):
    agreement = tables.results("minis", "05_corpora")["agreement"]
    assert f"their shape, r {spanned(agreement.r, 2)}" in findings
    inner = dict(iter(agreement.groupby("model").inner))
    assert f"only mini-gpt2's keeps it (r {spanned(inner['mini-gpt2'], 2)};" in findings
    assert f"mini-llama {spanned(inner['mini-llama'], 2)}, mini-pythia {spanned(inner['mini-pythia'], 2)})" in findings


def test_the_letter_tells_what_the_protocol_moves(letter):
    scalar, tail = (effect(level, "largest") for level in ("scalar", "tail"))
    assert f"raises R²_lin by {effect('scalar'):.3f} on average over the blocks, and by up to {scalar:.2f}" in letter
    assert f"R²_lin is {-effect('tail'):.3f} lower on average, by up to {-tail:.2f}" in letter
    assert f"at 16 rows an input R²_lin is {-effect('16'):.2f} lower than at 100, on average" in letter
    assert f"and at 8, as for TinyLlama, {-effect('8'):.2f} lower" in letter
    for split in tables.results("minis", "11_protocol")["agreement"].itertuples():
        assert f"in {split.limit_agrees} of {split.blocks} blocks within its interval" in letter
    assert abs(effect("rows out", "largest")) < 0.06


def test_the_letter_tells_what_the_recipe_gains(letter):
    assert f"by that recipe the mean gain over blocks is {listed(by_recipe('gain'))} (gpt2, pythia, llama)" in letter
    assert f"on the same rows finds {listed(by_recipe('ours'))}." in letter
    lowest = f"{min(by_recipe('selection')):.3f}".translate(MINUS)
    assert f"choosing on the scored rows makes next to nothing ({lowest} at most)" in letter
    assert f"all rows instead of few {spanned(by_recipe('rows'), 3)}" in letter
    assert f"and the optimiser {spanned(by_recipe('optimiser'), 3)}" in letter


def test_the_letter_tells_how_the_controls_and_the_baseline_ended(letter):
    found = tables.results("minis", "03_bilinear")
    steps = found.settings["control_steps"]
    assert (found["controls"]["step"] < steps).sum() == 1  # "all controls but one"
    assert f"all controls but one were still improving when {steps:,} steps ended" in letter
    for trained in tables.results("minis", "07_optimisers")["planted"].itertuples():
        assert trained.exact - trained.reached > 0.5  # "both fall far short"
        assert f"where the exact map reaches {trained.exact:.2f}" in letter


def coverage(interval, of="these rows"):
    """Percent of simulated measurements in which an interval holds the truth, by case."""
    rows = numbers.load(paths.results("bench") / "coverage.json")["rows"]
    found = [row for row in rows if (row["interval"], row["of"]) == (interval, of)]
    return {row["case"]: f"{100 * row['coverage']:.0f}" for row in found}


def described(function):
    return " ".join(function.__doc__.split())


def test_docstrings_of_fits_trainings_and_votes_tell_what_was_simulated():
    low, *_, high = sorted(coverage("nested features: R²").values())
    assert f"in {low} to {high} of 100 simulated measurements" in described(Nested)
    low, *_, high = sorted(
        [*coverage("profiles of two texts: r").values(), *coverage("profiles of two texts: difference").values()]
    )
    assert f"in {low} to {high} of 100 simulated measurements" in described(Agreement)
    kernel = coverage("kernel: R²")
    heavy = kernel.pop("heavy")
    low, *_, high = sorted(kernel.values())
    assert f"in {low} to {high} of 100 simulated measurements, in {heavy} where outputs have heavy" in described(
        Learned
    )
    gap = coverage("trained map: shortfall")
    massive = gap.pop("massive")
    low, *_, high = sorted(gap.values())
    assert f"in {low} to {high} of 100 simulated measurements, and in {massive} where each" in described(Shortfall)
    votes = coverage("vote of 15 runs: mean")
    assert f"in {votes['iid']} of 100 simulated votes where they are, and in {votes['correlated']} where" in described(
        Vote
    )


def test_docstrings_tell_what_was_simulated():
    folds, single = coverage("ΔPPL"), coverage("ΔPPL, leaving out single sequences")
    text = described(change)
    assert f"it holds the truth in {folds['correlated']} of 100 simulated measurements" in text
    assert f"leaving out single sequences holds it in {single['correlated']};" in text
    assert f"where losses have heavy tails as well, in {folds['heavy']} (" in text
    r2 = sorted(coverage("R²_lin").values())
    assert f"in {r2[0]} to {r2[-1]} of 100 simulated measurements" in described(r2_intervals)
    rank = sorted(coverage("effective rank").values())
    assert f"in {rank[0]} to {rank[-1]} of 100 simulated measurements" in described(rank_estimate)
    pearson, spearman = (list(coverage(f"{name} over 12 blocks", "limit").values()) for name in "rρ")
    each, neighbours, heavy, far = pearson
    text = described(correlation)
    assert f"in {each} of 100 simulated models where they err each by itself, in {neighbours} where" in text
    assert f"in {heavy} with heavy tails, and in {far} where one block" in text
    each, neighbours, heavy, far = spearman
    assert f"Spearman's ρ in {each}, {neighbours}, {heavy} and {far} (" in text
