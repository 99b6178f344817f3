"""`nuclr evaluate` on data that the model does not know, of every form."""

import csv
import io
import json
import re
import tarfile

import jax
import make_captioned
import numpy as np
import pyarrow
from pyarrow import parquet
import pytest
import reference
from repository import CLIP
import shapes

from nuclr_jax.lab.cli import flags, main, scoring, verbs
from nuclr_jax.lab.data import images
from nuclr_jax.lab.data.pair_index import canonical
from nuclr_jax.lab.evaluate import ranking
from nuclr_jax.lab.train import loop, untrained

# Captions of each record: several of an image, several images of a caption, and
# one photo in two records (0 and 5).
PHOTOS = [0, 1, 2, 3, 4, 0]
CAPTIONS = [
  ["a dog", "two cats"],
  ["A dog."],
  ["the photo of a cat", "a dog"],
  ["the sea"],
  ["a photo"],
  ["a photo", "the dog"],
]
SPLITS = ["val"] * 2 + ["test"] * 4


def photo(i):
  return make_captioned.photo(PHOTOS[i], width=40 + 9 * PHOTOS[i])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with the same pairs in all forms, and a folder of classes."""
  place = tmp_path_factory.mktemp("forms")
  rows = [(photo(i), CAPTIONS[i]) for i in range(6)]
  splits = {"val": rows[:2], "test": rows[2:]}
  make_captioned.prepare(place / "data", splits)
  (place / "folder").mkdir()
  with tarfile.open(place / "shard.tar", "w") as tar:
    for i in range(6):
      text = "\n".join(CAPTIONS[i])
      (place / "folder" / f"{i}.jpg").write_bytes(photo(i))
      (place / "folder" / f"{i}.txt").write_text(text)
      for ending, data in (("jpg", photo(i)), ("txt", text.encode())):
        info = tarfile.TarInfo(f"{i}.{ending}")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
  with (place / "table.csv").open("w") as file:
    table = csv.writer(file)
    table.writerow(["image", "caption", "split"])
    for i, texts in enumerate(CAPTIONS):
      table.writerows([f"{i}.jpg", text, SPLITS[i]] for text in texts)
  columns = {"jpg": [photo(i) for i in range(6)], "caption": CAPTIONS}
  parquet.write_table(pyarrow.table(columns), place / "table.parquet")
  shapes.write_classes(place / "classes", 2, seed=3)
  return place


@pytest.fixture(scope="module")
def opened():
  """The model, and the functions that embed, which are compiled once."""
  config = untrained.config_of_published(CLIP)
  opened = untrained.open_untrained(config, pairs=False)
  return opened, loop.embedder(*opened[:2])


@pytest.fixture
def open_once(opened, monkeypatch):
  parts, embedder = opened
  monkeypatch.setattr(untrained, "open_untrained", lambda *_, **__: parts)
  monkeypatch.setattr(loop, "embedder", lambda *_: embedder)


@pytest.fixture(scope="module")
def embed(opened):
  (parts, mesh, state), embedder = opened

  def embed(chosen):
    """The rows of some records' images and captions, by the model itself."""
    size, how = parts.data.image_shape[0], parts.data.resize
    decoded = [images.decode(photo(i)) for i in chosen]
    squares = [images.resize(x, size, how) for x in decoded]
    with jax.set_mesh(mesh):
      found = embedder(state)
      texts = [text for i in chosen for text in CAPTIONS[i]]
      return found.image(np.stack(squares)), found.text(texts), texts

  return embed


@pytest.fixture(scope="module")
def expected(embed):
  """Recalls of some records, by a loop over all pairs."""

  def expected(chosen, prefix=""):
    image, text, texts = embed(chosen)
    image_id = [PHOTOS[i] for i in chosen]
    words = [canonical(x) for x in texts]
    pairs = {(PHOTOS[i], canonical(x)) for i in chosen for x in CAPTIONS[i]}
    scores = {}
    for k in (1, 5, 10):
      found = reference.recall_by_loop(image, text, image_id, words, pairs, k)
      for name, x in zip(
        ("image_to_text", "text_to_image"), found, strict=True
      ):
        scores[f"{prefix}{name}/recall@{k}"] = x
    return scores

  return expected


@pytest.fixture(autouse=True)
def no_flags_are_left():
  flags._base.cache_clear()
  yield
  flags.parse(["nuclr"])


def score(*words):
  """The report of `nuclr evaluate`."""
  main.parse_flags(["nuclr", "evaluate", *words])
  return scoring.score()


def assert_scores(found, expected):
  recalls = {x: found[x] for x in found if "_to_" in x and "by_record" not in x}
  assert recalls == pytest.approx(expected)


FIRST, LAST, EVERY = range(2), range(2, 6), range(6)


