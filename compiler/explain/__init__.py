"""What every error code means: a text for each, with a wrong example and its mending. The texts are the .toml files here"""
