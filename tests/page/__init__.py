"""The page in a browser, Debian's Chromium: `make test-page`. `make test` needs no browser; `.ci/run` has both."""
