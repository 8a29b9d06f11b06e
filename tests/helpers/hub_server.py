"""A Hub on the loopback address: it serves the files of a folder as huggingface_hub's client expects them.

The folder holds `models/ORG/NAME/REVISION/…` and `datasets/ORG/NAME/REVISION/…`; a revision's commit is a hash of its
name. Endpoints and headers follow the client's own code: huggingface_hub's file_download.py and hf_api.py.
"""

import hashlib
import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlparse


def commit_of(revision):
    return hashlib.sha1(revision.encode()).hexdigest()


class Hub:
    """What is served, how it fails, and which requests were made.

    gated: repositories that answer 401. broken: file → how many more times it is cut off half-way.
    """

    def __init__(self, folder):
        self.folder, self.gated, self.broken, self.asked = Path(folder), set(), {}, []

    def revision(self, kind, repo, revision):
        """The folder of a revision, by its name or commit; None if there is none."""
        folders = (self.folder / kind / repo).glob("*")
        return next((one for one in folders if unquote(revision) in (one.name, commit_of(one.name))), None)

    def entry(self, folder, path):
        """A file as the API lists it."""
        content = path.read_bytes()
        return {
            "type": "file",
            "path": path.relative_to(folder).as_posix(),
            "size": len(content),
            "oid": hashlib.sha1(content).hexdigest(),
        }

    def entries(self, folder, below="", deep=True):
        """All files below a folder; or, if not `deep`, its own files and folders."""
        found = sorted((folder / below).rglob("*") if deep else (folder / below).iterdir())
        beside = [] if deep else filter(Path.is_dir, found)
        folders = [{"type": "directory", "path": path.relative_to(folder).as_posix(), "oid": ""} for path in beside]
        return folders + [self.entry(folder, path) for path in found if path.is_file()]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def do_POST(self):
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, body=None):
        path, hub = unquote(urlparse(self.path).path), self.server.hub
        hub.asked.append((self.command, path, self.headers.get("Range")))
        if found := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.file("datasets" if found[1] else "models", *found.groups()[1:])
        elif found := re.fullmatch(
            r"/api/(models|datasets)/([^/]+/[^/]+?)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?", path
        ):
            self.api(body, *found.groups())
        else:
            self.fail(404, "EntryNotFound")

    def refused(self, kind, repo, revision):
        """Answer with an error if a repository or revision is not available; else return its folder."""
        if repo in self.server.hub.gated:
            return self.fail(401, "GatedRepo")
        if not (self.server.hub.folder / kind / repo).is_dir():
            return self.fail(401, "RepoNotFound")  # the Hub does not distinguish missing from private
        return self.server.hub.revision(kind, repo, revision) or self.fail(404, "RevisionNotFound")

    def file(self, kind, repo, revision, name):
        folder = self.refused(kind, repo, revision)
        if folder and not (folder / name).is_file():
            folder = self.fail(404, "EntryNotFound", {"X-Repo-Commit": commit_of(folder.name)})
        if not folder:
            return
        content = (folder / name).read_bytes()
        whole = len(content)
        start = int(re.match(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1])
        end = re.search(r"-(\d+)$", self.headers.get("Range", ""))
        content = content[start : int(end[1]) + 1 if end else None]
        self.send_response(206 if "Range" in self.headers else 200)
        headers = {
            "Content-Length": len(content),
            "ETag": f'"{hashlib.sha1((folder / name).read_bytes()).hexdigest()}"',
            "X-Repo-Commit": commit_of(folder.name),
            "X-Linked-Size": whole,
            "Accept-Ranges": "bytes",
        }
        if "Range" in self.headers:
            headers["Content-Range"] = f"bytes {start}-{start + len(content) - 1}/{whole}"
        for header, value in headers.items():
            self.send_header(header, str(value))
        self.end_headers()
        if self.command != "HEAD":
            if self.server.hub.broken.get(name, 0) > 0:
                self.server.hub.broken[name] -= 1
                self.wfile.write(content[: len(content) // 2])
                self.close_connection = True
                return
            self.wfile.write(content)

    def api(self, body, kind, repo, what, revision, below):
        folder = self.refused(kind, repo, revision or "main")
        if not folder:
            return
        entries = self.server.hub.entries(folder)
        if what == "tree" and not (folder / (below or "")).is_dir():
            self.fail(404, "EntryNotFound")
        elif what == "tree":
            deep = "recursive=true" in self.path.lower()
            self.json(self.server.hub.entries(folder, below or "", deep))
        elif what == "paths-info":
            wanted = body["paths"] if isinstance(body["paths"], list) else [body["paths"]]
            self.json([one for one in entries if one["path"] in wanted])
        else:
            siblings = [{"rfilename": one["path"]} for one in entries]
            about = {"id": repo, "sha": commit_of(folder.name), "private": False, "gated": False, "disabled": False}
            self.json(about | {"siblings": siblings, "tags": [], "downloads": 0, "likes": 0})

    def json(self, content, code=200, headers=None):
        content = json.dumps(content).encode()
        self.send_response(code)
        for header, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def fail(self, code, error, headers=None):
        self.json({"error": error}, code, {"X-Error-Code": error, "X-Error-Message": error, **(headers or {})})

    def log_message(self, *args):
        """Say nothing."""


@contextmanager
def serving(folder):
    """A running Hub and its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.hub = Hub(folder)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.hub, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
