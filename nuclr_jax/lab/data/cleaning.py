"""How captions are repaired and cleaned before they become token ids.

OpenCLIP does it in Python, with whole captions; transformers with what is
between special tokens, and so does a tokenizer of the library `tokenizers`.
"""

import html
import re
import string

from tokenizers import Regex, normalizers

from nuclr_jax import checks

Clean = bool | checks.one_of(  # True: as for CC3M
  ("lower", "canonicalize", "remove_punctuation")
)
# What the published CC3M recipe removes from captions, after lower-casing.
REMOVED = r"""[,.'!?"()*#:;~]"""
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Where Python's str.lower differs from the library, which looks at characters
# one by one: a sigma at the end of a word; and what is white space to Python.
CASED, IGNORED = r"[\p{Lu}\p{Ll}\p{Lt}]", r"[\p{M}\p{Cf}\p{Lm}\p{Sk}'’.:·]"
FINAL_SIGMA = rf"(?<={CASED})Σ(?!{IGNORED}*{CASED})"
BLANK = r"[\s\x1c-\x1f]"


def repaired(caption: str) -> str:
  r"""Repairs a caption as OpenCLIP and OpenAI's CLIP do before anything else.

  Broken encodings, typographic quotes and ligatures are replaced by ftfy, and
  HTML entities by their characters, twice, since scraped captions may be
  escaped twice. White space is collapsed.

  Args:
    caption: The caption.

  Example:
    >>> repaired("a dog\u2019s  mat"), repaired("black &amp;amp; white")
    ("a dog's mat", 'black & white')
  """
  # ftfy takes 20 microseconds for a caption, and changes nothing in this case.
  if not (caption.isascii() and caption.isprintable() and "&" not in caption):
    import ftfy

    caption = html.unescape(html.unescape(ftfy.fix_text(caption)))
  return " ".join(caption.split())


def cleaned(caption: str, kind: Clean) -> str:
  r"""Cleans a whole caption, as the published Python code does.

  Args:
    caption: The caption.
    kind: How, see `tokenizer.pretrained_tokenizer`.

  Example:
    >>> cleaned("ΟΔΟΣ: a_dog's  mat", "canonicalize")
    'οδος a dogs mat'
    >>> cleaned("A dog-runs!", True)
    'a dog runs'
  """
  if kind == "canonicalize":  # its order, which the end of a word depends on
    caption = caption.replace("_", " ").translate(NO_PUNCTUATION)
  if kind:
    caption = caption.lower()
  if kind in ("canonicalize", "remove_punctuation"):
    return " ".join(caption.translate(NO_PUNCTUATION).split())
  if kind is True:
    caption = re.sub("[-/]", " ", re.sub(REMOVED, "", caption))
    caption = caption.replace("<person>", "person")
    return re.sub(r"\s{2,}", " ", caption).strip()
  return caption


def normalizer_of(kind: Clean) -> normalizers.Normalizer:
  """Returns what `cleaned` does, as a part of the library's tokenizer.

  There it cleans what is between special tokens.

  Args:
    kind: How, see `tokenizer.pretrained_tokenizer`; not False.

  Example:
    >>> normalizer_of("lower").normalize_str("A Dog")
    'a dog'
  """
  if kind == "lower":  # which transformers does with the library, too
    return normalizers.Lowercase()
  lower = [
    normalizers.Replace(Regex(FINAL_SIGMA), "ς"),
    normalizers.Lowercase(),
  ]
  if kind is True:
    return normalizers.Sequence(
      [
        *lower,
        normalizers.Replace(Regex(REMOVED), ""),
        normalizers.Replace(Regex("[-/]"), " "),
        normalizers.Replace("<person>", "person"),
        normalizers.Replace(Regex(BLANK + "{2,}"), " "),
        normalizers.Replace(Regex(rf"\A{BLANK}|{BLANK}\z"), ""),
      ]
    )
  remove = normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), "")
  steps = [*lower, remove]
  if kind == "canonicalize":
    steps = [normalizers.Replace("_", " "), remove, *lower]
  return normalizers.Sequence(
    [
      *steps,
      normalizers.Replace(Regex(f"{BLANK}+"), " "),
      normalizers.Strip(),
    ]
  )
