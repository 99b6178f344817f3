"""The flags of each verb, and which of them go together; their help.

A flag that a verb takes is used. Every other is refused before anything is
read, and so are flags whose use depends on another one that is missing.
"""

from collections.abc import Callable, Mapping, Sequence
import difflib
import textwrap
from typing import NamedTuple

from absl import flags

from nuclr_jax.lab.cli import verbs
from nuclr_jax.lab.cli.compare import compare
from nuclr_jax.lab.cli.flags import UsageError
from nuclr_jax.lab.cli.push import push


class Verb(NamedTuple):
  """What a verb does, and the flags that it takes."""

  run: Callable[..., None]  # the first line of its docstring is its help
  flags: tuple[str, ...]  # its own, see `taken`
  example: str  # commands; lines that begin with spaces explain
  must: Sequence[str] = ()  # flags that are always needed
  needs: Mapping[str, Sequence[str]] = {}  # flags that need one of others
  one_of: Sequence[str] = ()  # flags of which there must be one
  some_of: Sequence[str] = ()  # flags of which there must be one or more
  either: Sequence[Sequence[str]] = ()  # flags of which there is one at most
  words: str | None = None  # what the words after the verb are, if it takes any

  @property
  def taken(self) -> tuple[str, ...]:
    """Its own flags, and those that all such verbs take."""
    opens_config = {"workdir", "config"} & set(self.flags)
    return (*self.flags, *(("import",) if opens_config else ()), "debug")


INPUTS = (
  *("input", "split", "images"),
  *("image_column", "caption_column", "split_column"),
)
PROCESSES = ("coordinator", "num_processes", "process_id", "distributed")
MODELS = ("workdir", "config", "model")
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
  TSV, JSON, Parquet, or Karpathy's splits), a folder of images with captions
  in text files, one on each line, or in metadata.csv, a folder that
  save_to_disk of datasets wrote, or tfds:NAME. A table with a column of splits
  makes all of them, or the one of --split. Items that cannot be read are
  listed. If the command is interrupted, run it again to continue. With
  --in_place, tar files keep the images, and the data set is an index of a
  hundredth of their size.
""",
    must=["input", "dataset"],
    either=[("workers", "beam_pipeline_options")],
  ),
  "convert": Verb(
    verbs.convert,
    ("input", "data_dir"),
    """
nuclr convert --input=/data/tfds/food101/2.0.0
  TensorFlow is not needed.
""",
    must=["input"],
  ),
  "train": Verb(
    verbs.train,
    (
      *("config", "model", "architecture", "data", "zero_shot", "workdir"),
      *("data_dir", *PROCESSES),
    ),
    """
nuclr train --config=configs/glyphs.py --workdir=runs/mine
nuclr train --config=glyphs:sogclr,smoke --workdir=runs/smoke --config.seed=1
nuclr train --data=mine --workdir=runs/mine
nuclr train --model=openai/clip-vit-base-patch32 --data=mine --workdir=runs/b32
nuclr train --model=exported --config=finetune_clip:nuclr --data=mine \\
  --workdir=runs/tuned --config.num_epochs=5
  If the run is interrupted, run the same command again to continue from its
  newest checkpoint. A finished run is not trained again, unless
  --config.num_epochs is larger than it was, or its data have grown: the run
  then goes on, and the command says what becomes of its schedules. The final
  metrics are in metrics.json in the workdir.
  --data=mine trains on the training split of what nuclr ingest made, and scores
  its validation and test splits; with neither --config nor --model, small
  towers begin with random weights, and the number of pairs decides batches and
  epochs (the config own). A model brings its towers, tokenizer, image size,
  normalization and temperature; --config says how it is trained, by default
  finetune_clip or finetune_siglip2.
""",
    some_of=["config", "model", "data"],
    needs={
      "architecture": ["model"],
      "zero_shot": ["model", "data"],
      "coordinator": ["num_processes"],
      "num_processes": ["process_id"],
      "process_id": ["coordinator"],
    },
    either=[("coordinator", "distributed")],
  ),
  "evaluate": Verb(
    verbs.evaluate,
    (
      *("workdir", "config", "model", "architecture", "embeddings", "data"),
      *("zero_shot", *INPUTS, "data_dir", "best", "average", "hubs", "prior"),
      *("temperature", "output", "interpolate"),
    ),
    """
