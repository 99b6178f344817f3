"""Built tokenizers, and those of published models against a plain WordPiece."""

import base64
import functools
import hashlib
import html
import json
import os
import pathlib
import re
import string
import subprocess
import sys
import unicodedata

import ftfy
import huggingface_hub
from huggingface_hub import errors
from hypothesis import example, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from repository import GOLDEN, PUBLISHED
import tokenizers

from nuclr_jax.lab.data import cleaning, sentencepiece, tokenizer
from nuclr_jax.lab.models.pretrained import hub

# Of every letter a word can begin with, and the letters that go on.
LETTERS = [*string.ascii_lowercase, *(f"##{c}" for c in string.ascii_lowercase)]
WORDS = (
  "dog dogs run runs running per person a an and the ##s ##ing ##er".split()
)
VOCABULARY = [
  *"[PAD] [unused0] [UNK] [CLS] [SEP] [MASK]".split(),
  *string.digits,
  *"$ % & + < = > @ [ ] _ { }".split(),
  *LETTERS,
  *(x for x in WORDS if x not in LETTERS),
]
IDS = {token: i for i, token in enumerate(VOCABULARY)}
CACHE = """
import sys
from nuclr_jax.lab.data import tokenizer
words = tokenizer.pretrained_tokenizer("some/model.v1", length=8)
print(words.encode(["dogs"]).tolist())
try:
  tokenizer.pretrained_tokenizer("some/other", length=8)
except ValueError as error:
  print(error)
"""


def published_cleaning(caption: str) -> str:
  """The rule of the CC3M recipe, character by character."""
  kept = (c for c in caption.lower() if c not in ",.'!?\"()*#:;~")
  spaced = "".join(" " if c in "-/" else c for c in kept)
  named = "person".join(spaced.split("<person>"))
  words, run = [], ""
  for c in named + "x":
    if c.isspace():
      run += c
    else:
      words += [" " if len(run) > 1 else run, c]
      run = ""
  return "".join(words)[:-1].strip()


def word_piece(word: str) -> list[int]:
  """Greedy: the longest piece first."""
  ids, start = [], 0
  while start < len(word):
    prefix = "##" if start else ""
    stops = range(len(word), start, -1)
    stop = next((i for i in stops if prefix + word[start:i] in IDS), None)
    if stop is None:
      return [IDS["[UNK]"]]
    ids.append(IDS[prefix + word[start:stop]])
    start = stop
  return ids


def encode(caption: str, length: int) -> list[int]:
  """What BERT's tokenizer gives for cleaned ASCII."""
  cleaned = published_cleaning(caption)
  words = re.findall(r"[a-z0-9]+|[^a-z0-9\s]", cleaned)
  ids = [i for word in words for i in word_piece(word)][: length - 2]
  ids = [IDS["[CLS]"], *ids, IDS["[SEP]"]]
  return ids + [0] * (length - len(ids))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("vocabulary")
  text = "\n".join(VOCABULARY) + "\n"
  (folder / "vocab.txt").write_text(text, encoding="utf-8")
  return folder


@pytest.fixture(scope="module")
def words(folder):
  return tokenizer.pretrained_tokenizer(folder / "vocab.txt", length=12)


@pytest.fixture(scope="module")
def clean(words):
  """The cleaning alone; the rest of the normaliser is BERT's."""
  *steps, last = json.loads(words.text)["normalizer"]["normalizers"]
  assert last["type"] == "BertNormalizer"
  cleaning = {"type": "Sequence", "normalizers": steps}
  whole = tokenizers.Tokenizer(tokenizers.models.WordPiece({"a": 0}))
  saved = json.loads(whole.to_str()) | {"normalizer": cleaning}
  return tokenizers.Tokenizer.from_str(json.dumps(saved)).normalizer


NASTY = [
  "<PERSON>",
  "<person",
  "  ",
  "\t\n",
  "--",
  "~'",
  "\u00a0",
  "\u2028",
  "İ",
  "ΟΣ ΣΟ",
  "ΟΣ's",
]
# A sigma at the end of a word is another letter, which Python decides by more
# neighbours than the library; neither do letters newer than its tables count.
CHARACTERS = st.characters(
  exclude_categories=("Cs", "Cn"), exclude_characters="Σ"
)
TEXTS = st.lists(
  st.one_of(
    st.sampled_from([*NASTY, *",.'!?\"()*#:;~-/ <>"]), st.text(CHARACTERS)
  )
).map("".join)


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory):
  """A cleaning of SigLIP alone, as a function of its name and a caption."""
  tmp_path = tmp_path_factory.mktemp("words")
  save_words(tmp_path, ["<pad>"])

  def clean(kind, caption):
    words = tokenizer.pretrained_tokenizer(tmp_path, length=3, clean=kind)
    whole = tokenizers.Tokenizer.from_str(words.text)
    return whole.normalizer.normalize_str(caption)

  return clean


