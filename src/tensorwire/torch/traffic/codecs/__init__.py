"""How the bytes of a message follow from a tensor. `Codec` says what one has to do."""
