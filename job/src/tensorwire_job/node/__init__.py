"""Code that runs once per machine: it reads the pages of its ranks and asks the kernel about their processes."""
