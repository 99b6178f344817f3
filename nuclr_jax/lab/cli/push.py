"""The verb `nuclr push`, its flags, and how it speaks with the hub."""

from collections.abc import Iterator
import contextlib
import functools
import json
import pathlib
import tempfile

from absl import flags as absl_flags

from nuclr_jax.lab.cli import chosen, flags, verbs
from nuclr_jax.lab.files import remote

WEIGHTS = (".safetensors", ".bin", ".msgpack")
REPO = absl_flags.DEFINE_string(
  "repo", None, "The name of the model on the Hugging Face hub, OWNER/NAME."
)
LICENSE = absl_flags.DEFINE_string(
  "license",
  None,
  "The licence of the model, by the hub's name for it, such as apache-2.0. "
  "Without one, the card says that there is none.",
)
PRIVATE = absl_flags.DEFINE_bool(
  "private", False, "Let only the owner see the model."
)


def push() -> None:
  """Publish the model of a run on the Hugging Face hub, with a card."""
  from nuclr_jax.lab import export
  from nuclr_jax.lab.report import model_card
  from nuclr_jax.lab.train import checkpoint, loop

  repo, output = REPO.value, flags.OUTPUT.value
  check_name(repo)
  if output:
    remote.check_new(output)
  else:
    check_with_hub(LICENSE.value)
  share = chosen.one_share()
  options = {"data_dir": flags.DATA_DIR.value} | flags.chosen_state()
  with (
    remote.local_folder(verbs.workdir(), choose=checkpoint.of_newest) as run,
    tempfile.TemporaryDirectory() as place,
  ):
    parts, _, state = loop.load(run, pairs=False, **options)
    plain = share is None and options["averaged"]
    if share is None:
      model = export.exported(parts, state)
    else:
      model = export.model_of_run(run, share=share, **options)
    folder = export.write_model(
      model,
      output or pathlib.Path(place) / "model",
      layout=flags.LAYOUT.value,
      add=functools.partial(
        model_card.write,
        run,
        parts,
        step=int(state.step) if plain else None,
        repo=repo,
        license=LICENSE.value,
      ),
    )
    if output:
      print(f"what would be published as {repo}: {output}")
    else:
      print(f"published: {upload(folder, repo, private=PRIVATE.value)}")


def check_name(repo: str) -> None:
  """Raises ValueError if the hub has no such names, or it lacks the owner."""
  from huggingface_hub.errors import HFValidationError
  from huggingface_hub.utils import validate_repo_id

  if "/" not in repo:
    raise ValueError(f"--repo={repo} lacks the owner: give --repo=OWNER/{repo}")
  try:
    validate_repo_id(repo)
  except HFValidationError as error:
    raise ValueError(f"--repo={repo}: {error}") from error


def check_with_hub(license: str | None) -> None:
  """Raises ValueError, before the run is read, for what the hub would refuse.

  That is somebody who is not logged in, and a licence that it does not know.

  Args:
    license: The hub's name of a licence; None for no licence.
  """
  from huggingface_hub import HfApi, ModelCard

  with _explained():
    HfApi().whoami()
    if license is None:
      return
    try:
      ModelCard(f"---\nlicense: {json.dumps(license)}\n---\n").validate()
    except ValueError as error:
      raise ValueError(
        f"--license={license} is not what the hub calls a licence: "
        f"{' '.join(str(error).split())[:600]}"
      ) from error


def upload(folder: pathlib.Path, repo: str, *, private: bool) -> str:
  """Uploads a folder as one commit; returns the address of the model.

  A model that is there already keeps its history and its other files.

  Args:
    folder: What to upload.
    repo: The name of the model.
    private: Whether only the owner may see it.

  Raises:
    ValueError: If the model is there already and is not private, or has weights
      in other files, which would be loaded in place of these.
  """
  from huggingface_hub import HfApi
  from huggingface_hub.errors import RepositoryNotFoundError

  api = HfApi()
  with _explained():
    with contextlib.suppress(RepositoryNotFoundError):
      there = api.repo_info(repo)
      if private and not there.private:
        raise ValueError(
          f"{repo} is there already, and everybody can see it: change that on "
          "the hub first, or choose another name"
        )
      names = (x.rfilename for x in there.siblings or ())
      weights = (x for x in names if x.endswith(WEIGHTS))
      if other := [x for x in weights if not (folder / x).exists()]:
        raise ValueError(
          f"{repo} has a model in another layout ({other[0]}), which would be "
          "loaded in place of this one: delete it on the hub first, give the "
          "same --layout, or choose another name"
        )
    made = api.create_repo(repo, private=private, exist_ok=True)
    api.upload_folder(
      repo_id=made.repo_id,
      folder_path=folder,
      commit_message="Add a model trained with nuclr_jax",
    )
  return str(made)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
  """Makes errors of the hub's client say what to do."""
  from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

  try:
    yield
  except LocalTokenNotFoundError as error:
    raise ValueError(
      "nobody is logged in to the hub: run hf auth login, with a token that "
      "may write; --output=folder writes what would be published"
    ) from error
  except HfHubHTTPError as error:
    status = getattr(error.response, "status_code", None)
    raise ValueError(
      f"the hub refuses ({status}): {str(error).splitlines()[0]}; the token of "
      "hf auth login must be valid and may have to be one that writes, and the "
      "owner of --repo must be you or a team of yours"
    ) from error
  except (OSError, ValueError):
    raise
  except Exception as error:  # of whatever library carries the requests
    raise ConnectionError(f"the hub was not reached: {error}") from error
