"""Publishers and followers of tensors on a device: frames alone come to the host (docs/sync.md)."""
