"""Reads users' images and captions: tars, tables, folders, Parquet and TFDS.

`inputs.plan` recognises what `--input` names and cuts it into parts; a part
yields items. `nuclr ingest`, `embed` and `popularity` begin here.
"""

from nuclr_jax.lab.user_files.inputs import Plan, plan
from nuclr_jax.lab.user_files.items import Item, Part, Rejected

__all__ = ["Item", "Part", "Plan", "Rejected", "plan"]
