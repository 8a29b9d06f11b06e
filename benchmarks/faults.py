"""Kill the pipeline at random moments, run it again, and compare with a run that nobody disturbed.

    python benchmarks/faults.py --profile smoke --kills 20 --notebooks 01_capture 02_ceilings --tiny

Two copies of the tree are made in a temporary folder. One runs to its end. The other is killed with SIGKILL, in turn
every process of it (as when the power fails) and Snakemake alone (its jobs go on without it); after every kill each
file that is there must be whole. If a run ends before its kill, it is compared and started anew. At last it runs to
its end: results and figures must be the same bytes. Exits with 1 if anything differs.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import psutil

from howlinear.instrument.store import load_capture
from howlinear.training.minis import new_model

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = shutil.ignore_patterns("build", ".*", "__pycache__", "*.egg-info")


def copied(tree, tiny):
    """A copy of the project that has made nothing yet; with a small random model in mini-gpt2's place if `tiny`."""
    shutil.copytree(ROOT, tree, ignore=SKIPPED)
    if tiny:
        folder = tree / "models/mini-gpt2"
        (folder / "SHA256SUMS").unlink()
        new_model("mini-gpt2", width=32).save_pretrained(folder)
    return tree


def started(tree, options):
    """The pipeline as `make figures` runs it, for some notebooks only."""
    snakemake = Path(sys.executable).with_name("snakemake")
    command = [sys.executable, "tools/alone.py", str(snakemake), "--nolock", "--rerun-incomplete", "--quiet"]
    command += ["all", "--cores", str(options.cores), "--config", f"profile={options.profile}", "--"]
    command += [f"build/{options.profile}/notebooks/{stem}.ipynb" for stem in options.notebooks]
    environment = {"PYTHONPATH": str(tree / "lib"), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HOME": str(tree)}
    log = (tree / "log").open("w")
    return subprocess.Popen(command, cwd=tree, env=environment, stdout=log, stderr=log)


def made(tree, options):
    """What a run makes that is to be the same: results, figures, captures."""
    folders = [tree / "results" / options.profile, tree / "figures" / options.profile]
    folders.append(tree / "build" / options.profile / "captures")
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(tree)): path.read_bytes() for path in files if not path.name.startswith(".")}


def halves(tree, options):
    """Files that are there but not whole, and how many that writers left aside."""
    bad, left = [], 0
    for path in (tree / name / options.profile for name in ("results", "figures", "build")):
        for file in filter(Path.is_file, path.rglob("*")):
            if file.name.startswith("."):
                left += ".aside-" in file.name
            elif not whole(file):
                bad.append(str(file.relative_to(tree)))
    return bad, left


def whole(file):
    """Whether a file can be read to its end."""
    content = file.read_bytes()
    try:
        if file.suffix in {".json", ".ipynb"}:
            json.loads(content)
        elif file.suffix == ".svg":
            ElementTree.fromstring(content)
        elif file.suffix == ".png":
            return content.endswith(b"IEND\xaeB`\x82")
        elif file.suffix == ".safetensors":
            stored = load_capture(file)
            return all(stored.blocks[block] is not None for block in stored.blocks)
    except (ValueError, OSError, ElementTree.ParseError):
        return False
    return True


def killed(process, everything):
    """Kill a run: all its processes, or Snakemake alone."""
    one = psutil.Process(process.pid)
    victims = [one, *(one.children(recursive=True) if everything else [])]
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.kill()
    process.wait()


def undisturbed(tree, options):
    """Run to the end; what was made and the seconds it took."""
    begun = time.monotonic()
    code = started(tree, options).wait()
    if code:
        sys.exit(f"the run in {tree} ended with {code}:\n{(tree / 'log').read_text()}")
    return made(tree, options), time.monotonic() - begun


def anew(tree, options):
    """Take away everything a run made."""
    for name in ("results", "figures", "build"):
        shutil.rmtree(tree / name / options.profile, ignore_errors=True)


def main(options):
    """Disturb, compare, report; 1 if a file was not whole or came out otherwise."""
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="howlinear-faults-", ignore_cleanup_errors=True) as folder:
        calm, tree = (copied(Path(folder) / name, options.tiny) for name in ("calm", "killed"))
        expected, seconds = undisturbed(calm, options)
        print(f"undisturbed: {len(expected)} files in {seconds:.0f} s", flush=True)
        kills, ends, bad, moved, leftovers = 0, 0, [], set(), 0
        while kills < options.kills:
            process = started(tree, options)
            try:
                process.wait(draw.uniform(0, seconds))
            except subprocess.TimeoutExpired:
                killed(process, everything=kills % 2 == 0)
                kills += 1
                found, left = halves(tree, options)
                bad, leftovers = bad + found, max(leftovers, left)
                print(f"kill {kills}: {len(made(tree, options))} files there, {len(found)} not whole", flush=True)
                continue
            if process.returncode:
                sys.exit(f"a run after a kill ended with {process.returncode}:\n{(tree / 'log').read_text()}")
            ends += 1
            moved |= {name for name, content in expected.items() if made(tree, options).get(name) != content}
            anew(tree, options)
        last, _ = undisturbed(tree, options)
        moved |= {name for name in expected.keys() | last.keys() if expected.get(name) != last.get(name)}
    print(f"{kills} kills, {ends} ends between them, {leftovers} files left aside at most at a time")
    print(f"not whole: {', '.join(sorted(set(bad))) or 'none'}")
    print(f"other bytes than undisturbed: {', '.join(sorted(moved)) or 'none'}")
    return 1 if bad or moved else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--profile", default="smoke")
    parser.add_argument("--tiny", action="store_true", help="a random model of width 32, for time")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--notebooks", nargs="+", default=["01_capture", "02_ceilings"])
    sys.exit(main(parser.parse_args()))
