"""Times published towers here and in PyTorch; prints JSON.

python -m experiments.step_time.real_towers --batch_size=512 --dtype=bfloat16

A step is everything that training does on the device: both towers, the loss
with its per-sample state, and AdamW. Images and captions are random and in
memory. The forms are timed in alternation in each round:

  nuclr, clip  this library
  torch        NUCLR with the same towers of timm (else transformers) and
               transformers: autocast, channels-last, torch.compile, fused AdamW
               (left out without the extra `parity`)

The towers are ResNet-50 and DistilBERT, or those of CLIP ViT-B/16 with
--towers=clip_b16, where --attention=cudnn may be compared with xla. A form that
fails, say for lack of memory, has an "error" in place of its numbers, and the
others go on.

`compile_s` is the time that a form's step takes to compile, for PyTorch that of
its first step. The seconds of each form's start are logged, and its compilation
and each round leave a line of JSON where errors go, for a run that is cut off.

`flops_per_pair` is three times the products and convolutions of the towers'
forward pass; they are counted before XLA compiles it, in the jaxpr.
`of_products` is the flop/s as a fraction of those of a large matrix product in
the same type, measured in the same run. `mfu` is the fraction of the flop/s
that the maker states for dense products in bfloat16, if they are known.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import gc
import logging
import math
import sys
import time
from typing import Any

from absl import app, flags
import jax
import jax.numpy as jnp
import numpy as np

from experiments.harness import benchmark
from experiments.step_time.common import recipe
from nuclr_jax import Batch, objectives
from nuclr_jax.lab import models, progress
from nuclr_jax.lab.cli import malloc
from nuclr_jax.lab.train import optimizer
from nuclr_jax.lab.train.step import init_state, make_train_step
from tests.helpers import hlo

log = logging.getLogger(__name__)

TOWERS = flags.DEFINE_enum(
  "towers", "cc3m", ["cc3m", "clip_b16"], "Which towers."
)
ATTENTION = flags.DEFINE_string("attention", "xla", "Of --towers=clip_b16.")
BATCH = flags.DEFINE_integer("batch_size", 512, "Pairs per step.")
SIZE = flags.DEFINE_integer(
  "size", 256, "Height and width of the images, in pixels."
)
LENGTH = flags.DEFINE_integer("length", 30, "Tokens of a caption.")
DTYPE = flags.DEFINE_enum(
  "dtype",
  "bfloat16",
  ["bfloat16", "float32"],
  "Type of the towers' activations.",
)
STEPS = flags.DEFINE_integer("steps", 20, "Steps per form and round.")
ROUNDS = flags.DEFINE_integer("rounds", 5, "Number of rounds.")
NUM_PAIRS = flags.DEFINE_integer("num_pairs", 2_798_889, "Rows of state.")
ALL = ("nuclr", "nuclr_queue", "clip", "torch")
FORMS = flags.DEFINE_list("forms", list(ALL), "Forms to time, with nuclr.")
REMAT = flags.DEFINE_string("remat", "none", "What towers compute again.")
TINY = flags.DEFINE_bool("tiny", False, "Tiny towers, to try the script.")
COMPILE = flags.DEFINE_bool("compile", True, "torch.compile the towers.")
VOCABULARY, DIM, RATE = 30_522, 256, 2e-4
SETTINGS = "towers batch_size size length dtype remat attention steps rounds"
SETTINGS += " tiny"
OF_CLIP = dict(vocabulary=49_408, dim=512)
benchmark.one_of("forms", ALL, first="nuclr")
flags.register_multi_flags_validator(
  ["towers", "forms"],
  lambda x: x["towers"] == "cc3m" or "torch" not in (x["forms"] or ()),
  message="PyTorch has the towers of cc3m only; choose other --forms",
)

# Flop/s of dense bfloat16 products, as stated by the makers.
STATED = {
  "NVIDIA A100": 312e12,
  "NVIDIA H100": 989e12,
  "NVIDIA H200": 989e12,
  "TPU v4": 275e12,
  "TPU v5 lite": 197e12,
  "TPU v5e": 197e12,
  "TPU v5p": 459e12,
  "TPU v6 lite": 918e12,
}


def random_batch(step: int) -> Batch:
  """Draws images and captions of 12 to `LENGTH` tokens, with new ids."""
  rng = np.random.default_rng(step % 4)
  batch, size, length = BATCH.value, SIZE.value, LENGTH.value
  text = rng.integers(1, VOCABULARY, (batch, length)).astype(np.int32)
  text[np.arange(length) >= rng.integers(12, length + 1, batch)[:, None]] = 0
  ids = (step * batch + np.arange(batch)) % NUM_PAIRS.value
  image = rng.integers(0, 256, (batch, size, size, 3), np.uint8)
  return Batch(image, text, ids.astype(np.int32))


@functools.cache
def towers(attention: str) -> models.Model:
  """Makes the towers; `attention` is that of CLIP's."""
  few = dict(width=8, layers=1, heads=2)
  options = dict(remat=REMAT.value)
  if TOWERS.value == "clip_b16":
    options["attention"] = attention
    names, tiny, sizes = ("clip_vit_b16", "clip_text"), (few, few), OF_CLIP
  else:
    names, tiny = ("resnet50", "distilbert"), (dict(stages=(1,), width=4), few)
    sizes = dict(vocabulary=VOCABULARY, dim=DIM)
  image, text = (
    options | dict(name=name) | (small if TINY.value else {})
    for name, small in zip(names, tiny, strict=True)
  )
  return models.towers(
    image_shape=(SIZE.value, SIZE.value, 3),
    vocab_size=sizes["vocabulary"],
    length=LENGTH.value,
    image=image,
    text=text,
    dim=sizes["dim"],
    dtype=DTYPE.value,
  )


