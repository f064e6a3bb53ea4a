"""All-reduce over plans: what is added where, and who is sent what."""
