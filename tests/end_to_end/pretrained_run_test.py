"""A run that starts from published weights."""

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from nuclr_jax import sharding
from nuclr_jax.lab.train import build, checkpoint, resume
from tests.lab.models.pretrained.pretrained_test import exported, filled
from tests.lab.models.towers_test import configured, few_pairs


def test_a_run_starts_from_pretrained_weights(tiny, tmp_path):
  """At its start only: after a checkpoint the file may be gone."""
  data = few_pairs()
  text = dict(name="distilbert", width=128, layers=1, heads=4)
  sizes = dict(text=text, vocab_size=data.tokenizer.vocab_size)
  tensors, _, (params, _) = exported("hf_distilbert", **sizes)
  file = tmp_path / "text.safetensors"
  save_file(tensors, file)
  text |= dict(pretrained=str(file))
  image = dict(name="resnet50", stages=(1,), width=2)
  config = configured(tiny, image=image, text=text)
  config.num_microbatches, config.shard_params = 2, True
  parts = build.build(config, data=data)
  mesh = sharding.make_mesh(8)
  manager = checkpoint.open_to_write(tmp_path / "run")
  with jax.set_mesh(mesh):
    state = resume.start(parts, mesh, manager, None)
    params_of_run = state.params["model"]
    jax.tree.map(
      np.testing.assert_array_equal, params_of_run["text"], params["text"]
    )
    assert np.abs(params_of_run["image"]["stem"]["kernel"]).max() > 0
    positions = params_of_run["text"]["positions"]  # 512 x 128
    assert positions.addressable_shards[0].data.size == 512 * 128 / 8
    trained = jax.tree.map(lambda x: x + 1, params_of_run)
    state = state._replace(params=state.params | {"model": trained})
    saved = resume.meta(parts)
    # As before captions could be repaired, when no checkpoint said so.
    assert saved["tokenizer"].pop("repair") is False
    checkpoint.save(manager, 1, state, saved)
    manager.wait_until_finished()
    file.unlink()
    state = resume.start(parts, mesh, manager, 1)
    with pytest.raises(ValueError, match="does not exist; give a file"):
      parts.model.load(*filled(parts.model))
  manager.close()
  params_of_run = state.params["model"]
  jax.tree.map(np.testing.assert_array_equal, params_of_run, trained)
