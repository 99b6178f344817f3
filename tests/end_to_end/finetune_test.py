"""Fine-tuning from end to end: train, export, and train on from there."""

import pathlib
import re
import shutil

from huggingface_hub import ModelCard
import jax
import numpy as np
import pytest
from repository import PUBLISHED, ROOT
from safetensors import numpy as safetensors
import shapes
import stand_in_hub
import warm

from nuclr_jax.lab import ingest, models
from nuclr_jax.lab.config import complete, load_config
from nuclr_jax.lab.data.embeddings import open_embeddings
from nuclr_jax.lab.models.pretrained import read_published
from nuclr_jax.lab.train import loop, records, settings, untrained

SCORE = "validation/smoke/mean_recall@1"
needs_siglip = pytest.mark.skipif(
  "siglip_text" not in models.TEXT_TOWERS, reason="no SigLIP towers yet"
)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  """A folder with the data sets `smoke` and `smoke_classes`."""
  folder = tmp_path_factory.mktemp("finetune") / "data"
  folder.mkdir()
  for seed, (split, count) in enumerate(
    dict(train=96, validation=24, test=24).items()
  ):
    tar = folder.parent / f"{split}.tar"
    shapes.write_tar(tar, count, seed=seed)
    ingest.ingest(str(tar), "smoke", split=split, data_dir=folder, workers=1)
  shapes.write_classes(folder / "smoke_classes", 3, seed=3)
  return folder


def config_of(name, **changes):
  config = load_config(name)
  config.update_from_flattened_dict(
    {"num_epochs": 20.0, "log_every": 12, "eval_every_epochs": 0.0}
    | {"optimizer.weight_average": 0.9, "num_devices": 1, "keep_best": SCORE}
    | changes
  )
  return config


def losses_of(workdir):
  history = records.read_history(workdir)
  return [x["train/loss"] for x in history if "train/loss" in x]


def nuclr(*arguments):
  """What a verb prints."""
  done = warm.run(["-m", "nuclr_jax.lab.cli.main", *arguments], cwd=ROOT)
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


@pytest.fixture(scope="module")
def run(data_dir):
  """The workdir and the metrics of a run of `finetune_clip:smoke`."""
  workdir = data_dir.parent / "run"
  config = config_of("finetune_clip:clip,smoke")
  return workdir, loop.fit(config, workdir, data_dir=data_dir).metrics


@pytest.fixture(scope="module")
def exported(run, data_dir):
  """A folder with the averaged weights of the run."""
  folder = data_dir.parent / "exported"
  nuclr("export", f"--workdir={run[0]}", f"--output={folder}")
  return folder


def test_a_run_is_scored_on_other_sets(run, data_dir):
  """In place of its own, also where these are the same under other names."""
  workdir, metrics = run
  held_out = untrained.held_out_of(["x=smoke:test"], data_dir=data_dir)
  parts, mesh, state = loop.load(workdir, data_dir=data_dir, held_out=held_out)
  with jax.set_mesh(mesh):
    scores = loop.evaluate(parts, mesh, state)
  assert scores == {
    name.replace("/smoke/", "/x/"): value
    for name, value in metrics.items()
    if name.startswith("test/smoke/")
  }
  assert len(scores) > 5


def test_a_finished_run_is_not_said_to_be_scored_on_other_sets(run, data_dir):
  """It would print the scores of the sets that it had."""
  workdir, before = run[0], (run[0] / "config.json").read_text()
  config = config_of("finetune_clip:clip,smoke", **{"data.zero_shot": ()})
  with pytest.raises(ValueError, match="another config: data.zero_shot"):
    loop.fit(config, workdir, data_dir=data_dir)
  assert (workdir / "config.json").read_text() == before


def test_a_smoke_run_learns_and_classifies(run):
  workdir, metrics = run
  losses = losses_of(workdir)
  assert losses[-1] < 0.9 * losses[0]
  assert 0 <= metrics["test/zero_shot_smoke_classes/top1"] <= 1
  assert metrics[SCORE] > 2 / 24