class Jax:
  """The train step of this library."""

  def __init__(self, objective: objectives.Objective):
    adamw = optimizer.make_optimizer(RATE, weight_decay=0.02)
    model = towers(ATTENTION.value)
    parts, key = (model, objective, adamw), jax.random.key(0)
    self.state = jax.jit(lambda: init_state(*parts, key))()
    self.batches = [jax.device_put(random_batch(i)) for i in range(4)]
    self.step = jax.jit(make_train_step(*parts, key), donate_argnums=0)

  def compile(self) -> None:
    """Compiles the step."""
    self.step = self.step.lower(self.state, self.batches[0]).compile()

  def run(self, steps: int) -> None:
    """Does some steps."""
    for i in range(steps):
      self.state, _ = self.step(self.state, self.batches[i % 4])
    jax.block_until_ready(self.state)


class Torch:
  """The same train step in PyTorch."""

  def __init__(self):
    import torch

    from experiments.step_time import torch_form, torch_towers

    self.torch = torch
    self.device = "cuda" if torch.cuda.is_available() else "cpu"
    self.towers = torch_towers.Towers(DIM).to(self.device).train()
    self.towers.to(memory_format=torch.channels_last)
    self.call = torch.compile(self.towers) if COMPILE.value else self.towers
    self.loss = torch_form.Nuclr(
      num_pairs=NUM_PAIRS.value,
      temperature=0.01,
      zeta_rate=1e-6,
      device=self.device,
    )
    self.optimizer = torch.optim.AdamW(
      self.towers.parameters(),
      lr=RATE,
      weight_decay=0.02,
      fused=self.device == "cuda",
    )
    self.batches = [self._to_device(random_batch(i)) for i in range(4)]

  def _to_device(self, batch):
    image, text, ids = (
      self.torch.as_tensor(x, device=self.device) for x in batch[:3]
    )
    image = image.permute(0, 3, 1, 2)
    image = image.contiguous(memory_format=self.torch.channels_last)
    return image, text.long(), ids.long()

  def compile(self) -> None:
    """Does a step, which compiles the towers."""
    self.run(1)

  def run(self, steps: int) -> None:
    """Does some steps."""
    torch = self.torch
    low = DTYPE.value == "bfloat16"
    for i in range(steps):
      image, text, ids = self.batches[i % 4]
      with torch.autocast(self.device, torch.bfloat16, enabled=low):
        features = self.call(image, text)
      vectors = [torch.nn.functional.normalize(x.float()) for x in features]
      gradients = self.loss.step(*(x.detach() for x in vectors), ids)
      torch.autograd.backward(vectors, gradients)
      self.optimizer.step()
      self.optimizer.zero_grad(set_to_none=True)
    if self.device == "cuda":
      torch.cuda.synchronize()

  @property
  def peak_bytes(self) -> int | None:
    """The greatest memory that tensors had; None on a CPU."""
    if self.device == "cpu":
      return None
    return self.torch.cuda.max_memory_allocated()


def make(name: str):
  """Makes a form; None if a library that it needs is not installed."""
  if name == "torch":
    try:
      return Torch()
    except ModuleNotFoundError as error:
      print(f"torch is left out: {error}", file=sys.stderr)
      return None
  if name == "nuclr":  # as in PyTorch
    return Jax(objectives.nuclr(num_pairs=NUM_PAIRS.value, temperature=0.01))
  if name == "nuclr_queue":
    dim = OF_CLIP["dim"] if TOWERS.value == "clip_b16" else DIM
    return Jax(recipe(NUM_PAIRS.value, dim))
  return Jax(objectives.clip(temperature=0.01, learn_temperature=False))


def time_of(form) -> float:
  """Measures seconds per step."""
  start = time.perf_counter()
  form.run(STEPS.value)
  return (time.perf_counter() - start) / STEPS.value


