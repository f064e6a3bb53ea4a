"""Which plan is to follow: plans foreseen, judged, and adopted or not."""