def save_words(folder, words):
  """Writes a tokenizer of whole words."""
  ids = {word: i for i, word in enumerate(words)}
  whole = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, words[0]))
  whole.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  whole.save(str(folder / "tokenizer.json"))


class TestCleaning:
  @settings(max_examples=500, deadline=None, derandomize=True)
  @given(TEXTS)
  @example("A dog-runs! (it's #1)  <PERSON>/<person> ~")
  @example("<per.son> <<person>> - / -")
  @example("\u00a0 nbsp\u3000wide \u0085")
  def test_as_published(self, clean, caption):
    expected = published_cleaning(caption)
    assert clean.normalize_str(caption) == expected
    assert cleaning.cleaned(caption, True) == expected

  @settings(max_examples=300, deadline=None, derandomize=True)
  @given(
    st.one_of(
      st.text(string.printable.replace("\x0b", "").replace("\x0c", "")),
      st.lists(st.sampled_from(["Dog", "s", "ing", "-", "!", " "])).map(
        "".join
      ),
    )
  )
  @example("The person runs-running: <PERSON>'s dogs & an e_mail @ 50%")
  def test_tokens(self, words, caption):
    if "[" in caption:  # "[CLS]" in a caption is the token itself, as in BERT
      caption = caption.replace("[", "")
    found = words.encode([caption])[0].tolist()
    assert found == encode(caption, words.length)

  def test_not_cleaned(self, folder):
    plain = tokenizer.pretrained_tokenizer(folder, length=8, clean=False)
    cleaned = tokenizer.pretrained_tokenizer(folder, length=8)
    caption = ["DOG!  the"]
    dog, the, unknown = IDS["dog"], IDS["the"], IDS["[UNK]"]
    assert plain.encode(caption)[0, 1:4].tolist() == [dog, unknown, the]
    assert cleaned.encode(caption)[0, 1:3].tolist() == [dog, the]

  @settings(max_examples=300, deadline=None, derandomize=True)
  @given(TEXTS)
  @example("A dog-runs!  (it's #1)\n [CLS] <a_b> `~^")
  def test_canonicalize(self, cleaned, caption):
    """As SigLIP's code: no ASCII punctuation, lower case, single spaces.

    That of transformers takes the underscore for punctuation like any other,
    and removes it only from lower case, which matters after a sigma.
    """
    remove = str.maketrans("", "", string.punctuation)
    for kind, kept in (
      ("remove_punctuation", caption.lower().translate(remove)),
      ("canonicalize", caption.replace("_", " ").translate(remove).lower()),
    ):
      expected = " ".join(kept.split())
      assert cleaned(kind, caption) == expected
      assert cleaning.cleaned(caption, kind) == expected

  @pytest.mark.parametrize(
    ("caption", "right"),
    [  # What open_clip_torch 3.3.0 makes of them with clean="whitespace".
      ("a dog&#39;s mat", "a dog's mat"),
      ("a dog&amp;#39;s mat", "a dog's mat"),
      ("a dog\u2019s mat", "a dog's mat"),
      ("two&nbsp;cats  on\na mat ", "two cats on a mat"),
      ("black &amp; white, A < B", "black & white, A < B"),
      ("schÃ¶n und ﬁt", "schön und fit"),
      ("&lt;b&gt;bold&lt;/b&gt; ＬＯＵＤ", "<b>bold</b> LOUD"),
      ("\x1b[36;44mblue\x1b[0m\x00", "blue"),
      ("", ""),
    ],
  )
  def test_repair(self, tmp_path, caption, right):
    assert cleaning.repaired(caption) == right
    save_words(tmp_path, ["<pad>", *sorted({*right.split(), *caption.split()})])
    raw, words = (
      tokenizer.pretrained_tokenizer(tmp_path, length=9, clean=False, repair=x)
      for x in (False, True)
    )
    np.testing.assert_array_equal(words.encode([caption]), raw.encode([right]))

  @settings(max_examples=300, deadline=None, derandomize=True)
  @given(st.text(string.printable.replace("&", "")))
  def test_what_needs_no_repair(self, caption):
    """ftfy finds nothing in printable ASCII, and need not be asked."""
    whole = html.unescape(html.unescape(ftfy.fix_text(caption)))
    assert cleaning.repaired(caption) == " ".join(whole.split())

  @pytest.mark.parametrize(
    "kind", ["none", "lower", "canonicalize", "remove_punctuation"]
  )
  def test_odd_captions(self, kind):
    """Cleaned by open_clip_torch 3.3.0, and by SigLIP's in transformers 5."""
    golden = json.loads((GOLDEN / "captions.json").read_text())
    for caption, expected in zip(golden["captions"], golden[kind], strict=True):
      if kind == "remove_punctuation":  # by the tokenizer: nothing is repaired
        whole = cleaning.normalizer_of(kind).normalize_str(caption)
        assert whole == cleaning.cleaned(caption, kind) == expected
      else:
        repaired = cleaning.repaired(caption)
        assert cleaning.cleaned(repaired, kind != "none" and kind) == expected

  def test_lower(self, tmp_path):
    save_words(tmp_path, ["<pad>", "a", "A", "!"])
    words = tokenizer.pretrained_tokenizer(tmp_path, length=4, clean="lower")
    assert words.encode(["A !"]).tolist() == [[1, 3, 0, 0]]

  def test_cleaning_leaves_no_special_token(self, tmp_path):
    """OpenCLIP cleans whole captions: what looks like a token is text, too."""
    save_words(tmp_path, ["<pad>", "a", "end"])
    path = tmp_path / "tokenizer.json"
    words = tokenizers.Tokenizer.from_file(str(path))
    words.add_special_tokens(["<|end|>"])
    words.save(str(path))
    read = functools.partial(
      tokenizer.pretrained_tokenizer, path, length=4, clean="canonicalize"
    )
    assert read(repair=True).encode(["a <|end|>"]).tolist() == [[1, 2, 0, 0]]
    # transformers looks for tokens first.
    assert read().encode(["a <|end|>"]).tolist() == [[1, 3, 0, 0]]

  def test_unknown_cleaning(self, folder):
    with pytest.raises(ValueError, match="clean must be .*'canonicalize'"):
      tokenizer.pretrained_tokenizer(folder, length=8, clean="Lower")

  def test_accents_go(self, words):
    found = words.encode(["Dög", "dog"])
    np.testing.assert_array_equal(*found)


