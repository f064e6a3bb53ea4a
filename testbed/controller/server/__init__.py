"""The members' server: connections, authentication, and secrets in files."""
