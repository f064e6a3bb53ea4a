"""One network split over several hosts: which host has which part, and how the parts are held together."""
