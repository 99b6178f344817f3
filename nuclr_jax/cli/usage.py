"""The text of `nuclr --help`: the flags of each verb, with examples."""

from collections.abc import Callable
import textwrap
from typing import NamedTuple

from absl import flags

from nuclr_jax.cli import verbs


class Verb(NamedTuple):
  """What a verb does, and the flags that it takes."""

  run: Callable[[], None]  # the first line of its docstring is its help
  flags: tuple[str, ...]  # and --debug, which all verbs take
  example: str  # commands; lines that begin with spaces explain


INPUTS = (
  *("input", "split", "images"),
  *("image_column", "caption_column", "split_column"),
)
PROCESSES = ("coordinator", "num_processes", "process_id", "distributed")
VERBS = {
  "ingest": Verb(
    verbs.ingest,
    (
      *(*INPUTS, "dataset", "max_size", "max_pixels", "workers", "data_dir"),
      "in_place",
      "beam_pipeline_options",
    ),
    """
nuclr ingest --input='cc3m/*.tar' --dataset=cc3m
nuclr ingest --input='cc3m/*.tar' --dataset=cc3m --in_place
nuclr ingest --input=captions.csv --images=photos --dataset=mine --split=test
  The input can be tar or Parquet files written by img2dataset, a table (CSV,
  TSV, JSON, or Karpathy's splits), a folder of images with captions in text
  files, one on each line, or tfds:NAME. A table with a column of splits makes
  all of them, or the one of --split. Items that cannot be read are listed. If
  the command is interrupted, run it again to continue. With --in_place, tar
  files keep the images, and the data set is an index of a hundredth of their
  size.
""",
  ),
  "convert": Verb(
    verbs.convert,
    ("input", "data_dir"),
    """
nuclr convert --input=/data/tfds/food101/2.0.0
  TensorFlow is not needed.
""",
  ),
  "train": Verb(
    verbs.train,
    ("config", "workdir", "data_dir", *PROCESSES),
    """
nuclr train --config=configs/glyphs.py --workdir=runs/mine
nuclr train --config=glyphs:sogclr,smoke --workdir=runs/smoke --config.seed=1
  If the run is interrupted, run the same command again to continue from its
  newest checkpoint. A finished run is not trained again. The final metrics are
  in metrics.json in the workdir.
""",
  ),
  "evaluate": Verb(
    verbs.evaluate,
    (
      *("workdir", "config", "model", "data", "zero_shot", "data_dir"),
      *("best", "average", "hubs", "prior", "temperature"),
    ),
    """
nuclr evaluate --workdir=runs/mine --hubs=csls
nuclr evaluate --workdir=runs/mine --prior=counts
nuclr evaluate --workdir=runs/mine --best
nuclr evaluate --model=openai/clip-vit-base-patch32 --data=mine --hubs=csls
nuclr evaluate --model=exported --data=mine:test --zero_shot=flowers=photos
  Without --workdir, nothing needs to have been trained here. --data names what
  nuclr ingest made; a name without a split stands for its validation and test
  splits, or for the only split that it has.
""",
  ),
  "report": Verb(
    verbs.report,
    ("workdir", "data_dir"),
    """
nuclr report --workdir=runs/mine
  report.html in the workdir shows the metrics, training curves, diagnostics,
  popularities, and examples of retrieval.
""",
  ),
  "popularity": Verb(
    verbs.popularity,
    (
      *("workdir", "config", "model", "data", *INPUTS, "data_dir"),
      *("embeddings", "temperature", "max_pairs"),
    ),
    """
nuclr popularity --workdir=runs/mine
nuclr popularity --model=exported --input=photos --workdir=runs/photos
  Which of your photos and captions are popular or near-duplicates, and which
  captions may be wrong, as a model such as openai/clip-vit-base-patch32 sees
  them. --data=mine takes the pairs of a prepared data set instead of --input.
nuclr popularity --workdir=runs/other --embeddings=x.npz --temperature=0.01
  --embeddings takes the embeddings of any model: an .npz file with the arrays
  image and text, both [pairs, dim]; two files, image.npy,text.npy; or a folder
  written by nuclr embed. The folder popularity/ in the workdir gets tables, a
  plot, and a page of the most and least popular samples.
""",
  ),
  "embed": Verb(
    verbs.embed,
    (
      *(*INPUTS, "workdir", "config", "model", "data_dir", "output"),
      *("features", "best", "average"),
    ),
    """
nuclr embed --workdir=runs/mine --input=photos --output=embeddings
nuclr embed --model=google/siglip2-base-patch16-224 --input=photos --output=out
nuclr embed --config=cc3m:clip_b16 --input=tfds:cc3m --features --output=cached
  Writes image.npy and text.npy, and tables that say what each row is.
  With --config or --model, the model has its pretrained weights and no training
  of yours. The config cached trains on such a folder (config.data.name is
  "embeddings").
""",
  ),
  "export": Verb(
    verbs.export,
    ("workdir", "data_dir", "output", "layout", "best", "average"),
    """
nuclr export --workdir=runs/mine --output=exported
nuclr export --workdir=runs/mine --output=exported --layout=open_clip
  Writes both encoders in the format of Hugging Face or OpenCLIP, with the
  tokenizer and the projections. config.model.pretrained and --model read them
  back.
""",
  ),
  "doctor": Verb(
    verbs.doctor,
    ("data_dir",),
    """
nuclr doctor
""",
  ),
}


def overview() -> str:
  """Returns a line for each verb, as `nuclr --help` shows them."""
  width = max(map(len, VERBS))
  return "\n".join(f"  {name:<{width}}  {_summary(name)}" for name in VERBS)


def help_of(name: str) -> str:
  """Returns the text of `nuclr VERB --help` for the verb of that name."""
  lines = [_summary(name), VERBS[name].example]
  for flag in (*VERBS[name].flags, "debug"):
    lines += textwrap.wrap(
      f"--{flag}: {flags.FLAGS[flag].help}", 78, subsequent_indent="    "
    )
  return "\n".join(lines)


def _summary(name: str) -> str:
  return VERBS[name].run.__doc__.splitlines()[0]
