"""Captions that go wrong: entities, encodings, forms, emoji, controls."""

import random
import string

SPELLED = [  # that spell a token
  "<|endoftext|>",
  "a <|startoftext|> b",
  "<start_of_text> x <end_of_text>",
  "a </s> b",
  "<pad> <unk> <s>",
  "<bos>x<eos>",
  "a<unk>b",
  "<extra_id_0> x",
  "[CLS] [SEP] [PAD]",
  "<mask> <start_of_turn> <0x41>",
  "&lt;|endoftext|&gt;",
]
FIXED = [
  *("A photo of a Dog!", "two  cats, on a mat", "the dog's mat - a cat"),
  *("I'm sure they've gone; we'll see, he'd say", "e_mail my_file_name.txt"),
  # Entities
  *("a dog&#39;s mat", "a dog&amp;#39;s mat", "&lt;b&gt;bold&lt;/b&gt;"),
  *("two&nbsp;cats", "&eacute;t&eacute; &hearts; &none; &#x1F600; &#0; &#128;"),
  *("&amp;amp;amp;", "AT&T R&D"),
  # Broken encodings
  *(
    "schÃ¶n",
    "donâ€™t",
    "â€œquotedâ€\x9d",
    "Ð¿Ñ€Ð¸Ð²ÐµÑ‚",
    "ã\x81\x93ã\x82\x93",
  ),
  *("ÃƒÂ©", "\ufeffbom", "l’humanitÃ©", "a\ufffdb"),
  # Forms of the same letters
  *("ﬁne ﬂat ﬃ ﬆ", "ＬＯＵＤ ｆｕｌｌ", "①②③ ½ ⅓", "x² y₃", "ｶﾞｷﾞ", "ﷺ"),
  *("Å Å A\u030a", "e\u0301 é", "ſ ß ẞ", "Ⅷ ㎏", "ǅ ǆ", "…  ‥", "µ μ"),
  "한국어 \u1112\u1161\u11ab",
  # Case
  *("ΟΔΟΣ ΣΟΦΟΣ", "Σ", "ΑΣ.", "ΌΣΟΣ ΑΣ'Α", "ΚΌΣΜΟΣ, ΣΣ_Σ-Σ", "İstanbul IŞIK"),
  *("STRASSE Straße", "ŒUVRE", "ПРИВЕТ", "ႠႡ", "Ꭳꭰ", "𐐀𐐨", "𞤀𞤢", "𝕳𝖊𝖑𝖑𝖔"),
  # Emoji
  *("a 😀 cat", "👩‍👩‍👧‍👦 family", "🇩🇪🇫🇷", "👍🏽 ok", "❤️ ☺︎", "1️⃣ #️⃣"),
  # Control characters and spaces
  *("a\x00b", "a\x07b\x1bc", "\x1b[36;44mblue\x1b[0m", "a\x1cb\x1dc\x1ed\x1fe"),
  *(
    "a\x85b",
    "a\u2028b\u2029c",
    "tab\tnew\nline\r\nret\rx\x0bv\x0cf",
    "\x01\x02",
  ),
  *("a\x7fb\x80c\x9f", "a\u200bb\u200cc\u200dd\ufeffe", "a\u00adb", "a\u202eb"),
  *("a\u3000b\u00a0c\u1680d\u2003e\u205ff", "\ue000 private", "\U0010ffff"),
  *("", " ", "\n", "\u00a0", "\u3000\u3000", " a ", "a  b   c", "\u200b", "_"),
  *("__a__b__", "!!!", "▁a ▁ b▁", "</w> a</w>", "a ##b"),
  # Scripts
  *(
    "你好，世界",
    "こんにちは世界",
    "مرحبا بالعالم",
    "שלום עולם",
    "नमस्ते",
    "สวัสดี",
  ),
  *("Ấm áp TIẾNG VIỆT", "Žluťoučký KŮŇ", "naïve CAFÉ", "١٢٣ ۴۵۶ १२३"),
  # Punctuation
  *(string.punctuation, "«quotes» „low“ ‚single‘", "a—b–c‒d―e", "10% $5 €6"),
  *("C++ & C#", "it's '90s rock'n'roll", "http://x.com/a_b?c=d&e=f#g"),
  *("3.14 1,000,000", "50°C ±2 ×3", "(a) [b] {c} <d>", "´`¨^~", "'s 'S 'Ll"),
  # Long
  *("word " * 300, "a" * 3000, "dog," * 400, "😀" * 300, ("x" * 99 + " ") * 50),
]


def captions(mixed: int = 180, noise: int = 120) -> list[str]:
  """Makes captions, always the same.

  Args:
    mixed: How many are put together from pieces of the others.
    noise: How many are of characters from all of Unicode.
  """
  rng = random.Random(0)
  pieces = [p for x in FIXED if len(x) < 60 for p in x.split(" ")]
  joined = [
    rng.choice([" ", "  ", "\n", "", " - ", ", "]).join(
      rng.choice(pieces) for _ in range(rng.randint(1, 9))
    )
    for _ in range(mixed)
  ]
  blocks = (0, 0x17F), (0x180, 0x2FFF), (0x3000, 0xD7FF), (0x10000, 0x1FFFF)
  random_ones = [
    "".join(
      chr(rng.randint(*rng.choice(blocks))) for _ in range(rng.randint(1, 20))
    )
    for _ in range(noise)
  ]
  return list(dict.fromkeys([*FIXED, *SPELLED, *joined, *random_ones]))