class TestFiles:
  CAPTIONS = ("The dog-runs", "a person's dogs", "", "running " * 30)

  def test_all_kinds(self, folder, words, tmp_path):
    expected = words.encode(self.CAPTIONS)
    assert words.vocab_size == len(VOCABULARY)
    assert tokenizer.pretrained_tokenizer(folder, length=12) == words
    # As others save it: with padding and a length of their own.
    plain = tokenizer.pretrained_tokenizer(folder, length=12, clean=False)
    saved = tokenizers.Tokenizer.from_str(plain.text)
    saved.enable_padding(length=20)
    saved.enable_truncation(5)
    path = tmp_path / "tokenizer.json"
    saved.save(str(path))
    (tmp_path / "vocab.txt").write_text("[PAD]")  # the .json goes first
    for source in (path, tmp_path, str(tmp_path)):
      found = tokenizer.pretrained_tokenizer(source, length=12)
      np.testing.assert_array_equal(found.encode(self.CAPTIONS), expected)

  def test_sentencepiece(self, tmp_path):
    """Of SigLIP or T5 only, whose ids are those of the file.

    What the ids are is compared with those of transformers in published_test.
    """
    for name in ("spiece.model", "tokenizer_config.json"):
      (tmp_path / name).write_bytes(
        (PUBLISHED / "hf_siglip_t5" / name).read_bytes()
      )
    read = functools.partial(
      tokenizer.pretrained_tokenizer, tmp_path, length=9, pad_id=1
    )
    assert (read().end_id, read().largest_id) == (1, read().vocab_size - 1)
    one, two = (read().encode(["a", "a a"]) == 1).sum(1).tolist()
    assert one - two == 2 and 9 - one == 2  # a space and a letter each
    # A token that a caption spells is that token, as with transformers.
    siglip = read(clean="remove_punctuation")
    assert 2 in siglip.encode(["a<unk>"]) and 0 not in siglip.encode(["<pad>"])
    config = tmp_path / "tokenizer_config.json"
    for content in ('{"tokenizer_class": "AlbertTokenizer"}', "{}"):
      config.write_text(content)
      with pytest.raises(ValueError, match="is read for the tokenizer_class"):
        read()
    config.write_text('{"tokenizer_class": "T5Tokenizer"}')
    assert 0 in read().encode(["a <pad>"])
    data = (tmp_path / "spiece.model").read_bytes()
    for damaged in (b"\xff" * 9, data[:-30], data.replace(b"</s>", b"</x>")):
      (tmp_path / "spiece.model").write_bytes(damaged)
      with pytest.raises(ValueError, match=r"spiece.model cannot be read"):
        read()

  @pytest.mark.parametrize(
    ("name", "content"),
    [
      ("added_tokens.json", {"<toy>": 3, "a": 1}),
      (
        "tokenizer_config.json",
        {"added_tokens_decoder": {"3": {"content": "<toy>"}}},
      ),
    ],
  )
  def test_added_tokens_that_are_lost(self, tmp_path, name, content):
    """Of a slow tokenizer, words that were added are in another file."""
    save_words(tmp_path, ["<pad>", "a", "b"])
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"lacks tokens .*: \['<toy>'\]; give"):
      tokenizer.pretrained_tokenizer(tmp_path, length=4)
    save_words(tmp_path, ["<pad>", "a", "b", "<toy>"])
    tokenizer.pretrained_tokenizer(tmp_path, length=4)

  def test_upper_case_of_bert(self, folder, tmp_path):
    """A vocab.txt does not say whether it has upper case; a config may."""
    (tmp_path / "vocab.txt").write_bytes((folder / "vocab.txt").read_bytes())
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"do_lower_case": true}')
    tokenizer.pretrained_tokenizer(tmp_path, length=8)
    config.write_text('{"do_lower_case": false}')
    with pytest.raises(ValueError, match="with upper case .do_lower_case is"):
      tokenizer.pretrained_tokenizer(tmp_path, length=8)

  def test_line_ends_in_a_vocabulary(self, tmp_path):
    r"""Line i is token i, whatever `splitlines` takes for a line's end."""
    tokens = ["[PAD]", "\u2028", "[UNK]", "\x85", "[CLS]", "[SEP]", "dog"]
    for end in ("\n", "\r\n"):
      path = tmp_path / "vocab.txt"
      path.write_bytes(end.join([*tokens, ""]).encode())
      words = tokenizer.pretrained_tokenizer(path, length=4)
      assert words.vocab_size == 7
      assert words.encode(["dog"]).tolist() == [[4, 6, 5, 0]]

  def test_hub_cache(self, folder, tmp_path):
    """A model that is there needs no network; of others it is missed."""
    model = tmp_path / "hub" / "models--some--model.v1"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("0" * 40)
    snapshot = model / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "vocab.txt").write_bytes((folder / "vocab.txt").read_bytes())
    hidden = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
    env = {k: x for k, x in os.environ.items() if k not in hidden}
    done = subprocess.run(
      [sys.executable, "-c", CACHE],
      env=env | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
      capture_output=True,
      text=True,
    )
    assert done.returncode == 0, done.stderr
    ids, error = done.stdout.splitlines()
    first, last = IDS["[CLS]"], IDS["[SEP]"]
    assert json.loads(ids) == [[first, IDS["dogs"], last, 0, 0, 0, 0, 0]]
    assert "some/other is not a local path" in error
    assert "tokenizer.json or vocab.txt or spiece.model yourself" in error