nuclr evaluate --workdir=runs/mine --data=other:test --zero_shot=flowers=photos
nuclr evaluate --workdir=runs/mine --interpolate=0,0.25,0.5,0.75,1
nuclr evaluate --workdir=runs/mine --input=captions.csv --images=photos
nuclr evaluate --workdir=runs/mine --best --output=scores
nuclr evaluate --workdir=runs/mine --hubs=csls --prior=counts
nuclr evaluate --model=openai/clip-vit-base-patch32 --data=mine --hubs=csls
nuclr evaluate --embeddings=image.npy,text.npy
  A run is scored on the sets that it was trained with, or on those of --data,
  --zero_shot and --input in place of all its own. --data names what nuclr
  ingest made; a name without a split stands for its validation and test splits
  or, if there are none, for all. --input takes what nuclr ingest takes. A
  run on embeddings takes other folders of nuclr embed as --data. Scores begin
  with the name of the split, as it is called there, and the first lines say
  what was scored. With --config, the sets are those of the config:
  --config.data.test="('mine',)". --output=scores writes scores/scores.json.
""",
    needs={
      "architecture": ["model"],
      "data": ["workdir", "model"],
      "zero_shot": ["workdir", "model"],
      "input": ["workdir", "config", "model"],
      **dict.fromkeys(INPUTS[1:], ["input"]),
      "data_dir": ["workdir", "config", "model"],
      **dict.fromkeys(("best", "average", "interpolate"), ["workdir"]),
      "hubs": ["workdir", "config", "model"],
      "prior": ["workdir", "config", "model"],
    },
    one_of=(*MODELS, "embeddings"),
    either=[
      ("input", "data"),
      *(("interpolate", x) for x in ("input", "hubs", "prior")),
    ],
  ),
  "report": Verb(
    verbs.report,
    ("workdir", "data_dir", "interpolate", "data", "zero_shot"),
    """
nuclr report --workdir=runs/mine
nuclr report --workdir=runs/mine --interpolate=0,0.25,0.5,0.75,1 --data=other
  report.html in the workdir shows the metrics, training curves, diagnostics,
  popularities, and examples of retrieval. --interpolate adds the curve of the
  scores over mixtures with the model that the run began from, on the sets of
  nuclr evaluate: the run's own, or those of --data and --zero_shot.
""",
    needs=dict.fromkeys(("data", "zero_shot"), ["interpolate"]),
  ),
  "compare": Verb(
    compare,
    ("output",),
    """
