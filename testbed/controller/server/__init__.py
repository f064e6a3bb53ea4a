"""Who speaks with the controller: members, the run, people; and how each shows who it is."""
