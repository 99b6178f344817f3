"""Forged weights of models for `chaos`: pickles, msgpack, indexes."""

import io
import json
import math
import pickle
import struct
import zipfile

from chaos_models import model
import numpy as np


def weights(name, content, says="", **expected):
  """The weights of a model in a file that is forged, and in no other."""

  def forge(folder, rng):
    from safetensors import numpy as safetensors

    tensors = safetensors.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(content(tensors))

  forge.__name__ = f"{name} {content.__name__}"
  said = says or name.replace(".", r"\.")
  return model("hf_clip", forge, said, **({"codes": (1, 2)} | expected))


class Global:
  """What a pickle calls by name."""

  def __init__(self, module, name):
    self.module, self.name = module, name


class Call:
  def __init__(self, function, *arguments):
    self.function, self.arguments = function, arguments


class Stored:
  """A storage, which a pickle refers to by its key."""

  def __init__(self, key, count, kind="FloatStorage"):
    self.key, self.count, self.kind = key, count, kind


class Raw:
  """The codes of a pickle as they are."""

  def __init__(self, codes):
    self.codes = codes


def pickled(x) -> bytes:
  """Writes the few things that the pickles of PyTorch consist of."""
  if isinstance(x, Raw):
    return x.codes
  if isinstance(x, Global):
    return f"c{x.module}\n{x.name}\n".encode()
  if isinstance(x, Call):
    return pickled(x.function) + pickled(tuple(x.arguments)) + b"R"
  if isinstance(x, Stored):
    saved = ("storage", Global("torch", x.kind), x.key, "cpu", x.count)
    return pickled(saved) + b"Q"
  if isinstance(x, tuple):
    return b"(" + b"".join(map(pickled, x)) + b"t"
  if isinstance(x, dict):
    items = b"".join(pickled(k) + pickled(v) for k, v in x.items())
    return b"}(" + items + b"u"
  return pickle.dumps(x, 2)[2:-1]


def tensor(storage, first, shape, strides):
  rebuild = Global("torch._utils", "_rebuild_tensor_v2")
  return Call(rebuild, storage, first, shape, strides, False, {})


def archive(content, storages) -> bytes:
  """A file of `torch.save`."""
  out = io.BytesIO()
  with zipfile.ZipFile(out, "w") as file:
    file.writestr("x/data.pkl", b"\x80\2" + pickled(content) + b".")
    for key, data in storages.items():
      file.writestr(f"x/data/{key}", data)
    file.writestr("x/version", "3\n")
  return out.getvalue()


def legacy(content, storages) -> bytes:
  """A file of PyTorch before 1.6; `storages` are counts and bytes by key."""
  magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
  sizes = pickle.dumps({"little_endian": True}, 2)
  body = b"\x80\2" + pickled(content) + b"." + pickle.dumps(list(storages), 2)
  for count, data in storages.values():
    body += struct.pack("<q", count) + data
  return magic + sizes + body


def steps(shape):
  return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def tensors_of(arrays, first=None):
  """The tensors of a model, and their storages; `first` is in place of one."""
  content, storages = {}, {}
  for number, (name, x) in enumerate(arrays.items()):
    x = np.ascontiguousarray(x, np.float32)
    stored = Stored(str(number), x.size)
    content[name] = tensor(stored, 0, x.shape, steps(x.shape))
    storages[str(number)] = x.tobytes()
  if first:
    name = next(name for name, x in arrays.items() if x.ndim == 2)
    shape = arrays[name].shape
    content[name] = first(Stored("0", arrays[next(iter(arrays))].size), shape)
  return content, storages


def of_archive(first):
  def content(arrays):
    return archive(*tensors_of(arrays, first))

  content.__name__ = first.__name__
  return content


def memory_of_others(storage, shape):
  """A tensor in place of a storage: it claims to be long, and is not."""
  long = tensor(storage, 0, (2**40,), (0,))
  return tensor(long, 64, shape, steps(shape))


def memory_before(storage, shape):
  return tensor(tensor(storage, 0, (2**40,), (0,)), 2**20, shape, (0, 0))


def a_tensor_in_a_tensor(storage, shape):
  whole = tensor(storage, 0, (1,), (1,))
  return tensor(whole, 0, shape, (0, 0))


def a_shape_of_tuples(storage, shape):
  return tensor(storage, 0, ((2, 3),), ((1, 1),))


def a_negative_stride(storage, shape):
  return tensor(storage, 5, shape, (-1, -1))


def a_float_offset(storage, shape):
  return tensor(storage, 1e300, shape, steps(shape))


def all_of_one(storage, shape):
  """A tensor of 4 TB over one number."""
  return tensor(storage, 0, (2**20, 2**20), (0, 0))


def a_long_storage(storage, shape):
  return tensor(Stored("0", 2**62), 0, shape, steps(shape))


def a_call(module, name, *arguments):
  def first(storage, shape):
    return Call(Global(module, name), *arguments)

  first.__name__ = f"a call of {module}.{name}"
  return first


def left_out_storages(arrays):
  """A legacy file that lacks the numbers: what was in memory is read."""
  content, _ = tensors_of(arrays)
  return legacy(content, {})