nuclr compare runs/clip runs/nuclr
nuclr compare runs/* --output=comparison
  Runs that differ in their seeds alone are one setting. Each setting is
  compared with the first one: the differences of runs with the same seed, and
  their 95 % interval. Runs that have not finished are compared at the last step
  at which all were scored. The output has the tables runs.csv and scores.csv,
  and a page with curves and what differs in the configs.
""",
    words="the workdirs of runs",
  ),
  "popularity": Verb(
    verbs.popularity,
    (
      *("workdir", "config", "model", "architecture", "data", *INPUTS),
      "data_dir",
      *("embeddings", "temperature", "max_pairs"),
    ),
    """
nuclr popularity --workdir=runs/mine
nuclr popularity --model=exported --input=photos --workdir=runs/photos
  Which of your photos and captions are popular or near-duplicates, and which
  captions may be wrong, as a model such as openai/clip-vit-base-patch32 sees
  them. --data=mine takes the pairs of a prepared data set instead of --input.
  To apply a run's model to other pairs, export it first with nuclr export.
nuclr popularity --workdir=runs/other --embeddings=x.npz --temperature=0.01
  --embeddings takes the embeddings of any model: an .npz file with the arrays
  image and text, both [pairs, dim]; two files, image.npy,text.npy; or a folder
  written by nuclr embed. The folder popularity/ in the workdir gets tables, a
  plot, and a page to look through, mark rows of, and save these as CSV.
nuclr popularity --model=minilm --input=texts.txt --workdir=runs/texts \\
  --temperature=0.05
  Of a file with a text on each line, which of them are popular among the others
  or near-duplicates.
""",
    needs={
      "architecture": ["model"],
      "input": ["model", "config"],
      "data": ["model"],
      **dict.fromkeys(INPUTS[1:], ["input"]),
    },
    either=[
      ("embeddings", "config", "model"),
      ("input", "data"),
      ("embeddings", "data_dir"),
    ],
  ),
  "embed": Verb(
    verbs.embed,
    (
      *(*INPUTS, "workdir", "config", "model", "architecture", "data_dir"),
      "output",
      *("features", "best", "average"),
    ),
    """
nuclr embed --workdir=runs/mine --input=photos --output=embeddings
nuclr embed --model=google/siglip2-base-patch16-224 --input=photos --output=out
nuclr embed --config=cc3m:clip_b16 --input=tfds:cc3m --features --output=cached
nuclr embed --model=epoch_3.pt --architecture=ViT-B-32 --input=photos \\
  --output=out
nuclr embed --model=minilm --input=texts.txt --output=out
nuclr embed --workdir=runs/mine --output=out
  Writes image.npy and text.npy, and tables that say what each row is.
  With --config or --model, the model has its pretrained weights and no training
  of yours. The config cached trains on such a folder (config.data.name is
  "embeddings"). Of a file with a text on each line, .txt, it writes text.npy
  and the table of texts alone, with any model that takes texts. Without
  --input, the pairs are those that the run or the config trains on, as
  --config.reference takes them.
""",
    must=["output"],
    needs={
      "best": ["workdir"],
      "average": ["workdir"],
      "model": ["input"],
      "architecture": ["model"],
      **dict.fromkeys(INPUTS[1:], ["input"]),
    },
    one_of=MODELS,
  ),
  "filter": Verb(
    verbs.filter_pairs,
    (
      *("embeddings", "arch", *INPUTS, *MODELS, "architecture", "data_dir"),
      *("output", "score", "keep", "threshold", "intersect", "once"),
      *("temperature", "batch_size", "partitions", "max_pairs", "target"),
      *("norm", "best", "average"),
    ),
    """
nuclr filter --embeddings=metadata --score=similarity --keep=0.3 --output=kept
nuclr filter --embeddings=metadata --score=negcliploss --keep=0.3 --output=kept
  Which pairs to train on. The folder metadata has DataComp's .npz and .parquet
  files, clip-retrieval's shards (img_emb_0.npy, text_emb_0.npy,
  metadata_0.parquet), or what nuclr embed has written; or give two arrays,
  image.npy,text.npy. The output has a table of scores, a page of examples at
  each threshold, and uids.npy, which DataComp's resharder.py takes. If the
  command is interrupted, run it again to continue.
nuclr filter --embeddings=metadata --score=exact --max_pairs=100000 \\
  --keep=0.3 --once=image --output=kept
nuclr filter --embeddings=metadata --score=negcliploss,similarity \\
  --keep=0.5,0.3 --output=kept
nuclr filter --embeddings=metadata --score=negcliploss,normsim \\
  --target=imagenet/image.npy --keep=0.3,0.2 --output=kept
nuclr filter --model=openai/clip-vit-base-patch32 --input=photos \\
  --score=similarity --threshold=0.25 --output=kept
nuclr filter --workdir=runs/mine --score=exact --temperature=0.05 --keep=0.9 \\
  --output=kept
  With a model or a run, embeddings of --input, or of the pairs that the run or
  config trains on, are made first. kept.jsonl names the pairs that are kept,
  for nuclr ingest if they are files. Of an input with splits, --split names
  one.
""",
    must=["output", "score"],
    needs={
      "arch": ["embeddings"],
      "architecture": ["model"],
      "best": ["workdir"],
      "average": ["workdir"],
      "model": ["input"],
      "input": MODELS,
      "data_dir": MODELS,
      **dict.fromkeys(INPUTS[1:], ["input"]),
    },
    one_of=("embeddings", *MODELS),
    either=[("keep", "threshold")],
  ),
  "export": Verb(
    verbs.export,
    (
      *("workdir", "data_dir", "output", "layout", "best", "average"),
      "interpolate",
    ),
    """
nuclr export --workdir=runs/mine --output=exported
nuclr export --workdir=runs/mine --output=exported --interpolate=0.5
nuclr export --workdir=runs/mine --output=exported --layout=open_clip
  Writes both encoders in the format of Hugging Face or OpenCLIP, with the
  tokenizer and the projections. config.model.pretrained and --model read them
  back.
""",
    must=["output"],
  ),
  "push": Verb(
    push,
    (
      *("workdir", "repo", "license", "private", "output", "layout"),
      *("data_dir", "best", "average", "interpolate"),
    ),
    """
nuclr push --workdir=runs/mine --repo=me/photos --license=apache-2.0
nuclr push --workdir=runs/mine --repo=me/photos --output=look
  Exports the model as nuclr export does, writes a card of how it was trained
  and what it scores, and uploads both as one commit, after hf auth login. With
  --output, the folder is written for you to look at, and nothing is uploaded.
""",
    must=["repo"],
    either=[("private", "output")],
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
  for flag in VERBS[name].taken:
    text = f"--{flag}: {flags.FLAGS[flag].help}{_companions(name, flag)}"
    lines += textwrap.wrap(text, 78, subsequent_indent="    ")
  return "\n".join(lines)


def unknown(word: str) -> str:
  """Says that a word is no verb.

  Example:
    >>> unknown("trian")[-26:]
    'trian; did you mean train?'
  """
  near = difflib.get_close_matches(word, VERBS, n=1)
  hint = f"; did you mean {near[0]}?" if near else ""
  return f"needs one of the verbs {', '.join(VERBS)}; got {word}{hint}"


def check_words(name: str, words: Sequence[str]) -> None:
  """Raises UsageError for words that a verb does not take, or that it lacks.

  Args:
    name: The verb.
    words: All words that are not flags; the verb must be the first of them.
  """
  verb, others = VERBS[name], list(words[1:])
  if words[0] != name:
    raise UsageError(
      f"takes a verb first, and flags that begin with --; got {list(words)}"
    )
  if others and not verb.words:
    raise UsageError(
      f"takes one verb, and flags that begin with --; got {others}"
    )
  if verb.words and not others:
    example = verb.example.split("\n")[1]
    raise UsageError(f"{name} needs {verb.words}, such as {example}")


def check_taken(name: str, given: Sequence[str]) -> None:
  """Raises UsageError for a flag that a verb does not take.

  Args:
    name: The verb.
    given: The flags of the command, as `flags.present` lists them.
  """
  taken = VERBS[name].taken
  for flag in given:
    if flag.partition(".")[0] not in taken:
      raise UsageError(
        f"{name} does not take --{flag}; it takes {_joined(taken)}"
      )


def check_together(name: str, given: Sequence[str]) -> None:
  """Raises UsageError for flags that are missing, or do not go together.

  Args:
    name: The verb.
    given: The flags of the command, as `flags.present` lists them.

  Example:
    >>> check_together("evaluate", ["model", "data", "best"])
    Traceback (most recent call last):
    nuclr_jax.lab.cli.flags.UsageError: evaluate takes --best with --workdir
    only; leave it out, or see nuclr evaluate --help
  """
  verb = VERBS[name]
  if verb.one_of and sum(x in given for x in verb.one_of) != 1:
    raise UsageError(f"give one of {_joined(verb.one_of, 'or')}")
  if verb.some_of and not set(verb.some_of) & set(given):
    example = verb.example.split("\n")[1]
    raise UsageError(
      f"{name} needs {_joined(verb.some_of, 'or')}, such as {example}"
    )
  for group in verb.either:
    several = [x for x in group if x in given]
    if len(several) > 1:
      raise UsageError(f"{name} takes only one of {_joined(several, 'or')}")
  for flag, others in verb.needs.items():
    if flag in given and not set(others) & set(given):
      raise UsageError(
        f"{name} takes --{flag} with {_joined(others, 'or')} only; leave it "
        f"out, or see nuclr {name} --help"
      )
  if not set(verb.must) <= set(given):
    example = verb.example.split("\n")[1]
    raise UsageError(
      f"{name} needs {_joined(verb.must, 'and')}, such as {example}"
    )


def _companions(name: str, flag: str) -> str:
  """Says with which flags a flag goes, and with which it does not."""
  verb, text = VERBS[name], ""
  if flag in verb.needs:
    text += f" Only with {_joined(verb.needs[flag], 'or')}."
  others = [x for group in verb.either if flag in group for x in group]
  if others := [x for x in dict.fromkeys(others) if x != flag]:
    text += f" Not with {_joined(others, 'or')}."
  return text


def _joined(names: Sequence[str], last: str = "") -> str:
  """Lists flags, such as "--a, --b and --c"."""
  *most, end = [f"--{name}" for name in names]
  if not last or not most:
    return ", ".join([*most, end])
  return f"{', '.join(most)} {last} {end}"


def _summary(name: str) -> str:
  return VERBS[name].run.__doc__.splitlines()[0]
