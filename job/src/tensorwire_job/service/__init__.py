"""Code that runs once per job: observations from all nodes in, findings out."""
