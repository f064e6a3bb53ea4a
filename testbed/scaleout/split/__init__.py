"""One network over several hosts: who has which part of it, and how the parts are held together."""
