"""A language model that stays compressed while it runs, beside the same model dense and beside what others offer."""
