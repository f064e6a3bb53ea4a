"""What each link's state is to be, when, and what it measures to be."""
