"""What every error code means: a text for each, with a wrong example and its correction. The texts are the .toml files here"""
