"""Writes the architectures that OpenCLIP names, for `--architecture`.

.venv-parity/bin/python -m experiments.parity.architectures

The table has the `model_cfg` of each of OpenCLIP's own configs of an image and
a text tower, in one line.
"""

import json
import pathlib

from experiments.parity import optional
from nuclr_jax.lab.models.pretrained import architectures


def main() -> None:
  """Writes the table into the package."""
  library = optional.load("open_clip")
  configs = pathlib.Path(library.__file__).parent / "model_configs"
  lines = []
  for path in sorted(configs.glob("*.json")):
    spec = json.loads(path.read_text())
    if {"vision_cfg", "text_cfg"} <= spec.keys():
      row = json.dumps(spec, separators=(",", ":"))
      lines.append(f"{json.dumps(path.stem)}:{row}")
  rows = ",\n".join(lines)
  architectures.TABLE.write_text(f"{{\n{rows}\n}}\n")
  print(f"{len(lines)} of open_clip_torch {library.__version__}")


if __name__ == "__main__":
  main()