class TestBuilt:
  CAPTIONS = ("LATIN SMALL LETTER A", "Dots-124", "LATIN CAPITAL LETTER A")

  def test_same_captions_same_vocabulary(self):
    built = [
      tokenizer.build_tokenizer(self.CAPTIONS, length=8) for _ in range(3)
    ]
    assert built[0] == built[1] == built[2]

  def test_words_are_one_token_and_unseen_ones_are_spelled(self):
    words = tokenizer.build_tokenizer(self.CAPTIONS, length=8)
    ids = words.encode(["letter dots latin", "latte", "\u4e00"])
    assert ids.dtype == np.int32 and ids.shape == (3, 8)
    assert np.count_nonzero(ids, axis=1).tolist() == [3, 5, 1]
    assert ids[2, 0] == 1  # unknown
    assert ids.max() < words.vocab_size

  def test_no_captions(self):
    with pytest.raises(ValueError, match="needs captions"):
      tokenizer.build_tokenizer([], length=8)

  @pytest.mark.parametrize(
    "captions, other",
    [
      (("一只狗在草地上奔跑", "一只猫在睡觉"), "一只猫在草地上奔跑。"),
      (("いぬがカフェで寝る",), "カで、いぬ"),
      (("หมาวิ่งบนหญ้า", "แมวนอน"), "แมววิ่ง"),
      (("ໝາແລ່ນ",), "ແລ່ໝ"),
      (("ឆ្កែរត់",), "រត់ឆ្"),
      (("ခွေးပြေး",), "ပြေးခွ"),
    ],
  )
  def test_characters_of_scripts_without_spaces_are_words(
    self, captions, other
  ):
    """Another caption has no id that training has not seen."""
    words = tokenizer.build_tokenizer(captions, length=30, first_and_last=True)
    trained, found = words.encode(captions), words.encode([other])
    assert set(found.flat) <= set(trained.flat)
    spoken = [c for c in other if unicodedata.category(c)[0] in "LM"]
    assert np.count_nonzero(found) == len(spoken) + 2
    # No continuing pieces, which would have no use.
    encoder = tokenizers.Tokenizer.from_str(words.text)
    assert not any(x.startswith("##") for x in encoder.get_vocab())

  def test_captions_of_two_scripts(self):
    captions = ["我的iPhone手机", "the IPHONE, 2019年"]
    words = tokenizer.build_tokenizer(captions, length=8)
    first, second = words.encode(captions).tolist()
    assert first[2] == second[1] and first[5:] == [0, 0, 0]  # iphone
    assert np.count_nonzero(second) == 4  # the iphone 2019 年
    assert words.encode(["iphone年"])[0, :2].tolist() == [first[2], second[3]]

  @pytest.mark.parametrize(
    "captions, digest",
    [
      (
        ("Ein Hund läuft!", "der große Hund", "e\u0301te\u0301 12.5"),
        "749de2320f1106f5",
      ),
      (
        (
          "강아지가 풀밭에서 달린다",
          "собака бежит",
          "الكلب يجري",
          "कुत्ता दौड़ता",
        ),
        "7f678816f3a5e2da",
      ),
      (("x" * 100,), "b07fbef58679d79e"),
    ],
  )
  def test_scripts_with_spaces_keep_their_ids(self, captions, digest):
    """Runs of earlier versions go on, and so do their exports."""
    text = tokenizer.build_tokenizer(captions, length=8).text
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest

  def test_long_captions_without_spaces(self, caplog):
    captions = ["狗" * 101, "猫" * 101, "a" * 101, "b" * 999]
    words = tokenizer.build_tokenizer(captions, length=8)
    rows = words.encode(captions)
    assert len(np.unique(rows, axis=0)) == 4 and 1 not in rows
    assert not caplog.records
    captions.append("c" * 1_001)
    words = tokenizer.build_tokenizer(captions, length=8)
    assert words.encode(captions)[4].tolist() == [1, *[0] * 7]
    (line,) = caplog.messages
    assert line.startswith("1 words of the training captions have more than")
    assert "ccc...; put spaces" in line

  def test_an_exported_one_reads_the_same(self, tmp_path):
    """Its file says how captions are cut."""
    captions = ["一只狗在草地上奔跑", "a dog " * 3, "x" * 150]
    words = tokenizer.build_tokenizer(captions, length=12, first_and_last=True)
    (tmp_path / "tokenizer.json").write_text(words.text, encoding="utf-8")
    exported = tokenizer.pretrained_tokenizer(tmp_path, length=12, clean=False)
    captions.append("一只猫 and a dog")
    np.testing.assert_array_equal(
      exported.encode(captions), words.encode(captions)
    )


