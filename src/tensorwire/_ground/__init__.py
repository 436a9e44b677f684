"""What every part may import: text, the libraries of this installation, the version, paths, destinations."""
