"""Programs that are not ours on a network's workers: what each is told, what it says, and how all start and end."""