class TestLength:
  @pytest.mark.parametrize("length", [3, 5, 9])
  def test_the_last_token_stays(self, folder, length):
    words = tokenizer.pretrained_tokenizer(folder, length=length)
    found = words.encode(["a dog an dogs and runs the person " * 9, "dog"])
    assert found.dtype == np.int32 and found.shape == (2, length)
    assert found[0, 0] == IDS["[CLS]"] and found[0, -1] == IDS["[SEP]"]
    first = ["a", "dog", "an", "dogs", "and", "runs", "the"][: length - 2]
    assert found[0, 1:-1].tolist() == [IDS[x] for x in first]
    assert found[1, :3].tolist() == [IDS[x] for x in ("[CLS]", "dog", "[SEP]")]
    assert not found[1, 3:].any()

  def test_what_is_cut(self, folder):
    """A caption is whole if a longer row holds no more of it."""
    captions = ["", "a dog", "a dog runs", "dogs running per person"]
    short, long = (
      tokenizer.pretrained_tokenizer(folder, length=n) for n in (5, 50)
    )
    whole = np.count_nonzero(long.encode(captions), axis=1) <= 5
    np.testing.assert_array_equal(short.is_cut(captions), ~whole)
    assert set(whole) == {True, False} and short.is_cut([]).shape == (0,)

  def test_padding_is_not_cut(self, tmp_path):
    """Padding after the end is no part of a caption."""
    save_words(tmp_path, ["?", "</s>", "a", "dog"])
    words = tokenizer.pretrained_tokenizer(
      tmp_path, length=3, clean=False, pad_id=1
    )
    assert words.is_cut(["a", "a a dog", "a a a dog"]).tolist() == [
      *(False, False, True)
    ]

  def test_where_captions_end(self, folder, tmp_path):
    """With the same id, cut or not; padding does not count."""
    bert = tokenizer.pretrained_tokenizer(folder, length=4)
    assert (bert.end_id, bert.largest_id) == (IDS["[SEP]"], len(IDS) - 1)
    save_words(tmp_path, ["<pad>", "</s>", "a", "dog"])
    plain = tokenizer.pretrained_tokenizer(tmp_path, length=4, pad_id=1)
    assert plain.end_id is None
    saved = tokenizers.Tokenizer.from_str(plain.text)
    saved.post_processor = tokenizers.processors.TemplateProcessing(
      single="$A dog", special_tokens=[("dog", 3)]
    )
    saved.save(str(tmp_path / "tokenizer.json"))
    ended = tokenizer.pretrained_tokenizer(tmp_path, length=4, pad_id=1)
    assert ended.end_id == 3

  def test_first_and_last_of_built_ones(self):
    captions = ["DIGIT ONE", "DIGIT TWO"]
    words = tokenizer.build_tokenizer(captions, length=4, first_and_last=True)
    plain = tokenizer.build_tokenizer(captions, length=4)
    assert words.vocab_size == plain.vocab_size + 2
    found = words.encode(["digit two", "one two one two", ""])
    inner = plain.encode(["digit two", "one two"])[:, :2] + 1
    last = words.vocab_size - 1  # the largest, for CLIP's text tower
    assert found[:, 0].tolist() == [2, 2, 2]
    np.testing.assert_array_equal(found[:2, 1:3], inner)
    assert found[:2, 3].tolist() == [last, last]
    assert found[2].tolist() == [2, last, 0, 0]


