"""`nuclr doctor`: what it says of this machine, and of a broken one."""

from nuclr_jax.lab.cli import doctor


def test_doctor(data_dir, monkeypatch):
  said = []
  assert doctor.examine(data_dir=data_dir, show=said.append)
  assert said[-1] == "all is well"
  assert all(x.startswith(("ok ", "look ")) for x in said[:-1])
  assert any("pairs/s" in x for x in said)
  # What is wrong is said, and everything else is still looked at.
  monkeypatch.setattr(doctor.tiles, "product", lambda a, b: 1.01 * (a @ b))
  monkeypatch.setattr(doctor, "INPUT", "no_such_library")
  monkeypatch.setattr(doctor, "_step", lambda: [])
  said.clear()
  assert not doctor.examine(data_dir=data_dir, show=said.append)
  broken = [x for x in said if x.startswith("BROKEN")]
  assert len(broken) == 2 and said[-1].startswith("2 broken")
  assert "off by" in broken[0] and "no_such_library" in broken[1]
