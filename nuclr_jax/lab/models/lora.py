"""LoRA: fine-tuning by matrices of low rank beside frozen ones."""

import re

import jax
import jax.numpy as jnp

from nuclr_jax.lab.models.base import Model
from nuclr_jax.types import Params, PyTree

KEY = "lora"  # of the adapters among the parameters
ADAPTED = re.compile(r"(image|text)/(.*/)?attention/(qkv|out)/kernel")


def with_adapters(model: Model, rank: int) -> Model:
  """Adds adapters to the attention of both towers.

  A kernel W of queries, keys and values, or of the attention's output, becomes

    W + down up,  down [inputs, rank] random, up [rank, outputs] first zero.

  The published factor alpha / rank is 1. The adapters are a part `lora` of the
  parameters. Whether W is trained is up to the optimizer's `freeze`.

  Args:
    model: A model of towers.
    rank: The rank, at least 1.

  Raises:
    ValueError: From `init`, if no tower has attention.

  Reference: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR
    2022.
  """

  def init(key):
    params, state = model.init(key)
    found = _adapted(params)
    if not found:
      raise ValueError(
        "lora_rank needs towers with attention, which these do not have; set "
        "it to 0"
      )
    keys = jax.random.split(jax.random.fold_in(key, rank), len(found))
    adapters = {}
    for key, (name, x) in zip(keys, found.items(), strict=True):
      down = jax.random.normal(key, (x.shape[0], rank), x.dtype)
      up = jnp.zeros((rank, x.shape[1]), x.dtype)
      adapters[name] = {"down": down * x.shape[0] ** -0.5, "up": up}
    return params | {KEY: adapters}, state

  def load(params, state):
    adapters = {KEY: params[KEY]}
    loaded, state = model.load(without_adapters(params), state)
    return loaded | adapters, state

  def apply(params, *args, **kwargs):
    return model.apply(merged(params), *args, **kwargs)

  def features(params, *args):
    return model.features(merged(params), *args)

  return model._replace(
    init=init,
    apply=apply,
    load=load if model.load else None,
    features=features if model.features else None,
  )


def merged(params: Params) -> Params:
  """Adds the adapters to the kernels, so that the model has its own layout.

  Example:
    >>> adapter = {"down": jnp.ones((2, 1)), "up": jnp.ones((1, 6))}
    >>> params = {"text": {"attention": {"qkv": {"kernel": jnp.zeros((2, 6))}}}}
    >>> params |= {"lora": {"text_attention_qkv_kernel": adapter}}
    >>> print(merged(params)["text"]["attention"]["qkv"]["kernel"].sum())
    12.0
  """
  if KEY not in params:
    return params
  adapters = params[KEY]

  def add(path, x):
    adapter = adapters.get(_name(path))
    return x if adapter is None else x + adapter["down"] @ adapter["up"]

  return jax.tree_util.tree_map_with_path(add, without_adapters(params))


def without_adapters(params: Params) -> Params:
  """Returns the parameters of the model to which adapters were added."""
  return {name: x for name, x in params.items() if name != KEY}


def _adapted(params: Params) -> dict[str, PyTree]:
  """Returns the kernels that get adapters, by the names of these."""
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return {
    _name(path): x for path, x in leaves if ADAPTED.fullmatch(_name(path, "/"))
  }


def _name(path, separator: str = "_") -> str:
  return jax.tree_util.keystr(path, simple=True, separator=separator)
