"""The pages. A module has a view model, a pure function that makes it, and a handler."""