def flops_per_pair() -> float:
  """Counts the flops per pair of the towers in a training step.

  On accelerators, XLA has no counts of a program that it has not compiled.
  """
  model, batch = towers("xla"), random_batch(0)
  inputs = jax.eval_shape(model.init, jax.random.key(0))

  def forward(params, state, image, text):
    pairs, _ = model.apply(params, state, Batch(image, text, None))
    return pairs.image, pairs.text

  traced = jax.jit(forward).trace(*inputs, batch.image, batch.text)
  jaxpr = traced.jaxpr.jaxpr
  flops = hlo.count_products(jaxpr) + hlo.count_convolutions(jaxpr)
  # The backward pass has two products for each one of the forward pass.
  return 3 * flops / BATCH.value


def product_rate() -> float:
  """Measures flop/s of a large matrix product."""
  n = 4096 if jax.default_backend() == "cpu" else 8192
  n = 256 if TINY.value else n
  x = jnp.ones((n, n), DTYPE.value)
  multiply = jax.jit(lambda x: x @ x * 1e-4)
  multiply(x).block_until_ready()
  times = []
  for _ in range(5):
    start = time.perf_counter()
    multiply(x).block_until_ready()
    times.append(time.perf_counter() - start)
  return 2 * n**3 / min(times)


def logged(what: str, call: Callable[[], Any]) -> tuple[Any, float]:
  """Logs when a call begins and ends; returns its result and its seconds."""
  log.info("%s ...", what)
  start = time.perf_counter()
  result = call()
  seconds = time.perf_counter() - start
  log.info("%s took %.1f s", what, seconds)
  return result, seconds


class Forms:
  """The forms that work, and why others do not."""

  def __init__(self, names: Sequence[str]):
    self.forms, self.errors, self.compiled = {}, {}, {}
    for name in names:
      self._try(name, lambda name=name: self._start(name))
    if not self.forms:
      raise next(iter(self.errors.values()))

  def _start(self, name: str) -> None:
    form, _ = logged(f"{name}: parameters and batches", lambda: make(name))
    if form is None:
      return
    _, seconds = logged(f"{name}: compilation", form.compile)
    self.forms[name] = form
    self.compiled[name] = {"compile_s": seconds}
    benchmark.show_so_far({"forms": self.compiled})
    logged(f"{name}: three steps", lambda: form.run(3))

  def _try(self, name: str, call: Callable[[], float | None]) -> float:
    """Calls a function; if it fails, gives up the form and what it holds."""
    try:
      return call() or math.nan
    except Exception as error:  # whatever PyTorch's compiler raises
      log.exception("%s is given up", name)
      self.errors[name] = error.with_traceback(None)
      self.forms.pop(name, None)
      gc.collect()
      if torch := sys.modules.get("torch"):
        torch.cuda.empty_cache()  # or JAX would not get it
      return math.nan

  def time(self, name: str) -> float:
    """Measures seconds per step; NaN if the form has been given up."""
    if name not in self.forms:
      return math.nan
    return self._try(name, lambda: time_of(self.forms[name]))

  def rows(
    self, seconds: Mapping[str, Sequence[float]], facts: Mapping[str, float]
  ) -> dict[str, dict]:
    """Returns the numbers of each form, or its error."""
    rows = {
      name: {"error": f"{type(error).__name__}: {error}"[:2000]}
      for name, error in self.errors.items()
    }
    for name in self.forms:
      rate = BATCH.value / float(np.median(seconds[name]))
      flops, stated = rate * facts["flops_per_pair"], facts["stated"]
      row = self.compiled[name] | {
        "ms": 1e3 * BATCH.value / rate,
        "pairs_per_s": rate,
      }
      if "nuclr" in self.forms:
        row["time_to_nuclr"] = benchmark.ratio(seconds[name], seconds["nuclr"])
      row["of_products"] = flops / facts["product_rate"]
      row["mfu"] = flops / stated if stated else None
      rows[name] = row
    return rows


def main(argv) -> None:
  """Times all forms, and prints the JSON."""
  del argv
  malloc.keep_memory()
  progress.log_to_stderr()
  flops = flops_per_pair()
  forms = Forms(FORMS.value)
  kind = jax.devices()[0].device_kind
  stated = next((x for k, x in STATED.items() if kind.startswith(k)), None)
  rates = {"flops_per_pair": flops, "product_rate": product_rate()}
  settings = {name: flags.FLAGS[name].value for name in SETTINGS.split()}

  def parts(seconds):
    memory = jax.devices()[0].memory_stats() or {}
    torch = forms.forms.get("torch")
    facts = rates | {
      "peak_bytes_of_jax": memory.get("peak_bytes_in_use"),
      "peak_bytes_of_torch": getattr(torch, "peak_bytes", None),
    }
    rows = forms.rows(seconds, rates | {"stated": stated})
    return benchmark.machine(), settings, facts, {"forms": rows}

  runs = {
    name: functools.partial(forms.time, name) for name in list(forms.forms)
  }
  seconds = benchmark.take_turns(
    runs, ROUNDS.value, lambda seconds: benchmark.show_so_far(*parts(seconds))
  )
  if not forms.forms:
    raise next(iter(forms.errors.values()))
  benchmark.show(*parts(seconds))


if __name__ == "__main__":
  app.run(main)
