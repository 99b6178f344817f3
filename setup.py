"""What is packaged; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
  packages=[*find_packages(include=["nuclr_jax*"]), "nuclr_jax.configs"],
  package_dir={"nuclr_jax.configs": "configs"},
)
