"""Generates captioned photos, so that nothing must be downloaded.

They show coloured shapes on a noisy wall and are written in the formats in
which users have photos: a tar file as img2dataset makes it (KEY.jpg, KEY.txt,
KEY.json) and folders of classes. Everything is a function of a seed.
"""

import io
import json
import pathlib
import tarfile

import cv2
import numpy as np

COLOURS = {
  "red": (220, 30, 30),
  "green": (30, 180, 40),
  "blue": (40, 60, 220),
  "yellow": (230, 220, 40),
  "purple": (150, 40, 160),
  "orange": (250, 140, 20),
  "white": (240, 240, 240),
  "black": (20, 20, 20),
}
SHAPES = ("circle", "square", "triangle")
SCENES = ("A {}, on a grey wall.", "Photo of a {}!", "one {} - close-up")


def draw(rng: np.random.Generator, colour: str, shape: str) -> np.ndarray:
  """Draws an image of random size, uint8 [height, width, 3]."""
  height, width = rng.integers(100, 161, 2).tolist()
  wall = np.full((height, width, 3), rng.integers(90, 161, 3), np.float64)
  image = np.clip(wall + rng.normal(0, 8, wall.shape), 0, 255).astype(np.uint8)
  r = int(rng.integers(25, 41))
  x, y = int(rng.integers(r, width - r)), int(rng.integers(r, height - r))
  if shape == "circle":
    cv2.circle(image, (x, y), r, COLOURS[colour], -1)
  elif shape == "square":
    cv2.rectangle(image, (x - r, y - r), (x + r, y + r), COLOURS[colour], -1)
  else:
    corners = np.array([[x, y - r], [x - r, y + r], [x + r, y + r]])
    cv2.fillPoly(image, [corners], COLOURS[colour])
  return image


def encode(image: np.ndarray) -> bytes:
  """Encodes an image as JPEG."""
  options = [cv2.IMWRITE_JPEG_QUALITY, 90]
  return cv2.imencode(".jpg", image[..., ::-1], options)[1].tobytes()


def write_tar(
  path: pathlib.Path, count: int, *, seed: int, broken: tuple[int, ...] = ()
) -> None:
  """Writes a tar of photos and captions.

  Args:
    path: The tar file to write.
    count: The number of photos.
    seed: The seed of shapes, captions and noise.
    broken: The numbers of photos whose files are cut short.
  """
  rng = np.random.default_rng(seed)
  colours = list(COLOURS)
  with tarfile.open(path, "w") as tar:
    for i in range(count):
      colour = colours[i % len(colours)]
      shape = SHAPES[i // len(colours) % len(SHAPES)]
      caption = SCENES[rng.integers(len(SCENES))].format(f"{colour} {shape}")
      photo = encode(draw(rng, colour, shape))
      if i in broken:
        photo = photo[: len(photo) // 2]
      facts = {"caption": caption, "key": f"{i:09d}", "status": "success"}
      for ending, content in (
        ("jpg", photo),
        ("txt", caption.encode()),
        ("json", json.dumps(facts).encode()),
      ):
        member = tarfile.TarInfo(f"{i:09d}.{ending}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


def write_classes(folder: pathlib.Path, count: int, *, seed: int) -> None:
  """Writes `count` photos per split and colour.

  The files are FOLDER/SPLIT/COLOUR/NUMBER.jpg.
  """
  rng = np.random.default_rng(seed)
  for split in ("train", "test"):
    for colour in COLOURS:
      place = folder / split / colour
      place.mkdir(parents=True, exist_ok=True)
      for i in range(count):
        photo = draw(rng, colour, SHAPES[i % len(SHAPES)])
        (place / f"{i:03d}.jpg").write_bytes(encode(photo))