def left_out_one(arrays):
  content, stored = tensors_of(arrays)
  some = {k: (len(x) // 4, x) for k, x in list(stored.items())[1:]}
  return legacy(content, some)


def nested(count=60):
  """Codes of a tuple that holds another one twice, which does so, too."""
  pairs = (b"h%ch%c\x86q%c0" % (i, i, i + 1) for i in range(count))
  return Raw(b"K\1q\x000" + b"".join(pairs) + b"h%c" % count)


def tuples_as_a_key(arrays):
  return archive(Raw(b"}" + nested().codes + b"K\1s"), {})


def tuples_as_a_shape(arrays):
  x = tensor(Stored("0", 4), 0, nested(), nested())
  return archive({"x": x}, {"0": bytes(16)})


def tuples_as_a_storage(arrays):
  return archive(Raw(nested().codes + b"Q"), {})


def tuples_as_an_offset(arrays):
  x = tensor(Stored("0", 4), nested(), (1,), (1,))
  return archive({"x": x}, {"0": bytes(16)})


def many_numbers(arrays):
  """Names of many storages, each of them a part of the same few bytes."""
  content = {
    f"x{i}": tensor(Stored("0", 1), 0, (2**28,), (0,)) for i in range(400)
  }
  return archive(content, {"0": bytes(4)})


def deep(arrays):
  return archive(Raw(b"(" * 10**5 + b"t" * 10**5), {})


def a_long_number(arrays):
  return archive({"x": Raw(b"\x8b" + struct.pack("<i", 2**31 - 1))}, {})


def a_reduce(arrays):
  return archive(Call(Global("os", "system"), "touch ESCAPED"), {})


def a_bomb(arrays):
  """A pickle of 60 MB in some kilobytes."""
  out = io.BytesIO()
  with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
    file.writestr("x/data.pkl", b"\x80\2" + b"N0" * (3 * 10**7) + b"}.")
  return out.getvalue()


BIN = "pytorch_model.bin"
WEIGHTS = [
  *(
    weights(BIN, of_archive(x))
    for x in (
      memory_of_others,
      memory_before,
      a_tensor_in_a_tensor,
      all_of_one,
      a_shape_of_tuples,
      a_negative_stride,
      a_float_offset,
      a_long_storage,
      a_call("os", "system", "touch ESCAPED"),
      a_call("builtins", "eval", "open('ESCAPED', 'w')"),
      a_call("torch.storage", "_load_from_bytes", b"cos\nsystem\n(S'ls'\ntR."),
    )
  ),
  *(
    weights(BIN, x)
    for x in (
      left_out_storages,
      left_out_one,
      tuples_as_a_key,
      tuples_as_a_shape,
      tuples_as_a_storage,
      tuples_as_an_offset,
      many_numbers,
      deep,
      a_long_number,
      a_reduce,
      a_bomb,
    )
  ),
]


# Flax's own files, which older published models have.
def msgpack(name, content):
  def forged(arrays):
    return content

  forged.__name__ = name
  return weights("flax_model.msgpack", forged, "msgpack|has none of")


def extension(code, data):
  return b"\xc9" + struct.pack(">Ib", len(data), code) + data


def an_array(shape, kind=b"float32", data=bytes(4)):
  """What Flax writes for an array: an extension with shape, type and bytes."""
  sizes = b"".join(b"\xcf" + struct.pack(">Q", x % 2**64) for x in shape)
  head = b"\x93\xdc" + struct.pack(">H", len(shape)) + sizes
  name = b"\xc4" + bytes([len(kind)]) + kind
  return extension(
    1, head + name + b"\xc6" + struct.pack(">I", len(data)) + data
  )


def a_map_of(value, key=b"\xa1x"):
  return b"\x81" + key + value


MSGPACK = [
  msgpack("nothing", b""),
  msgpack("a number", b"\x07"),
  msgpack("garbage", b"\xc1" * 99),
  msgpack("cut off", a_map_of(an_array((1,)))[:-3]),
  msgpack("a large shape", a_map_of(an_array((2**40,)))),
  msgpack("a negative shape", a_map_of(an_array((-1,)))),
  msgpack("a shape of 0", a_map_of(an_array((0, 2**62)))),
  msgpack("a long shape", a_map_of(an_array((1,) * 70))),
  msgpack("objects", a_map_of(an_array((1,), b"O", bytes(8)))),
  msgpack("no type", a_map_of(an_array((1,), b"nothing"))),
  msgpack("a type with a size", a_map_of(an_array((1,), b"V2147483647"))),
  msgpack("a map that is long", b"\xdf\xff\xff\xff\xff"),
  msgpack("a list that is long", b"\xdd\xff\xff\xff\xff"),
  msgpack("bytes that are long", b"\xc6\xff\xff\xff\xff"),
  msgpack("deep", b"\x81\xa1x" * 10**5 + b"\x07"),
  msgpack("deep lists", b"\x91" * 10**5),
  msgpack("keys that are no texts", a_map_of(an_array((1,)), b"\x07")),
  msgpack("a key that is a map", a_map_of(b"\x07", b"\x80")),
  msgpack("another extension", a_map_of(extension(42, b"x"))),
  msgpack("an empty extension", a_map_of(extension(1, b""))),
  msgpack(
    "extensions in each other", a_map_of(extension(1, extension(1, b"")))
  ),
  msgpack(
    "chunks",
    a_map_of(
      b"\x82\xae__msgpack_chunks__"[:1]
      + b"\xb2__msgpack_chunks__\xc3\xa5shape\x80"
    ),
  ),
]


# The index of several files.
def index(names):
  def change(folder, rng):
    place = str(names)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    found = place.replace("CANARY", str(folder.parents[1] / "canary"))
    text = json.dumps({"weight_map": {"logit_scale": found}})
    (folder / "model.safetensors.index.json").write_text(text)

  change.__name__ = f"index {names}"
  return model("hf_clip", change, "index|weight")


INDEXES = [
  *map(
    index,
    (
      *("../a.safetensors", "CANARY/file.txt", "s3://other/a", "..", ""),
      *("a.safetensors/", "/dev/zero"),
    ),
  )
]
