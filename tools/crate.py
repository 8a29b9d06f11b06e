"""A run of the pipeline as a Workflow Run RO-Crate: what was run, on what, when and where, and what came out.

`make crate` writes `build/<profile>/crate`: the Snakefile, notebooks, run profile, results and figures, and
`ro-crate-metadata.json`, which lists what `howlinear.notebook.provenance` recorded of every notebook's run. Data
repositories accept such a folder, and other tools can read it. The vocabulary is that of Workflow Run RO-Crate (Leo et
al., 2024, doi:10.1371/journal.pone.0309210).
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from rocrate.model import ContextEntity, Person
from rocrate.rocrate import ROCrate

from howlinear.errors import SourceError, ending_in_one_line
from howlinear.files import atomic, numbers, paths

PROFILES = (
    "https://w3id.org/ro/wfrun/process/0.5",
    "https://w3id.org/ro/wfrun/workflow/0.5",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0",
)


def crate(profile: str) -> ROCrate:
    """The crate of the runs that made a profile's results."""
    records = sorted(paths.results(profile).glob("*/run.json"))
    if not records:
        raise SourceError(f"no runs of profile {profile} are recorded: run make figures PROFILE={profile}")
    about = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    made = ROCrate()
    made.name = f"{about['title']}, profile {profile}"
    made.description = about["abstract"]
    made.license = f"https://spdx.org/licenses/{about['license']}"
    made.root_dataset["conformsTo"] = [_said(made, address, "CreativeWork", name=address) for address in PROFILES]
    made.creator = [made.add(Person(made, properties={"name": author["name"]})) for author in about["authors"]]
    workflow = made.add_workflow(paths.ROOT / "tools" / "Snakefile", "tools/Snakefile", main=True, lang="snakemake")
    made.root_dataset["mentions"] = [_action(made, workflow, numbers.load(record)) for record in records]
    return made


def _action(made: ROCrate, workflow: ContextEntity, run: dict[str, Any]) -> ContextEntity:
    """One notebook's run."""
    gone = [name for name in run["outputs"] if not (paths.ROOT / name).is_file()]
    if gone:
        raise SourceError(f"{', '.join(gone)} is recorded and not there: run make figures PROFILE={run['profile']}")
    began = datetime.fromisoformat(run["began"])
    software = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    machine = ", ".join(f"{key} {value}" for key, value in run["machine"].items() if value is not None)
    properties = {
        "name": f"notebook {run['notebook']}",
        "startTime": began.isoformat(),
        "endTime": (began + timedelta(seconds=run["seconds"])).isoformat(timespec="seconds"),
        "description": f"commit {run['commit']}{', with changes' if run['modified'] else ''}; {machine}; {software}",
    }
    return made.add_action(
        instrument=workflow,
        identifier=f"#{run['notebook']}",
        object=[_entity(made, name, sha256) for name, sha256 in run["inputs"].items()],
        result=[_entity(made, name, sha256) for name, sha256 in run["outputs"].items()],
        properties=properties,
    )


def _entity(made: ROCrate, name: str, sha256: str) -> ContextEntity:
    """A file of the project, with its hash; other inputs (rows of a text, a model of the Hub) are only described."""
    path = paths.ROOT / name
    if path.is_file():
        return made.dereference(name) or made.add_file(path, name, properties={"sha256": sha256})
    identifier = f"#{quote(name)}"
    return made.dereference(identifier) or _said(made, identifier, "PropertyValue", name=name, value=sha256)


def _said(made: ROCrate, identifier: str, kind: str, **properties: Any) -> ContextEntity:
    """An entity that is not a file."""
    return made.add(ContextEntity(made, identifier, properties={"@type": kind} | properties))


def write(profile: str) -> Path:
    """Write the crate of a profile to `build/<profile>/crate`, replacing one that is there."""
    target = paths.build(profile) / "crate"
    made = crate(profile)
    with atomic.folder_aside(target) as aside:
        made.write(aside)
    return target


if __name__ == "__main__":
    with ending_in_one_line():
        print(f"wrote {write(sys.argv[1]).relative_to(paths.ROOT)}")
