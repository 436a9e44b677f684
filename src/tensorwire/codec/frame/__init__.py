"""One frame: the calls of the core, what a header says, encoding and decoding by chunks, and frames with a base."""
