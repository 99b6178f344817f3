"""The flags of the launcher."""

from absl import flags
from ml_collections import config_flags

CONFIG = config_flags.DEFINE_config_file(
  "config",
  None,
  "Config file, such as configs/glyphs.py:smoke, or the name of one that came "
  "with the library, such as glyphs:smoke. Any key of it is a flag: "
  "--config.objective.temperature=0.05.",
)
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
DATA_DIR = flags.DEFINE_string(
  "data_dir",
  None,
  "Folder of prepared data (default $NUCLR_DATA_DIR or ~/.cache/nuclr_jax).",
)
INPUT = flags.DEFINE_string(
  "input", None, "Files, pattern or folder to read, or tfds:NAME."
)
DATASET = flags.DEFINE_string(
  "dataset", None, "Name of the data set that is made."
)
SPLIT = flags.DEFINE_string(
  "split",
  None,
  "Split that is made: its name (default train), or, of inputs that have "
  "several, which one alone.",
)
IMAGES = flags.DEFINE_string(
  "images", None, "Folder that the paths of a table start from."
)
IMAGE_COLUMN = flags.DEFINE_string(
  "image_column", None, "Column of the images, if not a usual one."
)
CAPTION_COLUMN = flags.DEFINE_string(
  "caption_column", None, "Column of the captions, likewise."
)
MAX_SIZE = flags.DEFINE_integer(
  "max_size",
  None,
  "Shrink images to so many pixels on the shorter side; 384 is enough to train "
  "at 256.",
  lower_bound=16,
)
WORKERS = flags.DEFINE_integer(
  "workers",
  None,
  "Processes that read; default one for each core.",
  lower_bound=1,
)
TEMPERATURE = flags.DEFINE_float(
  "temperature", None, "Instead of the run's own.", lower_bound=1e-6
)
BEST = flags.DEFINE_bool(
  "best",
  False,
  "The state that was best on validation, see keep_best in a config; not the "
  "newest.",
)
OUTPUT = flags.DEFINE_string("output", None, "Folder that is made.")
FEATURES = flags.DEFINE_bool(
  "features", False, "What the towers give, before the projection."
)
HUBS = flags.DEFINE_float(
  "hubs",
  0.0,
  "Also rank by sim - HUBS * zeta; 0.5 is a good choice.",
)
CLASSES = flags.DEFINE_string(
  "classes",
  None,
  "Score linear classifiers of labelled pictures, too: digits, glyphs or a "
  "prepared data set such as cifar100:train.",
)
EMBEDDINGS = flags.DEFINE_string(
  "embeddings", None, "Embeddings to take instead of a run's."
)
MAX_PAIRS = flags.DEFINE_integer(
  "max_pairs",
  None,
  "Solve a sample of so many pairs and extend it to all.",
  lower_bound=2,
)
COORDINATOR = flags.DEFINE_string(
  "coordinator", None, "host:port of process 0, for several processes."
)
NUM_PROCESSES = flags.DEFINE_integer(
  "num_processes", None, "How many processes train together."
)
PROCESS_ID = flags.DEFINE_integer(
  "process_id", None, "Which of them this is, from 0."
)
DISTRIBUTED = flags.DEFINE_bool(
  "distributed",
  None,
  "Look for the other processes; by default under Slurm and on TPU slices "
  "only.",
)
DEBUG = flags.DEFINE_bool("debug", False, "Show the traceback of errors.")