WORD_PIECE = dict(
  type="WordPiece",
  unk_token="[UNK]",
  continuing_subword_prefix="##",
  max_input_chars_per_word=100,
  vocab={"a": 0, "dog": 1},
)
BPE = dict(type="BPE", vocab={"a": 0, "dog": 1}, merges=[])
UNIGRAM = dict(type="Unigram", vocab=[["a", -1.0], ["dog", -1.0]])
UNKNOWN_ID = "has no id for what it does not know: add its unknown token"


class TestForged:
  """What the library does with files that nobody meant."""

  def open(self, tmp_path, **changes):
    save_words(tmp_path, ["<unk>", "a", "dog"])
    path = tmp_path / "tokenizer.json"
    spec = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(spec))
    return tokenizer.pretrained_tokenizer(tmp_path, length=4)

  @pytest.mark.parametrize(
    "model",
    [
      WORD_PIECE,
      dict(type="WordLevel", vocab={"a": 0, "dog": 1}, unk_token="<unk>"),
      BPE | dict(unk_token="<unk>"),
      UNIGRAM | dict(unk_id=None),  # as the library's own trainer leaves it
    ],
    ids=lambda x: x["type"],
  )
  def test_without_its_unknown_token(self, tmp_path, model):
    """The library fails at the first caption that needs it, hours later."""
    with pytest.raises(ValueError, match=UNKNOWN_ID) as error:
      self.open(tmp_path, model=model)
    assert "tokenizer.json" in str(error.value)

  def test_that_needs_none(self, tmp_path):
    """Those whose pieces are bytes know every text."""
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {x: i for i, x in enumerate(sorted(letters))}
    model = BPE | dict(vocab=vocabulary, unk_token="<unk>")
    step = dict(
      type="ByteLevel",
      add_prefix_space=False,
      trim_offsets=True,
      use_regex=True,
    )
    words = self.open(tmp_path, model=model, pre_tokenizer=step)
    assert words.encode(["\u2603"]).tolist() == [
      [vocabulary[x] for x in ("\u00e2", "\u013a", "\u0125")] + [0]
    ]

  @pytest.mark.parametrize(
    "changes",
    [
      dict(
        post_processor=dict(
          type="TemplateProcessing",
          single=[{"SpecialToken": {"id": "</s>", "type_id": 0}}],
          pair=[],
          special_tokens={},
        )
      ),
      dict(
        post_processor=dict(
          type="TemplateProcessing",
          single=[{"Sequence": {"id": "B", "type_id": 0}}],
          pair=[],
          special_tokens={},
        )
      ),
      dict(normalizer=dict(type="Precompiled", precompiled_charsmap="AAAA")),
      dict(
        normalizer=dict(
          type="Precompiled", precompiled_charsmap="BAAAAAAEAABhYmNkZWY="
        )
      ),
      dict(pre_tokenizer=dict(type="FixedLength", length=0)),
    ],
  )
  def test_panics(self, tmp_path, changes, capfd):
    """They are no exceptions, and write to the terminal past Python."""
    with pytest.raises(ValueError, match="tokenizer.json .*gave up"):
      self.open(tmp_path, **changes)
    assert "panicked" not in capfd.readouterr().err

  def test_large_ids(self, tmp_path):
    """The library makes room for all ids below the largest."""
    with pytest.raises(ValueError, match="has the id 2147483648; .*16,777,216"):
      model = dict(type="WordLevel", unk_token="a", vocab={"a": 0, "b": 2**31})
      self.open(tmp_path, model=model)
    with pytest.raises(ValueError, match="gives the id 4294967295"):
      end = dict(type="BertProcessing", sep=["a", 2**32 - 1], cls=["a", 0])
      self.open(tmp_path, post_processor=end)

  def test_ids_with_a_gap(self, tmp_path):
    """A tower needs an embedding for the largest, however few there are."""
    model = dict(type="WordLevel", unk_token="a", vocab={"a": 0, "b": 8})
    words = self.open(tmp_path, model=model)
    assert words.vocab_size == 9
    assert words.encode(["b"]).tolist() == [[8, 0, 0, 0]]

  @pytest.mark.parametrize(
    "step",
    [
      dict(
        type="Sequence",
        normalizers=[
          dict(type="Replace", pattern={"String": "a"}, content="aa")
        ]
        * 40,
      ),
      dict(type="Replace", pattern={"Regex": ""}, content="x" * 20_000),
      dict(type="Prepend", prepend="x" * 20_000),
      # Each round makes 18 characters of one, four of which are that one again.
      dict(
        type="Sequence",
        normalizers=[
          dict(type="Replace", pattern={"String": "\u0644"}, content="\ufdfa"),
          dict(type="NFKD"),
        ]
        * 14,
      ),
      dict(
        type="Precompiled",
        precompiled_charsmap=base64.b64encode(
          b"\4\0\0\0" + bytes(4) + b"x" * 5_000 + b"\0"
        ).decode(),
      ),
    ],
  )
  def test_captions_that_grow(self, tmp_path, step):
    with pytest.raises(ValueError, match="may make a caption .* times as long"):
      self.open(tmp_path, normalizer=step)

  def test_growth_of_published_ones(self, tmp_path):
    """What ALBERT, T5 and Llama do together is no growth to speak of."""
    steps = [
      dict(type="Replace", pattern={"String": "``"}, content='"'),
      dict(type="Replace", pattern={"String": "''"}, content='"'),
      dict(type="NFKD"),
      dict(type="StripAccents"),
      dict(type="Replace", pattern={"Regex": " {2,}"}, content=" "),
      dict(type="Replace", pattern={"String": " "}, content="\u2581"),
      dict(type="Prepend", prepend="\u2581"),
    ]
    self.open(tmp_path, normalizer=dict(type="Sequence", normalizers=steps))

  def test_words_without_end(self, tmp_path):
    """The time for a word would be the cube of its letters."""
    model = dict(type="WordPiece", unk_token="a", vocab={"a": 0, "##a": 1})
    model |= dict(
      continuing_subword_prefix="##", max_input_chars_per_word=2**40
    )
    with pytest.raises(ValueError, match="words of up to 1099511627776"):
      self.open(tmp_path, model=model)

  def test_dropout_of_words(self, tmp_path, caplog):
    """The same caption has the same embedding every time."""
    model = BPE | dict(vocab={"a": 0, "b": 1, "ab": 2}, merges=["a b"])
    words = self.open(tmp_path, model=model | dict(dropout=0.5))
    ids = words.encode(["ab"] * 50)
    assert (ids == [[2, 0, 0, 0]]).all() and "at random" in caplog.text

  def test_more_tokens_than_fit(self, tmp_path):
    piece = {"Sequence": {"id": "A", "type_id": 0}}
    twice = dict(
      type="TemplateProcessing", single=[piece] * 2, pair=[], special_tokens={}
    )
    with pytest.raises(ValueError, match="makes 8 tokens .*, and 4 are asked"):
      self.open(tmp_path, post_processor=twice)

  def test_a_number_of_sentencepiece_that_does_not_end(self):
    with pytest.raises(ValueError, match="not a file of sentencepiece"):
      sentencepiece.from_sentencepiece(b"\x08" + b"\x80" * 10**6)


