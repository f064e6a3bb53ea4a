"""Past one machine: sweeps over many, and one network split over several."""
