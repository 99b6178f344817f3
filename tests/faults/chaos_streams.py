"""What is tried with streams and signals by `chaos`, and two at the same time.

A stream over tars with all kinds of damage is killed or interrupted at random
moments, and run to its end: history, metrics and checkpoints must be those of
the run that nothing disturbed.
"""

import json
import random
import re
import shutil
import signal
import time

from chaos_place import command, digests
from chaos_tars import END, PHOTO, member, negative, of_number, pair, stream
from chaos_trial import (
  Trial,
  fault_of,
  finish,
  nuclr,
  words_of,
)
import make_photos
from repository import PUBLISHED

CLIP = f"--model={PUBLISHED}/hf_clip"
HEARD = 3  # seconds after which Ctrl-C has been answered
QUIET = 25  # seconds after which the command has ended


def whole(key):
  photo = make_photos.PHOTOS[int(key) % 6]
  return member(f"{key}.jpg", photo) + member(
    f"{key}.txt", b"dog " + key.encode()
  )


def again(key):
  """A second picture and a second text of a key."""
  return whole(key) + member(f"{key}.jpg", PHOTO) + member(f"{key}.txt", b"x")


def empty_beside_good(key):
  text = json.dumps({"caption": ["", f"cat {key}", " ", "mat"]}).encode()
  return member(f"{key}.jpg", PHOTO) + member(f"{key}.json", text)


def empty_alone(key):
  return member(f"{key}.jpg", PHOTO) + member(f"{key}.txt", b" \n\n")


def no_picture(key):
  return member(f"{key}.txt", b"a dog")


def cut_picture(key):
  return member(f"{key}.jpg", PHOTO[:-99]) + member(f"{key}.txt", b"a dog")


def two_pictures(key):
  return whole(key) + member(f"{key}.seg.png", PHOTO) * 3


def links(key):
  return member(f"{key}.jpg", b"", type=b"2", linkname="x") + member(
    f"{key}.txt", b"a dog"
  )


def one_of_many_parts(key):
  """A key of several dots, whose files are several samples."""
  return b"".join(pair(f"{key}.{i}") for i in range(4))


def other_kinds(key):
  return member(f"{key}.cls", b"1") + member(f"{key}/", b"", type=b"5")


DAMAGE = (
  *(again, empty_beside_good, empty_alone, no_picture, cut_picture),
  *(two_pictures, links, one_of_many_parts, other_kinds),
)
TAILS = (
  *(END, b"", END + pair("behind") + END, pair("99998")[:-700]),
  *(
    negative(-512),
    of_number(b"\xff" * 12),
    b"garbage" * 200,
    member("x", PHOTO),
  ),
)


def write_stream(folder, number):
  """Tars whose damage the number decides; a half of the samples are good."""
  rng = random.Random(number)
  kinds = rng.sample(DAMAGE, rng.choice([1, 1, 2, len(DAMAGE)]))
  folder.mkdir(parents=True)
  for tar in range(4):
    parts = []
    for i in range(16):
      make = rng.choice(kinds) if rng.random() < 0.5 else whole
      parts.append(make(f"{tar}{i:04d}"))
    tail = rng.choice(TAILS) if rng.random() < 0.5 else END
    (folder / f"{tar}.tar").write_bytes(b"".join(parts) + tail)
  return [x.__name__ for x in kinds]


def words_of_stream(tars, run):
  return stream(
    f"{tars}/*.tar", run, num_epochs=4, checkpoint_every=2, max_checkpoints=3
  )