class TestErrors:
  def write(self, tmp_path, tokens):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(tokens))
    return path

  def test_too_short(self, folder):
    with pytest.raises(ValueError, match="at least 3 tokens, got 2"):
      tokenizer.pretrained_tokenizer(folder, length=2)

  def test_another_padding(self, tmp_path):
    path = self.write(tmp_path, ["[UNK]", "[PAD]", "[CLS]", "[SEP]"])
    with pytest.raises(ValueError, match="pads with id 1"):
      tokenizer.pretrained_tokenizer(path, length=8)

  def test_padding_of_roberta(self, tmp_path):
    save_words(tmp_path, ["<s>", "<pad>", "</s>", "<unk>"])
    with pytest.raises(ValueError, match="pads with id 1, <pad>, not with 0"):
      tokenizer.pretrained_tokenizer(tmp_path, length=8)

  def test_padding_of_siglip(self, tmp_path):
    save_words(tmp_path, ["<unk>", "</s>", "a", "dog"])
    words = tokenizer.pretrained_tokenizer(tmp_path, length=4, pad_id=1)
    assert words.pad_id == 1
    assert words.encode(["a dog", "dog a dog a a"]).tolist() == [
      [2, 3, 1, 1],
      [3, 2, 3, 2],
    ]
    # The vocabulary of its first models has a <pad>, with which none is padded.
    save_words(tmp_path, ["<pad>", "</s>", "a", "dog"])
    words = tokenizer.pretrained_tokenizer(tmp_path, length=4, pad_id=1)
    assert words.encode(["a dog"]).tolist() == [[2, 3, 1, 1]]
    with pytest.raises(ValueError, match="one of the 4 ids of .*, got 4"):
      tokenizer.pretrained_tokenizer(tmp_path, length=4, pad_id=4)

  def test_ids_of_the_tower(self, tmp_path):
    """Towers may have more ids than the tokenizer, or, unused, fewer."""
    save_words(tmp_path, ["<unk>", "a", "dog"])
    more = tokenizer.pretrained_tokenizer(tmp_path, length=3, vocab_size=9)
    assert more.vocab_size == 9
    fewer = tokenizer.pretrained_tokenizer(tmp_path, length=3, vocab_size=2)
    assert fewer.encode(["a"]).tolist() == [[1, 0, 0]]
    with pytest.raises(ValueError, match="gave id 2, .* the text tower has 2"):
      fewer.encode(["dog"])

  def test_no_vocabulary_of_bert(self, tmp_path):
    path = self.write(tmp_path, ["[PAD]", "[UNK]", "a"])
    with pytest.raises(
      ValueError, match=r"vocab.txt .* lacks .*'\[CLS\]', '\[SEP\]'"
    ):
      tokenizer.pretrained_tokenizer(path, length=8)

  @pytest.mark.parametrize("text", ["", "{", '{"no": "tokenizer"}'])
  def test_no_tokenizer(self, tmp_path, text):
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a tokenizer"):
      tokenizer.pretrained_tokenizer(path, length=8)

  def test_no_file(self, tmp_path):
    for name in ("vocab.txt", "no such folder/x"):
      with pytest.raises(
        ValueError, match="does not exist; give a file, a folder"
      ):
        tokenizer.pretrained_tokenizer(tmp_path / name, length=8)

  def test_an_empty_folder(self, tmp_path):
    (tmp_path / "config.json").touch()
    with pytest.raises(
      ValueError, match=r"none of tokenizer.json, vocab.txt, spiece.model; "
    ):
      tokenizer.pretrained_tokenizer(tmp_path, length=8)


