"""The card of a model on the Hugging Face hub, made of the run."""

from collections.abc import Mapping, Sequence
import json
import os
import pathlib
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, ModelCardData

from nuclr_jax.lab import files
from nuclr_jax.lab.report import health, opening, page
from nuclr_jax.lab.train import diagnostics, records
from nuclr_jax.lab.train.build import Experiment

CARD = "README.md"
TASK = "zero-shot-image-classification"  # the hub's word for models like CLIP
NO_LICENSE = (
  "No licence was given: ask the author before you use the model for more than "
  "looking at it."
)


class Loading(NamedTuple):
  """How a folder that `nuclr export` has written is loaded."""

  file: str  # tells such folders apart
  library: str | None  # the hub's name of it
  text: str  # with {repo} for the name of the model


LOADING = (
  Loading(
    "open_clip_config.json",
    "open_clip",
    """\
```
hf download {repo} --local-dir model
```

```python
import open_clip

model, to_pixels = open_clip.create_model_from_pretrained("local-dir:model")
tokenizer = open_clip.get_tokenizer("local-dir:model")
```""",
  ),
  Loading(
    "load.py",
    None,
    """\
```
hf download {repo} --local-dir model
python model/load.py photo.jpg "a dog" "a cat"
```

`load.py` has `embed_images` and `embed_texts`.""",
  ),
  Loading(
    "config.json",
    "transformers",
    """\
```python
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

model = AutoModel.from_pretrained("{repo}")
to_pixels = AutoImageProcessor.from_pretrained("{repo}")
tokenizer = AutoTokenizer.from_pretrained("{repo}")
```""",
  ),
)


def write(
  workdir: pathlib.Path,
  parts: Experiment,
  folder: pathlib.Path,
  *,
  step: int | None,
  repo: str,
  license: str | None = None,
) -> None:
  """Writes README.md, the card, beside an exported model.

  Args:
    workdir: The folder of the run.
    parts: The parts of the run.
    folder: What `export.write_model` has written.
    step: The step of the weights; None for weights that were never scored, such
      as a mixture.
    repo: The name on the hub, such as "me/photos".
    license: The licence, by the hub's name for it; None if there is none yet.
  """
  metrics = None
  if (workdir / records.METRICS).exists():
    metrics = records.read_metrics(workdir)
  history = records.read_history(workdir)
  rows = [x for x in history if x["step"] == step]
  scores = opening.newest(rows)
  if metrics is not None and metrics.get("step") == step:
    scores = metrics
  names = [x for x in records.headlines(scores) if x in scores]
  loading = next(x for x in LOADING if (folder / x.file).exists())
  data = ModelCardData(
    license=license,
    library_name=loading.library,
    pipeline_tag=TASK,
    tags=["nuclr_jax", "contrastive-learning", parts.settings.objective.name],
    model_name=repo.rsplit("/", 1)[-1],
    eval_results=[_result(name, scores[name]) for name in names] or None,
  )
  lines = [f"| {x} | {page.shown_score(x, scores[x])} |" for x in names]
  head = ["| score | |", "| --- | --- |"]
  what = opening.described(workdir, parts, metrics, history)
  alarms = health.warnings(rows, diagnostics.scale_of(parts))
  sections = [
    f"---\n{data.to_yaml()}\n---",
    f"# {repo.rsplit('/', 1)[-1]}",
    "An image encoder and a text encoder with a common space, trained with "
    "nuclr_jax.",
    *([] if license else [NO_LICENSE]),
    "## Use it",
    loading.text.format(repo=repo),
    f"With nuclr_jax: `nuclr embed --model={repo} --input=photos "
    "--output=embeddings`",
    "## How it was trained",
    "\n".join(f"- {line}" for line in what)
    + ("" if step is None else f"\n- these are the weights of step {step:,}"),
    "## How well it does",
    "\n".join([*head, *lines]) if names else "It was not scored.",
    *_warned(alarms),
    "## Config",
    f"```json\n{json.dumps(_nameless(parts.settings.recorded), indent=2)}\n```",
  ]
  files.write_text(folder / CARD, "\n\n".join(sections) + "\n")


def _nameless(value: Any) -> Any:
  """Returns a config with the last parts of paths on this machine alone.

  Example:
    >>> _nameless({"pretrained": "/home/me/clip", "name": "a/b"})
    {'pretrained': 'clip', 'name': 'a/b'}
  """
  if isinstance(value, Mapping):
    return {key: _nameless(x) for key, x in value.items()}
  if isinstance(value, list | tuple):
    return [_nameless(x) for x in value]
  is_path = isinstance(value, str) and os.path.isabs(value)
  return os.path.basename(value.rstrip("/")) if is_path else value


def _result(name: str, value: float) -> Any:
  """Returns a score as the hub lists it."""
  *data, metric = name.split("/")
  return EvalResult(
    task_type=TASK,
    dataset_type="/".join(data) or name,
    dataset_name="/".join(data) or name,
    metric_type=metric,
    metric_name=name,
    metric_value=float(value),
  )


def _warned(alarms: Sequence[str]) -> list[str]:
  """Returns the section of what the newest diagnostics warn of."""
  if not alarms:
    return []
  return ["### Warnings of the training", "\n".join(f"- {x}" for x in alarms)]
