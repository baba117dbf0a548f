"""Servers on loopback that speak the APIs of clouds over local sandboxes, for tests of SDKs.

They are not the clouds: a test that uses them shows an SDK against our server, and says so.
"""
