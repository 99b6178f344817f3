"""ResNet-50 and DistilBERT in PyTorch, for comparison only."""

import torch
import transformers

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


class Towers(torch.nn.Module):
  """Both towers, with random weights, and their projection layers."""

  def __init__(self, dim: int):
    super().__init__()
    try:
      import timm

      self.image = timm.create_model("resnet50", num_classes=0)
    except (ImportError, RuntimeError):  # timm needs torchvision
      self.image = _OfTransformers()
    self.text = transformers.DistilBertModel(transformers.DistilBertConfig())
    self.of_image = torch.nn.Linear(2048, dim)
    self.of_text = torch.nn.Linear(768, dim)
    for name, x in (("mean", MEAN), ("std", STD)):
      x = 255 * torch.tensor(x)[None, :, None, None]
      self.register_buffer(name, x, persistent=False)

  def forward(self, image, text):
    """Embeds images [batch, 3, h, w] and token ids."""
    image = (image.float() - self.mean) / self.std
    mask = (text != 0).long()
    tokens = self.text(input_ids=text, attention_mask=mask).last_hidden_state
    return self.of_image(self.image(image)), self.of_text(tokens[:, 0])


class _OfTransformers(torch.nn.Module):
  """ResNet-50 of transformers with the layout of timm's."""

  def __init__(self):
    super().__init__()
    config = transformers.ResNetConfig(downsample_in_bottleneck=False)
    self.model = transformers.ResNetModel(config)

  def forward(self, image):
    return self.model(image).pooler_output.flatten(1)
