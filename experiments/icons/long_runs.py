r"""Long runs on an accelerator: all pairs, 30 epochs, several seeds at once.

python -m experiments.icons.long_runs --data_dir=DATA --cache=icons.xz --write
python -m experiments.icons.long_runs --cache=icons.xz --rows=rows.jsonl

The first command packs drawings and token ids into a file (24 MB at 32 pixels)
that can be carried to a machine with the core's libraries only. The second one
holds them all on the device, trains the arms of `--arms` in turn, the seeds of
each as one program (`jax.vmap`), and appends a row for each seed. What has a
row is not run again; with `--minutes`, it stops before an arm that would take
longer than what is left.

Settings are those of the study, but drawings move by whole pixels.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import io
import itertools
import json
import logging
import lzma
import pathlib
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt8
import numpy as np
import optax

from experiments.harness import Row, benchmark, rows
from experiments.harness.study import Key
from experiments.icons.plan import BATCH_SIZE, CRITERION
from experiments.icons.scores import scores_of
from nuclr_jax import Batch, objectives, sharding
from nuclr_jax.lab import models, progress
from nuclr_jax.lab.data.source import ImageTextSet
from nuclr_jax.lab.evaluate.evaluators import make_embedder
from nuclr_jax.lab.train import optimizer
from nuclr_jax.lab.train.step import TrainState, init_state, make_train_step
from nuclr_jax.objectives import zeta_rules
from nuclr_jax.types import Sides

log = logging.getLogger(__name__)

PART = "long runs"  # of the rows
DIM, RATE = 128, 2e-3  # the rate at `BATCH_SIZE`, growing with the batch's root
CHUNK = 200  # steps of one call
POINTS = 20  # of a stored curve
GREY = dict(mean=(0.5,), std=(0.5,))
TOWERS = {
  "small": dict(
    name="convnet",
    stages=((2, 2, 32), (2, 1, 64), (2, 1, 128)),
    num_features=384,
  ),
  "resnet": dict(name="resnet50", stages=(2, 2, 2, 2), width=32) | GREY,
  "vit": dict(name="vit_s16", width=192, heads=3, layers=6, patch=8) | GREY,
}


class Icons(NamedTuple):
  """Everything that training and scores need; texts are token ids."""

  image: UInt8[np.ndarray, "pairs h w 1"]
  image_id: Int[np.ndarray, "pairs"]
  text_id: Int[np.ndarray, "pairs"]
  text: Int[np.ndarray, "texts length"]
  vocab_size: int
  held_out: Mapping[str, ImageTextSet]
  family: Mapping[str, str]  # by set


def model_of(icons: Icons, towers: str) -> models.Model:
  """Makes the towers; those named "small" are of `configs/icons.py`."""
  return models.towers(
    image_shape=icons.image.shape[1:],
    vocab_size=icons.vocab_size,
    length=icons.text.shape[1],
    image=TOWERS[towers],
    text=dict(name="transformer", width=DIM, num_layers=0),
    dim=DIM,
    projection_bias=False,
  )


def objective_of(arm: str, tau: float, icons: Icons) -> objectives.Objective:
  """Makes an arm's objective, as `configs/icons.py` does."""
  sizes = dict(
    num_pairs=len(icons.image_id),
    num_images=int(icons.image_id.max()) + 1,
    num_texts=len(icons.text),
  )
  nuclr = functools.partial(
    objectives.nuclr, **sizes, temperature=tau, gamma=0.8
  )
  makers: dict[str, Callable[[], objectives.Objective]] = {
    "clip": lambda: objectives.clip(temperature=tau, learn_temperature=False),
    "sogclr": lambda: objectives.sogclr(**sizes, temperature=tau, gamma=0.8),
    "nuclr_queue": lambda: nuclr(
      zeta=zeta_rules.queue(dim=DIM, size=4096, rate=0.3)
    ),
    "nuclr_zero": lambda: nuclr(zeta=zeta_rules.fixed()),
  }
  if arm not in makers:
    raise ValueError(f"arm must be one of {', '.join(makers)}, got {arm!r}")
  return makers[arm]()


