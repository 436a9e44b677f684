"""What objects of tensorwire.torch say of themselves: one line, which nothing is read for."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tensorwire.torch import compress_module, decode_ahead, memory_report  # noqa: E402
from tensorwire.torch.dcp import TensorwireReader, TensorwireWriter  # noqa: E402
from tests.support.versions import torch_since  # noqa: E402


def test_what_torch_uses() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)).bfloat16()
    compress_module(layers)
    assert repr(memory_report(layers)).startswith("<MemoryReport 2 modules, 263 kB in ")
    with decode_ahead(layers) as ahead:
        assert repr(ahead) == "<DecodeAhead 2 weights>"
    assert repr(TensorwireWriter("ck", profile="compact")) == "<TensorwireWriter ck, compact>"
    assert repr(TensorwireReader("ck", base="old")) == "<TensorwireReader ck, relative>"
    assert repr(TensorwireWriter("s3://key:secret@bucket/ck")) == "<TensorwireWriter s3://bucket/ck, fast>"


@torch_since(2, 12)
def test_an_attachment() -> None:
    from tensorwire.torch.traffic.attach.attachment import Attachment

    model = torch.nn.Sequential()
    attachment = Attachment(model)
    assert repr(attachment) == "<Attachment Sequential, step 0, 0 exchanges>"
    attachment.detach()
    assert repr(attachment) == "<Attachment Sequential, step 0, detached>"