def test_a_run_is_published(run, exported, tmp_path):
  """With what was exported, and a card; and not at all without a token."""

  def push(*words, **more):
    words = [f"--workdir={run[0]}", "--repo=me/photos", *words]
    command = ["-m", "nuclr_jax.lab.cli.main", "push", "--license=mit", *words]
    return warm.run(command, cwd=tmp_path, env=hub.environment | more)

  with stand_in_hub.running(tmp_path / "hub") as hub:
    hub.token = "secret"
    nobody = push()
    assert nobody.returncode == 1 and "run hf auth login" in nobody.stderr
    assert "401" in push(HF_TOKEN="wrong").stderr
    unknown = push("--license=Apache", HF_TOKEN="secret")
    assert unknown.returncode == 1 and "one of [apache-2.0" in unknown.stderr
    assert not (hub.folder / "me").exists()
    done = push(HF_TOKEN="secret")
    # What is there already is public, and in another layout.
    private = push("--private", HF_TOKEN="secret")
    mixed = push("--layout=open_clip", HF_TOKEN="secret")
  assert done.returncode == 0, done.stderr
  assert private.returncode == 1 and "everybody can see it" in private.stderr
  assert mixed.returncode == 1 and "(model.safetensors)" in mixed.stderr
  published = hub.folder / "me" / "photos"
  for path in filter(pathlib.Path.is_file, exported.rglob("*")):
    name = path.relative_to(exported)
    assert (published / name).read_bytes() == path.read_bytes(), name
  card = (published / "README.md").read_text()
  head = ModelCard(card).data
  assert head.license == "mit" and head.library_name == "transformers"
  scores = {x.metric_name: x.metric_value for x in head.eval_results}
  assert (
    scores["test/smoke/mean_recall@1"] == run[1]["test/smoke/mean_recall@1"]
  )
  assert "clip, temperature" in card and "96 pairs of smoke" in card
  assert '"weight_average": 0.9' in card


@pytest.fixture(scope="module")
def again(exported, data_dir):
  """The workdir and the metrics of a run that begins from that folder."""
  config = config_of(
    "finetune_clip:clip,smoke",
    num_epochs=1.0,
    warm_start="moments=2",
    **{"model.pretrained": str(exported), "data.tokenizer": str(exported)},
  )
  workdir = data_dir.parent / "again"
  return workdir, loop.fit(config, workdir, data_dir=data_dir).metrics


def first_scores(workdir):
  return next(x for x in records.read_history(workdir) if SCORE in x)


def test_a_run_goes_on_where_an_exported_one_ended(run, again):
  """Its scores before the first step are the last ones there."""
  _, metrics = run
  first = first_scores(again[0])
  assert first["step"] == 0
  np.testing.assert_allclose(first[SCORE], metrics[SCORE], atol=1 / 24)
  np.testing.assert_allclose(
    first["diagnostics/alignment"], metrics["diagnostics/alignment"], rtol=0.02
  )
  assert again[1]["step"] == 6


def test_weights_between_start_and_end(again, exported, data_dir, tmp_path):
  workdir, metrics = again
  where = (f"--workdir={workdir}", f"--data_dir={data_dir}")
  printed = nuclr("evaluate", *where, "--interpolate=0,0.5,1")
  lines = re.findall(r"^(\S+) +(.*)$", printed, re.M)
  columns = {name: values.split() for name, values in lines}
  assert columns["interpolate"] == ["0", "0.5", "1"]
  before, _, after = map(float, columns[SCORE])
  assert before == pytest.approx(first_scores(workdir)[SCORE], abs=1e-4)
  assert after == pytest.approx(metrics[SCORE], abs=1e-4)

  nuclr("report", *where, "--interpolate=0,0.5,1")
  page = (workdir / "report.html").read_text()
  _, _, mixtures = page.partition("Mixtures with the model that the run began")
  assert (workdir / "report" / "mixtures.png").exists()
  cells = rf"<td>{re.escape(SCORE)}<td>(.*?) %<td>(.*?) %<td>(.*?) %"
  (found,) = re.findall(cells, mixtures)
  scores = [float(x) / 100 for x in found]
  np.testing.assert_allclose(
    scores, [float(x) for x in columns[SCORE]], 0, 6e-4
  )

  nuclr("export", *where, f"--output={tmp_path / 'x'}", "--interpolate=0.25")
  nuclr("export", *where, f"--output={tmp_path / 'tuned'}")
  first, tuned, mixed = (
    safetensors.load_file(folder / "model.safetensors")
    for folder in (exported, tmp_path / "tuned", tmp_path / "x")
  )
  assert mixed.keys() == tuned.keys() == first.keys()
  for name, x in mixed.items():
    a, b = first[name].astype(float), tuned[name].astype(float)
    if name != "logit_scale":  # the run began with that of its config
      np.testing.assert_allclose(x, 0.75 * a + 0.25 * b, rtol=1e-5, atol=1e-7)
  a, b = np.log(1 / 0.07), tuned["logit_scale"]
  np.testing.assert_allclose(mixed["logit_scale"], 0.75 * a + 0.25 * b)