def batches_of(seed: int, num_pairs: int, size: int) -> Iterator[np.ndarray]:
  """Yields the ids of batches, epoch after epoch, without the rest of each."""
  for epoch in itertools.count():
    order = np.random.default_rng((seed, epoch)).permutation(num_pairs)
    whole = order[: num_pairs // size * size].astype(np.int32)
    yield from whole.reshape(-1, size)


def moved(
  image: UInt8[Array, "batch h w c"], key: Array
) -> UInt8[Array, "batch h w c"]:
  """Moves each drawing by -1, 0 or 1 pixels along both axes."""
  starts = jax.random.randint(key, (len(image), 2), 0, 3)
  edges = jnp.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")

  def crop(x, start):
    return jax.lax.dynamic_slice(x, (*start, 0), image.shape[1:])

  return jax.vmap(crop)(edges, starts)


class Trained(NamedTuple):
  """What a program of several seeds left."""

  model: models.Model
  state: TrainState  # of all seeds, along the first axis
  losses: np.ndarray  # [seeds, points]
  steps: int
  seconds: float  # without the first chunk, scaled to all of them


def train(
  icons: Icons,
  objective: objectives.Objective,
  *,
  seeds: Sequence[int],
  batch_size: int = 128,
  epochs: float = 30.0,
  towers: str = "small",
) -> Trained:
  """Trains with all seeds at once, each on batches in an order of its own."""
  num_pairs = len(icons.image)
  chunks = max(1, round(epochs * (num_pairs // batch_size) / CHUNK))
  steps = chunks * CHUNK
  model = model_of(icons, towers)
  rate = optax.warmup_cosine_decay_schedule(
    *(0.0, RATE * (batch_size / BATCH_SIZE) ** 0.5),
    *(round(0.5 * num_pairs / batch_size), steps),
  )
  adamw = optimizer.make_optimizer(
    rate, weight_decay=0.5, clip_norm=0.1, b2=0.98
  )
  parts = (model, objective, adamw)
  keys = jnp.stack([jax.random.key(x) for x in seeds])
  state = jax.jit(jax.vmap(lambda key: init_state(*parts, key)))(keys)
  step = make_train_step(*parts, jax.random.key(0))
  arrays = jax.device_put(icons[:4])

  def of_ids(ids, key, arrays):
    images, image_id, text_id, texts = arrays
    which = text_id[ids]
    return Batch(
      *(moved(images[ids], key), texts[which], ids, image_id[ids], which)
    )

  @functools.partial(jax.jit, donate_argnums=0)
  def chunk(state, ids, arrays):
    def one(state, ids):
      here = jax.vmap(jax.random.fold_in)(keys, state.step)
      batch = jax.vmap(of_ids, (0, 0, None))(ids, here, arrays)
      state, metrics = jax.vmap(step)(state, batch)
      return state, metrics["train/loss"]

    return jax.lax.scan(one, state, ids)

  streams = [batches_of(x, num_pairs, batch_size) for x in seeds]
  losses, began, show = [], 0.0, progress.reporter("chunks", chunks)
  for i in range(chunks):
    ids = np.stack([[next(x) for x in streams] for _ in range(CHUNK)])
    state, loss = chunk(state, ids, arrays)
    losses.append(np.mean(loss, axis=0))  # waits
    if not np.isfinite(losses[-1]).all():
      raise FloatingPointError(f"the loss is not finite in chunk {i}")
    began = began or time.monotonic()
    show(i + 1)
  seconds = (time.monotonic() - began) * chunks / max(chunks - 1, 1)
  points = np.unique(np.linspace(0, chunks - 1, POINTS).astype(int))
  return Trained(model, state, np.stack(losses)[points].T, steps, seconds)


def rows_of(
  icons: Icons, arm: str, tau: float, seeds: Sequence[int], **settings: Any
) -> list[Row]:
  """Trains an arm and makes a row of each seed."""
  trained = train(icons, objective_of(arm, tau, icons), seeds=seeds, **settings)
  pairs = len(seeds) * trained.steps * settings["batch_size"]
  common = {
    "arm": arm,
    "τ": tau,
    "size": icons.image.shape[1],
    "pairs": len(icons.image),
    **settings,
    "steps": trained.steps,
    "device": jax.devices()[0].device_kind,
    "seconds": round(trained.seconds, 1),  # of all seeds together
    "pairs_per_second": round(pairs / trained.seconds),
  }
  # What stands for captions are token ids already.
  mesh = sharding.make_mesh(1)
  make_embed = make_embedder(trained.model, lambda tokens: tokens, mesh)
  found = []
  for i, seed in enumerate(seeds):
    part, setting, _ = key_of(common, seed)
    row = {"part": part, "setting": setting, "seed": seed} | common
    state = jax.tree.map(lambda x, i=i: x[i], trained.state)
    embed = make_embed(state.params["model"], state.model_state)
    for split, data in icons.held_out.items():
      whole, by_set = scores_of(embed, data, icons.family)
      row |= {f"{split}/{k}": x for k, x in whole.items()}
      row.setdefault("sets", {})[split] = by_set
    found.append(row | {"losses": np.round(trained.losses[i], 5).tolist()})
  return found


def key_of(settings: Mapping[str, Any], seed: int) -> Key:
  """Returns `Run.key` of the run of a seed."""
  words = ("arm", "τ", "batch_size", "epochs", "towers", "size")
  named = " ".join(f"{x}={settings[x]}" for x in words)
  return PART, named, seed


def write(icons: Icons, path: pathlib.Path) -> None:
  """Packs the icons into a file."""
  arrays = {name: getattr(icons, name) for name in Icons._fields[:4]}
  facts = {"vocab_size": icons.vocab_size, "family": dict(icons.family)}
  for split, data in icons.held_out.items():
    arrays |= {
      f"{split} image": np.asarray(data.image[:]),
      f"{split} image_group": data.image_group,
      f"{split} captions": np.asarray(data.captions),
      f"{split} caption_group": data.caption_group,
    }
    for part, weights in data.parts.items():
      arrays |= {f"{split} {part} {k}": x for k, x in weights._asdict().items()}
    facts[split] = {"parts": list(data.parts), "origin": list(data.origin)}
  facts = json.dumps(facts).encode()
  file = io.BytesIO()
  np.savez(file, facts=np.frombuffer(facts, np.uint8), **arrays)
  path.write_bytes(lzma.compress(file.getvalue()))


def read(path: pathlib.Path) -> Icons:
  """Reads what `write` wrote."""
  with lzma.open(path) as file:
    arrays = dict(np.load(io.BytesIO(file.read())))
  facts = json.loads(arrays.pop("facts").tobytes())
  vocab_size, family = facts.pop("vocab_size"), facts.pop("family")
  held_out = {
    split: ImageTextSet(
      *(arrays[f"{split} {x}"] for x in ImageTextSet._fields[:4]),
      {
        part: Sides(*(arrays[f"{split} {part} {x}"] for x in Sides._fields))
        for part in of["parts"]
      },
      of["origin"],
    )
    for split, of in facts.items()
  }
  train = (arrays[name] for name in Icons._fields[:4])
  return Icons(*train, vocab_size, held_out, family)


def pack(config: Any, data_dir: str | None) -> Icons:
  """Reads the icons of a config, all at once."""
  from experiments.harness import training
  from experiments.icons.measure import families

  data = training.load_data(config, data_dir)
  train, encode = data.train, data.tokenizer.encode
  everything = np.arange(train.sizes.num_pairs)
  return Icons(
    train.fetch(everything).image,
    *(np.asarray(x, np.int32) for x in train.ids(everything)),
    encode(train.captions(np.arange(train.sizes.num_texts))),
    data.tokenizer.vocab_size,
    {k: x._replace(captions=encode(x.captions)) for k, x in data.sets.items()},
    families(config.data.version, config.data.size, data_dir),
  )


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--cache", required=True, type=pathlib.Path, help="the packed icons"
  )
  parser.add_argument(
    "--write", action="store_true", help="only packs the icons"
  )
  parser.add_argument(
    "--data_dir", help="folder of prepared data sets, to pack"
  )
  parser.add_argument("--size", type=int, default=32, help="pixels, to pack")
  parser.add_argument(
    "--rows", type=pathlib.Path, default="rows.jsonl", help="where rows go"
  )
  parser.add_argument(
    "--arms",
    default="clip:0.08,sogclr:0.08,nuclr_queue:0.08,nuclr_zero:0.08",
    help="arms and their temperatures",
  )
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--batch_size", type=int, default=128)
  parser.add_argument("--epochs", type=float, default=30.0)
  parser.add_argument("--towers", choices=TOWERS, default="small")
  parser.add_argument(
    "--minutes", type=float, default=float("inf"), help="when to stop"
  )
  return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
  """Packs the icons, or trains and appends rows."""
  options = read_arguments(arguments)
  progress.log_to_stderr()
  if options.write:
    from experiments.harness import training

    config = training.get_config("icons")("clip")
    config.data.size = options.size
    write(pack(config, options.data_dir), options.cache)
    return
  began, longest = time.monotonic(), 0.0
  icons, seeds = read(options.cache), range(options.seeds)
  arms = [word.split(":") for word in options.arms.split(",")]
  arms = [(arm, float(tau)) for arm, tau in arms]
  for arm, tau in arms:
    objective_of(arm, tau, icons)  # before any is trained
  settings = dict(
    batch_size=options.batch_size, epochs=options.epochs, towers=options.towers
  )
  here = {"size": icons.image.shape[1]} | settings
  with options.rows.open("a", encoding="utf-8") as file:
    rows.cut_torn_line(file)
  done = rows.index(rows.read(options.rows))
  for arm, tau in arms:
    wanted = here | {"arm": arm, "τ": tau}
    left = [seed for seed in seeds if key_of(wanted, seed) not in done]
    if not left:
      continue
    now = time.monotonic()
    if 60 * options.minutes - (now - began) < longest:
      log.info("%s, τ = %g: no time left", arm, tau)
      continue
    made = rows_of(icons, arm, tau, left, **settings)
    longest = max(longest, time.monotonic() - now)
    for row in made:
      rows.append(options.rows, row | benchmark.versions())
      log.info(
        "%s, τ = %g, seed %d: validation R@10 %.2f, %.0f pairs/s",
        *(arm, tau, row["seed"]),
        100 * row[CRITERION],
        row["pairs_per_second"],
      )


if __name__ == "__main__":
  main()