class TestFind:
  def test_the_best_name(self, tmp_path, monkeypatch):
    for name in ("b", "c"):
      (tmp_path / name).touch()
    assert hub.find_file(tmp_path, ["a", "b", "c"]) == tmp_path / "b"
    assert hub.find_file(tmp_path / "c", ["a", "b"]) == tmp_path / "c"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.find_file("~/c", ["a"]) == pathlib.Path(tmp_path / "c")

  NAMES = ("tokenizer.json", "vocab.txt")

  @pytest.mark.parametrize(
    "cached, on_hub, expected",
    [
      # The best there is, though the second best is in the cache.
      (["vocab.txt"], ["tokenizer.json", "vocab.txt"], "hub/tokenizer.json"),
      (["vocab.txt"], ["vocab.txt"], "cache/vocab.txt"),
      ([], ["vocab.txt"], "hub/vocab.txt"),
      (["tokenizer.json"], None, "cache/tokenizer.json"),  # no network
      (["vocab.txt"], None, "cache/vocab.txt"),
      ([], [], "on the hub has none of"),
      ([], None, "could not be downloaded from the hub"),
    ],
  )
  def test_the_cache_does_not_decide(
    self, monkeypatch, cached, on_hub, expected
  ):
    def from_cache(repository, name):
      return f"cache/{name}" if name in cached else None

    def download(repository, name):
      if on_hub is None:
        raise errors.LocalEntryNotFoundError("no network")
      if name not in on_hub:
        raise errors.EntryNotFoundError(name)
      return f"hub/{name}"

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", from_cache)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    if "/" in expected:
      found = hub.find_file("some/model", self.NAMES)
      assert found == pathlib.Path(expected)
    else:
      with pytest.raises(ValueError, match=expected):
        hub.find_file("some/model", self.NAMES)


def test_a_length_that_leaves_no_room_for_text():
  made = tokenizer.build_tokenizer(["a dog"], length=4, first_and_last=True)
  with pytest.raises(ValueError, match="length of 1 .* raise data.length"):
    made._replace(length=1).encode(["a dog"])