def resumed(number):
  def make(place, folder, rng):
    home = place.parent / "streams" / str(number)
    if not (home / "seconds.json").exists():
      shutil.rmtree(home, ignore_errors=True)
      write_stream(home / "tars", number)
      began = time.monotonic()
      words = words_of_stream(home / "tars", home / "run")
      code, said = finish(nuclr(words, home), 60)
      if code not in (0, 1):  # nothing may be of use in the tars
        return Trial("", f"resumed({number})", 1, fault_of(code, said))
      seconds = json.dumps([time.monotonic() - began, code])
      (home / "seconds.json").write_text(seconds)
    seconds, expected = json.loads((home / "seconds.json").read_text())
    words, sent = words_of_stream(home / "tars", folder / "run"), []
    for _ in range(rng.choice([1, 2, 3])):
      process = nuclr(words, folder)
      time.sleep(rng.uniform(0.3, 1) * seconds)
      sent.append(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
      if process.poll() is None:
        process.send_signal(sent[-1])
      code, said = finish(process)
      if code == -1:  # it has not obeyed
        return Trial("", f"resumed({number})", len(sent), f"{sent}: {said}")
    code, said = finish(nuclr(words, folder))
    wrong = fault_of(code, said, expected=expected)
    found, straight = (files_of(x / "run") for x in (folder, home))
    names = [x for x in found | straight if found.get(x) != straight.get(x)]
    if not wrong and names:
      kinds = write_names(number)
      wrong = f"after {[x.name for x in sent]}, other files {names}; {kinds}"
    return Trial("", f"resumed({number})", len(sent), wrong)

  make.__name__ = f"resumed({number})"
  return make


def files_of(run):
  """Hashes a run's files; of checkpoints, the newest and any that is damaged.

  A run that was interrupted has one more, of the step that it had come to, and
  keeps what a killed one had begun to write, as N.incomplete.
  """
  found = digests(run)
  steps = [x for x in found if x.startswith("checkpoints/")]
  done = [x for x in steps if found[x] == "whole"]
  last = max(done, key=lambda x: int(re.sub(r"\D", "", x)), default="")
  return {
    name: x
    for name, x in found.items()
    if name not in steps
    or name == last
    or (x != "whole" and not name.endswith(".incomplete"))
  }


def write_names(number):
  """The kinds of damage of a stream."""
  rng = random.Random(number)
  kinds = rng.sample(DAMAGE, rng.choice([1, 1, 2, len(DAMAGE)]))
  return [x.__name__ for x in kinds]


STREAMS = [resumed(number) for number in range(12) for _ in range(2)]


def commands(verb, place, folder):
  if verb == "a stream":
    tars = folder / "tars"
    write_stream(tars, 0)
    return stream(f"{tars}/*.tar", folder / "run", num_epochs=99)
  words = command(verb, place, folder / "out")
  return [*words, "--config.num_epochs=99"] if verb == "train" else words


def interrupted(verb):
  """Ctrl-C is answered at once, and the command ends soon."""

  def make(place, folder, rng):
    words = commands(verb, place, folder)
    if verb == "report":
      shutil.copytree(place / "run", folder / "out")
    process = nuclr(words, folder)
    time.sleep(rng.uniform(0.3, 6 if verb in ("train", "a stream") else 2))
    if process.poll() is not None:
      return Trial("", f"interrupted({verb})", 0, "")
    process.send_signal(signal.SIGINT)
    sent, heard = time.monotonic(), None
    while process.poll() is None and heard is None:
      said = "".join(process.said()).lower()
      if "interrupt" in said or "ctrl-c" in said or "stopping" in said:
        heard = time.monotonic() - sent
      elif time.monotonic() - sent > QUIET:
        break
      time.sleep(0.01)
    heard = time.monotonic() - sent if heard is None else heard
    code, said = finish(process, QUIET)
    took = time.monotonic() - sent
    wrong = fault_of(code, said, expected=(0, 130)) or words_of(code, said)
    if not wrong and heard > HEARD:
      wrong = f"Ctrl-C was answered after {heard:.1f} s: {said[-500:]}"
    shown = f"interrupted({verb}), {heard:.1f} s, ended after {took:.1f} s"
    return Trial("", shown, 1, wrong)

  make.__name__ = f"interrupted({verb})"
  return make


def two_popularities(place, folder, rng):
  """Two at the same time: all files are of the one or of the other."""
  large = place.parent / "large.npz"
  if not large.exists():
    import numpy as np

    x = np.random.default_rng(0).normal(size=(2, 3000, 8)).astype(np.float32)
    np.savez(large, image=x[0], text=x[1])
  tables, processes = {}, []

  def words(temperature, out):
    found = ["popularity", f"--embeddings={large}", f"--workdir={out}"]
    return [*found, f"--temperature={temperature}"]

  for temperature in (0.1, 0.3):
    out = place.parent / f"popularity-{temperature}"
    if not out.exists():
      code, said = finish(nuclr(words(temperature, out), folder))
      if code:
        raise RuntimeError(said)
    tables[temperature] = digests(out)
  for temperature in (0.1, 0.3):
    processes.append(nuclr(words(temperature, folder / "p"), folder))
    time.sleep(rng.choice([0, 0.1, 0.3, 1]))
  ends = [finish(x) for x in processes]
  wrong = ""
  for code, said in ends:
    wrong = wrong or fault_of(code, said, expected=(0, 1))
    wrong = wrong or words_of(code, said)
  found = digests(folder / "p")
  if not wrong and found not in tables.values():
    wrong = "the files are neither those of the one nor of the other: " + str(
      {
        name: [t for t, x in tables.items() if x.get(name) == digest]
        for name, digest in found.items()
      }
    )
  if not wrong and all(code for code, _ in ends):
    wrong = "both were refused"
  return Trial("", "two_popularities", 2, wrong)


def asked_again(place, folder, rng):
  """Ctrl-C twice: a second one ends the command at once."""
  words = commands("train", place, folder)
  process = nuclr(words, folder)
  time.sleep(rng.uniform(2, 6))
  began = time.monotonic()
  while process.poll() is None and time.monotonic() - began < QUIET:
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
  code, said = finish(process, 1)
  wrong = "a traceback: " + said[-900:] if "Traceback" in said else ""
  wrong = wrong or ("" if code in (0, 1, 130, -2) else f"exit code {code}")
  return Trial("", "asked_again", 1, wrong)


SIGNALS = [
  *(
    interrupted(verb)
    for verb in ("train", "a stream", "report", "popularity", "embed", "ingest")
    for _ in range(2)
  ),
  interrupted("export"),
  asked_again,
  *[two_popularities] * 4,
]