@pytest.mark.parametrize(
  "source", ("open_clip", "open_clip_clipa", "open_clip_coca")
)
def test_a_published_model_is_trained_and_read_back(source, data_dir, tmp_path):
  """By one command; what it was made from need not stay."""
  model = shutil.copytree(PUBLISHED / source, tmp_path / "model")
  before = read_published(model)
  workdir, out = tmp_path / "run", tmp_path / "out"
  nuclr(
    *("train", f"--model={model}", "--data=smoke:train"),
    *(f"--data_dir={data_dir}", f"--workdir={workdir}"),
    *("--config.batch_size=48", "--config.num_epochs=1"),
    "--config.optimizer.learning_rate.value=1e-3",
    "--config=finetune_clip:clip",  # which learns the temperature
  )
  shutil.rmtree(model)
  where = f"--workdir={workdir}", f"--output={out}"
  nuclr("export", *where, "--layout=open_clip")
  after = read_published(out)
  moved = ("pretrained", "max_length")
  assert {k: x for k, x in after.model.items() if k not in moved} == {
    k: x for k, x in before.model.items() if k not in moved
  }
  for key in ("size", "resize", "kernel", "length", "repair", "vocab_size"):
    assert after.data[key] == before.data[key]
  assert 0 < abs(after.temperature / before.temperature - 1) < 0.01
  name = "open_clip_model.safetensors"
  old = safetensors.load_file(PUBLISHED / source / name)
  new = safetensors.load_file(out / name)
  steps = {key: np.abs(new[key] - x).max() for key, x in old.items()}
  assert steps.keys() <= new.keys()
  assert 0 < max(steps.values()) < 0.01


def test_commands_use_the_average_unless_told_otherwise(
  run, exported, data_dir, tmp_path
):
  workdir, metrics = run
  where = (f"--workdir={workdir}", f"--data_dir={data_dir}")

  def scores(*flags):
    printed = nuclr("evaluate", *where, *flags)
    return dict(re.findall(r"^(\S+) +(\S+)$", printed, re.M))

  for name, value in scores().items():
    assert float(value) == pytest.approx(metrics[name], abs=1e-4)
  # Of 24 photos, all ranks may be equal; there are 96 to train on.
  averaged, last = (
    scores("--data=smoke:train", flag) for flag in ("--average", "--noaverage")
  )
  assert averaged != last and averaged.keys() == last.keys()

  states = {
    averaged: loop.load(workdir, data_dir=data_dir, averaged=averaged)[2]
    for averaged in (True, False)
  }
  nuclr("export", *where, f"--output={tmp_path / 'last'}", "--average=false")
  embedded = {}
  for averaged, folder, flag in (
    (True, exported, ()),
    (False, tmp_path / "last", ("--average=false",)),
  ):
    tensors = safetensors.load_file(folder / "model.safetensors")
    np.testing.assert_array_equal(
      tensors["visual_projection.weight"].T,
      states[averaged].params["model"]["image_projection"],
    )
    out = tmp_path / f"embedded_{averaged}"
    tar = data_dir.parent / "test.tar"
    nuclr("embed", *where, f"--input={tar}", f"--output={out}", *flag)
    embedded[averaged] = open_embeddings(out).image
  assert not np.allclose(embedded[True], embedded[False], atol=1e-4)


@pytest.mark.parametrize("name", ["", "b32", "nuclr", "clip"])
def test_arguments(name):
  config = complete(load_config(f"finetune_clip:{name}"))
  settings.resolve(config)
  tower = "clip_vit_b32" if name == "b32" else "clip_vit_b16"
  assert config["model"]["image"]["name"] == tower
  objective = name if name in ("clip", "nuclr") else "sogclr"
  assert config["objective"]["name"] == objective
  assert config["objective"]["temperature"] == 0.01  # exp(-logit_scale)
  small = complete(load_config(f"finetune_clip:{name},smoke"))
  assert small["model"]["pretrained"] is None
  assert small["optimizer"].keys() == config["optimizer"].keys()


def test_unknown_argument():
  with pytest.raises(ValueError, match="must be one of .'b16', 'b32'., and"):
    load_config("finetune_clip:l14")


def test_both_configs_tune_alike():
  clip, siglip = map(load_config, ("finetune_clip", "finetune_siglip2"))
  for key in ("layer_decay", "weight_average", "rate_factors", "clip_norm"):
    assert clip.optimizer[key] == siglip.optimizer[key]
  assert clip.data.keys() == siglip.data.keys()


@needs_siglip
def test_siglip_trains(data_dir, tmp_path, no_diagnostics):
  layers = {f"model.{side}.layers": 1 for side in ("image", "text")}
  config = config_of("finetune_siglip2:smoke", num_epochs=6.0, **layers)
  metrics = loop.fit(config, tmp_path, data_dir=data_dir).metrics
  losses = losses_of(tmp_path)
  assert losses[-1] < losses[0] and metrics["step"] == 36
