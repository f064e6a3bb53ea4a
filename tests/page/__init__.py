"""The page in Debian's Chromium: `make test-page`. `make test` needs no browser; `.ci/run` runs both."""
