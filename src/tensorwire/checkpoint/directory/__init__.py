"""The files of a checkpoint directory beside its tensors: their names, the manifest, what has to be rewritten."""
