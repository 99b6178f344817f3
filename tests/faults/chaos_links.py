"""Links in runs for `chaos`, to files of somebody else.

A row of `LINKS` is a name in a run, a data set or beside an output, in whose
place there is a link to a canary; every verb that writes there is tried.
"""

import os
import shutil

from chaos_place import command
from chaos_trial import Case, canary

# What each verb may write in a run's folder.
IN_RUNS = {
  "report": (
    *("report", "report/curves.png", "report.html", "report.html.tmp"),
    *("report.html.part", ".lock", "report/popularity.png", "popularity"),
    *("report/suspects.csv", "report/neighbours.csv"),
  ),
  "popularity": (
    *("popularity", "popularity/images.csv", "popularity/texts.csv"),
    *("popularity/summary.json", "popularity/popularity.npz", ".lock"),
    *("popularity/images.csv.tmp", "popularity/summary.json.tmp"),
    *("popularity/report.html", "popularity/popularity.html"),
    *("popularity/popularity.png", "popularity/index.html"),
  ),
  "train": (
    *("config.json", "config.json.tmp", "metrics.json", "metrics.json.tmp"),
    *("history.jsonl", "times.jsonl", "tensorboard", "checkpoints", ".lock"),
    *("best", "tokenizer.json", "popularity", "versions.json", "logs"),
  ),
  "evaluate": (".lock", "metrics.json", "metrics.json.tmp", "evaluation.json"),
}
IN_DATA = (
  *("data", "data/mine", "data/mine/1.0.0", "data/.lock", "data/mine/.lock"),
  *("data/mine/incomplete.1.0.0", "data/mine/1.0.0.incomplete"),
  *("data/mine/incomplete", "data/mine/1.0.0/dataset_info.json"),
  *("data/mine/1.0.0.tmp", "data/mine/mine-train.rejected.jsonl"),
)


def put_link(folder, name, rng):
  """Puts a link to somebody else's in the place of whatever is there.

  It leads to a file, a folder, or a file that is not there yet.
  """
  path = folder / name
  goal = canary(folder) / rng.choice(["file.txt", "folder", "new"])
  if path.is_symlink() or path.is_file():
    path.unlink()
  elif path.is_dir():
    shutil.rmtree(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.symlink_to(
    goal if rng.random() < 0.5 else os.path.relpath(goal, path.parent)
  )


def go_back(run, rng):
  """Makes a run one that has not ended, or has not begun."""
  (run / "metrics.json").unlink()
  if rng.random() < 0.5:
    shutil.rmtree(run)
    run.mkdir()
  else:
    steps = run / "checkpoints"
    shutil.rmtree(max(steps.iterdir(), key=lambda x: int(x.name)))


def in_a_run(verb, name):
  def make(place, folder, rng):
    run = folder / "w"
    shutil.copytree(place / "run", run)
    if verb == "train" and rng.random() < 0.8:
      go_back(run, rng)
    put_link(folder, f"w/{name}", rng)
    words = [verb, f"--workdir={run}", f"--data_dir={place}/data"]
    if verb == "train":
      words = command("train", place, run)
    return Case(words, codes=(0, 1, 2))

  make.__name__ = f"in_a_run({verb}, {name})"
  return make


def in_data(name):
  def make(place, folder, rng):
    put_link(folder, name, rng)
    words = ["ingest", f"--input={place}/tars/0.tar", "--dataset=mine"]
    words += [f"--data_dir={folder}/data", "--workers=1"]
    words += ["--in_place"] if rng.random() < 0.3 else []
    # A folder of data sets may be a link: it is the user who names it.
    return Case(words, codes=(0, 1, 2), check=lambda code, said: "")

  make.__name__ = f"in_data({name})"
  return make


def in_output(verb, ending):
  def make(place, folder, rng):
    put_link(folder, f"e{ending}", rng)
    words = command(verb, place, folder / "e")
    return Case(words, codes=(0, 1, 2))

  make.__name__ = f"in_output({verb}, {ending})"
  return make


LINKS = [
  *(in_a_run(verb, name) for verb, names in IN_RUNS.items() for name in names),
  *map(in_data, IN_DATA[1:]),
  *(
    in_output(verb, ending)
    for verb in ("embed", "export")
    for ending in ("", ".tmp", ".part", ".incomplete", ".lock")
  ),
]
