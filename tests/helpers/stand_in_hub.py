"""The Hugging Face hub, by a local server that speaks its protocol.

For a file, the client `huggingface_hub` asks `/OWNER/NAME/resolve/main/FILE`,
with HEAD and then with GET; the server's headers say which commit it is, and
what is missing. To publish, it asks who it is, makes the repository, asks how
files should come, and sends them in one commit, here all of them as text in
base64.
"""

import base64
from collections.abc import Iterator
import contextlib
from http import server
import json
import pathlib
import re
import threading

from huggingface_hub import ModelCard

API = "/api/models/"
LICENSES = ("apache-2.0", "mit", "other")  # that it knows
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Handler(server.SimpleHTTPRequestHandler):
  """Serves a folder with OWNER/NAME/FILE."""

  folder: pathlib.Path
  asked: list[str]
  token: str | None = None

  def do_HEAD(self):
    self.answer(body=False)

  def do_GET(self):
    self.answer(body=True)

  def answer(self, *, body: bool) -> None:
    repository, _, name = self.path.strip("/").partition("/resolve/main/")
    path = self.folder / repository / name
    if body:
      self.asked.append(f"{repository}/{name}")
    if self.token and self.headers["Authorization"] != f"Bearer {self.token}":
      self.reply(401, {"X-Error-Code": "GatedRepo"})
    elif self.path == "/api/whoami-v2":
      self.reply_json({"name": "me", "type": "user"})
    elif (there := self.folder / self.path.removeprefix(API)).is_dir():
      paths = filter(pathlib.Path.is_file, there.rglob("*"))
      files = [{"rfilename": str(x.relative_to(there))} for x in paths]
      self.reply_json({"id": "me/photos", "private": False, "siblings": files})
    elif not (self.folder / repository).is_dir():
      self.reply(404, {"X-Error-Code": "RepoNotFound"})
    elif not path.is_file():
      self.reply(404, {"X-Error-Code": "EntryNotFound"})
    else:
      content = path.read_bytes()
      headers = {"ETag": f'"{hash(content):x}"', "X-Repo-Commit": COMMIT}
      self.reply(200, headers, content, body)

  def reply(self, status, headers, content=b"", body=False) -> None:
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name, value)
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    if body:
      self.wfile.write(content)

  def log_message(self, *_):
    pass

  def do_POST(self):
    length = int(self.headers.get("Content-Length") or 0)
    lines = self.rfile.read(length).decode().splitlines()
    self.asked.append(f"POST {self.path}")
    if self.path == "/api/validate-yaml":
      card = ModelCard(
        json.loads(lines[0])["content"], ignore_metadata_errors=True
      )
      if (card.data.license or "mit") in LICENSES:
        self.reply_json({"warnings": [], "errors": []})
      else:
        known = f'"license" must be one of [{", ".join(LICENSES)}]'
        self.reply(400, {}, known.encode(), body=True)
    elif self.headers["Authorization"] != f"Bearer {self.token}":
      self.reply(401, {})
    elif self.path == "/api/repos/create":
      name = json.loads(lines[0])["name"]
      (self.folder / "me" / name).mkdir(parents=True, exist_ok=True)
      url = f"http://{self.headers['Host']}/me/{name}"
      self.reply_json({"url": url, "name": f"me/{name}", "id": f"me/{name}"})
    elif self.path.endswith("/preupload/main"):
      asked = json.loads(lines[0])["files"]
      more = {"uploadMode": "regular", "shouldIgnore": False}
      self.reply_json({"files": [{"path": x["path"]} | more for x in asked]})
    else:
      repository = re.fullmatch(r"/api/models/(.*)/commit/main", self.path)[1]
      for line in map(json.loads, lines):
        if line["key"] == "file":
          path = self.folder / repository / line["value"]["path"]
          path.parent.mkdir(parents=True, exist_ok=True)
          path.write_bytes(base64.b64decode(line["value"]["content"]))
      url = f"http://{self.headers['Host']}/{repository}/commit/{COMMIT}"
      self.reply_json({"commitOid": COMMIT, "commitUrl": url, "success": True})

  def reply_json(self, content):
    self.reply(200, {}, json.dumps(content).encode(), body=True)


@contextlib.contextmanager
def running(folder: pathlib.Path) -> Iterator[type[Handler]]:
  """A hub with the models `OWNER/NAME` of a folder, as `environment` says."""

  class Hub(Handler):
    asked: list[str] = []

  Hub.folder = folder
  with server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as serving:
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    Hub.environment = {
      "HF_ENDPOINT": f"http://127.0.0.1:{serving.server_port}",
      "HF_HOME": str(folder.parent / "cache"),
      # Whatever this machine has set.
      "HF_HUB_OFFLINE": "0",
      "HF_TOKEN": "",
      "NO_PROXY": "127.0.0.1",
      "no_proxy": "127.0.0.1",
    }
    yield Hub
    serving.shutdown()
