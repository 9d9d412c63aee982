"""A comparison as one page: a file of HTML with everything in it, that fetches nothing; see `build`."""
