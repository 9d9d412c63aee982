"""The published algorithms once more, from the papers, in plain torch and double precision; none of it is our package.

`made` gives their numbers the layout of the fixtures, with names, shapes and models that those do not have.
"""
