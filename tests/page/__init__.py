"""The page in a browser, Debian's Chromium: `make test-page`. Not part of `make test`, which needs no browser."""
