"""A rollout tree as a picture: layout, folds, numbers and SVG, without a browser or a server."""
