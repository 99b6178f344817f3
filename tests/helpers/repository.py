"""Folders of the repository that tests read."""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
GOLDEN = ROOT / "tests" / "golden"
PUBLISHED = GOLDEN / "published"  # models in their libraries' own files
CLIP = PUBLISHED / "hf_clip"
