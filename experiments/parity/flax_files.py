"""Writes tiny models as transformers writes them with Flax, and with PyTorch.

python -m experiments.parity.flax_files

It takes an environment of its own: transformers 5 has no Flax (`pip install
"transformers==4.57.*" "flax==0.10.*" "jax<0.7" torch`). `read_flax_file` must
read from the former what is in the latter; the tests compare.
"""

import argparse
import pathlib
import shutil

import transformers

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"
OUT = GOLDEN / "flax_files"
CLIP = GOLDEN / "published" / "hf_clip"
SIZE = dict(
  hidden_size=8,
  num_hidden_layers=2,
  num_attention_heads=2,
  intermediate_size=12,
)


def main() -> None:
  """Writes the files."""
  argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  ).parse_args()
  clip = transformers.FlaxCLIPModel.from_pretrained(CLIP, from_pt=True)
  clip.save_pretrained(OUT / "clip")
  clip.save_pretrained(OUT / "clip_in_parts", max_shard_size="30KB")
  shutil.rmtree(OUT / "dual_encoder", ignore_errors=True)
  vision = transformers.ViTConfig(image_size=8, patch_size=4, **SIZE)
  text = transformers.BertConfig(
    vocab_size=20, max_position_embeddings=9, **SIZE
  )
  config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
    vision, text, projection_dim=6
  )
  model = transformers.VisionTextDualEncoderModel(config)
  for x in model.parameters():  # biases, too, are not 0
    x.data.normal_()
  model.save_pretrained(OUT / "dual_encoder")
  kind = transformers.FlaxVisionTextDualEncoderModel
  model = kind.from_pretrained(OUT / "dual_encoder", from_pt=True)
  model.save_pretrained(OUT / "dual_encoder")


if __name__ == "__main__":
  main()
