"""JSON of the view models of the pages, and what machines ask a server."""
