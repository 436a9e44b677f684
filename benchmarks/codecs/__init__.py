"""Codecs on tensors in memory and on whole files, which `make bench` measures; and what single coders cost."""
