"""An objective's gradients, as a training step takes them."""

import jax


def make_step(objective):
  """`(params, state, pairs) -> ((loss, (state, metrics)), gradients)`.

  The gradients are those of params, image and text.
  """

  def loss_fn(inputs, state, pairs):
    params, image, text = inputs
    pairs = pairs._replace(image=image, text=text)
    return objective.apply(params, state, pairs)

  def step(params, state, pairs):
    inputs = (params, pairs.image, pairs.text)
    return jax.value_and_grad(loss_fn, has_aux=True)(inputs, state, pairs)

  return step
