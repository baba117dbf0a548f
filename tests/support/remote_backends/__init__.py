"""Clouds as backends of one task: a module for each, named as its sandbox.

`account(local, images)` of a module is an async context manager. It serves an account of the cloud
over the sandboxes of `local`, and yields a provider and the server. `images` are specs of `local`
by the names of images of the account. The server has `creations`, the number of sandboxes that it
created, `made`, those that exist, and `remove(id)`, which takes one away. Nothing runs on a real
cloud.
"""
