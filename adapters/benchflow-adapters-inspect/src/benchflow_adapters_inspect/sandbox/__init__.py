"""The sandbox provider `benchflow` of Inspect. Needs the extra `inspect`."""
