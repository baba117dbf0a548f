"""Programs that run inside the sandbox, as text handed to its `python3 -IS -c`."""
