r"""Long runs on an accelerator: all pairs, 30 epochs, several seeds at once.

python -m experiments.icons.long_runs --data_dir=DATA --cache=icons.xz --write
python -m experiments.icons.long_runs --cache=icons.xz --rows=rows.jsonl

The first command packs drawings and token ids into a file (24 MB at 32 pixels)
that can be carried to a machine with the core's libraries only. The second one
holds them all on the device, trains the arms of `--arms` in turn, the seeds of
each as one program (`jax.vmap`), and appends a row for each seed. What has a
row is not run again; with `--minutes`, it stops before an arm that would take
longer than what is left. `--pairs=128000 --epochs=4` are the pairs and the
length of the study's own runs.

Objectives are those of the study's configs, which are packed, too, at every
value of the number that is tuned. Drawings move by whole pixels only, and what
configs give in epochs (the frozen ones of the released code) stays as long.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
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
from experiments.icons.arms import ARMS, GRIDS
from experiments.icons.plan import (
  BATCH_SIZE,
  CRITERION,
  MAIN,
  Scale,
  chosen_pairs,
  make_run,
)
from experiments.icons.scores import scores_of, split_by
from nuclr_jax import Batch, objectives, popularity, sharding
from nuclr_jax.lab import models, progress
from nuclr_jax.lab.data.source import ImageTextSet
from nuclr_jax.lab.evaluate.evaluators import make_embedder
from nuclr_jax.lab.train import build, optimizer
from nuclr_jax.lab.train.settings import Settings, resolve
from nuclr_jax.lab.train.step import TrainState, init_state, make_train_step
from nuclr_jax.types import Popularities, Sides, Sizes, each

log = logging.getLogger(__name__)

PART = "long runs"  # of the rows
TOKENS = "contrib:token_prediction"
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
  # Configs of the study, by arm and by the value of the tuned number.
  configs: Mapping[str, Mapping[str, Any]]

  @property
  def sizes(self) -> Sizes:
    """The number of pairs, images and texts."""
    return Sizes(len(self.image), int(self.image_id.max()) + 1, len(self.text))


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


def settings_of(icons: Icons, arm: str, value: float) -> Settings:
  """Returns the study's settings of an arm.

  Args:
    icons: What `read` returned.
    arm: A name in `ARMS`.
    value: The value of its tuned number, one of `GRIDS`.

  Raises:
    ValueError: If the arm or the value has not been packed.
  """
  for what, key, known in (
    ("arm", arm, icons.configs),
    (f"{arm}'s value", f"{value:g}", icons.configs.get(arm, {})),
  ):
    if key not in known:
      raise ValueError(f"{what} must be one of {', '.join(known)}, got {key}")
  settings = resolve(icons.configs[arm][f"{value:g}"])
  if settings.refresh.arguments.get("every_epochs"):
    raise ValueError(f"{arm} solves popularities between epochs: not done here")
  if TOKENS in settings.terms:
    raise ValueError(f"{arm} has a term that sees tokens: not passed on here")
  if settings.reference is not None:
    raise ValueError(f"{arm} is relative to a reference: not carried here")
  return settings


def objective_of(
  settings: Settings, sizes: Sizes, *, batch_size: int, epochs: float = 1.0
) -> objectives.Objective:
  """Makes the objective of settings, for a run of other length."""
  steps_per_epoch = sizes.num_pairs // batch_size
  return build.make_objective(
    settings,
    **sizes._asdict(),
    dim=DIM,
    num_steps=max(1, round(epochs * steps_per_epoch)),
    steps_per_epoch=steps_per_epoch,
  )


def of_counts(icons: Icons, temperature: float) -> Popularities:
  """Returns popularities from how often each drawing and each name occurs."""
  ids = Sides(icons.image_id, icons.text_id)
  zeta = popularity.zeta_of_counts(ids, temperature=temperature)
  return Popularities(each(np.arange, icons.sizes.ids), zeta)


def unmarked(icons: Icons) -> Icons:
  """Gives equal names ids of their own."""
  ids = np.arange(len(icons.text_id), dtype=np.int32)
  return icons._replace(text_id=ids, text=icons.text[icons.text_id])


def part_of(icons: Icons, count: int) -> Icons:
  """Returns the pairs that the study's runs see, with what then is seen.

  Args:
    icons: All of them.
    count: The number of pairs, the first of the study's permutation.

  Raises:
    ValueError: If there are fewer pairs.
  """
  total = len(icons.image)
  if count > total:
    raise ValueError(f"--pairs must be at most {total}, got {count}")
  chosen = chosen_pairs(total, count)
  _, image_id = np.unique(icons.image_id[chosen], return_inverse=True)
  texts, text_id = np.unique(icons.text_id[chosen], return_inverse=True)
  known = {tuple(x) for x in icons.text[texts]}
  return icons._replace(
    image=icons.image[chosen],
    image_id=image_id.astype(np.int32),
    text_id=text_id.astype(np.int32),
    text=icons.text[texts],
    held_out={k: split_by(x, known) for k, x in icons.held_out.items()},
  )


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
  popularities: Popularities | None = None,
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
  if popularities is not None:  # `assign` is for one state, not for several
    first = jax.tree.map(lambda x: x[0], state.objective)
    first = objective.assign(first, popularities)
    of_all = jax.tree.map(lambda x: jnp.stack([x] * len(seeds)), first)
    state = state._replace(objective=of_all)
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
  icons: Icons,
  arm: str,
  value: float,
  seeds: Sequence[int],
  *,
  marked: bool = True,
  pairs: int | None = None,
  **options: Any,
) -> list[Row]:
  """Trains an arm and makes a row of each seed; see `main` for the options."""
  settings = settings_of(icons, arm, value)
  if pairs is not None:
    icons = part_of(icons, pairs)
  data = icons if marked else unmarked(icons)
  batch_size, epochs = options["batch_size"], options["epochs"]
  objective = objective_of(
    settings, data.sizes, batch_size=batch_size, epochs=epochs
  )
  warm = of_counts(data, value) if settings.warm_start == "counts" else None
  trained = train(data, objective, seeds=seeds, popularities=warm, **options)
  seen = len(seeds) * trained.steps * batch_size
  common = {
    "arm": arm,
    ARMS[arm].tuned: value,
    "size": icons.image.shape[1],
    "pairs": len(icons.image),
    "marked": marked,
    **options,
    "steps": trained.steps,
    "device": jax.devices()[0].device_kind,
    "seconds": round(trained.seconds, 1),  # of all seeds together
    "pairs_per_second": round(seen / max(trained.seconds, 1e-9)),
  }
  # What stands for captions are token ids already.
  mesh = sharding.make_mesh(1)
  make_embed = make_embedder(trained.model, lambda tokens: tokens, mesh)
  found = []
  for i, seed in enumerate(seeds):
    part, setting, _ = key_of(common | {"pairs": pairs}, seed)
    row = {"part": part, "setting": setting, "seed": seed} | common
    state = jax.tree.map(lambda x, i=i: x[i], trained.state)
    embed = make_embed(state.params["model"], state.model_state)
    for split, held_out in icons.held_out.items():
      whole, by_set = scores_of(embed, held_out, icons.family)
      row |= {f"{split}/{k}": x for k, x in whole.items()}
      row.setdefault("sets", {})[split] = by_set
    losses = [round(float(x), 5) for x in trained.losses[i]]
    found.append(row | {"losses": losses})
  return found


def key_of(options: Mapping[str, Any], seed: int) -> Key:
  """Returns `Run.key` of the run of a seed."""
  tuned = ARMS[options["arm"]].tuned
  words = ["arm", tuned, "batch_size", "epochs", "towers", "size"]
  words += ["pairs"] * (options["pairs"] is not None)
  named = " ".join(f"{x}={options[x]}" for x in words)
  return PART, named if options["marked"] else f"{named} unmarked", seed


def write(icons: Icons, path: pathlib.Path) -> None:
  """Packs the icons into a file."""
  arrays = {name: getattr(icons, name) for name in Icons._fields[:4]}
  facts = {x: getattr(icons, x) for x in ("vocab_size", "family", "configs")}
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
  facts = json.dumps(facts, default=dict).encode()
  file = io.BytesIO()
  np.savez(file, facts=np.frombuffer(facts, np.uint8), **arrays)
  path.write_bytes(lzma.compress(file.getvalue()))


def read(path: pathlib.Path) -> Icons:
  """Reads what `write` wrote."""
  with lzma.open(path) as file:
    arrays = dict(np.load(io.BytesIO(file.read())))
  facts = json.loads(arrays.pop("facts").tobytes())
  vocab_size, family, configs = map(
    facts.pop, ("vocab_size", "family", "configs")
  )
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
  return Icons(*train, vocab_size, held_out, family, configs)


def pack(config: Any, data_dir: str | None) -> Icons:
  """Reads the icons of a config, all at once."""
  from experiments.harness import training
  from experiments.icons.measure import families, make_config

  def plain(arm: str, value: float) -> dict[str, Any]:
    run = make_run(Scale(), MAIN, arm, 0, value=value, rate=RATE)
    return make_config(run).to_dict()

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
    {
      name: {f"{x:g}": plain(name, x) for x in GRIDS[arm.tuned]}
      for name, arm in ARMS.items()
    },
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
    help="arms, each with the value of its tuned number",
  )
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--first_seed", type=int, default=0)
  parser.add_argument("--batch_size", type=int, default=128)
  parser.add_argument("--pairs", type=int, help="by default all")
  parser.add_argument("--epochs", type=float, default=30.0)
  parser.add_argument("--towers", choices=TOWERS, default="small")
  parser.add_argument(
    "--unmarked", action="store_true", help="equal names are negatives"
  )
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
  icons, first = read(options.cache), options.first_seed
  seeds = range(first, first + options.seeds)
  arms = [word.split(":") for word in options.arms.split(",")]
  arms = [(arm, float(value)) for arm, value in arms]
  for arm, value in arms:
    settings_of(icons, arm, value)  # before any is trained
  chosen = dict(
    batch_size=options.batch_size,
    epochs=options.epochs,
    towers=options.towers,
    marked=not options.unmarked,
    pairs=options.pairs,
  )
  with options.rows.open("a", encoding="utf-8") as file:
    rows.cut_torn_line(file)
  done = rows.index(rows.read(options.rows))
  for arm, value in arms:
    name = {"arm": arm, ARMS[arm].tuned: value, "size": icons.image.shape[1]}
    left = [seed for seed in seeds if key_of(name | chosen, seed) not in done]
    if not left:
      continue
    now, shown = time.monotonic(), f"{arm}, {ARMS[arm].tuned} = {value:g}"
    if 60 * options.minutes - (now - began) < longest:
      log.info("%s: no time left", shown)
      continue
    try:
      made = rows_of(icons, arm, value, left, **chosen)
    except FloatingPointError as error:
      log.warning("%s: %s", shown, error)
      continue
    longest = max(longest, time.monotonic() - now)
    for row in made:
      rows.append(options.rows, row | benchmark.versions())
      log.info(
        "%s, seed %d: validation R@10 %.2f, %.0f pairs/s",
        *(shown, row["seed"]),
        *(100 * row[CRITERION], row["pairs_per_second"]),
      )


if __name__ == "__main__":
  main()