@pytest.mark.parametrize(
  ("words", "parts"),
  [
    (["--data=mine"], {"val/mine": FIRST, "test/mine": LAST}),
    (["--data=x=mine:val,mine:test"], {"val/x": FIRST, "test/mine": LAST}),
    (["--data=mine:test[:50%]"], {"test[:50%]/mine": range(2, 4)}),
    (["--input=folder"], {"": EVERY}),
    (["--input=shard.tar"], {"": EVERY}),
    (["--input=table.parquet"], {"": EVERY}),
    (
      ["--input=table.csv", "--images=folder"],
      {"validation": FIRST, "test": LAST},
    ),
    (
      ["--input=table.csv", "--images=folder", "--split=val"],
      {"validation": FIRST},
    ),
    (["--input=tfds:mine:val"], {"val": FIRST}),
  ],
  ids=lambda x: "_".join(x) if isinstance(x, list) else "",
)
def test_forms(words, parts, place, expected, open_once, monkeypatch):
  """Each split is scored by its own name, and by any right answer."""
  monkeypatch.chdir(place)
  found = score(f"--model={CLIP}", "--data_dir=data", *words)
  wanted = {}
  for name, chosen in parts.items():
    wanted |= expected(chosen, f"{name}/" if name else "")
  assert_scores(found.metrics, wanted)
  assert len(set(wanted.values())) > 1 or parts.keys() < {"validation", "val"}
  assert [x["name"] for x in found.data] == list(parts)
  counts = [(x["images"], x["captions"]) for x in found.data]
  assert counts == [
    (len(chosen), sum(len(CAPTIONS[i]) for i in chosen))
    for chosen in parts.values()
  ]


def test_corrections_are_those_of_prepared_data(place, monkeypatch):
  """A set of --input is corrected as the same set of --data."""
  monkeypatch.chdir(place)
  asked = dict.fromkeys(sum(CAPTIONS, []), 1) | {"a photo": 10**9}
  (place / "asked.json").write_text(json.dumps(asked))
  words = [f"--model={CLIP}", "--data_dir=data", "--hubs=csls,zeta"]
  words += ["--prior=asked.json", "--config.data.train=mine:val"]
  prepared = score(*words, "--data=mine:test").metrics
  other = score(*words, "--input=tfds:mine:test").metrics
  assert {x.replace("/mine", ""): y for x, y in prepared.items()} == other
  kinds = ("", "hubs_csls/", "hubs_zeta_0.5/", "prior/")
  recalls = [other[f"test/{x}image_to_text/recall@1"] for x in kinds]
  assert recalls[-1] == 0.5 != recalls[0]  # two of four images are "a photo"
  table = score(*words, "--input=table.csv", "--images=folder", "--split=test")
  assert table.metrics == other


def test_both_kinds_at_once_and_what_is_written(place, monkeypatch, capsys):
  monkeypatch.chdir(place)
  words = [f"--model={CLIP}", "--data_dir=data", "--data=mine:test"]
  words += ["--zero_shot=classes,flat=classes/test", "--output=out"]
  main.parse_flags(["nuclr", "evaluate", *words])
  verbs.evaluate()
  printed = capsys.readouterr().out.splitlines()
  assert printed[:3] == [
    "scored test/mine: mine:test, 4 images, 6 captions",
    "scored test/zero_shot_classes: classes:test, 16 images, 8 classes",
    "scored zero_shot_flat: classes/test, 16 images, 8 classes",
  ]
  written = json.loads((place / "out" / "scores.json").read_text())
  assert written["model"] == {"model": str(CLIP)}
  assert [x["data"] for x in written["data"]][:2] == [
    "mine:test",
    "classes:test",
  ]
  scores = written["metrics"]
  assert scores["test/zero_shot_classes/top1"] == scores["zero_shot_flat/top1"]
  (line,) = [x for x in printed if x.startswith("test/mine/mean_recall@1 ")]
  assert line.endswith(f"{scores['test/mine/mean_recall@1']:.4f}")


def test_embeddings_in_files(place, embed, expected, tmp_path):
  image, text, texts = embed(EVERY)
  of_text = np.repeat(EVERY, [len(x) for x in CAPTIONS])
  words = {x: i for i, x in enumerate(dict.fromkeys(map(canonical, texts)))}
  np.savez(
    tmp_path / "x.npz",
    image=3 * image[of_text],  # a row for each pair, not of unit norm
    text=text,
    image_id=np.array(PHOTOS)[of_text],
    text_id=[words[canonical(x)] for x in texts],
  )
  found = score(f"--embeddings={tmp_path / 'x.npz'}").metrics
  # Photo 0 of two records is a query once.
  image_id = np.unique(PHOTOS)
  pairs = {(PHOTOS[i], canonical(x)) for i in EVERY for x in CAPTIONS[i]}
  for k in (1, 5):
    forth, back = reference.recall_by_loop(
      ranking.unit_rows(image[image_id]),
      text,
      image_id.tolist(),
      [canonical(x) for x in texts],
      pairs,
      k,
    )
    assert found[f"image_to_text/recall@{k}"] == forth
    assert found[f"text_to_image/recall@{k}"] == back


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["--data=mine,mine:test"], "two sets are called 'test/mine'"),
    (["--input=tfds:mine"], "has no split 'train'|name the one to score"),
    (["--input=texts.txt"], "is a file of texts, which has no pairs"),
    (["--input=folder", "--hubs=csls"], "has none; name them, such as --conf"),
    (["--data=mine", "--input=folder"], "takes only one of --input or --data"),
  ],
)
def test_wrong(words, message, place, monkeypatch, capsys):
  monkeypatch.chdir(place)
  with pytest.raises((ValueError, SystemExit)) as failed:
    score(f"--model={CLIP}", "--data_dir=data", *words)
  said = f"{failed.value}{capsys.readouterr().err}"
  assert re.search(message, said), said
