"""The Hugging Face hub, by a local server that speaks its protocol.

The client is `huggingface_hub` itself. For a file it asks
`/OWNER/NAME/resolve/main/FILE`, with HEAD and then with GET; the server's
headers say which commit it is, and what is missing.
"""

from collections.abc import Iterator
from http import server
import pathlib
import shutil
import threading

import make_captioned
import numpy as np
import pytest
from repository import CLIP, GOLDEN, ROOT
import warm

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


@pytest.fixture
def hub(tmp_path) -> Iterator[type[Handler]]:
  """A hub with a model that has weights in Flax's own format only."""
  model = tmp_path / "hub" / "team" / "clip"
  shutil.copytree(CLIP, model)
  (model / "model.safetensors").unlink()
  shutil.copy(GOLDEN / "flax_files" / "clip" / "flax_model.msgpack", model)

  class Hub(Handler):
    folder = tmp_path / "hub"
    asked: list[str] = []

  with server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as running:
    threading.Thread(target=running.serve_forever, daemon=True).start()
    Hub.environment = {
      "HF_ENDPOINT": f"http://127.0.0.1:{running.server_port}",
      "HF_HOME": str(tmp_path / "cache"),
      # Whatever this machine has set.
      "HF_HUB_OFFLINE": "0",
      "HF_TOKEN": "",
      "NO_PROXY": "127.0.0.1",
      "no_proxy": "127.0.0.1",
    }
    yield Hub
    running.shutdown()


@pytest.fixture
def photos(tmp_path) -> pathlib.Path:
  captions = [f"a photo of a dog {i}" for i in range(4)]
  return make_captioned.photo_folder(tmp_path / "photos", captions)


def run(hub, *command, **more):
  """A new process, as `huggingface_hub` reads its settings when imported."""
  return warm.run(command, cwd=ROOT, env=hub.environment | more)


def test_a_model_of_the_hub(hub, photos, tmp_path):
  def embed(name, **more):
    command = ("embed", "--model=team/clip", f"--input={photos}")
    result = run(
      hub,
      "-m",
      "nuclr_jax.lab.cli.main",
      *command,
      f"--output={tmp_path / name}",
      **more,
    )
    assert result.returncode == 0, result.stderr
    return np.load(tmp_path / name / "image.npy")

  image = embed("first")
  assert image.shape == (4, 12)
  assert "team/clip/flax_model.msgpack" in hub.asked
  assert "team/clip/pytorch_model.bin" not in hub.asked
  # Everything is in the cache now, also what the hub does not have.
  hub.asked.clear()
  np.testing.assert_array_equal(embed("again", HF_HUB_OFFLINE="1"), image)
  assert not hub.asked


FIND = """
import sys
from nuclr_jax.lab.models.pretrained import load
try:
  print(load.read_logit_scale(sys.argv[1]))
except ValueError as error:
  print(error)
"""


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (None, "3.5"),
    ("repository", "Check the name"),
    ("gated", "a private or gated model needs `hf auth login`"),
    ("weights", "team/clip on the hub has none of model.safetensors"),
  ],
)
def test_what_is_missing(hub, change, message, tmp_path):
  if change == "repository":
    shutil.rmtree(hub.folder / "team" / "clip")
  elif change == "gated":
    hub.token = "secret"
  elif change == "weights":
    (hub.folder / "team" / "clip" / "flax_model.msgpack").unlink()
  (tmp_path / "find.py").write_text(FIND)
  result = run(hub, tmp_path / "find.py", "team/clip")
  assert message in result.stdout, result.stdout + result.stderr


def test_a_sentence_encoder(hub, tmp_path):
  """Its files in folders are found, too, and nothing asks for it again."""
  folder = GOLDEN / "sentence_encoders" / "mean"
  shutil.copytree(folder, hub.folder / "team" / "words")
  with np.load(folder / "expected.npz") as expected:
    texts, right = expected["texts"].tolist(), expected["text"]
  texts = [" ".join(x.split()) for x in texts]
  (tmp_path / "texts.txt").write_text("\n".join(texts))
  words = ["-m", "nuclr_jax.lab.cli.main", "embed", "--model=team/words"]
  words.append(f"--input={tmp_path}/texts.txt")
  for i in range(2):
    done = run(hub, *words, f"--output={tmp_path}/out{i}")
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / f"out{i}" / "text.npy")
    np.testing.assert_allclose(found, right, atol=2e-6)
    asked = [x for x in hub.asked if (hub.folder / x).is_file()]
    assert len(asked) == len(set(asked)) > 6
